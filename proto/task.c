/* SPDX-License-Identifier: Apache-2.0 */
#include "task.h"

#include <stdio.h>
#include <string.h>

#include "abi/peer_abi.h"
#include "names.h"

/* size: of an element. */
static inline bool extent(const struct svc_record *r, size_t size, uint32_t nranks, int32_t rank,
			  uint64_t *src_bytes, uint64_t *dst_bytes)
{
	const struct svc_operation *op = svc_operation(r->op);
	const bool root = r->peer == rank;
	uint64_t one = 0, each = 0;
	*src_bytes = *dst_bytes = 0;
	if (op->kind & SVC_OP_HAS_DATA && (__builtin_mul_overflow(r->count, (uint64_t)size, &one) ||
					   __builtin_mul_overflow(one, (uint64_t)nranks, &each)))
		return false;
	const uint64_t bytes[] = {
		[SVC_BLOCKS_NONE] = 0, [SVC_BLOCKS_ONE] = one, [SVC_BLOCKS_EACH] = each};
	*src_bytes = bytes[op->src[root]];
	*dst_bytes = bytes[op->dst[root]];
	return true;
}

bool svc_task_extent(const struct svc_record *r, uint32_t nranks, int32_t rank, uint64_t *src_bytes,
		     uint64_t *dst_bytes)
{
	return extent(r, svc_type_size(r->type), nranks, rank, src_bytes, dst_bytes);
}

uint64_t svc_task_bytes(const struct svc_record *r, uint32_t nranks)
{
	const bool each = svc_op_sends_each(r->op) || svc_op_receives_each(r->op);
	uint64_t one = 0;
	if (!(svc_operation(r->op)->kind & SVC_OP_HAS_DATA) ||
	    __builtin_mul_overflow(r->count, (uint64_t)svc_type_size(r->type), &one))
		return 0;
	return each ? one * nranks : one;
}

bool svc_task_in_place(const struct svc_record *r, uint32_t rank, uint64_t src, uint64_t dst)
{
	const bool sends_each = svc_op_sends_each(r->op),
		   receives_each = svc_op_receives_each(r->op);
	const uint64_t own = rank * r->count * svc_type_size(r->type);
	if (sends_each == receives_each)
		return src == dst;
	return sends_each ? dst == src + own : src == dst + own;
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
		return refuse(text, "the agreement flag does not match the agreement");
	if (r->tag && !(r->flags & SVC_TASK_AGREE))
		return refuse(text, "a task record has a tag without the agreement flag");
	if (!(r->flags & SVC_TASK_PLAN) != !r->plan ||
	    (!r->plan && (r->plan_group || r->plan_task)))
		return refuse(text, "the plan flag does not match the plan");
	if (r->plan && r->flags & SVC_TASK_MORE)
		return refuse(text, "a planned task cannot also be in a task group");
	if (r->plan && !(svc_operation(r->op)->kind & SVC_OP_IS_P2P))
		return refuse(text, "only Send and Recv can be planned");
	if (!(r->flags & SVC_TASK_TIMELINE) != !r->timeline)
		return refuse(text, "the timeline flag does not match the timeline");
	if (r->timeline >= SVC_TIMELINES)
		return refuse(text, "no such timeline");
	if (r->value && !r->timeline)
		return refuse(text, "a task record has a timeline's value without its flag");
	if (!(r->flags & SVC_TASK_CAPTURED_GROUP))
		return r->graph || r->graph_place
			       ? refuse(text,
					"a task record has a graph without the captured group flag")
			       : 0;
	if (!r->timeline || r->plan)
		return refuse(text,
			      "a task started by a stream needs a timeline, and cannot be planned");
	if (!r->value || r->value > SVC_CAPTURED_GROUP_MAX)
		return refuse(text,
			      "a captured group's number must not be 0, and must fit in 32 bits");
	return 0;
}

int svc_record_measure(const struct svc_record *r, uint32_t nranks, int32_t rank,
		       uint64_t *src_bytes, uint64_t *dst_bytes, char *text)
{
	const unsigned kind = svc_operation(r->op)->kind;
	const size_t size = svc_type_size(r->type);
	if (!kind)
		return refuse(text, "unknown operation");
	if (r->flags & ~SVC_TASK_MORE) {
		if (r->flags & ~(SVC_TASK_MORE | SVC_TASK_SECOND_HALF))
			return refuse(text, "unknown task flags");
		if (svc_record_check_half(r, text))
			return NCCLSVC_INVALID_ARGUMENT;
	}
	if (r->timeout_ns > SVC_TIMEOUT_MAX_NS)
		return refuse(text, "the timeout is out of range");
	if (kind & SVC_OP_HAS_DATA && !size)
		return refuse(text, "unknown element type");
	if (kind & SVC_OP_REDUCES && !svc_type_reduces(r->type))
		return refuse(text, "bool, int16, uint16, int4 and uint4 can be moved, but not "
				    "reduced: convert them");
	if (kind & SVC_OP_REDUCES && !svc_redop_known(r->redop) && !svc_redop_made(r->redop))
		return refuse(text, "unknown reduction");
	/* As unsigned, a negative peer is a large one. */
	if (kind & (SVC_OP_HAS_ROOT | SVC_OP_IS_P2P) && (uint32_t)r->peer >= nranks)
		return refuse(text, kind & SVC_OP_IS_P2P
					    ? "the peer is not a rank of the communicator"
					    : "the root is not a rank of the communicator");
	if (!extent(r, size, nranks, rank, src_bytes, dst_bytes))
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
	const unsigned kind = svc_operation(a->op)->kind;
	if (!(kind & SVC_OP_IS_P2P) && a->op != b->op)
		return found(NCCLSVC_FIELD_OP, a->op, b->op, value_a, value_b);
	if (a->agreement != b->agreement)
		return found(NCCLSVC_FIELD_AGREEMENT, a->agreement, b->agreement, value_a, value_b);
	if (a->tag != b->tag)
		return found(NCCLSVC_FIELD_TAG, (uint64_t)a->tag, (uint64_t)b->tag, value_a,
			     value_b);
	if (!(kind & SVC_OP_HAS_DATA))
		return NCCLSVC_FIELD_NONE;
	if (a->type != b->type)
		return found(NCCLSVC_FIELD_TYPE, a->type, b->type, value_a, value_b);
	if (a->count != b->count)
		return found(NCCLSVC_FIELD_COUNT, a->count, b->count, value_a, value_b);
	/* For created reductions, each member has its own number and scalar. */
	if (kind & SVC_OP_REDUCES && a->redop != b->redop &&
	    !(svc_redop_made(a->redop) && svc_redop_made(b->redop)))
		return found(NCCLSVC_FIELD_REDOP, a->redop, b->redop, value_a, value_b);
	if (kind & SVC_OP_HAS_ROOT && a->peer != b->peer)
		return found(NCCLSVC_FIELD_ROOT, (uint64_t)a->peer, (uint64_t)b->peer, value_a,
			     value_b);
	return NCCLSVC_FIELD_NONE;
}

uint64_t svc_refusal(int result, unsigned reason)
{
	const bool fits = result < 0 && result >= -0xff;
	const uint64_t low = (uint64_t) - (fits ? result : NCCLSVC_INVALID_ARGUMENT);
	return SVC_AGREEMENT_REFUSES | (uint64_t)(reason & 0xff) << 8 | low;
}

int svc_refusal_result(uint64_t word)
{
	const int result = -(int)(word & 0xff);
	switch (result) {
	case NCCLSVC_PROTOCOL:
	case NCCLSVC_MISMATCH:
	case NCCLSVC_LIMIT:
	case NCCLSVC_CANCELLED:
	case NCCLSVC_PERMISSION:
	case NCCLSVC_NOT_FOUND:
	case NCCLSVC_NO_MEMORY:
	case NCCLSVC_UNSUPPORTED:
	case NCCLSVC_SYSTEM:
		return result;
	}
	return NCCLSVC_INVALID_ARGUMENT;
}

unsigned svc_refusal_reason(uint64_t word)
{
	return word == SVC_AGREEMENT_REFUSED ? NCCLSVC_REFUSAL_NONE : word >> 8 & 0xff;
}

struct svc_record svc_header_record(uint64_t header)
{
	return (struct svc_record){.op = peer_header_op(header),
				   .type = header >> 50 & 63,
				   .redop = header >> 44 & 63,
				   .peer = peer_header_root(header),
				   .count = header & PEER_COUNT_MOST};
}
