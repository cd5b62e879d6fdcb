/* SPDX-License-Identifier: Apache-2.0
 * Collectives by copy engines, for communicators that ask for them: kernels only wait. Chunk by
 * chunk, each rank copies what others need into a slot of its staging memory, a kernel of one block
 * waits until all ranks have done so, and each rank copies what it needs from the others' slots.
 * Two slots alternate: when a rank fills a slot again, the kernel of the chunk in between has shown
 * that all ranks have read it. A last kernel waits until all ranks have read the last chunk. */
#include "core/comm_handle.h"
#include "peer_kernel.h"
#include "proto/names.h"
#include "proto/operation.h"

#define COPIES_LEAST (UINT64_C(4) << 20) /* bytes from one rank to another */

/* ---- Which operations ---- */

/* The bytes of a chunk, from one rank to another. */
static uint64_t chunk_bytes(const struct peer *p, bool for_each)
{
	const uint64_t part = p->copy_slot / (for_each ? p->call.nranks : 1);
	return part / PEER_SEGMENT_UNIT * PEER_SEGMENT_UNIT;
}

static uint64_t operation_bytes(const struct op *op)
{
	return op->record.count * svc_type_size(op->record.type);
}

/* The most entries that a rank puts on its stream. */
static uint64_t entries(const struct op *op)
{
	const struct peer *p = op->comm->peer;
	const bool each = svc_op_sends_each(op->record.op);
	const uint64_t chunk = chunk_bytes(p, each);
	const uint64_t chunks = (operation_bytes(op) + chunk - 1) / chunk;
	return chunks * ((each ? p->call.nranks - 1u : 1) + 1 + p->call.nranks) + 1;
}

bool copies_choose(const struct op *op)
{
	return op->comm->peer->copy_slot && !svc_op_reduces(op->record.op) &&
	       operation_bytes(op) >= COPIES_LEAST && entries(op) <= COPIES_ENTRIES;
}

/* ---- Copies ---- */

struct chunk {
	const struct peer *p;
	const struct peer_call *call;
	CUstream stream;
	uint64_t at, bytes; /* of the data from one rank to another */
	unsigned slot;
};

/* Where `from` puts its data for `to`. */
static uint64_t slot_address(const struct chunk *k, unsigned from, unsigned to)
{
	const bool for_each = k->call->parts & PEER_PART_FOR_EACH;
	return k->call->staging[from] + PEER_STAGING + k->slot * k->p->copy_slot +
	       (for_each ? to * chunk_bytes(k->p, true) : 0);
}

static CUresult copy(const struct chunk *k, uint64_t to, uint64_t from)
{
	const struct cuda *cuda = k->p->capture->cuda;
	return to == from ? CUDA_SUCCESS : cuda->cuMemcpyDtoDAsync(to, from, k->bytes, k->stream);
}

static uint64_t source(const struct chunk *k, unsigned to)
{
	return k->call->src + to * k->call->src_each + k->at;
}

static CUresult copy_to_slot(const struct chunk *k)
{
	const struct peer_call *c = k->call;
	CUresult e = CUDA_SUCCESS;
	bool done = false; /* the data is the same for all */
	for (unsigned to = 0; !e && !done && to < c->nranks; to++) {
		if (to == c->rank || !(c->sends_to >> to & 1))
			continue;
		e = copy(k, slot_address(k, c->rank, to), source(k, to));
		done = !(c->parts & PEER_PART_FOR_EACH);
	}
	return e;
}

/* A rank has its own data in its buffer. */
static CUresult copy_from_slots(const struct chunk *k)
{
	const struct peer_call *c = k->call;
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 1; !e && i <= c->nranks; i++) {
		const unsigned from = (c->rank + i) % c->nranks;
		if (c->receives_from >> from & 1)
			e = copy(k, c->dst + from * c->dst_each + k->at,
				 from == c->rank ? source(k, from)
						 : slot_address(k, from, c->rank));
	}
	return e;
}

static CUresult kernel_put(const struct op *op, const struct peer *p, struct peer_call *call,
			   CUstream stream)
{
	void *parameters[] = {call};
	return p->capture->cuda->cuLaunchKernel(p->module->functions[KERNEL_LL][0],
						op->launch.blocks, 1, 1, op->launch.threads, 1, 1,
						0, stream, parameters, NULL);
}

CUresult copies_put(const struct op *op, const struct peer *p, const struct peer_call *call,
		    CUstream stream)
{
	const uint64_t most = chunk_bytes(p, call->parts & PEER_PART_FOR_EACH);
	struct peer_call last = *call, between;
	struct chunk k = {.p = p, .call = call, .stream = stream};
	last.bytes = 0;
	between = last;
	between.more = 1;
	between.posts = 0;
	CUresult e = CUDA_SUCCESS;
	for (; !e && k.at < call->bytes; k.at += most, k.slot ^= 1) {
		const uint64_t left = call->bytes - k.at;
		k.bytes = left < most ? left : most;
		e = copy_to_slot(&k);
		if (!e)
			e = kernel_put(op, p, &between, stream);
		if (!e)
			e = copy_from_slots(&k);
	}
	const CUresult put = kernel_put(op, p, &last, stream);
	return e ? e : put;
}
