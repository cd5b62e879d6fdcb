/* SPDX-License-Identifier: Apache-2.0
 * The daemon under test: start, watch, stop. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness_parts.h"
#include "harness_raw.h"
#include "node_daemons.h"
#include "proto/cuda/mps.h"

#define DAEMONS_MAX 8
#define ARGS_MAX    64
/* Copies: a failed test's own structs were on a stack that is gone. */
static struct daemon alive[DAEMONS_MAX];

const char *program(const char *variable)
{
	const char *path = getenv(variable);
	if (!path || access(path, X_OK))
		check_failed(__FILE__, __LINE__, "$%s must name the program to test", variable);
	return path;
}

static bool starts_with(const char *text, const char *start)
{
	return !strncmp(text, start, strlen(start));
}

static bool is_daemon_variable(const char *variable)
{
	return starts_with(variable, "NCCLSVCD_");
}

/* The client library's variables, except those of the stand-ins for CUDA and NCCL, and the mark
 * that the library has set this process's MPS directory. */
static bool is_client_variable(const char *variable)
{
	return starts_with(variable, "NCCLSVC_") && !starts_with(variable, "NCCLSVC_FAKE_") &&
	       !starts_with(variable, MPS_LED_VARIABLE "=");
}

static void remove_variables(bool (*match)(const char *variable))
{
	extern char **environ;
	char name[128];
	for (char **e = environ; *e;) {
		size_t n = strcspn(*e, "=");
		if (match(*e) && n < sizeof(name)) {
			memcpy(name, *e, n);
			name[n] = '\0';
			unsetenv(name);
			e = environ;
		} else {
			e++;
		}
	}
}

/* Removes the developer's own settings before any test, so that only tests configure their daemons.
 * $NCCLSVC_TEST_CLUSTER_BOOTSTRAP runs a test with another cluster_bootstrap. */
__attribute__((constructor)) static void remove_settings(void)
{
	const char *bootstrap = getenv("NCCLSVC_TEST_CLUSTER_BOOTSTRAP");
	remove_variables(is_daemon_variable);
	if (bootstrap)
		setenv("NCCLSVCD_CLUSTER_BOOTSTRAP", bootstrap, 1);
}

static void clean_environment(void)
{
	remove_variables(is_client_variable);
	/* Keep out the results and failures that this machine's own daemon has stored. */
	setenv("STATE_DIRECTORY", "/dev/null", 0);
}

/* Starts argv with stdout and stderr in fd. */
static pid_t spawn(char *const argv[], int fd)
{
	pid_t parent = getpid();
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	clean_environment();
	signal(SIGALRM, SIG_DFL);
	alarm(0);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	execv(argv[0], argv);
	dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static size_t read_file(const char *path, char *text, size_t size)
{
	size_t n = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		for (ssize_t k; n < size - 1 && (k = read(fd, text + n, size - 1 - n)) > 0;)
			n += (size_t)k;
		close(fd);
	}
	text[n] = '\0';
	return n;
}

struct usage daemon_usage(const struct daemon *d)
{
	struct usage u = {0};
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/fd", d->pid);
	DIR *dir = opendir(path);
	CHECK(dir);
	for (struct dirent *e; (e = readdir(dir));)
		u.fds += e->d_name[0] != '.';
	closedir(dir);
	snprintf(path, sizeof(path), "/proc/%d/maps", d->pid);
	FILE *f = fopen(path, "re");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		u.memfds += strstr(line, "/memfd:") != NULL;
	fclose(f);
	snprintf(path, sizeof(path), "/proc/%d/status", d->pid);
	f = fopen(path, "re");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "VmRSS: %ld", &u.rss_kib);
	fclose(f);
	return u;
}

void daemon_finishes(const struct daemon *d)
{
	struct usage u = {0};
	for (uint64_t end = now_ns() + FINISH_MS * 1000000ull, now = 0; now < end; sleep_ms(5)) {
		now = now_ns();
		u = daemon_usage(d);
		/* A worker that has ended leaves no socket. */
		if (u.fds <= d->base.fds && u.memfds == d->base.memfds)
			return;
	}
	check_failed(__FILE__, __LINE__,
		     "the daemon has %d fds and %d mapped memfds, but had %d and %d", u.fds,
		     u.memfds, d->base.fds, d->base.memfds);
}

/* Returns the daemon's usage once it has stayed the same for `looks` looks. With `after`, it must
 * also have fewer fds than that and as many memfds: a daemon that gets no time to run still holds
 * what the client has closed. */
static struct usage still(const struct daemon *d, const struct usage *after, int looks)
{
	struct usage u = daemon_usage(d);
	const uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	for (int same = 0; same < looks && now_ns() < end;) {
		sleep_ms(5);
		const struct usage v = daemon_usage(d);
		const bool over = !after || (v.fds < after->fds && v.memfds == after->memfds);
		same = over && v.fds == u.fds && v.memfds == u.memfds ? same + 1 : 0;
		u = v;
	}
	return u;
}

/* Runs a session that uses a ring, a region and a communicator; *before: the daemon's usage with
 * only a connection. */
static void warm_up(const struct daemon *d, struct usage *before)
{
	struct raw r;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !raw_try_connect(&r, d->socket);
	     sleep_ms(2)) {
		int status;
		if (now_ns() > end || waitpid(d->pid, &status, WNOHANG))
			check_failed(__FILE__, __LINE__, "the daemon does not serve %s", d->socket);
	}
	raw_hello(&r);
	*before = still(d, NULL, 4);
	raw_attach(&r, SVC_RING_MIN);
	struct raw_region region = raw_region(&r, SVC_PAGE);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_record barrier = {
		.comm = comm.comm, .epoch = comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	CHECK_EQ(raw_submit_wait(&r, barrier).result, 0);
	raw_region_close(&region);
	raw_close(&r);
}

/* A daemon without sessions may hold as much as a new one does after its first session. */
static void note_base(struct daemon *d)
{
	struct usage before;
	warm_up(d, &before);
	const struct usage u = still(d, &before, 10);
	CHECK(u.fds < before.fds);
	CHECK_EQ(u.memfds, before.memfds);
	d->base = u;
}

/* With NCCLSVCD_NEXT, another build takes its turn. */
static const char *next_program(void)
{
	static unsigned launches;
	return launches++ % 2 && getenv("NCCLSVCD_NEXT") ? program("NCCLSVCD_NEXT")
							 : program("NCCLSVCD");
}

static void launch(struct daemon *d, va_list options)
{
	char *argv[ARGS_MAX] = {(char *)next_program(), "--socket", d->socket, "--log-target",
				"stderr"};
	int n = 5;
	for (char *option; (option = va_arg(options, char *));) {
		CHECK(n < ARGS_MAX - 1);
		argv[n++] = option;
	}
	int fd = open(d->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	d->pid = spawn(argv, fd);
	close(fd);
	int i = 0;
	while (i < DAEMONS_MAX && alive[i].pid)
		i++;
	CHECK(i < DAEMONS_MAX);
	alive[i] = *d;
}

void daemon_start(struct daemon *d, ...)
{
	va_list options;
	if (cluster_nodes() > 1) {
		va_start(options, d);
		cluster_start_for(d, options);
		va_end(options);
		return;
	}
	memset(d, 0, sizeof(*d));
	snprintf(d->dir, sizeof(d->dir), "/tmp/ncclsvc-test-XXXXXX");
	CHECK(mkdtemp(d->dir));
	CHECK_EQ(chmod(d->dir, 0711), 0);
	snprintf(d->socket, sizeof(d->socket), "%s/s", d->dir);
	snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
	va_start(options, d);
	launch(d, options);
	va_end(options);
	note_base(d);
}

void daemon_restart(struct daemon *d, ...)
{
	va_list options;
	struct usage beside_clients; /* not the base: clients may have attached again */
	CHECK_EQ(d->pid, 0);
	va_start(options, d);
	launch(d, options);
	va_end(options);
	warm_up(d, &beside_clients);
}

static void check_log(const struct daemon *d)
{
	static const char *const complaints[] = {"Sanitizer", "runtime error:", "assertion",
						 "a defect of the daemon"};
	static char text[1 << 20];
	read_file(d->log, text, sizeof(text));
	for (size_t i = 0; i < sizeof(complaints) / sizeof(complaints[0]); i++)
		if (strstr(text, complaints[i]))
			check_failed(__FILE__, __LINE__, "the daemon's log says \"%s\"",
				     complaints[i]);
}

static void forget(struct daemon *d)
{
	for (int i = 0; i < DAEMONS_MAX; i++)
		if (alive[i].pid == d->pid)
			alive[i].pid = 0;
	d->pid = 0;
}

void daemon_watch(const struct daemon *d)
{
	int i = 0;
	while (i < DAEMONS_MAX && alive[i].pid)
		i++;
	CHECK(i < DAEMONS_MAX);
	alive[i] = *d;
}

void daemon_unwatch(struct daemon *d)
{
	forget(d);
}

static void remove_dir(const struct daemon *d)
{
	unlink(d->socket);
	unlink(d->log);
	static const char *const besides[] = {".lock", ".admin", ".admin.lock"};
	for (unsigned i = 0; i < sizeof(besides) / sizeof(besides[0]); i++) {
		char path[sizeof(d->socket) + 16];
		snprintf(path, sizeof(path), "%s%s", d->socket, besides[i]);
		unlink(path);
	}
	rmdir(d->dir);
}

static void await_exit(const struct daemon *d, int code)
{
	int status;
	if (!reap(d->pid, &status, WAIT_MS))
		check_failed(__FILE__, __LINE__, "the daemon (pid %d) does not end", d->pid);
	if (!WIFEXITED(status))
		check_failed(__FILE__, __LINE__, "the daemon was ended by signal %d",
			     WTERMSIG(status));
	CHECK_EQ(WEXITSTATUS(status), code);
	check_log(d);
	CHECK(access(d->socket, F_OK) < 0);
}

void daemon_wait_exit(struct daemon *d, int code)
{
	await_exit(d, code);
	remove_dir(d);
	forget(d);
}

void daemon_terminate(struct daemon *d)
{
	CHECK(!kill(d->pid, SIGTERM));
	await_exit(d, 0);
	forget(d);
}

void daemon_stop(struct daemon *d)
{
	if (cluster_of(d)) {
		cluster_stop(cluster_of(d));
		return;
	}
	daemon_finishes(d);
	CHECK_EQ(kill(d->pid, SIGTERM), 0);
	daemon_wait_exit(d, 0);
}

void daemon_kill(struct daemon *d)
{
	int status;
	CHECK_EQ(kill(d->pid, SIGKILL), 0);
	CHECK(reap(d->pid, &status, WAIT_MS));
	check_log(d);
	forget(d);
}

bool daemon_logged(const struct daemon *d, const char *text)
{
	static char log[1 << 20];
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(5)) {
		read_file(d->log, log, sizeof(log));
		if (strstr(log, text))
			return true;
	}
	return false;
}

void daemons_print_logs(void)
{
	static char text[1 << 20];
	for (int i = 0; i < DAEMONS_MAX; i++) {
		const struct daemon *d = &alive[i];
		if (!d->pid)
			continue;
		size_t n = read_file(d->log, text, sizeof(text));
		fprintf(stderr, "--- log of the daemon (pid %d)\n%s---\n", d->pid,
			text + (n > 8000 ? n - 8000 : 0));
	}
}

void daemons_forget(void)
{
	memset(alive, 0, sizeof(alive));
}

void daemons_cleanup(void)
{
	for (int i = 0; i < DAEMONS_MAX; i++) {
		struct daemon *d = &alive[i];
		int status;
		if (!d->pid)
			continue;
		kill(d->pid, SIGKILL);
		reap(d->pid, &status, WAIT_MS);
		remove_dir(d);
		d->pid = 0;
	}
}

int run_program(char *const argv[], char *out, size_t size)
{
	char path[] = "/tmp/ncclsvc-test-out-XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC), status;
	CHECK(fd >= 0);
	pid_t pid = spawn(argv, fd);
	close(fd);
	bool ended = reap(pid, &status, WAIT_MS);
	if (!ended) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	read_file(path, out, size);
	unlink(path);
	if (!ended || !WIFEXITED(status))
		check_failed(__FILE__, __LINE__, "%s did not end by itself: %s", argv[0], out);
	return WEXITSTATUS(status);
}
