/* SPDX-License-Identifier: Apache-2.0
 * The daemon is killed while GPUs work for it: its workers release all streams and end, and the
 * trainers reattach to the next daemon. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "workers.h"

#define WORDS 100000

/* Returns whether the process is gone or an unreaped zombie. */
static bool ended(int pid)
{
	char state = process_state(pid);
	return !state || state == 'Z' || state == 'X';
}

static void all_ended(const int *pids, int n, uint64_t since)
{
	for (int i = 0; i < n; i++)
		while (!ended(pids[i])) {
			if (!in_time(since, now_ns()))
				check_failed(__FILE__, __LINE__, "worker %d is still there",
					     pids[i]);
			sleep_ms(5);
		}
}

static void reattach(struct rank_group *c)
{
	daemon_restart(&c->d, "--device", "cuda", "--log-level", "debug", NULL);
	for (int i = 0; i < c->n; i++)
		ranks_begin(c, i, ORDER_REATTACH, 0);
	for (int i = 0; i < c->n; i++)
		ranks_ended(c, i, NCCLSVC_OK);
	ranks_try(c, (1u << c->n) - 1, 0);
}

static void note_workers(const struct rank_group *c, int *pids)
{
	for (int i = 0; i < c->n; i++)
		pids[i] = device_of(c, i).pid;
}

static void killed_while_idle(void **state)
{
	struct rank_group c;
	int pids[2];
	(void)state;
	ranks_start(&c, 2, NULL);
	note_workers(&c, pids);
	uint64_t now = now_ns();
	daemon_kill(&c.d);
	all_ended(pids, 2, now);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_DAEMON_LOST, 0, WORDS, 1);
	reattach(&c);
	ranks_stop(&c);
}

/* Tasks of every kind: one waits for the other rank's task, one hangs on the GPUs. */
static void killed_while_streams_wait(void **state)
{
	struct rank_group c;
	int pids[3];
	(void)state;
	ranks_start(&c, 3, NULL);
	ranks_join(&c, 2, 3, 1);
	note_workers(&c, pids);
	fault_on(&c, "kernel-hang", 0);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 1, WORDS, 1);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	tasks_come(&c, NCCLSVC_WAITING_PEERS, 2);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_SLEEP, 0);
	sleep_ms(50);
	uint64_t now = now_ns();
	daemon_kill(&c.d);
	for (int i = 0; i < 2; i++) {
		ranks_ended(&c, i, NCCLSVC_OK);
		CHECK(in_time(now, c.pages[i].told_ns));
	}
	all_ended(pids, 3, now);
	fault_off(&c, "kernel-hang");
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_DAEMON_LOST, WAIT_MS);
	reattach(&c);
	ranks_stop(&c);
}

/* The workers cannot react: they are stuck in a driver call. */
static void killed_with_wedged_workers(void **state)
{
	struct rank_group c;
	int pids[2];
	(void)state;
	ranks_start(&c, 2, NULL);
	note_workers(&c, pids);
	fault_on(&c, "wedge", pids[1]);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_SLEEP, 0);
	sleep_ms(50);
	uint64_t now = now_ns();
	daemon_kill(&c.d);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	all_ended(pids, 2, now);
	fault_off(&c, "wedge");
	reattach(&c);
	ranks_stop(&c);
}

static void stopped_in_order(void **state)
{
	struct rank_group c;
	int pids[2];
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", "1", "--drain-seconds", "1", NULL);
	note_workers(&c, pids);
	/* A kernel that would never end. */
	fault_on(&c, "kernel-hang", 0);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_WAIT, WAIT_MS);
	CHECK_EQ(kill(c.d.pid, SIGTERM), 0);
	for (int i = 0; i < 2; i++) {
		ncclsvc_result r = (ncclsvc_result)(int64_t)ranks_reply(&c, i);
		CHECK(r != NCCLSVC_OK && r != NCCLSVC_TIMEOUT);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	daemon_wait_exit(&c.d, 0);
	all_ended(pids, 2, now_ns());
	fault_off(&c, "kernel-hang");
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(killed_while_idle),
		RANKS_TEST(killed_while_streams_wait),
		RANKS_TEST(killed_with_wedged_workers),
		RANKS_TEST(stopped_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
