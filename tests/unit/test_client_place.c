/* SPDX-License-Identifier: Apache-2.0
 * Buffers of an operation: which arguments and overlaps are refused, and how the others are placed
 * in regions or staged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/submit.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"

#define RANKS 4
#define RANK  2
#define COUNT 8
#define ONE   (COUNT * 4) /* bytes of one rank's block */

static char plain[4096];
static char shared[4096];
static struct ncclsvc_session session;
static ncclsvc_comm comm = {
	.session = &session, .nranks = RANKS, .rank = RANK, .device = NCCLSVC_DEVICE_HOST};

static int setup(void **state)
{
	(void)state;
	struct region region = {.base = shared, .bytes = sizeof(shared), .id = 7};
	return region_insert(&session.regions, &region);
}

static int teardown(void **state)
{
	(void)state;
	free(session.regions.sorted);
	return 0;
}

static struct op make(unsigned kind, const void *src, void *dst, int peer)
{
	return (struct op){
		.record = {.op = (uint8_t)kind,
			   .type = NCCLSVC_FLOAT32,
			   .redop = NCCLSVC_SUM,
			   .count = COUNT,
			   .peer = peer},
		.comm = &comm,
		.src = src,
		.dst = dst,
	};
}

static ncclsvc_result check(unsigned kind, const void *src, void *dst, int peer)
{
	struct op op = make(kind, src, dst, peer);
	return op_check(&op);
}

/* Tries every distance between the buffers: only one overlap is allowed. */
static void only_the_in_place_overlap_is_allowed(void **state)
{
	static const struct {
		unsigned op;
		int src, dst, in_place; /* in blocks; in_place: dst minus src in place, in bytes */
	} cases[] = {
		{NCCLSVC_ALL_REDUCE, 1, 1, 0},
		{NCCLSVC_BROADCAST, 1, 1, 0},
		{NCCLSVC_REDUCE, 1, 1, 0},
		{NCCLSVC_ALL_TO_ALL, RANKS, RANKS, 0},
		{NCCLSVC_ALL_GATHER, 1, RANKS, -RANK * ONE},
		{NCCLSVC_GATHER, 1, RANKS, -RANK * ONE},
		{NCCLSVC_REDUCE_SCATTER, RANKS, 1, RANK * ONE},
		{NCCLSVC_SCATTER, RANKS, 1, RANK * ONE},
	};
	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		for (int d = -6 * ONE; d <= 6 * ONE; d++) {
			char *src = plain + 1024, *dst = src + d;
			bool apart =
				dst >= src + cases[c].src * ONE || src >= dst + cases[c].dst * ONE;
			bool allowed = apart || d == cases[c].in_place;
			assert_int_equal(check(cases[c].op, src, dst, RANK),
					 allowed ? NCCLSVC_OK : NCCLSVC_INVALID_ARGUMENT);
		}
	}
}

static void unused_buffers_may_be_null(void **state)
{
	(void)state;
	assert_int_equal(check(NCCLSVC_BROADCAST, NULL, plain, 0), NCCLSVC_OK);
	assert_int_equal(check(NCCLSVC_BROADCAST, NULL, plain, RANK), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(check(NCCLSVC_REDUCE, plain, NULL, 0), NCCLSVC_OK);
	assert_int_equal(check(NCCLSVC_REDUCE, plain, NULL, RANK), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(check(NCCLSVC_GATHER, plain, NULL, 0), NCCLSVC_OK);
	assert_int_equal(check(NCCLSVC_SCATTER, NULL, plain, 0), NCCLSVC_OK);
	assert_int_equal(check(NCCLSVC_ALL_REDUCE, NULL, plain, -1), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(check(NCCLSVC_BARRIER, NULL, NULL, -1), NCCLSVC_OK);
	struct op empty = make(NCCLSVC_ALL_REDUCE, NULL, NULL, -1);
	empty.record.count = 0;
	assert_int_equal(op_check(&empty), NCCLSVC_OK);
}

static void bad_arguments_are_named(void **state)
{
	(void)state;
	struct op op = make(NCCLSVC_ALL_REDUCE, plain, plain, -1);
	op.record.type = 200;
	assert_int_equal(op_check(&op), NCCLSVC_INVALID_ARGUMENT);
	assert_non_null(strstr(ncclsvc_last_error(), "type"));
	op = make(NCCLSVC_ALL_GATHER, plain, plain, -1);
	op.record.count = SIZE_MAX / 8;
	assert_int_equal(op_check(&op), NCCLSVC_INVALID_ARGUMENT);
	assert_non_null(strstr(ncclsvc_last_error(), "overflow"));
	assert_int_equal(check(NCCLSVC_SEND, plain, NULL, RANKS), NCCLSVC_INVALID_ARGUMENT);
	assert_non_null(strstr(ncclsvc_last_error(), "peer"));
	op = make(NCCLSVC_SEND, plain, NULL, 0); /* fits 64 bits, but not the address space */
	op.record.count = UINT64_C(1) << 61;
	assert_int_equal(op_check(&op), NCCLSVC_INVALID_ARGUMENT);
}

static void session_memory_is_named_by_region(void **state)
{
	(void)state;
	struct op op = make(NCCLSVC_ALL_GATHER, shared + 100, shared + 1000, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_OK);
	assert_int_equal(op.staged.bytes, 0);
	assert_int_equal(op.record.src_region, 7);
	assert_int_equal(op.record.dst_region, 7);
	assert_int_equal(op.record.src_offset, 100);
	assert_int_equal(op.record.dst_offset, 1000);
	op = make(NCCLSVC_ALL_GATHER, shared, shared + sizeof(shared) - RANKS * ONE + 1, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_INVALID_ARGUMENT);
}

static void mixed_buffers_stage_one(void **state)
{
	(void)state;
	struct op op = make(NCCLSVC_ALL_REDUCE, plain, shared + 64, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_OK);
	assert_true(op.staged.src && !op.staged.dst);
	assert_int_equal(op.staged.bytes, ONE);
	assert_int_equal(op.record.dst_region, 7);
	op = make(NCCLSVC_ALL_REDUCE, shared, plain, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_OK);
	assert_true(!op.staged.src && op.staged.dst);
	assert_int_equal(op.staged.dst_at, 0);
}

static void staging_keeps_the_in_place_relation(void **state)
{
	(void)state;
	struct op op = make(NCCLSVC_ALL_GATHER, plain + 512 + RANK * ONE, plain + 512, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_OK);
	assert_true(op.staged.src && op.staged.dst);
	assert_int_equal(op.staged.bytes, RANKS * ONE);
	assert_int_equal(op.staged.src_at, RANK * ONE);
	assert_int_equal(op.staged.dst_at, 0);
	op = make(NCCLSVC_REDUCE_SCATTER, plain, plain + RANK * ONE, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_OK);
	assert_int_equal(op.staged.bytes, RANKS * ONE);
	assert_int_equal(op.staged.dst_at, RANK * ONE);
	op = make(NCCLSVC_ALL_TO_ALL, plain, plain + 2048, -1);
	assert_int_equal(op_check(&op), NCCLSVC_OK);
	assert_int_equal(op_place(&session, &op), NCCLSVC_OK);
	assert_true(op.staged.dst_at >= RANKS * ONE &&
		    op.staged.bytes == op.staged.dst_at + RANKS * ONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_the_in_place_overlap_is_allowed),
		cmocka_unit_test(unused_buffers_may_be_null),
		cmocka_unit_test(bad_arguments_are_named),
		cmocka_unit_test(session_memory_is_named_by_region),
		cmocka_unit_test(mixed_buffers_stage_one),
		cmocka_unit_test(staging_keeps_the_in_place_relation),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
