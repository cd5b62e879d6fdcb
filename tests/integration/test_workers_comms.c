/* SPDX-License-Identifier: Apache-2.0
 * GPU communicators and the NCCL communicators behind them: refused joins, reuse, destruction, and
 * tasks that end before they are launched. */
#include <string.h>

#include "workers.h"

#define BOTH  3u
#define WORDS 100000

static void says(const struct rank_group *c, int i, const char *part)
{
	if (!strstr(c->pages[i].text, part))
		check_failed(__FILE__, __LINE__, "rank %d: \"%s\" does not say \"%s\"", i,
			     c->pages[i].text, part);
}

static void physicals(const struct rank_group *c, int gpu, unsigned all, unsigned idle)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(2)) {
		ncclsvc_device_info d = device_of(c, gpu);
		if (d.nccl_comms == all && d.nccl_comms_idle == idle)
			return;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__,
				     "gpu%d has %u NCCL communicators, %u of them idle, not %u "
				     "and %u",
				     gpu, d.nccl_comms, d.nccl_comms_idle, all, idle);
	}
}

/* ---- Tasks that are never launched ---- */

static void mismatch(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	ranks_must(&c, 1, ORDER_GATHER, NCCLSVC_OK, 0, WORDS, 1);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_MISMATCH, WAIT_MS);
		CHECK_EQ(c.pages[i].status.field, NCCLSVC_FIELD_OP);
		CHECK_EQ(c.pages[i].status.started_ns, 0);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	ranks_must(&c, 1, ORDER_SUM, NCCLSVC_OK, 0, WORDS + 1, 1);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_MISMATCH, WAIT_MS);
		CHECK_EQ(c.pages[i].status.field, NCCLSVC_FIELD_COUNT);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	ranks_try(&c, BOTH, 0);
	physicals(&c, 0, 1, 0);
	ranks_stop(&c);
}

static void deadline(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 3, NULL);
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1, 100);
	ranks_must(&c, 0, ORDER_WAIT, NCCLSVC_TIMEOUT, WAIT_MS);
	CHECK_EQ(c.pages[0].status.result, NCCLSVC_TIMEOUT);
	CHECK_EQ(c.pages[0].status.missing_count, 2);
	CHECK_EQ(c.pages[0].status.missing[0], 1);
	CHECK_EQ(c.pages[0].status.missing[1], 2);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	for (int i = 1; i < 3; i++) {
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_TIMEOUT, WAIT_MS);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	ranks_try(&c, 7, 0);
	physicals(&c, 0, 1, 0);
	ranks_stop(&c);
}

static void cancel(void **state)
{
	struct rank_group c;
	uint64_t n;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	ncclsvc_session *s = session_open(&c.d);
	ncclsvc_task_info task = tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	ranks_begin(&c, 0, ORDER_SLEEP, 0);
	CHECK_OK(ncclsvc_cancel_task(s, task.task, &n));
	CHECK_EQ(n, 1);
	ranks_ended(&c, 0, NCCLSVC_OK);
	ranks_must(&c, 0, ORDER_WAIT, NCCLSVC_CANCELLED, WAIT_MS);
	ranks_must(&c, 1, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	ranks_must(&c, 1, ORDER_WAIT, NCCLSVC_CANCELLED, WAIT_MS);
	ranks_must(&c, 1, ORDER_SYNC, NCCLSVC_OK, 0);
	ranks_try(&c, BOTH, 0);
	/* A launched task is completed. */
	ranks_must(&c, 1, ORDER_BLOCK, NCCLSVC_OK, 0);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, i + 1);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	CHECK_OK(ncclsvc_cancel_comm(s, task.comm, &n));
	CHECK_EQ(n, 0);
	ranks_must(&c, 1, ORDER_UNBLOCK, NCCLSVC_OK, 0);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_OK, WAIT_MS);
		ranks_begin(&c, i, ORDER_VALUE, 0);
		CHECK_EQ(ranks_reply(&c, i), 3);
	}
	ncclsvc_close(s);
	ranks_stop(&c);
}

/* Two of three ranks exchange data; the third is killed before its data arrives. */
static void point_to_point(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 3, NULL);
	ranks_must(&c, 0, ORDER_SEND, NCCLSVC_OK, 0, WORDS, 77, 1);
	ranks_must(&c, 1, ORDER_RECV, NCCLSVC_OK, 0, WORDS, 0);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_OK, WAIT_MS);
		ranks_begin(&c, i, ORDER_VALUE, 0);
		CHECK_EQ(ranks_reply(&c, i), 77);
	}
	/* The counts differ. */
	ranks_must(&c, 0, ORDER_SEND, NCCLSVC_OK, 0, WORDS, 77, 1);
	ranks_must(&c, 1, ORDER_RECV, NCCLSVC_OK, 0, WORDS / 2, 0);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_MISMATCH, WAIT_MS);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	ranks_must(&c, 1, ORDER_RECV, NCCLSVC_OK, 0, WORDS, 2);
	tasks_come(&c, NCCLSVC_WAITING_PEERS, 1);
	ranks_begin(&c, 1, ORDER_WAIT, WAIT_MS);
	uint64_t killed = ranks_kill(&c, 2);
	ranks_ended(&c, 1, NCCLSVC_PEER_GONE);
	CHECK_EQ(c.pages[1].status.rank_a, 2);
	ranks_in_time(&c, 1, killed);
	ranks_must(&c, 1, ORDER_SYNC, NCCLSVC_OK, 0);
	physicals(&c, 0, 1, 1);
	ranks_stop(&c);
}

/* ---- Leaving ---- */

static void leaves_with_tasks_in_flight(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_must(&c, 1, ORDER_BLOCK, NCCLSVC_OK, 0);
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, i + 1);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	/* One more task, which no rank will match. */
	ranks_must(&c, 1, ORDER_LEAVE, NCCLSVC_OK, 0);
	ranks_must(&c, 1, ORDER_UNBLOCK, NCCLSVC_OK, 0);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_WAIT, NCCLSVC_OK, WAIT_MS);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
		ranks_begin(&c, i, ORDER_VALUE, 0);
		CHECK_EQ(ranks_reply(&c, i), 3);
	}
	/* The error is local or remote, depending on what has arrived. */
	ncclsvc_result r = ranks_ask(&c, 0, ORDER_SUM, 0, WORDS, 1);
	if (r != NCCLSVC_STALE_EPOCH) {
		CHECK_EQ(r, NCCLSVC_OK);
		ranks_must(&c, 0, ORDER_WAIT, NCCLSVC_PEER_GONE, WAIT_MS);
	}
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	ranks_begin(&c, 1, ORDER_JOIN, 1, 2, 1, 1, WAIT_MS, 0);
	ranks_begin(&c, 0, ORDER_REJOIN, 0, WAIT_MS);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_try(&c, BOTH, 0);
	physicals(&c, 0, 1, 0);
	ranks_stop(&c);
}

static void leave_all(struct rank_group *c, int place)
{
	for (int i = 0; i < c->n; i++)
		ranks_must(c, i, ORDER_LEAVE, NCCLSVC_OK, place);
}

/* An unused communicator is reused for the same GPUs in the same order; otherwise another is
 * created. */
static void used_again(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	leave_all(&c, 0);
	physicals(&c, 0, 1, 1);
	ranks_join(&c, 1, BOTH, 0);
	ranks_try(&c, BOTH, 0);
	physicals(&c, 0, 1, 0);
	/* Another communicator on the same GPUs. */
	leave_all(&c, 0);
	physicals(&c, 0, 1, 1);
	ranks_join(&c, 2, BOTH, 0);
	ranks_try(&c, BOTH, 0);
	physicals(&c, 0, 1, 0);
	/* Another communicator in addition. */
	ranks_join(&c, 3, BOTH, 1);
	ranks_try(&c, BOTH, 1);
	physicals(&c, 0, 2, 0);
	leave_all(&c, 1);
	physicals(&c, 0, 2, 1);
	/* The GPUs in another order. */
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_JOIN, 4, 2, 1 - i, i, WAIT_MS, 1);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_try(&c, BOTH, 1);
	physicals(&c, 0, 3, 1);
	physicals(&c, 1, 3, 1);
	/* Only one of the GPUs. */
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_OK, 5, 1, 0, 1, WAIT_MS, 2);
	physicals(&c, 1, 4, 1);
	physicals(&c, 0, 3, 1);
	ranks_try(&c, BOTH, 0);
	ranks_stop(&c);
}

static void idle_ones_go(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--comm-idle-seconds", "1", NULL);
	ranks_join(&c, 2, BOTH, 1);
	leave_all(&c, 1);
	physicals(&c, 0, 2, 1);
	physicals(&c, 0, 1, 0);
	physicals(&c, 1, 1, 0);
	ranks_try(&c, BOTH, 0);
	ranks_join(&c, 2, BOTH, 1);
	ranks_try(&c, BOTH, 1);
	ranks_stop(&c);
}

/* ---- Joining ---- */

static void refused_joins(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_prepare(&c, 2);
	ranks_start_daemon(&c, NULL);
	ranks_create(&c, 2);
	ranks_begin(&c, 0, ORDER_JOIN, 1, 2, 0, 0, WAIT_MS, 0);
	clients_ask(c.ranks, 1);
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_MISMATCH, 1, 2, 1, 0, WAIT_MS, 0);
	says(&c, 1, "GPU 0");
	ranks_ended(&c, 0, NCCLSVC_MISMATCH);
	says(&c, 0, "both use GPU 0");
	ranks_begin(&c, 0, ORDER_JOIN, 1, 2, 0, 0, WAIT_MS, 0);
	clients_ask(c.ranks, 1);
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_MISMATCH, 1, 2, 1, NCCLSVC_DEVICE_HOST, WAIT_MS, 0);
	says(&c, 1, "host memory");
	ranks_ended(&c, 0, NCCLSVC_MISMATCH);
	says(&c, 0, "host memory");
	ranks_begin(&c, 0, ORDER_JOIN, 1, 2, 0, 0, WAIT_MS, 0);
	clients_ask(c.ranks, 1);
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_OK, 1, 2, 1, 1, WAIT_MS, 0);
	ranks_ended(&c, 0, NCCLSVC_OK);
	ranks_try(&c, BOTH, 0);
	/* The reverse order. */
	ranks_begin(&c, 0, ORDER_JOIN, 2, 2, 0, NCCLSVC_DEVICE_HOST, WAIT_MS, 1);
	clients_ask(c.ranks, 1);
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_MISMATCH, 2, 2, 1, 1, WAIT_MS, 1);
	says(&c, 1, "a GPU");
	ranks_ended(&c, 0, NCCLSVC_MISMATCH);
	ranks_begin(&c, 0, ORDER_JOIN, 2, 2, 0, NCCLSVC_DEVICE_HOST, WAIT_MS, 1);
	clients_ask(c.ranks, 1);
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_OK, 2, 2, 1, NCCLSVC_DEVICE_HOST, WAIT_MS, 1);
	ranks_ended(&c, 0, NCCLSVC_OK);
	/* More ranks than can use two GPUs. */
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_INVALID_ARGUMENT, 3, 9, 1, 1, WAIT_MS, 2);
	/* A single rank times out on time. */
	ranks_must(&c, 1, ORDER_JOIN, NCCLSVC_TIMEOUT, 3, 2, 1, 1, 100, 2);
	says(&c, 1, "0");
	ranks_stop(&c);
}

static void split(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 4, NULL);
	for (int i = 0; i < 4; i++)
		ranks_begin(&c, i, ORDER_SPLIT, 0, i & 1, i, WAIT_MS, 1);
	for (int i = 0; i < 4; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_try(&c, 5, 1);
	ranks_try(&c, 10, 1);
	ranks_try(&c, 15, 0);
	/* A member dies: its part and the parent end, the other part continues. */
	ranks_kill(&c, 2);
	ranks_try(&c, 10, 1);
	ncclsvc_result r = NCCLSVC_OK;
	for (int k = 0; !r && k < 1000; k++, sleep_ms(1))
		r = ranks_ask(&c, 0, ORDER_ERROR, 1);
	CHECK_EQ(r, NCCLSVC_PEER_GONE);
	ranks_replace(&c, 2);
	ranks_begin(&c, 2, ORDER_JOIN, 1, 4, 2, 2, WAIT_MS, 0);
	for (int i = 0; i < 4; i++)
		if (i != 2)
			ranks_begin(&c, i, ORDER_REJOIN, 0, WAIT_MS);
	for (int i = 0; i < 4; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_try(&c, 15, 0);
	ranks_try(&c, 10, 1);
	ranks_stop(&c);
}

/* A member dies while the new communicators are being created, which takes time. */
static void split_without_end(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	int pid = device_of(&c, 0).pid;
	worker_pause(pid);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_SPLIT, 0, 0, i, WAIT_MS, 1);
	clients_ask(c.ranks, 2);
	uint64_t killed = ranks_kill(&c, 1);
	ranks_ended(&c, 0, NCCLSVC_PEER_GONE);
	ranks_in_time(&c, 0, killed);
	worker_continue(pid);
	/* A SPLIT whose deadline passes. */
	ranks_replace(&c, 1);
	ranks_begin(&c, 1, ORDER_JOIN, 1, 2, 1, 1, WAIT_MS, 0);
	ranks_begin(&c, 0, ORDER_REJOIN, 0, WAIT_MS);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_join(&c, 2, BOTH, 2); /* uses up the pooled communicator */
	worker_pause(pid);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_SPLIT, 0, 0, i, 300, 1);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_TIMEOUT);
	worker_continue(pid);
	ranks_try(&c, BOTH, 0);
	ranks_stop(&c);
}

/* ---- Much at once ---- */

/* Four trainers on each GPU submit as much as they can while the workers are away. */
static void thousands_while_workers_are_away(void **state)
{
	struct rank_group c;
	const int tasks = sanitized() ? 300 : 512; /* the number of tasks that a stream accepts */
	(void)state;
	time_limit(120);
	ranks_prepare(&c, 2);
	ranks_start_daemon(&c, NULL);
	ranks_create(&c, 8);
	for (int k = 0; k < 4; k++)
		ranks_join(&c, k + 1, BOTH << 2 * k, 0);
	for (int k = 0; k < 4; k++)
		ranks_try(&c, BOTH << 2 * k, 0);
	int pids[2] = {device_of(&c, 0).pid, device_of(&c, 1).pid};
	for (int i = 0; i < 2; i++)
		worker_pause(pids[i]);
	for (int i = 0; i < 8; i++)
		ranks_begin(&c, i, ORDER_FLOOD, 0, tasks);
	for (int i = 0; i < 8; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	for (int i = 0; i < 2; i++)
		worker_continue(pids[i]);
	for (int i = 0; i < 8; i++)
		ranks_begin(&c, i, ORDER_WAIT, WAIT_MS);
	for (int i = 0; i < 8; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	for (int k = 0; k < 4; k++)
		ranks_try(&c, BOTH << 2 * k, 0);
	ranks_stop(&c);
}

/* Task groups over three communicators of four ranks, in all forms. */
static void mixed_groups(void **state)
{
	struct rank_group c;
	(void)state;
	time_limit(120);
	ranks_start(&c, 4, NULL);
	ranks_join(&c, 2, 15, 1);
	ranks_join(&c, 3, 15, 2);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 4; i++)
			ranks_begin(&c, i, ORDER_MIX, sanitized() ? 50 : 600, 4711 + round);
		for (int i = 0; i < 4; i++)
			ranks_ended(&c, i, NCCLSVC_OK);
	}
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(mismatch),
		RANKS_TEST(deadline),
		RANKS_TEST(cancel),
		RANKS_TEST(point_to_point),
		RANKS_TEST(leaves_with_tasks_in_flight),
		RANKS_TEST(used_again),
		RANKS_TEST(idle_ones_go),
		RANKS_TEST(refused_joins),
		RANKS_TEST(split),
		RANKS_TEST(split_without_end),
		RANKS_TEST(thousands_while_workers_are_away),
		RANKS_TEST(mixed_groups),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
