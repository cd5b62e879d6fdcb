/* SPDX-License-Identifier: Apache-2.0
 * The session memory's layout, which other languages access by offset. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "proto/ring.h"

static void offsets_are_the_documented_ones(void **state)
{
	(void)state;
	assert_int_equal(offsetof(struct svc_ring, magic), 0);
	assert_int_equal(offsetof(struct svc_ring, version), 4);
	assert_int_equal(offsetof(struct svc_ring, entries), 8);
	assert_int_equal(offsetof(struct svc_ring, timelines), 12);
	assert_int_equal(offsetof(struct svc_ring, size), 16);
	assert_int_equal(offsetof(struct svc_ring, asleep), 64);
	assert_int_equal(offsetof(struct svc_ring, ended), 68);
	assert_int_equal(offsetof(struct svc_ring, spin_ns), 72);
	assert_int_equal(offsetof(struct svc_ring, crowded), 76);
	assert_int_equal(offsetof(struct svc_ring, wake), 128);
	assert_int_equal(offsetof(struct svc_ring, waiters), 192);
	assert_int_equal(offsetof(struct svc_ring, armed), 196);
	assert_int_equal(offsetof(struct svc_timeline, ready), 0);
	assert_int_equal(offsetof(struct svc_timeline, done), 8);
	assert_int_equal(sizeof(struct svc_timeline), 64);
}

static void entries_are_powers_of_two_within_the_limits(void **state)
{
	(void)state;
	unsigned valid = 0;
	for (uint32_t n = 0; n <= 2 * SVC_RING_MAX; n++)
		valid += svc_ring_entries_valid(n);
	assert_int_equal(valid, 13); /* 16 .. 65536 */
	assert_true(svc_ring_entries_valid(SVC_RING_MIN));
	assert_true(svc_ring_entries_valid(SVC_RING_DEFAULT));
	assert_true(svc_ring_entries_valid(SVC_RING_MAX));
	assert_false(svc_ring_entries_valid(UINT32_MAX));
	assert_false(svc_ring_entries_valid(UINT32_C(1) << 31));
}

static void slots_lie_apart_and_within_the_memory(void **state)
{
	(void)state;
	const uint32_t entries = 16;
	size_t size = svc_ring_size(entries);
	char *base = aligned_alloc(SVC_PAGE, (size + SVC_PAGE - 1) / SVC_PAGE * SVC_PAGE);
	assert_non_null(base);
	struct svc_ring *ring = (struct svc_ring *)base;
	char *statuses = base + SVC_RECORDS_AT + entries * sizeof(struct svc_record);
	assert_ptr_equal(svc_timelines(ring), base + SVC_TIMELINES_AT);
	for (uint64_t n = 1; n < 100; n++) {
		char *record = (char *)svc_record_slot(ring, entries, n);
		char *status = (char *)svc_status_slot(ring, entries, n);
		assert_ptr_equal(record, base + SVC_RECORDS_AT + n % entries * 128);
		assert_ptr_equal(status, statuses + n % entries * 128);
		assert_true(status + sizeof(ncclsvc_status) <= base + size);
	}
	free(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(offsets_are_the_documented_ones),
		cmocka_unit_test(entries_are_powers_of_two_within_the_limits),
		cmocka_unit_test(slots_lie_apart_and_within_the_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
