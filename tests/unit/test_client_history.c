/* SPDX-License-Identifier: Apache-2.0
 * What members conclude from each other's histories after a restart of the daemon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "resume/history.h"

#define ROOM 8

static struct history_line lines[2][ROOM];
static const struct histories all = {.lines = lines[0], .nranks = 2, .room = ROOM};

static void put(int rank, int at, unsigned order, unsigned kind, int peer, uint64_t from,
		uint64_t to)
{
	lines[rank][at] = (struct history_line){.order = (uint16_t)order,
						.kind = (uint16_t)kind,
						.peer = peer,
						.from = from,
						.to = to};
}

static int clear(void **state)
{
	(void)state;
	memset(lines, 0, sizeof(lines));
	return 0;
}

/* Rank 0 has seen collective 4 end, rank 1 has not; 5 is pending on both. */
static void one_rank_has_seen_more(void **state)
{
	(void)state;
	put(0, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 6);
	put(0, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 5, 6);
	put(1, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 6);
	put(1, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 4, 6);
	assert_true(history_fits(&all, 0) && history_fits(&all, 1));
	assert_int_equal(history_judge(&all, 1, HISTORY_COLLECTIVES, -1, 4, false), HISTORY_DONE);
	assert_int_equal(history_judge(&all, 1, HISTORY_COLLECTIVES, -1, 5, false), HISTORY_REPEAT);
	assert_int_equal(history_judge(&all, 0, HISTORY_COLLECTIVES, -1, 5, false), HISTORY_REPEAT);
}

static void damage_counts_unless_the_operation_was_done(void **state)
{
	(void)state;
	put(0, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 2);
	put(0, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 0, 2);
	put(0, 2, HISTORY_COLLECTIVES, HISTORY_DAMAGED, -1, 0, 0);
	put(0, 3, HISTORY_COLLECTIVES, HISTORY_DAMAGED, -1, 1, 0);
	put(1, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 2);
	put(1, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 1, 2);
	for (uint32_t rank = 0; rank < 2; rank++) {
		assert_int_equal(history_judge(&all, rank, HISTORY_COLLECTIVES, -1, 0, false),
				 HISTORY_DONE);
		assert_int_equal(history_judge(&all, rank, HISTORY_COLLECTIVES, -1, 1, false),
				 HISTORY_LOST);
	}
}

/* An earlier resumption has failed the operation on one rank: it is not done. */
static void known_damage_is_no_success(void **state)
{
	(void)state;
	put(0, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 1);
	put(0, 1, HISTORY_COLLECTIVES, HISTORY_DAMAGED, -1, 0, 0);
	put(1, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 1);
	put(1, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 0, 1);
	assert_int_equal(history_judge(&all, 1, HISTORY_COLLECTIVES, -1, 0, false), HISTORY_LOST);
}

/* Ranks 0 and 1 are on different nodes. Rank 0 has seen collective 0 end, and has the message that
 * rank 1 has sent it; rank 1 lacks the results. */
static void other_nodes_ends_are_no_results(void **state)
{
	(void)state;
	static const int32_t nodes[] = {0, 1};
	struct histories across = all;
	across.nodes = nodes;
	put(0, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 2);
	put(0, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 1, 2);
	put(0, 2, HISTORY_SENDS, HISTORY_SUBMITTED, 1, 0, 1);
	put(0, 3, HISTORY_RECVS, HISTORY_SUBMITTED, 1, 0, 1);
	put(1, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 2);
	put(1, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 0, 2);
	assert_int_equal(history_judge(&across, 1, HISTORY_COLLECTIVES, -1, 0, false),
			 HISTORY_MISSED);
	assert_int_equal(history_judge(&across, 1, HISTORY_COLLECTIVES, -1, 0, true), HISTORY_DONE);
	assert_int_equal(history_judge(&across, 1, HISTORY_COLLECTIVES, -1, 1, false),
			 HISTORY_REPEAT);
	assert_int_equal(history_judge(&across, 1, HISTORY_SENDS, 0, 0, true), HISTORY_DONE);
	assert_int_equal(history_judge(&across, 1, HISTORY_RECVS, 0, 0, false), HISTORY_MISSED);
	assert_int_equal(history_judge(&all, 1, HISTORY_RECVS, 0, 0, false), HISTORY_DONE);
}

static void messages_match_by_direction(void **state)
{
	(void)state;
	put(0, 0, HISTORY_SENDS, HISTORY_SUBMITTED, 1, 0, 3);
	put(0, 1, HISTORY_SENDS, HISTORY_PENDING, 1, 1, 3);
	put(1, 0, HISTORY_RECVS, HISTORY_SUBMITTED, 0, 0, 2);
	assert_true(history_fits(&all, 0) && history_fits(&all, 1));
	assert_int_equal(history_judge(&all, 0, HISTORY_SENDS, 1, 1, false), HISTORY_DONE);
	assert_int_equal(history_judge(&all, 0, HISTORY_SENDS, 1, 2, false), HISTORY_REPEAT);
	put(1, 1, HISTORY_RECVS, HISTORY_PENDING, 0, 1, 2);
	assert_int_equal(history_judge(&all, 0, HISTORY_SENDS, 1, 1, false), HISTORY_REPEAT);
}

/* A new process has taken rank 1. */
static void others_histories_do_not_fit(void **state)
{
	(void)state;
	put(0, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 3);
	put(0, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 2, 3);
	put(1, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 1);
	put(1, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 0, 1);
	assert_false(history_fits(&all, 0));
	assert_false(history_fits(&all, 1));
	clear(state);
	put(0, 0, HISTORY_SENDS, HISTORY_SUBMITTED, 1, 0, 3);
	assert_false(history_fits(&all, 1));
}

/* Another tenant's process may be a member. */
static void absurd_histories_take_no_time(void **state)
{
	(void)state;
	for (int rank = 0; rank < 2; rank++) {
		put(rank, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, UINT64_MAX);
		put(rank, 1, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 7, UINT64_MAX - 1);
		put(rank, 2, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, UINT64_MAX - 2, UINT64_MAX);
		put(rank, 3, HISTORY_COLLECTIVES, HISTORY_PENDING, -1, 5, 5);
	}
	assert_true(history_fits(&all, 0));
	put(1, 0, HISTORY_COLLECTIVES, HISTORY_SUBMITTED, -1, 0, 6);
	assert_false(history_fits(&all, 0));
}

static void ranges_are_joined(void **state)
{
	struct history h = {0};
	(void)state;
	for (uint64_t n = 0; n < 100; n++)
		assert_true(history_add(
			&h, &(struct history_line){
				    .kind = HISTORY_PENDING, .peer = -1, .from = n, .to = n + 1}));
	assert_int_equal(h.n, 1);
	assert_int_equal(h.lines[0].to, 100);
	for (uint64_t n = 0; n < 100; n++)
		assert_true(history_add(&h, &(struct history_line){.kind = HISTORY_PENDING,
								   .peer = -1,
								   .from = 200 + 2 * n,
								   .to = 201 + 2 * n}));
	assert_int_equal(h.n, 101);
	free(h.lines);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(one_rank_has_seen_more, clear),
		cmocka_unit_test_setup(damage_counts_unless_the_operation_was_done, clear),
		cmocka_unit_test_setup(known_damage_is_no_success, clear),
		cmocka_unit_test_setup(messages_match_by_direction, clear),
		cmocka_unit_test_setup(other_nodes_ends_are_no_results, clear),
		cmocka_unit_test_setup(others_histories_do_not_fit, clear),
		cmocka_unit_test_setup(absurd_histories_take_no_time, clear),
		cmocka_unit_test(ranges_are_joined),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
