/* SPDX-License-Identifier: Apache-2.0
 * From operations to kernels: which kernel, its shape, and its argument. */
#include <string.h>

#include "core/comm_handle.h"
#include "cuda/capture/capture_graph.h"
#include "peer_kernel.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"

#define LINES_OF_BLOCK 512 /* measured: more blocks cost more than they gain */
/* Measured: of KERNEL_DIRECT, more blocks than these are faster only for large AllReduces. */
#define DIRECT_BLOCKS  16
#define DIRECT_LARGE   (UINT64_C(8) << 20)

/* ---- Choosing the kernel ---- */

static bool computes(const struct svc_record *r)
{
	return !svc_op_reduces(r->op) || r->type <= NCCLSVC_BFLOAT16;
}

static enum kernel choose_message(const struct op *op)
{
	const uint64_t bytes = op->record.count * svc_type_size(op->record.type);
	return bytes <= op->comm->peer_bytes ? KERNEL_MESSAGES : KERNEL_NONE;
}

enum kernel peer_choose(const struct op *op)
{
	const struct svc_record *r = &op->record;
	const ncclsvc_comm *comm = op->comm;
	/* An agreement of lists needs more than a header holds, and plans run in the daemon. */
	if (!comm->peer || !computes(r) || r->agreement || op->planned)
		return KERNEL_NONE;
	if (svc_op_is_p2p(r->op))
		return choose_message(op);
	const uint32_t nranks = (uint32_t)comm->nranks;
	const uint64_t bytes = svc_task_bytes(r, nranks);
	const uint64_t slot = (uint64_t)PEER_SLOT_LINES(nranks) * LL_LINE_DATA;
	if (bytes > comm->peer_bytes || r->count > PEER_COUNT_MOST)
		return KERNEL_NONE;
	if (r->count * svc_type_size(r->type) <= slot)
		return KERNEL_LL;
	return copies_choose(op) ? KERNEL_COPIES : KERNEL_DIRECT;
}

/* ---- The kernel's argument ---- */

static bool is_root(const struct svc_record *r, unsigned rank)
{
	return svc_op_has_root(r->op) && (unsigned)r->peer == rank;
}

/* Bytes from one rank to another. */
static uint64_t call_bytes(const struct op *op)
{
	const struct svc_record *r = &op->record;
	return svc_operation(r->op)->kind & SVC_OP_HAS_DATA ? r->count * svc_type_size(r->type) : 0;
}

_Static_assert(PEER_PREMULSUM == SVC_REDOP_MADE, "headers are shown with the name of premulsum");

/* Members may have different numbers for their reductions, so all send one value. */
static uint8_t redop_of(const struct svc_record *r)
{
	return svc_redop_made(r->redop) ? PEER_PREMULSUM : r->redop;
}

uint64_t peer_header_of(const struct svc_record *r)
{
	const bool peer = svc_op_has_root(r->op) || svc_op_is_p2p(r->op);
	return peer_header(r->op, r->type, redop_of(r), peer ? (uint8_t)r->peer : 0, r->count);
}

static uint8_t parts(const struct svc_operation *what)
{
	bool for_each = false, of_each = false;
	for (unsigned root = 0; root < 2; root++) {
		for_each = for_each || what->src[root] == SVC_BLOCKS_EACH;
		of_each = of_each || what->dst[root] == SVC_BLOCKS_EACH;
	}
	return (uint8_t)((for_each ? PEER_PART_FOR_EACH : 0) | (of_each ? PEER_PART_OF_EACH : 0));
}

/* Notes which ranks have data, and which get it: one, or all. */
static void ranks_describe(const struct svc_record *r, struct peer_call *c)
{
	const struct svc_operation *what = svc_operation(r->op);
	const uint8_t root = svc_op_has_root(r->op) ? (uint8_t)r->peer : 0;
	const bool one_has = !what->src[0], one_gets = !what->dst[0];
	c->from = one_has ? root : 0;
	c->from_past = one_has ? (uint8_t)(root + 1) : c->nranks;
	c->to = one_gets ? root : 0;
	c->to_past = one_gets ? (uint8_t)(root + 1) : c->nranks;
	c->parts = parts(what);
	c->segment = peer_segment(c->bytes, c->nranks);
}

static void describe(const struct op *op, struct peer_call *c)
{
	const struct svc_record *r = &op->record;
	const struct svc_operation *what = svc_operation(r->op);
	const uint64_t bytes = call_bytes(op);
	const bool root = is_root(r, c->rank);
	c->src = (uintptr_t)op->src;
	c->dst = (uintptr_t)op->dst;
	c->src_share = op->regions.shares[0];
	c->src_at = op->record.src_offset;
	c->dst_share = op->regions.shares[1];
	c->dst_at = op->record.dst_offset;
	c->bytes = bytes;
	c->reduces = svc_op_reduces(r->op);
	c->src_each = what->src[root] == SVC_BLOCKS_EACH ? bytes : 0;
	c->dst_each = what->dst[root] == SVC_BLOCKS_EACH ? bytes : 0;
	c->sends_to = c->receives_from = 0;
	for (unsigned p = 0; p < c->nranks; p++) {
		const bool peer_root = is_root(r, p);
		if (what->src[root] && what->dst[peer_root])
			c->sends_to |= (uint8_t)(1u << p);
		if (what->dst[root] && what->src[peer_root])
			c->receives_from |= (uint8_t)(1u << p);
	}
	ranks_describe(r, c);
	c->type = r->type;
	c->redop = redop_of(r);
	memcpy(&c->scalar, op->scalar, sizeof(c->scalar));
	c->header = peer_header_of(r);
}

static uint32_t at_most(uint64_t a, uint32_t b)
{
	return a < b ? (uint32_t)a : b;
}

/* The monitor warp comes on top of the warps that move data. All ranks have the same number of
 * blocks, and the kernels of all ranks on a GPU must fit there together. */
static void shape(const struct op *op, unsigned *blocks, unsigned *threads)
{
	const struct peer *p = op->comm->peer;
	const uint64_t bytes = op->route.kernel == KERNEL_COPIES ? 0 : call_bytes(op);
	const uint32_t most = at_most(p->blocks, PEER_BLOCKS / p->ranks_per_gpu);
	if (op->route.kernel == KERNEL_DIRECT) {
		const uint8_t kind = op->record.op;
		const bool all = svc_op_reduces(kind) && kind != NCCLSVC_REDUCE_SCATTER;
		*blocks = all && bytes > DIRECT_LARGE ? most : at_most(most, DIRECT_BLOCKS);
		*threads = PEER_DIRECT_THREADS + WARP;
		return;
	}
	const uint64_t lines = (bytes + LL_LINE_DATA - 1) / LL_LINE_DATA;
	const uint32_t movers = at_most((lines + WARP - 1) / WARP * WARP, PEER_THREADS);
	*blocks = lines > LINES_OF_BLOCK ? at_most(lines / LINES_OF_BLOCK, most) : 1;
	*threads = (movers ? movers : WARP) + WARP;
}

_Static_assert(PEER_DIRS <= PEER_MESSAGES_MOST, "a turn fits");

/* How many messages join: only whole turns, so that nothing they wait for is in a later kernel of
 * another rank, which has other messages; but at least one turn. */
static unsigned messages_join(const struct op *ops, unsigned n)
{
	unsigned most = 0, k = 0;
	while (most < n && ops[most].route.kernel == KERNEL_MESSAGES && ops[most].comm == ops->comm)
		most++;
	for (unsigned i = 1; i <= most && i <= PEER_MESSAGES_MOST; i++)
		if (i == most || ops[i].route.turn != ops[i - 1].route.turn)
			k = i;
	return k;
}

unsigned peer_join(struct op *ops, unsigned n)
{
	const unsigned k = ops->route.kernel == KERNEL_MESSAGES ? messages_join(ops, n) : 1;
	unsigned blocks, threads;
	if (ops->route.kernel == KERNEL_MESSAGES)
		blocks = peer_messages_describe(ops->comm->peer, ops, k, NULL, &threads);
	else
		shape(ops, &blocks, &threads);
	for (unsigned i = 0; i < k; i++) {
		ops[i].launch.joined = i;
		ops[i].launch.blocks = (uint8_t)blocks;
		ops[i].launch.threads = (uint16_t)threads;
	}
	return k;
}

CUresult peer_put(const struct op *ops, unsigned n, const struct peer *p, CUstream stream,
		  const struct capture_graph *graph)
{
	struct peer_messages m = {.call = p->call};
	void *parameters[] = {&m};
	unsigned variant = 0, threads;
	if (graph) {
		m.call.graph = graph->number;
		m.call.index = graph->operations;
	} else {
		m.call.kernel_seq = ops->launch.kernel_seq;
		m.call.coll_seq = ops->launch.newest_coll_seq;
		m.call.posts = ops->launch.posts;
	}
	if (ops->route.kernel == KERNEL_MESSAGES)
		peer_messages_describe(p, ops, n, &m, &threads);
	else
		describe(ops, &m.call);
	if (ops->route.kernel == KERNEL_COPIES)
		return copies_put(ops, p, &m.call, stream);
	if (ops->route.kernel == KERNEL_DIRECT)
		variant = peer_variant_of(&m.call);
	return p->capture->cuda->cuLaunchKernel(p->module->functions[ops->route.kernel][variant],
						ops->launch.blocks, 1, 1, ops->launch.threads, 1, 1,
						0, stream, parameters, NULL);
}
