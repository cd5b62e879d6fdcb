/* SPDX-License-Identifier: Apache-2.0
 * The record of failures without a file: its numbers, and which user makes room when it is full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/loop.h"
#include "failures/failures.h"

static struct failures *all;

static int begin(void **state)
{
	static struct loop loop;
	(void)state;
	all = malloc(sizeof(*all));
	failures_open(all, &loop, NULL, -1);
	return 0;
}

static int end(void **state)
{
	(void)state;
	failures_close(all);
	free(all);
	return 0;
}

static struct failure *add(uint32_t uid, const char *text)
{
	ncclsvc_failure_info info = {.uid = uid};
	snprintf(info.text, sizeof(info.text), "%s", text);
	struct failure *f = failures_add(all, &info);
	assert_non_null(f);
	return f;
}

static unsigned count(uint32_t uid)
{
	unsigned n = 0;
	for (const struct failure *f = all->all; f; f = f->hh.next)
		n += f->info.uid == uid;
	return n;
}

static void numbers_ascend_from_1(void **state)
{
	(void)state;
	assert_null(failures_find(all, 1));
	const struct failure *first = add(7, "a\nb"), *second = add(7, "c");
	assert_int_equal(first->info.failure, 1);
	assert_int_equal(second->info.failure, 2);
	assert_string_equal(first->info.text, "a b");
	assert_true(first->info.unix_ns > UINT64_C(1700000000000000000));
	assert_ptr_equal(failures_find(all, 2), second);
}

/* A user with constant failures loses his own oldest records. */
static void the_user_who_has_most_makes_room(void **state)
{
	(void)state;
	add(1, "kept");
	for (unsigned i = 0; i < FAILURES_MAX + 50; i++)
		add(2, "of many");
	add(3, "kept, too");
	assert_int_equal(HASH_COUNT(all->all), FAILURES_MAX);
	assert_int_equal(count(1), 1);
	assert_int_equal(count(2), FAILURES_MAX - 2);
	assert_int_equal(count(3), 1);
	assert_non_null(failures_find(all, 1));
	assert_null(failures_find(all, 2));
	assert_int_equal(all->last, FAILURES_MAX + 52);
}

/* Records from a file are checked. */
static void a_damaged_record_is_left_out(void **state)
{
	ncclsvc_failure_info info = {.failure = 5, .uid = 1};
	(void)state;
	assert_true(failures_restore(all, &info, 3));
	assert_false(failures_restore(all, &info, 4)); /* twice */
	info.failure = 6;
	assert_false(failures_restore(all, &info, 3)); /* one place for two */
	assert_false(failures_restore(all, &info, FAILURES_MAX));
	memset(info.text, 'x', sizeof(info.text));
	assert_false(failures_restore(all, &info, 4));
	assert_int_equal(add(1, "next")->info.failure, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(numbers_ascend_from_1, begin, end),
		cmocka_unit_test_setup_teardown(the_user_who_has_most_makes_room, begin, end),
		cmocka_unit_test_setup_teardown(a_damaged_record_is_left_out, begin, end),
	};
	return cmocka_run_group_tests_name("failures_kept", tests, NULL, NULL);
}
