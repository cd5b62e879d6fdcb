/* SPDX-License-Identifier: Apache-2.0
 * Finding the odd rank from records alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "coord/mismatch.h"

static struct svc_record all_reduce(uint64_t count)
{
	return (struct svc_record){
		.op = NCCLSVC_ALL_REDUCE, .type = NCCLSVC_INT32, .count = count, .peer = -1};
}

/* Each rank submits an AllReduce with that count. */
static struct mismatch of(const uint64_t *counts, uint32_t n)
{
	struct mismatch m = {0};
	for (uint32_t k = 0; k < n; k++) {
		const struct svc_record r = all_reduce(counts[k]);
		mismatch_add(&m, &r, (int32_t)k, 1);
	}
	return m;
}

static void check(const struct mismatch *m, uint32_t nranks, int32_t a, int32_t b, bool odd)
{
	ncclsvc_status st;
	assert_true(mismatch_status(m, nranks, &st));
	assert_int_equal(st.result, NCCLSVC_MISMATCH);
	assert_int_equal(st.field, NCCLSVC_FIELD_COUNT);
	assert_int_equal(st.rank_a, a);
	assert_int_equal(st.rank_b, b);
	assert_int_equal(st.missing_count, odd);
	if (odd)
		assert_int_equal(st.missing[0], b);
}

static void test_all_agree(void **state)
{
	ncclsvc_status st;
	(void)state;
	const struct mismatch none = {0}, alike = of((uint64_t[]){4, 4, 4}, 3);
	assert_false(mismatch_status(&none, 3, &st));
	assert_false(mismatch_status(&alike, 3, &st));
}

/* The odd rank may be the first or the last. */
static void test_odd_one(void **state)
{
	(void)state;
	for (uint32_t odd = 0; odd < 5; odd++) {
		uint64_t counts[5] = {4, 4, 4, 4, 4};
		counts[odd] = 5;
		const struct mismatch m = of(counts, 5);
		ncclsvc_status st;
		check(&m, 5, odd ? 0 : 1, (int32_t)odd, true);
		mismatch_status(&m, 5, &st);
		assert_int_equal(st.value_a, 4);
		assert_int_equal(st.value_b, 5);
	}
}

static void test_nobody_alone(void **state)
{
	struct mismatch m = of((uint64_t[]){4, 5}, 2);
	(void)state;
	check(&m, 2, 0, 1, false);
	/* Two and two, two and three. */
	m = of((uint64_t[]){5, 4, 5, 4}, 4);
	check(&m, 4, 0, 1, false);
	m = of((uint64_t[]){5, 4, 5, 4, 4}, 5);
	check(&m, 5, 1, 0, false);
	/* All different, and more kinds than are distinguished. */
	m = of((uint64_t[]){1, 2, 3}, 3);
	check(&m, 3, 0, 1, false);
	m = of((uint64_t[]){1, 2, 3, 4, 4, 4}, 6);
	check(&m, 6, 3, 0, false);
	m = of((uint64_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 9}, 10);
	check(&m, 10, 0, 1, false);
	/* One differs, and another of a third kind does too. */
	m = of((uint64_t[]){4, 4, 4, 5, 6}, 5);
	check(&m, 5, 0, 3, false);
}

/* Some ranks are unknown: they may agree with the odd one. */
static void test_some_unknown(void **state)
{
	const struct mismatch m = of((uint64_t[]){4, 4, 5}, 3);
	(void)state;
	check(&m, 4, 0, 2, false);
	check(&m, 3, 0, 2, true);
}

/* Nodes come in any order, each with its lowest rank. */
static void test_nodes(void **state)
{
	const struct svc_record usual = all_reduce(4), other = all_reduce(5);
	struct mismatch m = {0};
	(void)state;
	mismatch_add(&m, &other, 3, 1);
	mismatch_add(&m, &usual, 2, 1);
	mismatch_add(&m, &usual, 4, 2);
	mismatch_add(&m, &usual, 0, 2);
	check(&m, 6, 0, 3, true);
}

static void test_operation(void **state)
{
	struct mismatch m = of((uint64_t[]){4, 4}, 2);
	struct svc_record barrier = {.op = NCCLSVC_BARRIER, .peer = -1};
	ncclsvc_status st;
	(void)state;
	mismatch_add(&m, &barrier, 2, 1);
	assert_true(mismatch_status(&m, 3, &st));
	assert_int_equal(st.field, NCCLSVC_FIELD_OP);
	assert_int_equal(st.value_a, NCCLSVC_ALL_REDUCE);
	assert_int_equal(st.value_b, NCCLSVC_BARRIER);
	assert_int_equal(st.missing_count, 1);
	assert_int_equal(st.missing[0], 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_agree),    cmocka_unit_test(test_odd_one),
		cmocka_unit_test(test_nobody_alone), cmocka_unit_test(test_some_unknown),
		cmocka_unit_test(test_nodes),	     cmocka_unit_test(test_operation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
