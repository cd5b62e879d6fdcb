/* SPDX-License-Identifier: Apache-2.0
 * Trainers are killed: no rank of their GPU communicators hangs, nothing of theirs remains, and an
 * NCCL communicator that was not at fault is reused. */
#include "workers.h"

#define BOTH  3u
#define WORDS 100000

/* The survivors learn in time which rank has died. */
static void heard_of_death(struct rank_group *c, int i, int dead_rank, uint64_t since)
{
	CHECK_EQ(c->pages[i].status.result, NCCLSVC_PEER_GONE);
	CHECK_EQ(c->pages[i].status.rank_a, dead_rank);
	ranks_in_time(c, i, since);
}

/* A new process replaces the dead rank, and everything works again on the same physical
 * communicator, which was not at fault. */
static void come_back(struct rank_group *c, int dead)
{
	ranks_replace(c, dead);
	ranks_begin(c, dead, ORDER_JOIN, 1, c->n, dead, dead, WAIT_MS, 0);
	for (int i = 0; i < c->n; i++)
		if (i != dead)
			ranks_begin(c, i, ORDER_REJOIN, 0, WAIT_MS);
	for (int i = 0; i < c->n; i++)
		ranks_ended(c, i, NCCLSVC_OK);
}

static void come_back_and_try(struct rank_group *c, int dead)
{
	come_back(c, dead);
	ranks_try(c, (1u << c->n) - 1, 0);
}

static void check_kept(struct rank_group *c)
{
	for (int i = 0; i < c->n; i++) {
		ncclsvc_device_info d = device_of(c, i);
		CHECK_EQ(d.nccl_comms, 1);
		CHECK_EQ(d.nccl_comms_idle, 0);
		CHECK_EQ(d.restarts, 0);
	}
	CHECK(!daemon_says(&c->d, "is aborted"));
}

static void killed_while_idle(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_kill(&c, 1);
	for (int i = 0; ranks_ask(&c, 0, ORDER_ERROR, 0) == NCCLSVC_OK && i < 1000; i++)
		sleep_ms(1);
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_STALE_EPOCH, 0, WORDS, 1);
	come_back_and_try(&c, 1);
	check_kept(&c);
	ranks_stop(&c);
}

static void killed_between_submissions(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int k = 0; k < 3; k++)
		ranks_try(&c, BOTH, 0);
	/* Rank 0 has submitted the next task; rank 1 has not, and never will. */
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	tasks_come(&c, NCCLSVC_WAITING_PEERS, 1);
	ranks_begin(&c, 0, ORDER_WAIT, WAIT_MS);
	uint64_t killed = ranks_kill(&c, 1);
	ranks_ended(&c, 0, NCCLSVC_PEER_GONE);
	heard_of_death(&c, 0, 1, killed);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	come_back_and_try(&c, 1);
	check_kept(&c);
	ranks_stop(&c);
}

static void killed_with_a_task_that_waits_for_peers(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_must(&c, 1, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	tasks_come(&c, NCCLSVC_WAITING_PEERS, 1);
	ranks_kill(&c, 1);
	tasks_come(&c, NCCLSVC_WAITING_PEERS, 0);
	/* The dead rank's task must not be matched. */
	ncclsvc_result r = ranks_ask(&c, 0, ORDER_SUM, 0, WORDS, 1);
	if (r == NCCLSVC_OK)
		r = ranks_ask(&c, 0, ORDER_WAIT, WAIT_MS);
	CHECK(r == NCCLSVC_STALE_EPOCH || r == NCCLSVC_PEER_GONE);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	come_back_and_try(&c, 1);
	check_kept(&c);
	ranks_stop(&c);
}

/* Returns the number of tasks that the scheduler has taken so far. */
static uint64_t submissions(const struct rank_group *c)
{
	ncclsvc_session *s = session_open(&c->d);
	ncclsvc_session_info *list;
	size_t sessions;
	uint64_t seen = 0;
	CHECK_OK(ncclsvc_list_sessions(s, &list, &sessions));
	for (size_t i = 0; i < sessions; i++)
		seen += list[i].submitted;
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return seen;
}

/* Waits for the tasks to be taken: those taken after an epoch's end are stale. */
static void submissions_reach(const struct rank_group *c, uint64_t n)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; submissions(c) < n; sleep_ms(2))
		CHECK(now_ns() < end);
}

/* The task is launched on both GPUs; the victim's part waits for input that never comes. */
static void killed_before_its_input_came(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_must(&c, 1, ORDER_BLOCK, NCCLSVC_OK, 0);
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	ranks_must(&c, 1, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 2);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	ranks_begin(&c, 0, ORDER_WAIT, WAIT_MS);
	uint64_t killed = ranks_kill(&c, 1);
	ranks_ended(&c, 0, NCCLSVC_PEER_GONE);
	heard_of_death(&c, 0, 1, killed);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	ranks_in_time(&c, 0, killed);
	come_back_and_try(&c, 1);
	check_kept(&c);
	ranks_stop(&c);
}

/* The survivor's own input comes late, after the victim is long dead. */
static void killed_before_the_others_input_came(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	ranks_must(&c, 0, ORDER_BLOCK, NCCLSVC_OK, 0);
	ranks_must(&c, 0, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
	ranks_must(&c, 1, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 2);
	tasks_come(&c, NCCLSVC_LAUNCHED, 2);
	ranks_begin(&c, 0, ORDER_WAIT, WAIT_MS);
	uint64_t killed = ranks_kill(&c, 1);
	ranks_ended(&c, 0, NCCLSVC_PEER_GONE);
	heard_of_death(&c, 0, 1, killed);
	sleep_ms(100);
	ranks_must(&c, 0, ORDER_UNBLOCK, NCCLSVC_OK, 0);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	come_back_and_try(&c, 1);
	check_kept(&c);
	ranks_stop(&c);
}

/* The victim dies inside a running collective; the GPUs finish the collective. */
static void killed_inside_a_collective(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 3, NULL);
	uint64_t before = submissions(&c);
	for (int i = 0; i < 3; i++)
		ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, 500000, i);
	submissions_reach(&c, before + 3);
	for (int i = 0; i < 3; i++)
		ranks_begin(&c, i, ORDER_WAIT, WAIT_MS);
	uint64_t killed = ranks_kill(&c, 2);
	for (int i = 0; i < 2; i++) {
		/* The task may have just ended. */
		ncclsvc_result r = (ncclsvc_result)(int64_t)ranks_reply(&c, i);
		if (r != NCCLSVC_OK) {
			CHECK_EQ(r, NCCLSVC_PEER_GONE);
			heard_of_death(&c, i, 2, killed);
		}
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	come_back_and_try(&c, 2);
	check_kept(&c);
	ranks_stop(&c);
}

/* Many at once: tasks in every state, on two communicators of every rank. */
static void killed_with_much_in_flight(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 3, NULL);
	ranks_join(&c, 2, 7, 1);
	uint64_t before = submissions(&c);
	for (int i = 0; i < 3; i++) {
		ranks_must(&c, i, ORDER_DETACHED, NCCLSVC_OK, 1);
		for (int k = 0; k < 20; k++)
			ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, k & 1, 1000, i);
		if (i == 1)
			ranks_must(&c, i, ORDER_BLOCK, NCCLSVC_OK, 0);
		for (int k = 0; k < 20; k++)
			ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, k & 1, 1000, i);
		for (int k = 0; k < 10 && i != 2; k++)
			ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, k & 1, 1000, i);
	}
	submissions_reach(&c, before + 50 + 50 + 40);
	ranks_begin(&c, 0, ORDER_WAIT, WAIT_MS);
	uint64_t killed = ranks_kill(&c, 2);
	ranks_ended(&c, 0, NCCLSVC_PEER_GONE);
	heard_of_death(&c, 0, 2, killed);
	ranks_must(&c, 1, ORDER_WAIT, NCCLSVC_PEER_GONE, WAIT_MS);
	ranks_must(&c, 1, ORDER_UNBLOCK, NCCLSVC_OK, 0);
	for (int i = 0; i < 2; i++) {
		ranks_must(&c, i, ORDER_DETACHED, NCCLSVC_OK, 0);
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
	come_back(&c, 2);
	ranks_begin(&c, 2, ORDER_JOIN, 2, 3, 2, 2, WAIT_MS, 1);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_REJOIN, 1, WAIT_MS);
	for (int i = 0; i < 3; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	/* Only now, because tasks in flight on either communicator wrote to the same buffer. */
	ranks_try(&c, 7, 1);
	ranks_try(&c, 7, 0);
	ranks_stop(&c);
}

/* A whole group of ranks is killed repeatedly, at any time. */
static void all_killed_at_once(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 2; i++) {
			ranks_must(&c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, 1);
			ranks_begin(&c, i, ORDER_WAIT, WAIT_MS);
		}
		for (int i = 0; i < 2; i++)
			ranks_kill(&c, i);
		for (int i = 0; i < 2; i++)
			ranks_replace(&c, i);
		ranks_join(&c, 1, BOTH, 0);
		ranks_try(&c, BOTH, 0);
	}
	check_kept(&c);
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(killed_while_idle),
		RANKS_TEST(killed_between_submissions),
		RANKS_TEST(killed_with_a_task_that_waits_for_peers),
		RANKS_TEST(killed_before_its_input_came),
		RANKS_TEST(killed_before_the_others_input_came),
		RANKS_TEST(killed_inside_a_collective),
		RANKS_TEST(killed_with_much_in_flight),
		RANKS_TEST(all_killed_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
