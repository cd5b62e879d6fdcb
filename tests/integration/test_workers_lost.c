/* SPDX-License-Identifier: Apache-2.0
 * Workers that are killed or fail: their communicators' members are notified at once, no stream
 * hangs, and a new worker takes over with everything that the trainers had registered. */
#include <signal.h>
#include <string.h>

#include "workers.h"

#define WORDS 100000

static void says(const struct rank_group *c, int i, const char *part)
{
	if (!strstr(c->pages[i].text, part))
		check_failed(__FILE__, __LINE__, "rank %d: \"%s\" does not say \"%s\"", i,
			     c->pages[i].text, part);
}

/* All ranks in the mask wait for their task and learn of the loss in time; their streams
 * continue. */
static void all_lost(struct rank_group *c, unsigned mask, int result, int rank, uint64_t since)
{
	for (int i = 0; i < c->n; i++) {
		if (!(mask & 1u << i))
			continue;
		ranks_ended(c, i, result);
		CHECK_EQ(c->pages[i].status.rank_a, rank);
		if (since)
			ranks_in_time(c, i, since);
		ranks_must(c, i, ORDER_SYNC, NCCLSVC_OK, 0);
		if (since)
			ranks_in_time(c, i, since);
	}
}

static void submit_and_wait(struct rank_group *c, unsigned mask)
{
	for (int i = 0; i < c->n; i++) {
		if (!(mask & 1u << i))
			continue;
		ranks_must(c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, i + 1);
		ranks_begin(c, i, ORDER_WAIT, WAIT_MS);
	}
}

/* Tasks that hang on the GPUs until their communicator is aborted. */
static void hang_tasks(struct rank_group *c, unsigned mask)
{
	fault_on(c, "kernel-hang", 0);
	submit_and_wait(c, mask);
	kernels_hang(c, __builtin_popcount(mask));
}

/* ---- Killed ---- */

static void killed_while_idle(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	int pid = device_of(&c, 1).pid;
	worker_kill(&c, 1);
	for (int i = 0; i < 2; i++) {
		ncclsvc_result r = NCCLSVC_OK;
		for (int k = 0; !r && k < 1000; k++, sleep_ms(1))
			r = ranks_ask(&c, i, ORDER_ERROR, 0);
		ranks_expect(&c, i, r, NCCLSVC_WORKER_LOST, __FILE__, __LINE__);
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_STALE_EPOCH, 0, WORDS, 1);
	}
	ncclsvc_device_info d = worker_replaced(&c, 1, pid);
	CHECK_EQ(d.restarts, 1);
	CHECK_EQ(device_of(&c, 0).restarts, 0);
	/* The same buffers remain registered. */
	ranks_rejoin(&c, 3, 0);
	CHECK_EQ(device_of(&c, 1).imports, 1);
	ranks_try(&c, 3, 0);
	CHECK_EQ(device_of(&c, 1).imports, 1);
	ranks_stop(&c);
}

/* A trainer may rejoin before the new worker is ready: the daemon waits for it. */
static void killed_and_rejoined_at_once(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int round = 0; round < 4; round++) {
		submit_and_wait(&c, 1);
		tasks_come(&c, NCCLSVC_WAITING_PEERS, 1);
		uint64_t killed = worker_kill(&c, round & 1);
		all_lost(&c, 1, NCCLSVC_WORKER_LOST, round & 1, killed);
		ranks_rejoin(&c, 3, 0);
		ranks_try(&c, 3, 0);
	}
	ranks_stop(&c);
}

static void killed_while_tasks_wait_for_peers(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 3, NULL);
	submit_and_wait(&c, 3);
	tasks_come(&c, NCCLSVC_WAITING_PEERS, 2);
	uint64_t killed = worker_kill(&c, 1);
	all_lost(&c, 3, NCCLSVC_WORKER_LOST, 1, killed);
	ranks_rejoin(&c, 7, 0);
	ranks_try(&c, 7, 0);
	ranks_stop(&c);
}

static void killed_inside_a_collective(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 3, NULL);
	int pid = device_of(&c, 1).pid;
	hang_tasks(&c, 7);
	fault_off(&c, "kernel-hang"); /* a kernel that already hangs does so until the abort */
	uint64_t killed = worker_kill(&c, 1);
	all_lost(&c, 7, NCCLSVC_WORKER_LOST, 1, killed);
	worker_replaced(&c, 1, pid);
	ranks_rejoin(&c, 7, 0);
	ranks_try(&c, 7, 0);
	CHECK_EQ(device_of(&c, 0).restarts, 0);
	CHECK_EQ(device_of(&c, 2).restarts, 0);
	only_comm_stays(&c, 0);
	ranks_stop(&c);
}

/* On the surviving worker, a task waits for input that never comes. */
static void killed_while_another_waits_for_input(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", "1", NULL);
	ranks_must(&c, 0, ORDER_BLOCK, NCCLSVC_OK, 0);
	submit_and_wait(&c, 3);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	int pid = device_of(&c, 1).pid;
	uint64_t killed = worker_kill(&c, 1);
	for (int i = 0; i < 2; i++) {
		ranks_ended(&c, i, NCCLSVC_WORKER_LOST);
		ranks_in_time(&c, i, killed);
	}
	ranks_must(&c, 1, ORDER_SYNC, NCCLSVC_OK, 0);
	worker_replaced(&c, 1, pid);
	/* The daemon's own timeout has long passed; it must not end the surviving worker. */
	sleep_ms(2500);
	CHECK_EQ(device_of(&c, 0).restarts, 0);
	ranks_must(&c, 0, ORDER_UNBLOCK, NCCLSVC_OK, 0);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

static void others_go_on(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_prepare(&c, 4);
	ranks_start_daemon(&c, NULL);
	ranks_create(&c, 4);
	ranks_join(&c, 1, 3, 0);
	ranks_join(&c, 2, 12, 0);
	ranks_try(&c, 3, 0);
	for (int i = 2; i < 4; i++)
		ranks_begin(&c, i, ORDER_STREAK, 0, sanitized() ? 100 : 1000, 7);
	for (int round = 0; round < 3; round++) {
		submit_and_wait(&c, 1);
		tasks_reach_some(&c, 0, NCCLSVC_WAITING_PEERS);
		uint64_t killed = worker_kill(&c, 1);
		all_lost(&c, 1, NCCLSVC_WORKER_LOST, 1, killed);
		ranks_rejoin(&c, 3, 0);
		ranks_try(&c, 3, 0);
	}
	for (int i = 2; i < 4; i++) {
		ranks_ended(&c, i, NCCLSVC_OK);
		CHECK_EQ(device_of(&c, i).restarts, 0);
	}
	ranks_stop(&c);
}

static void killed_while_a_communicator_is_made(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", "2", NULL);
	int pid = device_of(&c, 1).pid;
	process_stop(pid);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_JOIN, 2, 2, i, i, WAIT_MS, 1);
	clients_ask(c.ranks, 2);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	for (int i = 0; i < 2; i++) {
		ranks_ended(&c, i, NCCLSVC_WORKER_LOST);
		says(&c, i, "worker");
	}
	worker_replaced(&c, 1, pid);
	ranks_join(&c, 2, 3, 1);
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 1);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

static void killed_while_it_imports(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	int pid = device_of(&c, 1).pid;
	ranks_must(&c, 1, ORDER_NEW, NCCLSVC_OK, 0);
	process_stop(pid);
	ranks_begin(&c, 1, ORDER_SUM, 0, WORDS, 1);
	clients_ask(c.ranks, 2);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	ranks_ended(&c, 1, NCCLSVC_WORKER_LOST);
	worker_replaced(&c, 1, pid);
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

/* The new worker imports memory of cuMemCreate again. */
static void allocated_memory_outlives_its_worker(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_ALLOC, NCCLSVC_OK, 4 << 20);
	ranks_try(&c, 3, 0);
	ncclsvc_device_info before = device_of(&c, 1);
	worker_kill(&c, 1);
	worker_replaced(&c, 1, before.pid);
	ranks_rejoin(&c, 3, 0);
	ncclsvc_device_info d = device_of(&c, 1);
	CHECK_EQ(d.imports, before.imports);
	CHECK_EQ(d.import_bytes, before.import_bytes);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

/* A session that ends while its worker is away does not count against the next one. */
static void a_session_ends_while_its_worker_starts(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_ALLOC, NCCLSVC_OK, 4 << 20);
	ranks_try(&c, 3, 0);
	int pid = device_of(&c, 1).pid;
	fault_on(&c, "driver-old", 0);
	worker_kill(&c, 1);
	device_reaches(&c, 1, NCCLSVC_DEVICE_LOST);
	ranks_kill(&c, 1);
	sessions_reach(&c, 1);
	fault_off(&c, "driver-old");
	worker_replaced(&c, 1, pid);
	ncclsvc_device_info d = device_of(&c, 1);
	CHECK_EQ(d.imports, 0);
	CHECK_EQ(d.import_bytes, 0);
	ranks_stop(&c);
}

/* A communicator loses its workers when it is ready but its epoch has not begun. */
static void before_the_epoch(int n)
{
	struct rank_group c;
	int pids[2];
	const int last = n - 1;
	ranks_prepare(&c, 2);
	ranks_start_daemon(&c, NULL);
	ranks_create(&c, n);
	ranks_join(&c, 1, (1u << n) - 1, 0);
	/* The last rank leaves while the communicator is being created; the communicator then
	 * waits for another rank to join. */
	for (int i = 0; i < n; i++)
		pids[i] = device_of(&c, i).pid;
	process_stop(pids[last]);
	for (int i = 0; i < n; i++)
		ranks_begin(&c, i, ORDER_JOIN, 2, n, i, i, WAIT_MS, 1);
	clients_ask(c.ranks, n);
	ranks_kill(&c, last);
	sessions_reach(&c, n - 1);
	CHECK_EQ(kill(pids[last], SIGCONT), 0);
	for (int k = 0; k < 1000 && device_of(&c, last).nccl_comms < 2; k++)
		sleep_ms(2);
	CHECK_EQ(device_of(&c, last).nccl_comms, 2);
	for (int i = 0; i < n; i++)
		CHECK_EQ(kill(pids[i], SIGKILL), 0);
	for (int i = 0; i < n; i++)
		worker_replaced(&c, i, pids[i]);
	ranks_replace(&c, last);
	ranks_begin(&c, last, ORDER_JOIN, 2, n, last, last, WAIT_MS, 1);
	for (int i = 0; i < n; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_try(&c, (1u << n) - 1, 1);
	ranks_stop(&c);
}

static void killed_before_the_epoch_begins(void **state)
{
	(void)state;
	before_the_epoch(1);
	before_the_epoch(2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(killed_while_idle),
		RANKS_TEST(killed_and_rejoined_at_once),
		RANKS_TEST(killed_while_tasks_wait_for_peers),
		RANKS_TEST(killed_inside_a_collective),
		RANKS_TEST(killed_while_another_waits_for_input),
		RANKS_TEST(others_go_on),
		RANKS_TEST(killed_while_a_communicator_is_made),
		RANKS_TEST(killed_while_it_imports),
		RANKS_TEST(allocated_memory_outlives_its_worker),
		RANKS_TEST(a_session_ends_while_its_worker_starts),
		RANKS_TEST(killed_before_the_epoch_begins),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
