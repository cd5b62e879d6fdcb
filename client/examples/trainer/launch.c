/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks, and restarts those that are killed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trainer.h"

#define RESTARTS 10

/* A restarted rank does not kill itself again. */
static pid_t start(const struct options *o, int rank, bool again)
{
	struct options own = *o;
	own.rank = rank;
	own.kill_rank = again ? -1 : o->kill_rank;
	fflush(NULL);
	pid_t parent = getpid(), pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	exit(getppid() == parent ? rank_run(&own, now_ns()) : 1);
}

static void times_show(int fd)
{
	char text[RANKS_MAX * 256];
	ssize_t n = pread(fd, text, sizeof(text), 0);
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
	const int times = times_open();
	int status = run(o);
	times_show(times);
	return status;
}
