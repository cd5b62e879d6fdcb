/* SPDX-License-Identifier: Apache-2.0 */
#include "target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conn.h"

#define START_MS 20000
#define STOP_MS	 20000

static bool listen_to_beats(struct target *t)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", t->notify);
	t->beats = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return t->beats >= 0 && bind(t->beats, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	       chmod(t->notify, 0666) == 0;
}

static void limit(int resource, rlim_t n)
{
	struct rlimit r = {n, n};
	setrlimit(resource, &r);
}

/* Called in the new process. */
__attribute__((noreturn)) static void become_daemon(const struct target *t, const char *program,
						    const struct attack *attack)
{
	static const char *const set[] = {
		"--access",	   "any",	"--log-target",	       "stderr",
		"--config",	   "/dev/null", "--cluster-bootstrap", "none",
		"--drain-seconds", "1"};
	const char *argv[32] = {program, "--socket", t->socket};
	char beat[32], ranks[16];
	size_t n = 3;
	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
		argv[n++] = set[i];
	argv[n++] = "--device";
	argv[n++] = attack->gpus ? "cuda" : "host";
	snprintf(ranks, sizeof(ranks), "%u", attack->ranks);
	if (attack->ranks) {
		argv[n++] = "--ranks";
		argv[n++] = ranks;
	}
	int log = open(t->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	snprintf(beat, sizeof(beat), "%d", 2 * BEAT_MS * 1000);
	setenv("NOTIFY_SOCKET", t->notify, 1);
	setenv("WATCHDOG_USEC", beat, 1);
	if (attack->files)
		limit(RLIMIT_NOFILE, attack->files);
	if (attack->unprivileged &&
	    (setgroups(0, NULL) || setresgid(DAEMON_UID, DAEMON_UID, DAEMON_UID) ||
	     setresuid(DAEMON_UID, DAEMON_UID, DAEMON_UID)))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execv(program, (char *const *)argv);
	dprintf(STDERR_FILENO, "%s: %s\n", program, strerror(errno));
	_exit(127);
}

/* The number after this name in /proc/PATH, or 0. */
static unsigned long number_of(const char *path, const char *name)
{
	char line[256];
	unsigned long n = 0;
	size_t length = strlen(name);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, length) && line[length] == ':')
			n = strtoul(line + length + 1, NULL, 10);
	if (f)
		fclose(f);
	return n;
}

static unsigned long status_of(const struct target *t, const char *name)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/status", t->pid);
	return number_of(path, name);
}

uint64_t target_cpu_ns(const struct target *t)
{
	char path[64], line[1024] = "";
	unsigned long user = 0, system = 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", t->pid);
	FILE *f = fopen(path, "re");
	if (f && fgets(line, sizeof(line), f)) {
		const char *behind_name = strrchr(line, ')');
		if (behind_name)
			sscanf(behind_name, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			       &user, &system);
	}
	if (f)
		fclose(f);
	return (user + system) * (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK));
}

static unsigned count_fds(const struct target *t)
{
	char path[64];
	unsigned n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", t->pid);
	DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		n += e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

static bool wait_until_it_serves(struct target *t)
{
	struct conn c;
	for (uint64_t end = clock_ns() + START_MS * UINT64_C(1000000); clock_ns() < end;
	     pause_ms(5)) {
		if (conn_open(&c, t->socket)) {
			conn_close(&c);
			return true;
		}
		if (waitpid(t->pid, &t->status, WNOHANG) == t->pid) {
			t->pid = 0;
			break;
		}
	}
	fprintf(stderr, "the daemon does not serve %s\n", t->socket);
	target_show_log(t);
	return false;
}

bool target_start(struct target *t, const char *program, const struct attack *attack)
{
	*t = (struct target){.beats = -1};
	snprintf(t->dir, sizeof(t->dir), "/tmp/ncclsvc-attack-XXXXXX");
	if (!mkdtemp(t->dir) || chmod(t->dir, 0711))
		return false;
	if (attack->unprivileged && chown(t->dir, DAEMON_UID, DAEMON_UID))
		return false;
	snprintf(t->socket, sizeof(t->socket), "%s/s", t->dir);
	snprintf(t->log, sizeof(t->log), "%s/log", t->dir);
	snprintf(t->notify, sizeof(t->notify), "%s/notify", t->dir);
	snprintf(t->files, sizeof(t->files), "%s/files", t->dir);
	snprintf(t->gpus, sizeof(t->gpus), "%s/gpus", t->dir);
	if (mkdir(t->files, 0755) || mkdir(t->gpus, 0755) || chmod(t->gpus, 0777))
		return false;
	if (!listen_to_beats(t))
		return false;
	setenv("NCCLSVC_FAKE_DIR", t->gpus, 1);
	fflush(NULL);
	t->pid = fork();
	if (!t->pid)
		become_daemon(t, program, attack);
	return t->pid > 0 && wait_until_it_serves(t);
}

bool target_limit(struct target *t, const struct attack *attack)
{
	rlim_t bytes = ((rlim_t)status_of(t, "VmSize") << 10) + ((rlim_t)attack->address_mib << 20);
	struct rlimit r = {bytes, bytes};
	return !attack->address_mib || prlimit(t->pid, RLIMIT_AS, &r, NULL) == 0;
}

static void hear_beats(struct target *t, uint64_t now)
{
	char text[512];
	for (ssize_t n; (n = recv(t->beats, text, sizeof(text) - 1, 0)) > 0;) {
		text[n] = '\0';
		if (strstr(text, "WATCHDOG=1"))
			t->last_beat = now;
	}
}

bool target_watch(struct target *t, bool first)
{
	uint64_t now = clock_ns();
	unsigned long rss, shared = number_of("/proc/meminfo", "Shmem");
	unsigned fds;
	if (waitpid(t->pid, &t->status, WNOHANG) == t->pid)
		t->pid = 0;
	if (!t->pid)
		return false;
	if (first) {
		t->last_beat = now;
		t->longest_gap = 0;
		t->shared_kib = t->shared_before_kib = shared;
	}
	hear_beats(t, now);
	if (now - t->last_beat > t->longest_gap)
		t->longest_gap = now - t->last_beat;
	if (shared > t->shared_kib)
		t->shared_kib = shared;
	if ((rss = status_of(t, "VmHWM")) > t->rss_kib)
		t->rss_kib = rss;
	if ((fds = count_fds(t)) > t->fds)
		t->fds = fds;
	return true;
}

/* Removes what the GPU stand-ins have left. */
static void remove_files(const char *path)
{
	DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

static void remove_dir(struct target *t)
{
	char lock[sizeof(t->socket) + 8], admin[sizeof(t->socket) + 16];
	snprintf(lock, sizeof(lock), "%s.lock", t->socket);
	snprintf(admin, sizeof(admin), "%s.admin.lock", t->socket);
	const char *const files[] = {t->socket, t->log, t->notify, lock, admin};
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		unlink(files[i]);
	rmdir(t->files);
	remove_files(t->gpus);
	rmdir(t->dir);
}

void target_stop(struct target *t)
{
	if (t->pid > 0) {
		const uint64_t told = clock_ns();
		kill(t->pid, SIGTERM);
		for (uint64_t end = clock_ns() + STOP_MS * UINT64_C(1000000);
		     clock_ns() < end && waitpid(t->pid, &t->status, WNOHANG) != t->pid;
		     pause_ms(5))
			;
		kill(t->pid, SIGKILL);
		waitpid(t->pid, &t->status, 0);
		t->ending_ns = clock_ns() - told;
		t->pid = 0;
	}
	if (t->beats >= 0)
		close(t->beats);
	remove_dir(t);
}

void target_show_log(const struct target *t)
{
	static char text[4001];
	int fd = open(t->log, O_RDONLY | O_CLOEXEC);
	off_t size = lseek(fd, 0, SEEK_END);
	off_t from = size > (off_t)sizeof(text) - 1 ? size - (off_t)sizeof(text) + 1 : 0;
	ssize_t n = fd >= 0 ? pread(fd, text, sizeof(text) - 1, from) : 0;
	if (n > 0)
		fprintf(stderr, "--- the daemon's log\n%.*s---\n", (int)n, text);
	if (fd >= 0)
		close(fd);
}
