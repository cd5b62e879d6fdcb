/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks, and those that are killed once more. */
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

/* The program itself, so that a rank starts as it would by hand. */
static pid_t start(const struct options *o, int rank, bool again)
{
	char number[16], nodes[16], steps[24], interval[24], kill_at[48];
	const char *argv[24] = {o->program, "--rank", number,	"--nodes", nodes,
				"--steps",  steps,    "--text", o->text};
	int n = 9;
	snprintf(number, sizeof(number), "%d", rank);
	snprintf(nodes, sizeof(nodes), "%d", o->nodes);
	snprintf(steps, sizeof(steps), "%llu", (unsigned long long)o->steps);
	snprintf(interval, sizeof(interval), "%llu", (unsigned long long)o->interval);
	snprintf(kill_at, sizeof(kill_at), "%d:%llu", o->kill_rank,
		 (unsigned long long)o->kill_step);
	if (o->checkpoints) {
		argv[n++] = "--checkpoints";
		argv[n++] = o->checkpoints;
		argv[n++] = "--every";
		argv[n++] = interval;
	}
	if (o->losses) {
		argv[n++] = "--losses";
		argv[n++] = o->losses;
	}
	if (o->cuda) {
		argv[n++] = "--device";
		argv[n++] = "cuda";
	}
	if (o->curve)
		argv[n++] = "--curve";
	if (o->kill_rank >= 0 && !again) {
		argv[n++] = "--kill";
		argv[n++] = kill_at;
	}
	fflush(NULL);
	pid_t parent = getpid(), pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	execvp("/proc/self/exe", (char *const *)argv);
	say("cannot start %s: %s", o->program, strerror(errno));
	_exit(1);
}

/* A file that the ranks add their times to. */
static void times_open(void)
{
	char number[16];
	int fd = memfd_create("times", 0);
	snprintf(number, sizeof(number), "%d", fd);
	/* All write through one description; at its end, none overwrites another. */
	if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0 || setenv(TIMES_FD, number, 1))
		unsetenv(TIMES_FD);
}

static void times_show(void)
{
	char text[4096];
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
	pid_t pids[RANKS];
	int running = 0, failed = 0, restarts = 0, status;
	for (int k = 0; k < RANKS; k++) {
		pids[k] = start(o, k, false);
		running += pids[k] > 0;
		failed += pids[k] < 0;
	}
	while (running && !failed) {
		pid_t pid = wait(&status);
		int k = 0;
		while (k < RANKS && pids[k] != pid)
			k++;
		if (k == RANKS)
			continue;
		running--;
		if (WIFSIGNALED(status) && restarts++ < RESTARTS) {
			say("rank %d (pid %d) ended by signal %d: it is started again", k, pid,
			    WTERMSIG(status));
			pids[k] = start(o, k, true);
			running += pids[k] > 0;
			failed += pids[k] < 0;
			continue;
		}
		pids[k] = -1;
		failed += !WIFEXITED(status) || WEXITSTATUS(status);
	}
	for (int k = 0; k < RANKS && failed; k++)
		if (pids[k] > 0) {
			kill(pids[k], SIGKILL);
			waitpid(pids[k], &status, 0);
		}
	return failed ? 1 : 0;
}

int launch_run(const struct options *o)
{
	times_open();
	int status = run(o);
	times_show();
	return status;
}
