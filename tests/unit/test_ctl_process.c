/* SPDX-License-Identifier: Apache-2.0
 * What ncclsvc-ctl reads from /proc and cgroups: real processes, and made-up files for states
 * that a test cannot create. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/process.h"

#define NO_SUCH_PID 2000000000 /* beyond the largest pid_max */
#define WAIT_S	    60

static struct processes all;
static char dir[64];

static int set_up(void **state)
{
	(void)state;
	all = (struct processes){0};
	snprintf(dir, sizeof(dir), "/tmp/ncclsvc-process-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[128];
	(void)state;
	processes_free(&all);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

/* ---- Files ---- */

/* Makes the file and the directories that it is in. */
static void file(const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		assert_true(!mkdir(path, 0700) || errno == EEXIST);
		*slash = '/';
	}
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* Reads process 2000000000, whose files are below dir. */
static const struct process *read_files(void)
{
	all = (struct processes){.proc = dir, .cgroups = {dir}};
	return process_examine(&all, NO_SUCH_PID);
}

static void test_files(void **state)
{
	(void)state;
	file("2000000000/stat", "2000000000 (a) b) D 1 2");
	file("2000000000/wchan", "nfs_wait_bit_killable");
	file("2000000000/status", "Name:\tx\nTracerPid:\t0\n");
	file("2000000000/cmdline", "/usr/bin/python3.12");
	const struct process *p = read_files();
	assert_int_equal(p->state, PROCESS_BLOCKED);
	assert_string_equal(p->wchan, "nfs_wait_bit_killable");
	assert_true(p->python);
	assert_int_equal(p->tracer, 0);
	assert_int_equal(p->cpu, -1);
	assert_false(process_is_halted(p));
}

static void test_traced(void **state)
{
	(void)state;
	file("2000000000/stat", "2000000000 (python3) t 1 2");
	file("2000000000/status", "Name:\tx\nTracerPid:\t55\n");
	file("55/comm", "gdb\n");
	const struct process *p = read_files();
	assert_int_equal(p->state, PROCESS_TRACED);
	assert_int_equal(p->tracer, 55);
	assert_string_equal(p->tracer_name, "gdb");
	assert_true(process_is_halted(p));
}

/* The process's own cgroup.freeze is 0, but a cgroup above it is frozen. */
static void test_frozen(void **state)
{
	char frozen[128];
	(void)state;
	file("2000000000/stat", "2000000000 (x) S 1 2");
	file("2000000000/cgroup", "3:freezer:/\n0::/job/step0/rank1\n");
	file("job/step0/rank1/cgroup.events", "populated 1\nfrozen 1\n");
	file("job/step0/rank1/cgroup.freeze", "0\n");
	file("job/step0/cgroup.freeze", "1\n");
	const struct process *p = read_files();
	assert_int_equal(p->state, PROCESS_FROZEN);
	snprintf(frozen, sizeof(frozen), "%s/job/step0", dir);
	assert_string_equal(p->cgroup, frozen);
	assert_true(process_is_halted(p));
	processes_free(&all);
	file("job/step0/rank1/cgroup.events", "populated 1\nfrozen 0\n");
	assert_int_equal(read_files()->state, PROCESS_SLEEPING);
}

static void test_leaderless(void **state)
{
	(void)state;
	file("2000000000/stat", "2000000000 (x) Z 1 2");
	file("2000000000/task/2000000000/stat", "2000000000 (x) Z 1 2");
	file("2000000000/task/2000000001/stat", "2000000001 (x) S 1 2");
	file("2000000000/task/2000000002/stat", "2000000002 (x) X 1 2");
	const struct process *p = read_files();
	assert_int_equal(p->state, PROCESS_LEADERLESS);
	assert_int_equal(p->threads, 1);
	assert_int_equal(p->thread, 2000000001);
}

static void test_none(void **state)
{
	(void)state;
	assert_int_equal(process_look(&all, NO_SUCH_PID)->state, PROCESS_GONE);
	assert_int_equal(process_look(&all, 0)->state, PROCESS_UNSEEN);
	assert_int_equal(process_look(&all, -1)->state, PROCESS_UNSEEN);
	/* This process exists, but /proc does not show it. */
	processes_free(&all);
	all.proc = dir;
	assert_int_equal(process_look(&all, getpid())->state, PROCESS_UNSEEN);
}

/* A malicious daemon names more pids than can exist. */
static void test_many(void **state)
{
	(void)state;
	for (int32_t i = 0; i < 100000; i++)
		process_look(&all, NO_SUCH_PID - i);
	assert_int_equal(process_look(&all, NO_SUCH_PID)->state, PROCESS_GONE);
	assert_int_equal(process_look(&all, getpid())->state, PROCESS_UNSEEN);
}

/* ---- Processes ---- */

static void reaches(int32_t pid, enum process_state wanted)
{
	enum process_state is = PROCESS_UNSEEN;
	for (time_t end = time(NULL) + WAIT_S; time(NULL) < end;) {
		processes_free(&all);
		is = process_examine(&all, pid)->state;
		if (is == wanted)
			return;
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	}
	fail_msg("%s, not %s", process_state_name(is), process_state_name(wanted));
}

static pid_t child(void (*does)(void))
{
	const pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	does();
	_exit(0);
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void sleeps(void)
{
	for (;;)
		pause();
}

static void spins(void)
{
	for (;;)
		getppid();
}

static void *spin_too(void *unused)
{
	(void)unused;
	spins();
	return NULL;
}

/* The process's main thread sleeps; another thread works. */
static void works_in_a_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, spin_too, NULL);
	sleeps();
}

static void *sleep_on(void *unused)
{
	(void)unused;
	sleeps();
	return NULL;
}

static void loses_its_main_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, sleep_on, NULL);
	pthread_exit(NULL);
}

static void is_traced(void)
{
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	sleeps();
}

static void test_stopped(void **state)
{
	(void)state;
	const pid_t pid = child(sleeps);
	reaches(pid, PROCESS_SLEEPING);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	reaches(pid, PROCESS_STOPPED);
	end(pid);
}

static void test_running(void **state)
{
	(void)state;
	pid_t pid = child(spins);
	reaches(pid, PROCESS_RUNNING);
	assert_true(process_examine(&all, pid)->cpu >= 0);
	end(pid);
	pid = child(works_in_a_thread);
	reaches(pid, PROCESS_RUNNING);
	end(pid);
}

static void test_debugger(void **state)
{
	(void)state;
	const pid_t pid = child(is_traced);
	reaches(pid, PROCESS_TRACED);
	assert_int_equal(process_examine(&all, pid)->tracer, getpid());
	end(pid);
}

static void test_main_thread_ended(void **state)
{
	(void)state;
	const pid_t pid = child(loses_its_main_thread);
	reaches(pid, PROCESS_LEADERLESS);
	assert_int_not_equal(process_examine(&all, pid)->thread, pid);
	end(pid);
}

static void test_zombie(void **state)
{
	siginfo_t info;
	(void)state;
	const pid_t pid = child(sleeps);
	kill(pid, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(process_look(&all, pid)->state, PROCESS_GONE);
	end(pid);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_files),    TEST(test_traced),
		TEST(test_frozen),   TEST(test_leaderless),
		TEST(test_none),     TEST(test_many),
		TEST(test_stopped),  TEST(test_running),
		TEST(test_debugger), TEST(test_main_thread_ended),
		TEST(test_zombie),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
