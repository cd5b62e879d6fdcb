/* SPDX-License-Identifier: Apache-2.0
 * Finds the region of each buffer of an operation, and checks the buffers. */
#include <string.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "cuda/session_gpu.h"
#include "proto/names.h"
#include "proto/task.h"
#include "submit.h"

static bool overlap(const struct op *op)
{
	uintptr_t s = (uintptr_t)op->src, d = (uintptr_t)op->dst;
	if (!op->src_bytes || !op->dst_bytes)
		return false;
	return s < d ? d - s < op->src_bytes : s - d < op->dst_bytes;
}

static bool wraps(const void *buffer, uint64_t bytes)
{
	return bytes > UINTPTR_MAX - (uintptr_t)buffer;
}

/* A created reduction is valid only for its communicator and type. */
static ncclsvc_result check_redop(struct op *op)
{
	const struct svc_record *r = &op->record;
	const struct made_redop *at = comm_redop(op->comm, r->redop);
	if (!op_is_premulsum(op))
		return NCCLSVC_OK;
	if (op->comm->device < 0)
		return error_set(NCCLSVC_UNSUPPORTED,
				 "%s: premulsum needs GPUs, and communicator %s uses host memory",
				 svc_op_name(r->op), op->comm->label);
	if (!at)
		return error_argument("%s: communicator %s has no reduction %u in this epoch",
				      svc_op_name(r->op), op->comm->label, r->redop);
	if (at->type != r->type)
		return error_argument("%s: reduction %u has data type %s, but the operation has %s",
				      svc_op_name(r->op), r->redop, svc_type_name(at->type),
				      svc_type_name(r->type));
	memcpy(op->scalar, at->scalar, sizeof(op->scalar));
	return NCCLSVC_OK;
}

ncclsvc_result op_check(struct op *op)
{
	const struct svc_record *r = &op->record;
	const ncclsvc_comm *comm = op->comm;
	char text[SVC_TEXT_BYTES];
	if (svc_record_measure(r, (uint32_t)comm->nranks, comm->rank, &op->src_bytes,
			       &op->dst_bytes, text))
		return error_argument("%s: %s", svc_op_name(r->op), text);
	if ((r->type == NCCLSVC_FLOAT8E4M3 || r->type == NCCLSVC_FLOAT8E5M2) && comm->device < 0 &&
	    svc_op_reduces(r->op))
		return error_set(NCCLSVC_UNSUPPORTED,
				 "%s: %s is reduced only on GPUs: join the communicator with a "
				 "device, or convert",
				 svc_op_name(r->op), svc_type_name(r->type));
	const ncclsvc_result redop = check_redop(op);
	if (redop)
		return redop;
	if (op->src_bytes && (!op->src || wraps(op->src, op->src_bytes)))
		return error_argument("%s: sendbuf is %p, but %llu bytes are needed",
				      svc_op_name(r->op), (const void *)op->src,
				      (unsigned long long)op->src_bytes);
	if (op->dst_bytes && (!op->dst || wraps(op->dst, op->dst_bytes)))
		return error_argument("%s: recvbuf is %p, but %llu bytes are needed",
				      svc_op_name(r->op), (const void *)op->dst,
				      (unsigned long long)op->dst_bytes);
	if (overlap(op) &&
	    !svc_task_in_place(r, (uint32_t)comm->rank, (uintptr_t)op->src, (uintptr_t)op->dst))
		return error_argument(
			"%s: sendbuf and recvbuf overlap in a way that is not the in-place form",
			svc_op_name(r->op));
	return NCCLSVC_OK;
}

/* Fills region and offset if the buffer is in session memory; sets *plain if it is not. */
static ncclsvc_result locate(const ncclsvc_session *s, const struct op *op, const char *buffer,
			     uint64_t bytes, uint32_t *id, uint64_t *offset, bool *plain)
{
	const struct region *region = region_find(&s->regions, buffer);
	*plain = !region;
	if (!region)
		return s->gpu ? host_check(s, op, buffer) : NCCLSVC_OK;
	*offset = (uint64_t)(buffer - region->base);
	if (bytes > region->bytes - *offset)
		return error_argument(
			"%s: the buffer at %p needs %llu bytes, but its memory ends after %llu",
			svc_op_name(op->record.op), (const void *)buffer, (unsigned long long)bytes,
			(unsigned long long)(region->bytes - *offset));
	if (!region->id)
		return error_set(
			NCCLSVC_DAEMON_LOST,
			"%s: the buffer's memory is not registered with the new daemon yet",
			svc_op_name(op->record.op));
	*id = region->id;
	return NCCLSVC_OK;
}

/* In place, the outer buffer holds the inner one, so both lie in one region or one chunk. */
static ncclsvc_result place_together(const ncclsvc_session *s, struct op *op)
{
	struct svc_record *r = &op->record;
	bool src_outer = op->src_bytes >= op->dst_bytes, plain;
	const char *outer = src_outer ? op->src : op->dst;
	uint64_t bytes = src_outer ? op->src_bytes : op->dst_bytes, offset = 0;
	ncclsvc_result result = locate(s, op, outer, bytes, &r->src_region, &offset, &plain);
	if (result)
		return result;
	op->staged.src_at = (size_t)(op->src - outer);
	op->staged.dst_at = (size_t)(op->dst - outer);
	op->staged.src = op->staged.dst = plain;
	op->staged.bytes = plain ? bytes : 0;
	r->dst_region = r->src_region;
	r->src_offset = offset + op->staged.src_at;
	r->dst_offset = offset + op->staged.dst_at;
	return NCCLSVC_OK;
}

ncclsvc_result op_place(const ncclsvc_session *s, struct op *op)
{
	struct svc_record *r = &op->record;
	ncclsvc_result result = NCCLSVC_OK;
	if (overlap(op))
		return place_together(s, op);
	if (op->src_bytes)
		result = locate(s, op, op->src, op->src_bytes, &r->src_region, &r->src_offset,
				&op->staged.src);
	if (!result && op->dst_bytes)
		result = locate(s, op, op->dst, op->dst_bytes, &r->dst_region, &r->dst_offset,
				&op->staged.dst);
	if (result)
		return result;
	op->staged.src = op->staged.src || (op->copied && op->src_bytes);
	if (op->staged.src)
		op->staged.bytes = op->src_bytes;
	if (op->staged.dst) {
		op->staged.dst_at =
			(op->staged.bytes + SVC_CACHE_LINE - 1) & ~(size_t)(SVC_CACHE_LINE - 1);
		if (op->staged.dst_at > SIZE_MAX - op->dst_bytes)
			return error_argument("the buffers are too large to copy");
		op->staged.bytes = op->staged.dst_at + op->dst_bytes;
	}
	return NCCLSVC_OK;
}
