/* SPDX-License-Identifier: Apache-2.0 */
#include "task.h"

#include <stdio.h>
#include <string.h>

#include "names.h"

/* Which bytes one side of an operation has. */
enum extent {
	NOTHING = 0,
	ONE = 1,     /* count elements */
	ALL = 2,     /* count elements of each rank */
	AT_ROOT = 4, /* elsewhere nothing */
};

enum kind {
	KNOWN = 1,
	REDUCES = 2,
	HAS_ROOT = 4,
	IS_P2P = 8,
	HAS_DATA = 16,
};

/* One look, where a chain of questions would be asked of every record. */
static const struct shape {
	uint8_t kind, src, dst;
} shapes[UINT8_MAX + 1] = {
	[NCCLSVC_ALL_REDUCE] = {KNOWN | HAS_DATA | REDUCES, ONE, ONE},
	[NCCLSVC_ALL_GATHER] = {KNOWN | HAS_DATA, ONE, ALL},
	[NCCLSVC_REDUCE_SCATTER] = {KNOWN | HAS_DATA | REDUCES, ALL, ONE},
	[NCCLSVC_BROADCAST] = {KNOWN | HAS_DATA | HAS_ROOT, ONE | AT_ROOT, ONE},
	[NCCLSVC_REDUCE] = {KNOWN | HAS_DATA | HAS_ROOT | REDUCES, ONE, ONE | AT_ROOT},
	[NCCLSVC_ALL_TO_ALL] = {KNOWN | HAS_DATA, ALL, ALL},
	[NCCLSVC_GATHER] = {KNOWN | HAS_DATA | HAS_ROOT, ONE, ALL | AT_ROOT},
	[NCCLSVC_SCATTER] = {KNOWN | HAS_DATA | HAS_ROOT, ALL | AT_ROOT, ONE},
	[NCCLSVC_SEND] = {KNOWN | HAS_DATA | IS_P2P, ONE, NOTHING},
	[NCCLSVC_RECV] = {KNOWN | HAS_DATA | IS_P2P, NOTHING, ONE},
	[NCCLSVC_BARRIER] = {KNOWN, NOTHING, NOTHING},
};

static uint64_t side_bytes(unsigned extent, bool root, uint64_t one, uint64_t all)
{
	if (!extent || (extent & AT_ROOT && !root))
		return 0;
	return extent & ALL ? all : one;
}

bool svc_task_extent(const struct svc_record *r, uint32_t nranks, int32_t rank, uint64_t *src_bytes,
		     uint64_t *dst_bytes)
{
	const struct shape *shape = &shapes[r->op];
	uint64_t one, all;
	bool root = r->peer == rank;
	*src_bytes = *dst_bytes = 0;
	if (r->op == NCCLSVC_BARRIER)
		return true;
	if (__builtin_mul_overflow(r->count, (uint64_t)svc_type_size(r->type), &one) ||
	    __builtin_mul_overflow(one, (uint64_t)nranks, &all))
		return false;
	*src_bytes = side_bytes(shape->src, root, one, all);
	*dst_bytes = side_bytes(shape->dst, root, one, all);
	return true;
}

uint64_t svc_task_bytes(const struct svc_record *r, uint32_t nranks)
{
	uint64_t one = 0;
	if (r->op == NCCLSVC_BARRIER ||
	    __builtin_mul_overflow(r->count, (uint64_t)svc_type_size(r->type), &one))
		return 0;
	switch (r->op) {
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_REDUCE_SCATTER:
	case NCCLSVC_ALL_TO_ALL:
	case NCCLSVC_GATHER:
	case NCCLSVC_SCATTER:
		return one * nranks;
	}
	return one;
}

static int refuse(char *text, const char *sentence)
{
	if (text)
		snprintf(text, SVC_TEXT_BYTES, "%s", sentence);
	return NCCLSVC_INVALID_ARGUMENT;
}

static bool all_zero(const uint64_t *words, size_t n)
{
	uint64_t any = 0;
	for (size_t i = 0; i < n; i++)
		any |= words[i];
	return any == 0;
}

int svc_record_check_half(const struct svc_record *r, char *text)
{
	if (!all_zero(r->reserved, sizeof(r->reserved) / sizeof(r->reserved[0])))
		return refuse(text, "reserved fields of a task record are not zero");
	if (!(r->flags & SVC_TASK_AGREE) != !r->agreement)
		return refuse(text, "the agreement flag and the agreement disagree");
	if (!(r->flags & SVC_TASK_PLAN) != !r->plan ||
	    (!r->plan && (r->plan_group || r->plan_task)))
		return refuse(text, "the plan flag and the plan disagree");
	if (r->plan && r->flags & SVC_TASK_MORE)
		return refuse(text, "a planned task cannot be in a task group of its own");
	if (r->plan && !(shapes[r->op].kind & IS_P2P))
		return refuse(text, "only Send and Recv can be planned");
	if (!(r->flags & SVC_TASK_TIMELINE) != !r->timeline)
		return refuse(text, "the timeline flag and the timeline disagree");
	if (r->timeline >= SVC_TIMELINES)
		return refuse(text, "no such timeline");
	if (r->value && !r->timeline)
		return refuse(text, "a task record has a timeline's value without its flag");
	return 0;
}

int svc_record_check(const struct svc_record *r, uint32_t nranks, int32_t rank, char *text)
{
	uint64_t src_bytes, dst_bytes;
	int result = svc_record_check_half(r, text);
	return result ? result : svc_record_measure(r, nranks, rank, &src_bytes, &dst_bytes, text);
}

int svc_record_measure(const struct svc_record *r, uint32_t nranks, int32_t rank,
		       uint64_t *src_bytes, uint64_t *dst_bytes, char *text)
{
	const unsigned kind = shapes[r->op].kind;
	if (!kind)
		return refuse(text, "unknown operation");
	if (r->flags & ~(SVC_TASK_MORE | SVC_TASK_SECOND_HALF | SVC_TASK_NO_WINDOW))
		return refuse(text, "unknown task flags");
	if (r->flags & SVC_TASK_SECOND_HALF && svc_record_check_half(r, text))
		return NCCLSVC_INVALID_ARGUMENT;
	if (r->timeout_ns > SVC_TIMEOUT_MAX_NS)
		return refuse(text, "the timeout is out of range");
	if (kind & HAS_DATA && !svc_type_size(r->type))
		return refuse(text, "unknown element type");
	if (kind & REDUCES && !svc_redop_known(r->redop) && !svc_redop_made(r->redop))
		return refuse(text, "unknown reduction");
	/* A negative peer is a large one. */
	if (kind & (HAS_ROOT | IS_P2P) && (uint32_t)r->peer >= nranks)
		return refuse(text, kind & IS_P2P ? "the peer is no rank of the communicator"
						  : "the root is no rank of the communicator");
	if (!svc_task_extent(r, nranks, rank, src_bytes, dst_bytes))
		return refuse(text, "count times element size overflows");
	return 0;
}

static unsigned found(unsigned field, uint64_t a, uint64_t b, uint64_t *value_a, uint64_t *value_b)
{
	*value_a = a;
	*value_b = b;
	return field;
}

unsigned svc_record_differs(const struct svc_record *a, const struct svc_record *b,
			    uint64_t *value_a, uint64_t *value_b)
{
	const unsigned kind = shapes[a->op].kind;
	if (!(kind & IS_P2P) && a->op != b->op)
		return found(NCCLSVC_FIELD_OP, a->op, b->op, value_a, value_b);
	if (a->agreement != b->agreement)
		return found(NCCLSVC_FIELD_AGREEMENT, a->agreement, b->agreement, value_a, value_b);
	if (a->op == NCCLSVC_BARRIER)
		return NCCLSVC_FIELD_NONE;
	if (a->type != b->type)
		return found(NCCLSVC_FIELD_TYPE, a->type, b->type, value_a, value_b);
	if (a->count != b->count)
		return found(NCCLSVC_FIELD_COUNT, a->count, b->count, value_a, value_b);
	/* Each member has its own number, and scalar, for those that are made. */
	if (kind & REDUCES && a->redop != b->redop &&
	    !(svc_redop_made(a->redop) && svc_redop_made(b->redop)))
		return found(NCCLSVC_FIELD_REDOP, a->redop, b->redop, value_a, value_b);
	if (kind & HAS_ROOT && a->peer != b->peer)
		return found(NCCLSVC_FIELD_ROOT, (uint64_t)a->peer, (uint64_t)b->peer, value_a,
			     value_b);
	return NCCLSVC_FIELD_NONE;
}
