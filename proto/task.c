/* SPDX-License-Identifier: Apache-2.0 */
#include "task.h"

#include <stdio.h>
#include <string.h>

#include "names.h"

bool svc_task_extent(const struct svc_record *r, uint32_t nranks, int32_t rank, uint64_t *src_bytes,
		     uint64_t *dst_bytes)
{
	uint64_t one, all;
	bool root = r->peer == rank;
	*src_bytes = *dst_bytes = 0;
	if (r->op == NCCLSVC_BARRIER)
		return true;
	if (__builtin_mul_overflow(r->count, (uint64_t)svc_type_size(r->type), &one) ||
	    __builtin_mul_overflow(one, (uint64_t)nranks, &all))
		return false;
	switch (r->op) {
	case NCCLSVC_ALL_REDUCE:
		*src_bytes = *dst_bytes = one;
		break;
	case NCCLSVC_ALL_GATHER:
		*src_bytes = one;
		*dst_bytes = all;
		break;
	case NCCLSVC_REDUCE_SCATTER:
		*src_bytes = all;
		*dst_bytes = one;
		break;
	case NCCLSVC_ALL_TO_ALL:
		*src_bytes = *dst_bytes = all;
		break;
	case NCCLSVC_BROADCAST:
		*src_bytes = root ? one : 0;
		*dst_bytes = one;
		break;
	case NCCLSVC_REDUCE:
		*src_bytes = one;
		*dst_bytes = root ? one : 0;
		break;
	case NCCLSVC_GATHER:
		*src_bytes = one;
		*dst_bytes = root ? all : 0;
		break;
	case NCCLSVC_SCATTER:
		*src_bytes = root ? all : 0;
		*dst_bytes = one;
		break;
	case NCCLSVC_SEND:
		*src_bytes = one;
		break;
	case NCCLSVC_RECV:
		*dst_bytes = one;
		break;
	}
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

int svc_record_check(const struct svc_record *r, uint32_t nranks, int32_t rank, char *text)
{
	uint64_t src_bytes, dst_bytes;
	return svc_record_measure(r, nranks, rank, &src_bytes, &dst_bytes, text);
}

int svc_record_measure(const struct svc_record *r, uint32_t nranks, int32_t rank,
		       uint64_t *src_bytes, uint64_t *dst_bytes, char *text)
{
	if (!svc_op_known(r->op))
		return refuse(text, "unknown operation");
	if (r->flags & ~(SVC_TASK_MORE | SVC_TASK_TIMELINE))
		return refuse(text, "unknown task flags");
	if (r->reserved0 || !all_zero(r->reserved, sizeof(r->reserved) / sizeof(r->reserved[0])))
		return refuse(text, "reserved fields of a task record are not zero");
	if (!(r->flags & SVC_TASK_TIMELINE) != !r->timeline)
		return refuse(text, "the timeline flag and the timeline disagree");
	if (r->timeline >= SVC_TIMELINES)
		return refuse(text, "no such timeline");
	if (r->timeout_ns > SVC_TIMEOUT_MAX_NS)
		return refuse(text, "the timeout is out of range");
	if (r->op != NCCLSVC_BARRIER && !svc_type_size(r->type))
		return refuse(text, "unknown element type");
	if (svc_op_reduces(r->op) && !svc_redop_known(r->redop))
		return refuse(text, "unknown reduction");
	if (svc_op_has_root(r->op) || svc_op_is_p2p(r->op)) {
		if (r->peer < 0 || (uint32_t)r->peer >= nranks)
			return refuse(text, svc_op_is_p2p(r->op) ? "the peer is no rank of the "
								   "communicator"
								 : "the root is no rank of the "
								   "communicator");
	}
	if (!svc_task_extent(r, nranks, rank, src_bytes, dst_bytes))
		return refuse(text, "count times element size overflows");
	return 0;
}

static bool differ(uint64_t a, uint64_t b, uint64_t *value_a, uint64_t *value_b)
{
	*value_a = a;
	*value_b = b;
	return a != b;
}

unsigned svc_record_differs(const struct svc_record *a, const struct svc_record *b,
			    uint64_t *value_a, uint64_t *value_b)
{
	if (!svc_op_is_p2p(a->op) && differ(a->op, b->op, value_a, value_b))
		return NCCLSVC_FIELD_OP;
	if (a->op == NCCLSVC_BARRIER)
		return NCCLSVC_FIELD_NONE;
	if (differ(a->type, b->type, value_a, value_b))
		return NCCLSVC_FIELD_TYPE;
	if (differ(a->count, b->count, value_a, value_b))
		return NCCLSVC_FIELD_COUNT;
	if (svc_op_reduces(a->op) && differ(a->redop, b->redop, value_a, value_b))
		return NCCLSVC_FIELD_REDOP;
	if (svc_op_has_root(a->op) &&
	    differ((uint64_t)a->peer, (uint64_t)b->peer, value_a, value_b))
		return NCCLSVC_FIELD_ROOT;
	return NCCLSVC_FIELD_NONE;
}
