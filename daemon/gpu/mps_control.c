/* SPDX-License-Identifier: Apache-2.0 */
#include "mps_control.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/timings.h"
#include "proto/cuda/mps.h"
#include "proto/fdio.h"

#define PROGRAM	 "nvidia-cuda-mps-control"
#define PID_FILE PROGRAM ".pid" /* which it writes into its directory */
#define LOG_NAME "CUDA_MPS_LOG_DIRECTORY"
#define SUFFIX	 ".mps"
/* A control daemon left to its clients has a dot and a pid appended to its directory's name. */
#define OWN_MAX	 (NCCLSVC_MPS_DIRECTORY_MAX - 8)

/* ---- The program ---- */

/* In containers, the driver's programs may be mounted outside of PATH. */
static const char places[] = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:"
			     "/run/nvidia/driver/usr/bin:/run/current-system/sw/bin";

static bool find_in(const char *list, char *program, size_t size)
{
	for (const char *end; *list; list = *end ? end + 1 : end) {
		end = strchrnul(list, ':');
		int n = snprintf(program, size, "%.*s/%s", (int)(end - list), list, PROGRAM);
		if (*list == '/' && n > 0 && (size_t)n < size && !access(program, X_OK))
			return true;
	}
	return false;
}

/* ---- The directory ---- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)at;
	return type == FTW_DP ? rmdir(path) : unlink(path);
}

static void remove_directory(const char *path)
{
	nftw(path, remove_entry, 4, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* In a directory like /tmp, another user may have been there first. */
static bool is_ours(const char *path)
{
	struct stat st;
	return !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & (S_IRWXG | S_IRWXO));
}

/* Removes the directories of control daemons that were left to their clients and have exited. */
static void sweep(const char *directory)
{
	char pattern[NCCLSVC_MPS_DIRECTORY_BYTES + 16];
	glob_t found;
	snprintf(pattern, sizeof(pattern), "%s.[0-9]*", directory);
	if (glob(pattern, GLOB_NOSORT, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		struct mps m;
		mps_look_at(&m, found.gl_pathv[i]);
		if (m.state != MPS_RUNNING && is_ours(found.gl_pathv[i]))
			remove_directory(found.gl_pathv[i]);
	}
	globfree(&found);
}

static int lock(const char *directory, char *why, size_t size)
{
	char path[NCCLSVC_MPS_DIRECTORY_BYTES + 16];
	snprintf(path, sizeof(path), "%s/owner", directory);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		snprintf(why, size, "cannot create %s: %s", path, strerror(errno));
		return -1;
	}
	if (!flock(fd, LOCK_EX | LOCK_NB))
		return fd;
	snprintf(why, size, "another daemon owns %s", directory);
	close(fd);
	return -1;
}

int mps_control_open(struct mps_control *c, const char *socket, char *why, size_t size)
{
	const char *path = getenv("PATH");
	*c = (struct mps_control){.lock_fd = -1, .pid_fd = -1};
	if (!(path && find_in(path, c->program, sizeof(c->program))) &&
	    !find_in(places, c->program, sizeof(c->program))) {
		snprintf(why, size, "%s is not installed, or not in PATH", PROGRAM);
		return -1;
	}
	if (socket[0] != '/') {
		snprintf(why, size,
			 "its directory belongs beside the daemon's socket, which has no path");
		return -1;
	}
	const size_t most = OWN_MAX - (sizeof(SUFFIX) - 1);
	if (strlen(socket) > most) {
		snprintf(why, size,
			 "its directory belongs beside the daemon's socket, whose path is longer "
			 "than %zu bytes",
			 most);
		return -1;
	}
	snprintf(c->directory, sizeof(c->directory), "%s%s", socket, SUFFIX);
	if (mkdir(c->directory, 0700) && errno != EEXIST) {
		snprintf(why, size, "cannot create %s: %s", c->directory, strerror(errno));
		return -1;
	}
	if (!is_ours(c->directory)) {
		snprintf(why, size,
			 "%s is not a directory that only this user can access: remove it",
			 c->directory);
		return -1;
	}
	c->lock_fd = lock(c->directory, why, size);
	if (c->lock_fd < 0)
		return -1;
	sweep(c->directory);
	return 0;
}

/* ---- Processes ---- */

static bool is_named(const char *variable, const char *name)
{
	const size_t n = strlen(name);
	return !strncmp(variable, name, n) && variable[n] == '=';
}

/* It must show all GPUs to its clients, which choose among them: with its own CUDA_VISIBLE_DEVICES,
 * their numbers would be relative to that. A service manager's variables are for this process only.
 */
static bool is_kept(const char *variable)
{
	static const char *const names[] = {
		MPS_VARIABLE,	 "LD_PRELOAD",	   LOG_NAME,	    "CUDA_VISIBLE_DEVICES",
		"NOTIFY_SOCKET", "WATCHDOG_PID",   "WATCHDOG_USEC", "LISTEN_PID",
		"LISTEN_FDS",	 "LISTEN_FDNAMES",
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (is_named(variable, names[i]))
			return false;
	return true;
}

/* NULL: no memory. The caller frees the array, but not the strings. */
static char **environment_for(char *pipe, char *log)
{
	size_t n = 0, kept = 0;
	while (environ[n])
		n++;
	char **list = calloc(n + 3, sizeof(*list));
	for (size_t i = 0; list && i < n; i++)
		if (is_kept(environ[i]))
			list[kept++] = environ[i];
	if (list) {
		list[kept++] = pipe;
		list[kept] = log;
	}
	return list;
}

/* Runs the program in its own session, so that signals from a terminal do not reach it. in, out:
 * its standard input and output. Returns 0 or -errno. */
static int spawn(const struct mps_control *c, char *argument, int in, int out, pid_t *pid)
{
	char pipe[NCCLSVC_MPS_DIRECTORY_BYTES + sizeof(MPS_VARIABLE) + 1], log[sizeof(pipe)];
	char name[] = PROGRAM, *argv[] = {name, argument, NULL};
	posix_spawnattr_t attributes;
	posix_spawn_file_actions_t actions;
	sigset_t none, all;
	snprintf(pipe, sizeof(pipe), "%s=%s", MPS_VARIABLE, c->directory);
	snprintf(log, sizeof(log), "%s=%s", LOG_NAME, c->directory);
	char **environment = environment_for(pipe, log);
	if (!environment)
		return -ENOMEM;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
						      POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
	/* A pipe or lock inherited by this process must not outlive it. */
	posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	int error = posix_spawn(pid, c->program, &actions, &attributes, argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	free(environment);
	return -error;
}

static int output_file(const struct mps_control *c, int flags)
{
	char path[NCCLSVC_MPS_DIRECTORY_BYTES + 16];
	snprintf(path, sizeof(path), "%s/output", c->directory);
	return open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static int watch(struct mps_control *c, pid_t pid)
{
	c->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (c->pid_fd < 0)
		return -errno;
	c->pid = pid;
	return 0;
}

int mps_control_start(struct mps_control *c)
{
	char foreground[] = "-f";
	pid_t pid;
	int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int out = output_file(c, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
	int error = in < 0 || out < 0 ? -errno : spawn(c, foreground, in, out, &pid);
	if (in >= 0)
		close(in);
	if (out >= 0)
		close(out);
	if (error)
		return error;
	error = watch(c, pid);
	if (error) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return error;
}

/* Pids are reused, but this process was started for this directory. */
static bool was_started_here(const struct mps_control *c, pid_t pid)
{
	char path[64], own[NCCLSVC_MPS_DIRECTORY_BYTES + sizeof(MPS_VARIABLE) + 1];
	char *text = NULL;
	size_t size = 0;
	bool found = false;
	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	snprintf(own, sizeof(own), "%s=%s", MPS_VARIABLE, c->directory);
	FILE *f = fopen(path, "re");
	while (f && !found && getdelim(&text, &size, '\0', f) > 0)
		found = !strcmp(text, own);
	free(text);
	if (f)
		fclose(f);
	return found;
}

bool mps_control_adopt(struct mps_control *c)
{
	char path[NCCLSVC_MPS_DIRECTORY_BYTES + sizeof(PID_FILE) + 1], text[16] = "";
	int pid = 0;
	if (!mps_control_ready(c))
		return false;
	snprintf(path, sizeof(path), "%s/%s", c->directory, PID_FILE);
	const ssize_t n = svc_read_file(path, text, sizeof(text) - 1);
	if (n > 0)
		pid = atoi(text);
	/* The descriptor comes first, so that the check is about the process it refers to. */
	if (pid <= 0 || watch(c, pid))
		return false;
	if (was_started_here(c, pid))
		return true;
	close(c->pid_fd);
	c->pid_fd = -1;
	c->pid = 0;
	return false;
}

bool mps_control_ready(const struct mps_control *c)
{
	struct mps m;
	mps_look_at(&m, c->directory);
	return m.state == MPS_RUNNING;
}

static bool ends_within(int pid_fd, int ms)
{
	struct pollfd fd = {.fd = pid_fd, .events = POLLIN};
	int n;
	do
		n = poll(&fd, 1, ms);
	while (n < 0 && errno == EINTR);
	return n != 0;
}

bool mps_control_alive(const struct mps_control *c)
{
	return c->pid_fd >= 0 && !ends_within(c->pid_fd, 0);
}

/* The last line of its output, if any. */
static void last_words(const struct mps_control *c, char *text, size_t size)
{
	char buf[512];
	int fd = output_file(c, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, sizeof(buf) - 1);
	if (fd >= 0)
		close(fd);
	while (n > 0 && buf[n - 1] == '\n')
		n--;
	buf[n > 0 ? n : 0] = '\0';
	const char *line = strrchr(buf, '\n');
	snprintf(text, size, "%.*s", (int)size - 1, line ? line + 1 : buf);
}

void mps_control_kill(struct mps_control *c)
{
	if (c->pid_fd >= 0)
		syscall(SYS_pidfd_send_signal, c->pid_fd, SIGKILL, NULL, 0);
}

void mps_control_reap(struct mps_control *c, char *how, size_t size)
{
	char words[256];
	int status = 0;
	/* One that was taken over is not a child of this process. */
	const bool child = waitpid(c->pid, &status, WNOHANG) == c->pid;
	last_words(c, words, sizeof(words));
	if (child && WIFEXITED(status))
		snprintf(how, size, "exited with code %d%s%.200s", WEXITSTATUS(status),
			 words[0] ? ": " : "", words);
	else if (child && WIFSIGNALED(status))
		snprintf(how, size, "was ended by signal %d", WTERMSIG(status));
	else
		snprintf(how, size, "has ended");
	close(c->pid_fd);
	c->pid_fd = -1;
	c->pid = 0;
}

/* ---- The end ---- */

static uint64_t now_ms(void)
{
	return clock_now() / 1000000;
}

/* Reads a text until its end; -1 if that does not come within ms, or the text does not fit. */
static int read_answer(int fd, char *text, size_t size, int ms)
{
	const uint64_t end = now_ms() + (uint64_t)ms;
	for (size_t got = 0; got < size;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		const uint64_t now = now_ms();
		if (now >= end || poll(&p, 1, (int)(end - now)) <= 0)
			return -1;
		ssize_t n = read(fd, text + got, size - got);
		if (n < 0)
			return -1;
		if (!n) {
			text[got] = '\0';
			return 0;
		}
		got += (size_t)n;
	}
	return -1;
}

/* A pipe to its standard input with this command. */
static int question(const char *text)
{
	const size_t n = strlen(text);
	int fd = memfd_create("ncclsvc-mps", MFD_CLOEXEC);
	if (fd >= 0 && (write(fd, text, n) != (ssize_t)n || lseek(fd, 0, SEEK_SET))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Do processes use the GPUs through it? A missing or unknown answer counts as yes. */
static bool has_clients(const struct mps_control *c)
{
	char answer[4096];
	int ends[2], in = question("ps\n");
	pid_t pid;
	if (in < 0 || pipe2(ends, O_CLOEXEC)) {
		if (in >= 0)
			close(in);
		return true;
	}
	int error = spawn(c, NULL, in, ends[1], &pid);
	close(in);
	close(ends[1]);
	const int late = error ? -1 : read_answer(ends[0], answer, sizeof(answer), MPS_ANSWER_MS);
	close(ends[0]);
	if (!error) {
		kill(pid, SIGKILL); /* if it still exists */
		waitpid(pid, NULL, 0);
	}
	if (late)
		return true;
	/* A heading, and a line per client. Driver 580 prints nothing if its server has no client,
	 * and "Server not found" before the first one. */
	const char *rest = strchrnul(answer, '\n');
	return isdigit((unsigned char)answer[0]) || rest[strspn(rest, " \n")];
}

/* The process that asks the control daemon to quit waits until it has done so, and may outlive this
 * process. */
static pid_t leave(struct mps_control *c)
{
	char left[NCCLSVC_MPS_DIRECTORY_BYTES + 16];
	const pid_t control = c->pid;
	pid_t asker;
	snprintf(left, sizeof(left), "%s.%d", c->directory, (int)control);
	if (rename(c->directory, left))
		return control;
	snprintf(c->directory, sizeof(c->directory), "%.*s", (int)sizeof(c->directory) - 1, left);
	int in = question("quit\n"), out = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (in >= 0 && out >= 0)
		spawn(c, NULL, in, out, &asker);
	if (in >= 0)
		close(in);
	if (out >= 0)
		close(out);
	return control;
}

pid_t mps_control_close(struct mps_control *c)
{
	char how[256];
	pid_t left = 0;
	if (c->lock_fd < 0)
		return 0;
	if (mps_control_alive(c) && has_clients(c)) {
		left = leave(c);
		close(c->pid_fd);
		c->pid_fd = -1;
	} else {
		/* It does not handle the signal, and its server ends with it. */
		if (c->pid_fd >= 0)
			syscall(SYS_pidfd_send_signal, c->pid_fd, SIGTERM, NULL, 0);
		if (c->pid_fd >= 0 && !ends_within(c->pid_fd, MPS_END_MS))
			mps_control_kill(c);
		if (c->pid_fd >= 0 && ends_within(c->pid_fd, MPS_END_MS))
			mps_control_reap(c, how, sizeof(how));
		remove_directory(c->directory);
	}
	close(c->lock_fd);
	c->lock_fd = -1;
	return left;
}
