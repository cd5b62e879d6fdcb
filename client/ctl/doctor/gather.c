/* SPDX-License-Identifier: Apache-2.0
 * Gathers the facts, each with its own time limit. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "doctor.h"
#include "proto/abi/cuda_connections.h"
#include "proto/names.h"

#define DRIVER_MS 10000 /* time for the driver to start */
#define REAP_MS	  1000	/* a process inside a system call may not even die */
#define STEP_MS	  5

/* ---- The driver ---- */

/* False: it has not ended within that time. */
static bool wait_for(pid_t pid, int ms, int *status)
{
	for (int waited = 0;; waited += STEP_MS) {
		pid_t done = waitpid(pid, status, WNOHANG);
		if (done == pid || (done < 0 && errno != EINTR))
			return done == pid;
		if (waited >= ms)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
	}
}

static pid_t start_driver(int file)
{
	char name[] = "ncclsvc-ctl", command[] = DOCTOR_DRIVER_COMMAND;
	char *argv[] = {name, command, NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid = -1;
	if (posix_spawn_file_actions_init(&actions))
		return -1;
	/* The driver's own messages would obscure the text that explains them. */
	int error =
		posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (!error)
		error = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null",
							 O_WRONLY, 0);
	if (!error)
		error = posix_spawn_file_actions_adddup2(&actions, file, DOCTOR_DRIVER_FD);
	if (!error)
		error = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return error ? -1 : pid;
}

static void gather_driver(struct doctor_facts *f)
{
	int status = 0;
	f->end = DOCTOR_NOT_RUN;
	int file = memfd_create("ncclsvc-doctor", MFD_CLOEXEC);
	if (file == DOCTOR_DRIVER_FD) { /* dup2 would leave it close-on-exec */
		file = fcntl(file, F_DUPFD_CLOEXEC, DOCTOR_DRIVER_FD + 1);
		close(DOCTOR_DRIVER_FD);
	}
	pid_t pid = file < 0 ? -1 : start_driver(file);
	if (pid > 0) {
		if (!wait_for(pid, DRIVER_MS, &status)) {
			f->end = DOCTOR_HUNG;
			kill(pid, SIGKILL);
			wait_for(pid, REAP_MS, &status);
		} else if (WIFSIGNALED(status)) {
			f->end = DOCTOR_CRASHED;
			f->end_signal = WTERMSIG(status);
		} else if (!WEXITSTATUS(status)) {
			f->end = DOCTOR_ENDED;
		}
		if (pread(file, &f->driver, sizeof(f->driver), 0) != (ssize_t)sizeof(f->driver))
			f->driver = (struct doctor_driver){0};
	}
	if (file >= 0)
		close(file);
}

/* ---- The daemon ---- */

static void gather_socket(struct doctor_facts *f, const char *path)
{
	struct stat st;
	if (!svc_socket_path(path, f->socket, sizeof(f->socket))) {
		f->socket_error = ENAMETOOLONG;
		return;
	}
	f->socket_error = stat(f->socket, &st) ? errno : 0;
	if (f->socket_error)
		return;
	f->socket_mode = st.st_mode;
	f->socket_uid = st.st_uid;
	f->socket_gid = st.st_gid;
	f->socket_writable = !access(f->socket, W_OK);
}

static void gather_comms(struct doctor_facts *f, ncclsvc_session *session)
{
	ncclsvc_comm_info *comms = NULL;
	size_t n = 0;
	if (ncclsvc_list_comms(session, &comms, &n))
		return;
	for (size_t i = 0; i < n; i++) {
		if (comms[i].peer_source != NCCLSVC_PEER_SHARED_GPU)
			continue;
		f->shared_gpu++;
		memcpy(f->shared_gpu_label, comms[i].label, sizeof(f->shared_gpu_label));
		f->shared_gpu_label[sizeof(f->shared_gpu_label) - 1] = '\0';
	}
	ncclsvc_list_free(comms);
}

static void gather_daemon(struct doctor_facts *f, const char *path, int timeout_ms)
{
	ncclsvc_session *session = NULL;
	ncclsvc_options options = {
		.size = sizeof(options),
		.socket = path,
		.name = "ncclsvc-ctl",
		.no_ring = true,
		.timeout_ms = timeout_ms,
	};
	ncclsvc_result result = ncclsvc_open(&options, &session);
	if (result == NCCLSVC_OK)
		result = ncclsvc_daemon(session, &f->daemon);
	if (result == NCCLSVC_OK)
		result = ncclsvc_list_devices(session, &f->devices, &f->ndevices);
	f->connected = result == NCCLSVC_OK;
	if (f->connected)
		gather_comms(f, session);
	else
		snprintf(f->daemon_text, sizeof(f->daemon_text), "%s", ncclsvc_last_error());
	f->daemon.mps_text[sizeof(f->daemon.mps_text) - 1] = '\0';
	for (size_t i = 0; i < f->ndevices; i++) {
		ncclsvc_device_info *d = &f->devices[i];
		d->name[sizeof(d->name) - 1] = d->text[sizeof(d->text) - 1] = '\0';
	}
	ncclsvc_close(session);
}

/* ---- This process ---- */

static bool is_device(const char *name)
{
	if (strncmp(name, "nvidia", 6))
		return false;
	name += 6;
	return !strcmp(name, "ctl") || !strcmp(name, "-uvm") || isdigit((unsigned char)*name);
}

static void gather_files(struct doctor_facts *f)
{
	DIR *directory = opendir("/dev");
	const struct dirent *entry;
	while (directory && f->nfiles < DOCTOR_FILES && (entry = readdir(directory))) {
		struct doctor_file *x = &f->files[f->nfiles];
		if (!is_device(entry->d_name) || strlen(entry->d_name) > 20)
			continue;
		snprintf(x->path, sizeof(x->path), "/dev/%.20s", entry->d_name);
		int fd = open(x->path, O_RDWR | O_CLOEXEC);
		x->error = fd < 0 ? errno : 0;
		if (fd >= 0)
			close(fd);
		f->nfiles++;
	}
	if (directory)
		closedir(directory);
}

static uint64_t limit(int which)
{
	struct rlimit l;
	if (getrlimit(which, &l) || l.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return l.rlim_cur;
}

static void gather_self(struct doctor_facts *f)
{
	struct statvfs shm;
	f->uid = geteuid();
	f->visible = getenv("CUDA_VISIBLE_DEVICES");
	f->connections = getenv(CUDA_CONNECTIONS_VARIABLE);
	f->memlock = limit(RLIMIT_MEMLOCK);
	f->nofile = limit(RLIMIT_NOFILE);
	f->shm_error = statvfs("/dev/shm", &shm) ? errno : 0;
	if (!f->shm_error)
		f->shm_bytes = (uint64_t)shm.f_blocks * shm.f_frsize;
	mps_look(&f->mps);
}

/* Opening the session sets the environment as in a trainer, so it precedes the checks of that
 * environment. */
void doctor_gather(struct doctor_facts *f, const char *path, int timeout_ms)
{
	memset(f, 0, sizeof(*f));
	f->library = ncclsvc_version();
	f->kernels = ncclsvc_has_kernels();
	f->peer = getenv("NCCLSVC_PEER");
	f->mps_chosen = mps_chosen();
	gather_socket(f, path);
	gather_daemon(f, path, timeout_ms);
	gather_self(f);
	gather_files(f);
	gather_driver(f);
}

void doctor_facts_free(struct doctor_facts *f)
{
	ncclsvc_list_free(f->devices);
	f->devices = NULL;
	f->ndevices = 0;
}
