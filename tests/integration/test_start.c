/* SPDX-License-Identifier: Apache-2.0
 * How the daemon starts, reloads and keeps its socket. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "harness_parts.h"
#include "harness_raw.h"

static char out[65536];

/* Runs a daemon that should refuse to start; returns its exit code. */
static int refused(const char *option, const char *value)
{
	char *argv[] = {(char *)program("NCCLSVCD"), (char *)option, (char *)value, NULL};
	return run_program(argv, out, sizeof(out));
}

static void a_socket_path_that_does_not_fit_is_refused(void **state)
{
	char path[300] = "/tmp/";
	(void)state;
	memset(path + 5, 'x', sizeof(path) - 6);
	CHECK(refused("--socket", path) != 0);
	CHECK(strstr(out, "107") || strstr(out, "long"));
	/* A path one byte too long, and the longest valid path. */
	path[5 + 108 - 5] = '\0';
	CHECK_EQ(strlen(path), 108);
	CHECK(refused("--socket", path) != 0);
}

static void bad_options_are_refused_by_name(void **state)
{
	(void)state;
	CHECK(refused("--ranks", "0") != 0);
	CHECK(strstr(out, "ranks"));
	CHECK(refused("--no-such-option", "1") != 0);
	CHECK(strstr(out, "no-such-option"));
	CHECK(refused("--device", "cuda") != 0);
	CHECK(strstr(out, "cuda"));
	CHECK_EQ(refused("--version", NULL), 0);
	CHECK(strstr(out, ncclsvc_version()));
	CHECK_EQ(refused("--help", NULL), 0);
	CHECK(strstr(out, "--socket"));
	CHECK_EQ(refused("--check-config", NULL), 0);
	CHECK(strstr(out, "hello_seconds"));
}

static void a_live_daemons_socket_is_not_stolen(void **state)
{
	struct daemon d;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	CHECK(refused("--socket", d.socket) != 0);
	CHECK(strstr(out, d.socket));
	ncclsvc_daemon_info info;
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.pid, d.pid);
	ncclsvc_close(s);
	s = session_open(&d);
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.pid, d.pid);
	ncclsvc_close(s);
	daemon_stop(&d);
}

static void a_stale_socket_is_replaced(void **state)
{
	struct daemon d;
	struct stat before, after;
	(void)state;
	daemon_start(&d, NULL);
	daemon_kill(&d);
	CHECK_EQ(stat(d.socket, &before), 0);
	daemon_restart(&d, NULL);
	CHECK_EQ(stat(d.socket, &after), 0);
	CHECK(before.st_ino != after.st_ino || before.st_ctime != after.st_ctime ||
	      before.st_mtim.tv_nsec != after.st_mtim.tv_nsec);
	CHECK_EQ(after.st_mode & 0777, 0600);
	daemon_stop(&d);
}

/* Waits until a daemon accepts a new client on the socket; returns its pid. */
static pid_t daemon_that_serves(const struct daemon *d)
{
	ncclsvc_daemon_info info;
	struct raw r;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !raw_try_connect(&r, d->socket);
	     sleep_ms(5))
		CHECK(now_ns() < end);
	raw_close(&r);
	ncclsvc_session *s = session_open(d);
	CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	return info.pid;
}

static void remove_all(const struct daemon *d)
{
	static const char *const files[] = {"", ".lock", ".admin", ".admin.lock"};
	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char path[sizeof(d->socket) + 16];
		snprintf(path, sizeof(path), "%s%s", d->socket, files[i]);
		CHECK_EQ(unlink(path), 0);
	}
	CHECK_EQ(unlink(d->log), 0);
	CHECK_EQ(rmdir(d->dir), 0);
}

static void a_removed_socket_is_served_again(void **state)
{
	struct daemon d;
	ncclsvc_daemon_info info;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(unlink(d.socket), 0);
		CHECK_EQ(daemon_that_serves(&d), d.pid);
	}
	CHECK(daemon_logged(&d, "the daemon serves it again"));
	CHECK(refused("--socket", d.socket) != 0);
	CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	daemon_stop(&d);
}

static void a_removed_directory_is_served_again(void **state)
{
	struct daemon d;
	ncclsvc_daemon_info info;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	remove_all(&d);
	CHECK_EQ(daemon_that_serves(&d), d.pid);
	CHECK(refused("--socket", d.socket) != 0);
	CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* Another daemon can take a daemon's path only if the directory is removed while the first daemon
 * cannot run. */
static void a_daemon_whose_path_another_serves_ends(void **state)
{
	struct daemon d;
	int status;
	(void)state;
	daemon_start(&d, NULL);
	const pid_t old = d.pid;
	daemon_unwatch(&d);
	process_stop(old);
	remove_all(&d);
	CHECK_EQ(mkdir(d.dir, 0711), 0);
	daemon_restart(&d, NULL);
	CHECK_EQ(kill(old, SIGCONT), 0);
	CHECK(reap(old, &status, WAIT_MS));
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), EXIT_FAILURE);
	CHECK_EQ(daemon_that_serves(&d), d.pid);
	daemon_stop(&d);
}

static void a_file_or_another_program_in_the_way_is_left_alone(void **state)
{
	char path[] = "/tmp/ncclsvc-test-file-XXXXXX", lock[64];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct stat st;
	(void)state;
	int fd = mkostemp(path, O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(refused("--socket", path) != 0);
	CHECK(strstr(out, path));
	CHECK_EQ(stat(path, &st), 0);
	CHECK(S_ISREG(st.st_mode));
	close(fd);
	unlink(path);
	/* The socket of an unrelated program. */
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQ(listen(fd, 1), 0);
	CHECK(refused("--socket", path) != 0);
	CHECK_EQ(stat(path, &st), 0);
	CHECK(S_ISSOCK(st.st_mode));
	close(fd);
	unlink(path);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	unlink(lock);
}

static void sighup_rereads_the_configuration(void **state)
{
	struct daemon d;
	char path[] = "/tmp/ncclsvc-test-conf-XXXXXX";
	(void)state;
	int fd = mkostemp(path, O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(dprintf(fd, "sessions_max = 3\n") > 0);
	daemon_start(&d, "--config", path, NULL);
	ncclsvc_session *s = session_open(&d);
	ncclsvc_daemon_info info;
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.sessions_max, 3);
	CHECK_EQ(ftruncate(fd, 0), 0);
	CHECK(pwrite(fd, "sessions_max = 7\n", 17, 0) == 17);
	CHECK_EQ(kill(d.pid, SIGHUP), 0);
	for (int i = 0; info.sessions_max != 7 && i < 1000; i++, sleep_ms(5))
		CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.sessions_max, 7);
	/* An invalid configuration file has no effect. */
	CHECK(pwrite(fd, "sessions_max = x\n", 17, 0) == 17);
	CHECK_EQ(kill(d.pid, SIGHUP), 0);
	CHECK(daemon_logged(&d, "nothing was changed"));
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.sessions_max, 7);
	ncclsvc_close(s);
	close(fd);
	unlink(path);
	daemon_stop(&d);
}

static uint64_t cpu_ticks(pid_t pid)
{
	char path[64], text[1024];
	unsigned long user, system;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *f = fopen(path, "re");
	CHECK(f);
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	char *after = strrchr(text, ')');
	CHECK(after);
	CHECK_EQ(sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			&system),
		 2);
	return user + system;
}

/* How often the process's threads have slept. */
static uint64_t switches(pid_t pid)
{
	char path[320], line[256];
	unsigned long n = 0, all = 0;
	const struct dirent *thread;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *threads = opendir(path);
	CHECK(threads);
	while ((thread = readdir(threads))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%s/status", pid, thread->d_name);
		FILE *f = thread->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (!f)
			continue;
		while (fgets(line, sizeof(line), f))
			if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
				all += n;
		fclose(f);
	}
	closedir(threads);
	return all;
}

/* An idle daemon uses no CPU time and does not wake up. */
static void an_idle_daemon_sleeps(void **state)
{
	struct daemon d;
	struct raw r;
	(void)state;
	if (sanitized())
		skip_because("a sanitizer's own threads do not sleep");
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 16);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_record barrier = {
		.comm = comm.comm, .epoch = comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, barrier)).result, 0);
	/* The session's cleanup may take a while on a busy machine. */
	uint64_t ticks, woken;
	const uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	do {
		CHECK(now_ns() < end && "an idle daemon sleeps");
		ticks = cpu_ticks(d.pid);
		woken = switches(d.pid);
		sleep_ms(2000);
	} while (cpu_ticks(d.pid) != ticks || switches(d.pid) != woken);
	raw_close(&r);
	daemon_stop(&d);
}

/* Sets the variables that srun sets for a task, and sbatch for a script; NULL unsets. */
static void tell_of_slurm(const char *job_tasks, const char *step_tasks)
{
	const char *const names[] = {"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"};
	const char *const values[] = {job_tasks, step_tasks};
	for (int i = 0; i < 2; i++)
		CHECK_EQ(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
}

static void tasks_of_slurm_that_cannot_connect_are_refused(void **state)
{
	static const char *const mpi[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
	struct daemon d;
	(void)state;
	for (size_t i = 0; i < sizeof(mpi) / sizeof(mpi[0]); i++)
		unsetenv(mpi[i]);
	tell_of_slurm("2", "2");
	CHECK_EQ(refused("--socket", "/tmp/ncclsvc-test-slurm"), 1);
	CHECK(strstr(out, "2 tasks"));
	CHECK(strstr(out, "srun --mpi=pmix"));
	CHECK(strstr(out, "--cluster-bootstrap none"));
	CHECK(access("/tmp/ncclsvc-test-slurm", F_OK) < 0);
	daemon_start(&d, "--cluster-bootstrap", "none", NULL);
	daemon_stop(&d);
	/* The only task of a step, and a larger job's batch script, may start a daemon. */
	tell_of_slurm("1", "1");
	daemon_start(&d, NULL);
	daemon_stop(&d);
	tell_of_slurm("2", NULL);
	daemon_start(&d, NULL);
	daemon_stop(&d);
	tell_of_slurm(NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_socket_path_that_does_not_fit_is_refused),
		TEST(bad_options_are_refused_by_name),
		TEST(a_live_daemons_socket_is_not_stolen),
		TEST(a_stale_socket_is_replaced),
		TEST(a_removed_socket_is_served_again),
		TEST(a_removed_directory_is_served_again),
		TEST(a_daemon_whose_path_another_serves_ends),
		TEST(a_file_or_another_program_in_the_way_is_left_alone),
		TEST(sighup_rereads_the_configuration),
		TEST(an_idle_daemon_sleeps),
		TEST(tasks_of_slurm_that_cannot_connect_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
