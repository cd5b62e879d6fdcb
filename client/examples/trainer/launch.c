/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks, and restarts those that are killed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trainer.h"

#define RESTARTS 10

struct command {
	const char *argv[40];
	char text[24][32];
	size_t n, texts;
};

static void add(struct command *c, const char *option, const char *value)
{
	c->argv[c->n++] = option;
	if (value)
		c->argv[c->n++] = value;
}

static void add_number(struct command *c, const char *option, uint64_t value)
{
	char *text = c->text[c->texts++];
	snprintf(text, sizeof(c->text[0]), "%llu", (unsigned long long)value);
	add(c, option, text);
}

/* The command line that starts one rank. */
static void make_command(struct command *c, const struct options *o, int rank, bool again)
{
	*c = (struct command){.argv = {o->program}, .n = 1};
	add_number(c, "--rank", (uint64_t)rank);
	add_number(c, "--data", (uint64_t)o->data);
	add_number(c, "--horizontal", (uint64_t)o->horizontal);
	add_number(c, "--pipeline", (uint64_t)o->pipeline);
	add_number(c, "--batch", o->batch);
	add_number(c, "--accumulate", o->accumulate);
	add_number(c, "--nodes", (uint64_t)o->nodes);
	add_number(c, "--steps", o->steps);
	add_number(c, "--every", o->interval);
	add(c, "--text", o->text);
	add(c, "--device", o->cuda ? "cuda" : "host");
	if (o->checkpoints)
		add(c, "--checkpoints", o->checkpoints);
	if (o->losses)
		add(c, "--losses", o->losses);
	if (o->zero)
		add(c, "--zero", NULL);
	if (o->curve)
		add(c, "--curve", NULL);
	if (o->kill_rank >= 0 && !again) {
		char *text = c->text[c->texts++];
		snprintf(text, sizeof(c->text[0]), "%d:%llu", o->kill_rank,
			 (unsigned long long)o->kill_step);
		add(c, "--kill", text);
	}
}

/* Starts this program again, so that a rank starts as it would from a shell. */
static pid_t start(const struct options *o, int rank, bool again)
{
	struct command c;
	make_command(&c, o, rank, again);
	fflush(NULL);
	pid_t parent = getpid(), pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	execvp("/proc/self/exe", (char *const *)c.argv);
	say("cannot start %s: %s", o->program, strerror(errno));
	_exit(1);
}

/* Opens a file to which the ranks add their times. */
static void times_open(void)
{
	char number[16];
	int fd = memfd_create("times", 0);
	snprintf(number, sizeof(number), "%d", fd);
	/* All ranks share one file description in append mode, so that none overwrites another. */
	if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0 || setenv(TIMES_FD, number, 1))
		unsetenv(TIMES_FD);
}

static void times_show(void)
{
	char text[RANKS_MAX * 256];
	const char *fd = getenv(TIMES_FD);
	ssize_t n = fd ? pread(atoi(fd), text, sizeof(text), 0) : 0;
	if (n <= 0)
		return;
	printf("rank  after    from step  connect     join     plan     step      all (ms, to the "
	       "end of the first step)\n%.*s",
	       (int)n, text);
}

static int run(const struct options *o)
{
	const int ranks = ranks_of(o);
	pid_t pids[RANKS_MAX];
	int running = 0, failed = 0, restarts = 0, status;
	for (int k = 0; k < ranks; k++) {
		pids[k] = start(o, k, false);
		running += pids[k] > 0;
		failed += pids[k] < 0;
	}
	while (running && !failed) {
		pid_t pid = wait(&status);
		int k = 0;
		while (k < ranks && pids[k] != pid)
			k++;
		if (k == ranks)
			continue;
		running--;
		if (WIFSIGNALED(status) && restarts++ < RESTARTS) {
			say("rank %d (pid %d) was ended by signal %d: restarting it", k, pid,
			    WTERMSIG(status));
			pids[k] = start(o, k, true);
			running += pids[k] > 0;
			failed += pids[k] < 0;
			continue;
		}
		pids[k] = -1;
		failed += !WIFEXITED(status) || WEXITSTATUS(status);
	}
	for (int k = 0; k < ranks && failed; k++)
		if (pids[k] > 0) {
			kill(pids[k], SIGKILL);
			waitpid(pids[k], &status, 0);
		}
	return failed ? 1 : 0;
}

int launch_run(const struct options *o)
{
	if (!check_daemon(o))
		return 1;
	times_open();
	int status = run(o);
	times_show();
	return status;
}
