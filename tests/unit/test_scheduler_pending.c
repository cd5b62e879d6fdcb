/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's view of members' pending tasks, by kind. */
#include <stdlib.h>
#include <string.h>

#include "sched/base/state.h"
#include "scheduler_gpus.h"

static struct member_pending shared[SESSIONS];

/* Like start(), but the supervisor reads the members' pending tasks. */
static void start_looked_at(uint32_t comm)
{
	scheduler_pending = shared;
	memset(shared, 0, sizeof(shared));
	START(comm, 2, LIST(0, 1), LIST(0, 1));
	scheduler_pending = NULL;
}

static bool shows(uint32_t rank, uint32_t kind, uint32_t op)
{
	struct table_entry e;
	const uint32_t slot = atomic_load(&shared[rank].first[kind]);
	return slot && table_get(scheduler_table(scheduler), slot - 1, &e) && e.op == op &&
	       e.rank == (int32_t)rank;
}

static void comes(uint32_t rank, uint32_t kind, uint32_t op)
{
	for (uint64_t until = now_ns() + WAIT_NS; !shows(rank, kind, op); pause_ns(100000))
		assert_true(now_ns() < until);
}

static void goes(uint32_t rank, uint32_t kind)
{
	for (uint64_t until = now_ns() + WAIT_NS; atomic_load(&shared[rank].first[kind]);
	     pause_ns(100000))
		assert_true(now_ns() < until);
}

static void pending_tasks_are_shown_by_kind(void **state)
{
	const uint32_t place = PENDING_IN_NO_GRAPH;
	(void)state;
	add_trainer(0);
	add_trainer(1);
	start_looked_at(0);
	submit_one(0, p2p(0, NCCLSVC_SEND, 0, 1));
	comes(0, place + PENDING_MESSAGE_WAITS + PEER_DIR_TO(1), NCCLSVC_SEND);
	submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	comes(0, place + PENDING_COLLECTIVE_QUEUED, NCCLSVC_ALL_REDUCE);
	submit_one(1, p2p(0, NCCLSVC_RECV, 1, 0));
	goes(0, place + PENDING_MESSAGE_WAITS + PEER_DIR_TO(1));
	comes(0, place + PENDING_COLLECTIVE_WAITS, NCCLSVC_ALL_REDUCE);
	goes(0, place + PENDING_COLLECTIVE_QUEUED);
	submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	comes(0, place + PENDING_COLLECTIVE_LAUNCHED, NCCLSVC_ALL_REDUCE);
	goes(0, place + PENDING_COLLECTIVE_WAITS);
	run_to(0, 2);
	run_to(1, 2);
	goes(0, place + PENDING_COLLECTIVE_LAUNCHED);
	goes(1, place + PENDING_COLLECTIVE_LAUNCHED);

	submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	comes(0, place + PENDING_COLLECTIVE_WAITS, NCCLSVC_ALL_REDUCE);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	for (uint32_t kind = 1; kind < PENDING_KINDS; kind++)
		goes(0, kind);
}

#define MATCHES 2000
#define OTHERS	500

/* The scheduler's thread writes it. */
__attribute__((noinline, no_sanitize("thread"))) static uint64_t steps_now(void)
{
	return *(const volatile uint64_t *)&((const struct scheduler *)scheduler)->steps;
}

/* Counts steps once all current work is done. */
static uint64_t steps(void)
{
	uint64_t before;
	do {
		before = steps_now();
		quiet();
		quiet();
	} while (steps_now() != before);
	return before;
}

/* A task group whose Sends have matched, but whose AllReduce has not. */
static void begin_large_group(void)
{
	static struct svc_record sends[MATCHES + 1], recvs[MATCHES];
	for (unsigned i = 0; i < MATCHES; i++) {
		sends[i] = p2p(0, NCCLSVC_SEND, 0, 1);
		recvs[i] = p2p(0, NCCLSVC_RECV, 1, 0);
	}
	sends[MATCHES] = record(0, NCCLSVC_ALL_REDUCE, 0);
	submit(0, sends, MATCHES + 1);
	submit(1, recvs, MATCHES);
}

static void matches_that_wait_cost_others_nothing(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(2, 3), LIST(2, 3));
	begin_large_group();
	const uint64_t before = steps();
	for (uint64_t i = 1; i <= OTHERS; i++) {
		submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
		submit_one(3, record(1, NCCLSVC_ALL_REDUCE, 3));
		run_to(2, i);
		run_to(3, i);
		ends(2, i, NCCLSVC_OK);
	}
	assert_true(steps() - before < OTHERS * 200);
	assert_int_equal(head(0), 0);

	/* It ends in slices, together with everything that it matched. */
	const uint64_t then = steps();
	end_epoch(0, NCCLSVC_WORKER_LOST, -1);
	for (uint64_t i = 1; i <= MATCHES; i++) {
		ends(0, i, NCCLSVC_WORKER_LOST);
		ends(1, i, NCCLSVC_WORKER_LOST);
	}
	ends(0, MATCHES + 1, NCCLSVC_WORKER_LOST);
	assert_in_range(steps() - then, 2 * MATCHES * STEP_END, 4 * MATCHES * STEP_END);
}

/* Each Send finds its Recv in one step, however many were posted before it. */
static void messages_match_in_constant_steps(void **state)
{
	static struct svc_record group[2][2 * MATCHES];
	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	for (uint32_t t = 0; t < 2; t++)
		for (unsigned i = 0; i < MATCHES; i++) {
			group[t][i] = p2p(0, NCCLSVC_SEND, t, 1 - (int32_t)t);
			group[t][MATCHES + i] = p2p(0, NCCLSVC_RECV, t, 1 - (int32_t)t);
		}
	const uint64_t before = steps();
	submit(0, group[0], 2 * MATCHES);
	submit(1, group[1], 2 * MATCHES);
	launched(0, 2 * MATCHES);
	launched(1, 2 * MATCHES);
	assert_true(steps() - before < (uint64_t)4 * MATCHES * (STEP_RECORD + 8));
	run_to(0, 2 * MATCHES);
	run_to(1, 2 * MATCHES);
	ends(0, 2 * MATCHES, NCCLSVC_OK);
	ends(1, 2 * MATCHES, NCCLSVC_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCHEDULER_TEST(pending_tasks_are_shown_by_kind),
		SCHEDULER_TEST(matches_that_wait_cost_others_nothing),
		SCHEDULER_TEST(messages_match_in_constant_steps),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
