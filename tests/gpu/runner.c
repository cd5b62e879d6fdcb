/* SPDX-License-Identifier: Apache-2.0 */
#include "runner.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/harness_parts.h"
#include "watch.h"

#define REPORTS	   24
#define LINE_BYTES 240
#define EXIT_SKIP  77
#define HEAD_BYTES 600

/* Written by a test and its ranks, read by the runner. */
struct shared {
	char stage[RANKS_MAX + 1][LINE_BYTES]; /* the test's, then each rank's */
	atomic_uint reports;
	char report[REPORTS][LINE_BYTES];
	char skip[LINE_BYTES];
	struct daemon daemon; /* the last one started */
};

static struct shared *shared_page;
static pid_t test_pid; /* set in the test and its ranks */

void runner_open(void)
{
	shared_page = mmap(NULL, sizeof(*shared_page), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared_page == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
}

void stage(const char *format, ...)
{
	const struct client *self = client_self();
	int i = self && self->rank >= 0 && self->rank < RANKS_MAX ? self->rank + 1 : 0;
	va_list args;
	va_start(args, format);
	vsnprintf(shared_page->stage[i], LINE_BYTES, format, args);
	va_end(args);
}

void report(const char *format, ...)
{
	unsigned i = atomic_fetch_add(&shared_page->reports, 1);
	va_list args;
	if (i >= REPORTS)
		return;
	va_start(args, format);
	vsnprintf(shared_page->report[i], LINE_BYTES, format, args);
	va_end(args);
}

void skip_test(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(shared_page->skip, LINE_BYTES, format, args);
	va_end(args);
	exit(client_self() ? 0 : EXIT_SKIP);
}

void watch_daemon(const struct daemon *d)
{
	shared_page->daemon = *d;
}

unsigned limit_ms(unsigned ms)
{
	return setup.fake ? 20000 : ms;
}

uint32_t draw(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)(x >> 32);
}

void remove_directory(const char *path)
{
	char file[512];
	DIR *dir = opendir(path);
	if (!dir)
		return;
	for (struct dirent *e; (e = readdir(dir));) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
		if (unlink(file) < 0)
			remove_directory(file);
	}
	closedir(dir);
	rmdir(path);
}

int fake_notes(const char *event)
{
	const size_t length = strlen(event);
	int n = 0;
	DIR *dir = setup.fake ? opendir(getenv("NCCLSVC_FAKE_DIR")) : NULL;
	for (struct dirent *e; dir && (e = readdir(dir));)
		n += !strncmp(e->d_name, event, length) && e->d_name[length] == '-';
	if (dir)
		closedir(dir);
	return n;
}

/* ---- The test's process ---- */

static void clean_up(void)
{
	if (getpid() == test_pid)
		harness_teardown(NULL);
}

static void run_inside(const struct gpu_test *test, int log, pid_t parent)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	test_pid = getpid();
	atexit(clean_up);
	test->run();
	exit(0);
}

/* ---- The watchdog ---- */

static void print_indented(const char *text, size_t n)
{
	bool start = true;
	for (size_t i = 0; i < n; i++) {
		if (start)
			fputs("    | ", stdout);
		putchar(text[i]);
		start = text[i] == '\n';
	}
	if (!start)
		putchar('\n');
}

static void print_part(int fd, off_t from, size_t bytes)
{
	static char text[1 << 16];
	ssize_t n = pread(fd, text, bytes < sizeof(text) ? bytes : sizeof(text), from);
	char *start = from && n > 0 ? memchr(text, '\n', (size_t)n) : NULL;
	start = start ? start + 1 : text;
	if (n > start - text)
		print_indented(start, (size_t)(n - (start - text)));
}

/* Prints a file's beginning, where a test says why it failed, and its last bytes from the start of
 * a line. */
static void print_ends(const char *path, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	const off_t end = lseek(fd, 0, SEEK_END), from = end - (off_t)bytes;
	if (from > HEAD_BYTES) {
		print_part(fd, 0, HEAD_BYTES);
		printf("    ...\n");
	}
	print_part(fd, from > HEAD_BYTES ? from : 0, from > HEAD_BYTES ? bytes : (size_t)end);
	close(fd);
}

static void ask_ctl(const char *command)
{
	char path[] = "/tmp/ncclsvc-gpu-ctl-XXXXXX", *program = getenv("NCCLSVC_CTL");
	char *argv[] = {program,     "--socket", shared_page->daemon.socket,
			"--timeout", "3",	 (char *)(uintptr_t)command,
			NULL};
	int status, fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0 || !program)
		return;
	printf("    ncclsvc-ctl %s:\n", command);
	fflush(NULL);
	pid_t pid = fork();
	if (!pid) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
		execv(program, argv);
		_exit(127);
	}
	if (pid > 0 && !reap(pid, &status, 6000)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		printf("    (it does not answer)\n");
	}
	close(fd);
	print_ends(path, 6000);
	unlink(path);
}

static void print_word_of(int pid, const char *name, char *text, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

/* Prints the state of each process in the group, and where it waits in the kernel. */
static void print_processes(pid_t group)
{
	DIR *dir = opendir("/proc");
	for (struct dirent *e; dir && (e = readdir(dir));) {
		char text[1024], comm[64], wchan[64], state = '?';
		int pid = atoi(e->d_name), parent, pgrp = 0;
		if (pid <= 0)
			continue;
		print_word_of(pid, "stat", text, sizeof(text));
		const char *rest = strrchr(text, ')');
		if (!rest || sscanf(rest + 1, " %c %d %d", &state, &parent, &pgrp) != 3 ||
		    pgrp != group)
			continue;
		print_word_of(pid, "comm", comm, sizeof(comm));
		print_word_of(pid, "wchan", wchan, sizeof(wchan));
		printf("    process %d (%s): %c, %s\n", pid, comm, state, wchan);
	}
	if (dir)
		closedir(dir);
}

static void explain_hang(pid_t group)
{
	for (int i = 0; i <= RANKS_MAX; i++) {
		if (!shared_page->stage[i][0])
			continue;
		if (i)
			printf("    rank %d was at: %s\n", i - 1, shared_page->stage[i]);
		else
			printf("    the test was at: %s\n", shared_page->stage[i]);
	}
	print_processes(group);
	if (!shared_page->daemon.pid)
		return;
	ask_ctl("tasks");
	ask_ctl("why");
	printf("    the daemon's log:\n");
	print_ends(shared_page->daemon.log, 6000);
}

/* ---- One test ---- */

static void print_result(const char *word, const struct gpu_test *test, uint64_t begin,
			 const char *why)
{
	printf("%-4s %-34s %6.1f s%s%s\n", word, test->name, (double)(now_ns() - begin) / 1e9,
	       *why ? "  " : "", why);
	unsigned n = atomic_load(&shared_page->reports);
	for (unsigned i = 0; i < n && i < REPORTS; i++)
		printf("       %s\n", shared_page->report[i]);
}

static void judge(const struct gpu_test *test, uint64_t begin, int status, const char *log,
		  struct tally *tally)
{
	bool exited = WIFEXITED(status);
	int code = exited ? WEXITSTATUS(status) : 0;
	/* A worker that a stand-in has aborted for misuse may have been replaced unnoticed. */
	const bool misused = fake_notes("misused") > 0;
	if (exited && !misused && (code == EXIT_SKIP || (!code && shared_page->skip[0]))) {
		tally->skipped++;
		print_result("skip", test, begin, shared_page->skip);
		return;
	}
	if (exited && !code && !misused) {
		tally->passed++;
		print_result("ok", test, begin, "");
		return;
	}
	char why[64] = "";
	if (!exited)
		snprintf(why, sizeof(why), "ended by signal %d", WTERMSIG(status));
	else if (misused)
		snprintf(why, sizeof(why), "a stand-in was misused");
	tally->failed++;
	print_result("FAIL", test, begin, why);
	print_ends(log, 12000);
}

static void begin_fake(char *dir, size_t size)
{
	snprintf(dir, size, "/tmp/ncclsvc-fake-XXXXXX");
	if (setup.fake && mkdtemp(dir))
		setenv("NCCLSVC_FAKE_DIR", dir, 1);
	else
		dir[0] = '\0';
}

void runner_run(const struct gpu_test *test, struct tally *tally)
{
	char log[] = "/tmp/ncclsvc-gpu-log-XXXXXX", fake[64];
	int status, fd = mkostemp(log, O_CLOEXEC | O_APPEND);
	uint64_t begin = now_ns();
	unsigned seconds = test->seconds * (1 + (unsigned)setup.repeat / 4);
	memset(shared_page, 0, sizeof(*shared_page));
	begin_fake(fake, sizeof(fake));
	fflush(NULL);
	pid_t parent = getpid(), pid = fork();
	if (!pid)
		run_inside(test, fd, parent);
	setpgid(pid, pid);
	close(fd);
	if (pid < 0 || !reap(pid, &status, seconds * 1000)) {
		tally->failed++;
		print_result("FAIL", test, begin, "timed out");
		explain_hang(pid);
		print_ends(log, 12000);
		kill(-pid, SIGKILL);
		waitpid(pid, &status, 0);
	} else {
		kill(-pid, SIGKILL); /* ends what the test has left behind */
		judge(test, begin, status, log, tally);
	}
	if (shared_page->daemon.dir[0])
		remove_directory(shared_page->daemon.dir);
	if (fake[0])
		remove_directory(fake);
	unlink(log);
	fflush(stdout);
}

void runner_skip(const struct gpu_test *test, const char *why, struct tally *tally)
{
	memset(shared_page, 0, sizeof(*shared_page));
	tally->skipped++;
	print_result("skip", test, now_ns(), why);
}

int runner_count_gpus(char *text, size_t size)
{
	char fake[64];
	int status = 0;
	memset(shared_page, 0, sizeof(*shared_page));
	begin_fake(fake, sizeof(fake));
	fflush(NULL);
	pid_t pid = fork();
	if (!pid) {
		int n = gpu_driver_open(shared_page->skip, LINE_BYTES);
		_exit(n < 0 || n > 100 ? 255 : n);
	}
	if (pid > 0 && !reap(pid, &status, 60000)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		snprintf(shared_page->skip, LINE_BYTES, "the driver does not answer");
	}
	if (fake[0])
		remove_directory(fake);
	snprintf(text, size, "%s", shared_page->skip);
	return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) < 255 ? WEXITSTATUS(status) : -1;
}
