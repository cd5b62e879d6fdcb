/* SPDX-License-Identifier: Apache-2.0
 * The table that finds a pointer's region, compared with a linear search. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/region_table.h"

#define SLOTS  64
#define STRIDE 256

/* Addresses within one object; nothing is stored there. */
static char space[SLOTS * STRIDE];

static void finds_what_a_plain_search_finds(void **state)
{
	struct regions r = {0};
	size_t bytes[SLOTS] = {0};
	(void)state;
	srandom(1);
	for (int round = 0; round < 2000; round++) {
		size_t at = (size_t)random() % SLOTS;
		char *base = space + at * STRIDE;
		if (bytes[at]) {
			region_remove(&r, base);
			bytes[at] = 0;
		} else {
			bytes[at] = 1 + (size_t)random() % STRIDE;
			struct region region = {
				.base = base, .bytes = bytes[at], .id = (uint32_t)at + 1};
			assert_int_equal(region_insert(&r, &region), NCCLSVC_OK);
		}
		for (int probe = 0; probe < 50; probe++) {
			size_t where = (size_t)random() % sizeof(space);
			bool held = where % STRIDE < bytes[where / STRIDE];
			const struct region *found = region_find(&r, space + where);
			assert_int_equal(found != NULL, held);
			if (held)
				assert_int_equal(found->id, where / STRIDE + 1);
		}
	}
	free(r.sorted);
}

static void edges(void **state)
{
	struct regions r = {0};
	(void)state;
	assert_null(region_find(&r, space));
	region_remove(&r, space);
	assert_int_equal(region_insert(&r, &(struct region){.base = space + 64, .bytes = 64}), 0);
	assert_null(region_find(&r, space + 63));
	assert_non_null(region_find(&r, space + 64));
	assert_non_null(region_find(&r, space + 127));
	assert_null(region_find(&r, space + 128));
	assert_null(region_find(&r, NULL));
	region_remove(&r, space + 65); /* no region's base */
	assert_int_equal(r.n, 1);
	free(r.sorted);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_what_a_plain_search_finds),
		cmocka_unit_test(edges),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
