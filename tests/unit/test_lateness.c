/* SPDX-License-Identifier: Apache-2.0
 * The sums of lateness, and how they are forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "account/lateness.h"

#define RANKS 3
#define MS    UINT64_C(1000000)

static struct comm_lateness *lateness;
static uint64_t now, collectives;

static int setup(void **state)
{
	(void)state;
	lateness = lateness_create(RANKS);
	assert_non_null(lateness);
	now = 100 * LATENESS_HALF_NS;
	collectives = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(lateness);
	return 0;
}

/* One collective: rank 0 arrives at once, each other rank this long after the one before. */
static void collect(uint64_t second, uint64_t third, uint8_t op)
{
	const uint64_t waits[RANKS] = {0, second, third}, first = now;
	for (uint32_t k = 0; k < RANKS; k++) {
		now += waits[k];
		const struct late_arrival a = {.late_ns = now - first,
					       .collectives = collectives,
					       .rank = k,
					       .op = op,
					       .last = k == RANKS - 1 && waits[k]};
		if (a.late_ns >= LATENESS_UNIT)
			lateness_add(lateness, now, &a);
	}
	collectives++;
}

static ncclsvc_lateness_info read_rank(uint32_t rank)
{
	ncclsvc_lateness_info i = {0};
	uint64_t sum = 0;
	if (!lateness_read(lateness, rank, collectives, now, &i))
		assert_int_equal(i.operations, 0);
	for (uint32_t bin = 0; bin < NCCLSVC_LATENESS_BINS; bin++)
		sum += i.histogram[bin];
	assert_int_equal(sum, i.operations);
	return i;
}

static void late_ranks_are_counted(void **state)
{
	(void)state;
	for (int n = 0; n < 10; n++)
		collect(2 * MS, 30 * MS, NCCLSVC_ALL_REDUCE);
	const ncclsvc_lateness_info first = read_rank(0), second = read_rank(1),
				    third = read_rank(2);
	assert_int_equal(first.operations, 10);
	assert_int_equal(first.histogram[0], 10);
	assert_int_equal(first.sum_ns, 0);
	assert_int_equal(first.last, 0);
	assert_int_equal(second.last, 0);
	assert_int_equal(second.median_ns, 2 * MS);
	assert_int_equal(second.histogram[11], 10); /* 1024 us to 2047 us */
	assert_int_equal(third.last, 10);
	assert_int_equal(third.median_ns, 32 * MS);
	assert_int_equal(third.p99_ns, 32 * MS);
	assert_int_equal(third.max_ns, 32 * MS);
	assert_int_equal(third.sum_ns, 320 * MS);
	assert_int_equal(third.kinds, 1u << NCCLSVC_ALL_REDUCE);
	assert_in_range(third.interval_ns, 31 * MS, 36 * MS);
}

/* Two that come together are both late. */
static void two_are_late(void **state)
{
	(void)state;
	collect(5 * MS, 0, NCCLSVC_BARRIER);
	for (uint32_t k = 1; k < RANKS; k++) {
		assert_int_equal(read_rank(k).median_ns, 5 * MS);
		assert_int_equal(read_rank(k).last, 0);
	}
}

static void in_time_is_not_late(void **state)
{
	(void)state;
	collect(400, 400, NCCLSVC_BARRIER);
	assert_int_equal(read_rank(2).operations, 0);
	collect(0, MS, NCCLSVC_BARRIER);
	collect(400, 400, NCCLSVC_BARRIER);
	assert_int_equal(read_rank(2).operations, 2);
	assert_int_equal(read_rank(2).histogram[0], 1);
	assert_int_equal(read_rank(1).histogram[0], 2);
}

static void however_late_there_is_a_bin(void **state)
{
	(void)state;
	collect(LATENESS_UNIT, 1000 * LATENESS_HALF_NS, NCCLSVC_BARRIER);
	assert_int_equal(read_rank(2).histogram[NCCLSVC_LATENESS_BINS - 1], 1);
	collect(LATENESS_UNIT, 0, NCCLSVC_BARRIER);
	assert_int_equal(read_rank(1).histogram[1], 1); /* the other one is long ago */
}

static void what_was_is_forgotten(void **state)
{
	(void)state;
	collect(0, 30 * MS, NCCLSVC_ALL_REDUCE);
	now += LATENESS_HALF_NS;
	collect(0, 10 * MS, NCCLSVC_BARRIER);
	assert_int_equal(read_rank(2).operations, 2);
	assert_int_equal(read_rank(2).max_ns, 30 * MS);
	now += LATENESS_HALF_NS;
	assert_int_equal(read_rank(2).operations, 1);
	assert_int_equal(read_rank(2).max_ns, 10 * MS);
	assert_int_equal(read_rank(2).kinds, 1u << NCCLSVC_BARRIER);
	now += LATENESS_HALF_NS;
	assert_int_equal(read_rank(2).operations, 0);
	collect(0, 20 * MS, NCCLSVC_BARRIER);
	assert_int_equal(read_rank(2).operations, 1);
	assert_int_equal(read_rank(2).max_ns, 20 * MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(late_ranks_are_counted, setup, teardown),
		cmocka_unit_test_setup_teardown(two_are_late, setup, teardown),
		cmocka_unit_test_setup_teardown(in_time_is_not_late, setup, teardown),
		cmocka_unit_test_setup_teardown(however_late_there_is_a_bin, setup, teardown),
		cmocka_unit_test_setup_teardown(what_was_is_forgotten, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
