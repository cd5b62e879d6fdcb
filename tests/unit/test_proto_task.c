/* SPDX-License-Identifier: Apache-2.0
 * The meaning of a task record: extents, validity, agreement. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/names.h"
#include "proto/task.h"

#define RANKS 5
#define ROOT  2

static char text[SVC_TEXT_BYTES];

static struct svc_record record(unsigned op)
{
	bool peer = svc_op_has_root(op) || svc_op_is_p2p(op);
	return (struct svc_record){
		.op = (uint8_t)op,
		.type = NCCLSVC_FLOAT32,
		.redop = NCCLSVC_SUM,
		.peer = peer ? ROOT : -1,
		.count = 3,
	};
}

/* In units of count elements; -1: RANKS of them. One row for the root, one for the others. */
static const struct {
	uint8_t op;
	int root_src, root_dst, src, dst;
} extents[] = {
	{NCCLSVC_ALL_REDUCE, 1, 1, 1, 1},
	{NCCLSVC_ALL_GATHER, 1, -1, 1, -1},
	{NCCLSVC_REDUCE_SCATTER, -1, 1, -1, 1},
	{NCCLSVC_BROADCAST, 1, 1, 0, 1},
	{NCCLSVC_REDUCE, 1, 1, 1, 0},
	{NCCLSVC_ALL_TO_ALL, -1, -1, -1, -1},
	{NCCLSVC_GATHER, 1, -1, 1, 0},
	{NCCLSVC_SCATTER, -1, 1, 0, 1},
	{NCCLSVC_SEND, 1, 0, 1, 0},
	{NCCLSVC_RECV, 0, 1, 0, 1},
	{NCCLSVC_BARRIER, 0, 0, 0, 0},
};
#define OPS (sizeof(extents) / sizeof(extents[0]))

static uint64_t bytes_of(int units)
{
	return 12 * (uint64_t)(units < 0 ? RANKS : units);
}

/* In place: where dst is relative to src, in units of count elements. */
static const struct {
	uint8_t op;
	int at; /* 1: dst is `own` blocks after src; -1: before; 0: they are the same */
} in_place[] = {
	{NCCLSVC_ALL_REDUCE, 0}, {NCCLSVC_ALL_GATHER, -1}, {NCCLSVC_REDUCE_SCATTER, 1},
	{NCCLSVC_BROADCAST, 0},	 {NCCLSVC_REDUCE, 0},	   {NCCLSVC_ALL_TO_ALL, 0},
	{NCCLSVC_GATHER, -1},	 {NCCLSVC_SCATTER, 1},
};

static void in_place_is_as_in_nccl(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(in_place) / sizeof(in_place[0]); i++) {
		struct svc_record r = record(in_place[i].op);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			const uint64_t src = 4096, own = 12 * rank;
			const uint64_t dst = src + (uint64_t)in_place[i].at * own;
			assert_true(svc_task_in_place(&r, rank, src, dst));
			assert_false(svc_task_in_place(&r, rank, src, dst + 4));
			assert_false(svc_task_in_place(&r, rank, src, dst - 4));
			if (rank && in_place[i].at)
				assert_false(svc_task_in_place(&r, rank, src, src));
		}
	}
}

static void senders_and_receivers(void **state)
{
	(void)state;
	for (size_t i = 0; i < OPS; i++) {
		const unsigned op = extents[i].op;
		if (svc_op_is_p2p(op) || op == NCCLSVC_BARRIER)
			continue;
		assert_true(svc_op_sends(op, ROOT, ROOT) && svc_op_receives(op, ROOT, ROOT));
		assert_int_equal(svc_op_sends(op, ROOT, 0), extents[i].src != 0);
		assert_int_equal(svc_op_receives(op, ROOT, 0), extents[i].dst != 0);
		assert_int_equal(svc_op_sends_each(op), extents[i].root_src < 0);
		assert_int_equal(svc_op_receives_each(op), extents[i].root_dst < 0);
	}
}

static void extents_are_those_of_nccl(void **state)
{
	(void)state;
	for (size_t i = 0; i < OPS; i++) {
		struct svc_record r = record(extents[i].op);
		for (int rank = 0; rank < RANKS; rank++) {
			bool root = rank == ROOT;
			uint64_t src, dst;
			assert_true(svc_task_extent(&r, RANKS, rank, &src, &dst));
			assert_int_equal(src,
					 bytes_of(root ? extents[i].root_src : extents[i].src));
			assert_int_equal(dst,
					 bytes_of(root ? extents[i].root_dst : extents[i].dst));
			assert_true(svc_task_bytes(&r, RANKS) >= (src > dst ? src : dst));
		}
	}
}

/* Checks a record as the daemon does when it came through the socket. */
static int check(const struct svc_record *r, uint32_t nranks, int32_t rank, char *why)
{
	uint64_t src, dst;
	const int result = svc_record_check_half(r, why);
	return result ? result : svc_record_measure(r, nranks, rank, &src, &dst, why);
}

static void overflowing_counts_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < OPS; i++) {
		struct svc_record r = record(extents[i].op);
		if (r.op == NCCLSVC_BARRIER)
			continue;
		const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 4 + 1,
					   UINT64_MAX / 4 / RANKS + 1};
		for (size_t k = 0; k < 3; k++) {
			r.count = counts[k];
			assert_int_equal(check(&r, RANKS, 0, text), NCCLSVC_INVALID_ARGUMENT);
			assert_non_null(strstr(text, "overflow"));
		}
		r.count = UINT64_MAX / 4 / RANKS;
		assert_int_equal(check(&r, RANKS, 0, text), 0);
	}
}

static void refused(struct svc_record r, const char *why)
{
	text[0] = '\0';
	assert_int_equal(check(&r, RANKS, 0, text), NCCLSVC_INVALID_ARGUMENT);
	assert_non_null(strstr(text, why));
	assert_int_equal(check(&r, RANKS, 0, NULL), NCCLSVC_INVALID_ARGUMENT);
}

static void some_types_are_only_moved(void **state)
{
	(void)state;
	for (size_t i = 0; i < OPS; i++)
		for (unsigned type = NCCLSVC_BOOL; type <= NCCLSVC_UINT4; type++) {
			struct svc_record r = record(extents[i].op);
			r.type = (uint8_t)type;
			if (svc_op_reduces(r.op))
				refused(r, "not reduced");
			else
				assert_int_equal(check(&r, RANKS, 1, text), 0);
		}
}

static void valid_records_pass(void **state)
{
	(void)state;
	for (size_t i = 0; i < OPS; i++)
		for (unsigned type = NCCLSVC_INT8; type <= NCCLSVC_FLOAT8E5M2; type++)
			for (unsigned redop = NCCLSVC_SUM; redop <= NCCLSVC_AVG; redop++) {
				struct svc_record r = record(extents[i].op);
				r.type = (uint8_t)type;
				r.redop = (uint8_t)redop;
				assert_int_equal(check(&r, RANKS, 1, text), 0);
				r.flags = SVC_TASK_MORE;
				r.count = 0;
				assert_int_equal(check(&r, RANKS, 1, NULL), 0);
			}
}

static void bad_fields_are_named(void **state)
{
	(void)state;
	struct svc_record r;
	for (unsigned op = 0; op < 256; op++)
		if (!svc_op_known(op)) {
			r = record(NCCLSVC_BARRIER);
			r.op = (uint8_t)op;
			refused(r, "operation");
		}
	for (unsigned type = NCCLSVC_UINT4 + 1; type < 256; type++) {
		r = record(NCCLSVC_ALL_GATHER);
		r.type = (uint8_t)type;
		refused(r, "type");
	}
	for (unsigned redop = NCCLSVC_AVG + 1; redop < 256; redop++) {
		if (redop >= SVC_REDOP_MADE && redop < SVC_REDOP_MADE + SVC_REDOPS_MADE)
			continue; /* some member's own */
		r = record(NCCLSVC_REDUCE_SCATTER);
		r.redop = (uint8_t)redop;
		refused(r, "reduction");
	}
	static const int32_t peers[] = {-1, RANKS, INT32_MAX, INT32_MIN};
	for (size_t i = 0; i < OPS; i++)
		for (size_t k = 0; k < 4; k++) {
			r = record(extents[i].op);
			if (r.peer < 0)
				continue;
			r.peer = peers[k];
			refused(r, svc_op_is_p2p(r.op) ? "peer" : "root");
		}
	r = record(NCCLSVC_BARRIER);
	r.flags = 0x80;
	refused(r, "flags");
	r = record(NCCLSVC_BARRIER);
	r.flags = SVC_TASK_TIMELINE;
	r.timeline = SVC_TIMELINES;
	refused(r, "timeline");
	r = record(NCCLSVC_BARRIER);
	r.timeout_ns = UINT64_MAX;
	refused(r, "timeout");
	r = record(NCCLSVC_BARRIER);
	r.plan = 1;
	refused(r, "plan");
	r = record(NCCLSVC_BARRIER);
	r.plan_task = 1;
	refused(r, "plan");
	r = record(NCCLSVC_BARRIER);
	r.value = 1;
	refused(r, "timeline");
	r = record(NCCLSVC_BARRIER);
	r.agreement = 1;
	refused(r, "agreement");
	r = record(NCCLSVC_BARRIER);
	r.flags = SVC_TASK_AGREE;
	refused(r, "agreement");
	r = record(NCCLSVC_SEND);
	r.flags = SVC_TASK_PLAN;
	r.plan = r.tag = 1;
	refused(r, "tag");
	r = record(NCCLSVC_BARRIER);
	r.flags = SVC_TASK_AGREE;
	r.agreement = 1;
	r.timeline = 1;
	refused(r, "timeline");
	r = record(NCCLSVC_SEND);
	r.flags = SVC_TASK_PLAN;
	refused(r, "plan");
	r.plan = 1;
	assert_int_equal(check(&r, RANKS, 0, text), 0);
	r.flags |= SVC_TASK_MORE;
	refused(r, "planned");
	r = record(NCCLSVC_RECV);
	r.plan_group = 1;
	refused(r, "plan");
	r = record(NCCLSVC_RECV);
	r.plan_task = 1;
	refused(r, "plan");
	r = record(NCCLSVC_BARRIER);
	r.flags = SVC_TASK_PLAN;
	r.plan = 1;
	refused(r, "planned");
	for (size_t i = 0; i < sizeof(r.reserved) / sizeof(r.reserved[0]); i++) {
		r = record(NCCLSVC_BARRIER);
		r.reserved[i] = 1;
		refused(r, "reserved");
	}
}

static void differences_are_found_and_valued(void **state)
{
	(void)state;
	uint64_t va, vb;
	for (size_t i = 0; i < OPS; i++) {
		struct svc_record a = record(extents[i].op), b = a;
		b.src_offset = 4096;
		b.timeout_ns = 1;
		b.number = 9;
		if (svc_op_is_p2p(a.op))
			continue;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_NONE);
		b.op = a.op == NCCLSVC_BARRIER ? NCCLSVC_BROADCAST : NCCLSVC_BARRIER;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_OP);
		assert_int_equal(va, a.op);
		assert_int_equal(vb, b.op);
		b.op = a.op;
		b.count = 99;
		unsigned count = a.op == NCCLSVC_BARRIER ? NCCLSVC_FIELD_NONE : NCCLSVC_FIELD_COUNT;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb), count);
		if (count) {
			assert_int_equal(va, 3);
			assert_int_equal(vb, 99);
		}
		b = a;
		b.type = NCCLSVC_INT8;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb),
				 a.op == NCCLSVC_BARRIER ? NCCLSVC_FIELD_NONE : NCCLSVC_FIELD_TYPE);
		b = a;
		b.redop = NCCLSVC_MAX;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb),
				 svc_op_reduces(a.op) ? NCCLSVC_FIELD_REDOP : NCCLSVC_FIELD_NONE);
		b = a;
		b.peer = a.peer + 1;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb),
				 svc_op_has_root(a.op) ? NCCLSVC_FIELD_ROOT : NCCLSVC_FIELD_NONE);
	}
}

static void a_send_and_its_recv_agree_on_type_and_count(void **state)
{
	(void)state;
	uint64_t va, vb;
	struct svc_record a = record(NCCLSVC_SEND), b = record(NCCLSVC_RECV);
	b.peer = 0;
	assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_NONE);
	b.count++;
	assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_COUNT);
	b.type = NCCLSVC_UINT8;
	assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_TYPE);
}

static void agreement_words_must_be_equal(void **state)
{
	(void)state;
	uint64_t va, vb;
	for (size_t i = 0; i < OPS; i++) {
		struct svc_record a = record(extents[i].op), b = a;
		a.flags = SVC_TASK_AGREE;
		a.agreement = 5;
		assert_int_equal(check(&a, RANKS, 1, text), 0);
		/* Compared before everything except the operation, also with a record without a
		 * word. */
		b.count = 99;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_AGREEMENT);
		assert_int_equal(va, 5);
		assert_int_equal(vb, 0);
		b = a;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_NONE);
		b.tag = 1 << 20;
		assert_int_equal(svc_record_differs(&a, &b, &va, &vb), NCCLSVC_FIELD_TAG);
		assert_int_equal(va, 0);
		assert_int_equal(vb, 1 << 20);
		b.tag = 0;
		b.agreement = SVC_AGREEMENT_REFUSED;
		assert_int_equal(check(&b, RANKS, 1, text), 0);
		assert_true(svc_record_refuses(&b));
		assert_false(svc_record_refuses(&a));
	}
}

static void refusals_are_read_whatever_they_say(void **state)
{
	(void)state;
	const uint64_t word = svc_refusal(NCCLSVC_NO_MEMORY, NCCLSVC_REFUSAL_ALLOCATE);
	const struct svc_record r = {.agreement = word};
	assert_true(svc_record_refuses(&r));
	assert_true(word != SVC_AGREEMENT_REFUSED);
	assert_int_equal(svc_refusal_result(word), NCCLSVC_NO_MEMORY);
	assert_int_equal(svc_refusal_reason(word), NCCLSVC_REFUSAL_ALLOCATE);
	/* From a member that gives no details. */
	assert_int_equal(svc_refusal_result(SVC_AGREEMENT_REFUSED), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(svc_refusal_reason(SVC_AGREEMENT_REFUSED), NCCLSVC_REFUSAL_NONE);
	/* No result that only another session or communicator can have, and none that is not a
	 * failure. */
	static const int others[] = {NCCLSVC_OK,
				     NCCLSVC_IN_PROGRESS,
				     NCCLSVC_DAEMON_LOST,
				     NCCLSVC_AGAIN,
				     NCCLSVC_STALE_EPOCH,
				     NCCLSVC_PEER_GONE,
				     NCCLSVC_TIMEOUT,
				     -200,
				     -256 - 17,
				     INT32_MIN,
				     INT32_MAX};
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_int_equal(svc_refusal_result(svc_refusal(others[i], 0)),
				 NCCLSVC_INVALID_ARGUMENT);
	for (unsigned low = 0; low < 0x10000; low++) {
		const int result = svc_refusal_result(SVC_AGREEMENT_REFUSES | low);
		assert_true(result < 0 && svc_result_known(result));
		assert_true(svc_refusal_reason(SVC_AGREEMENT_REFUSES | low) == low >> 8);
	}
	assert_true(svc_record_refuses(
		&(struct svc_record){.agreement = svc_refusal(NCCLSVC_SYSTEM, UINT32_MAX)}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(extents_are_those_of_nccl),
		cmocka_unit_test(in_place_is_as_in_nccl),
		cmocka_unit_test(senders_and_receivers),
		cmocka_unit_test(overflowing_counts_are_refused),
		cmocka_unit_test(valid_records_pass),
		cmocka_unit_test(some_types_are_only_moved),
		cmocka_unit_test(bad_fields_are_named),
		cmocka_unit_test(differences_are_found_and_valued),
		cmocka_unit_test(a_send_and_its_recv_agree_on_type_and_count),
		cmocka_unit_test(agreement_words_must_be_equal),
		cmocka_unit_test(refusals_are_read_whatever_they_say),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
