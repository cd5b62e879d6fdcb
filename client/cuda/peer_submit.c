/* SPDX-License-Identifier: Apache-2.0
 * Operations to kernels. */
#include "base/clock.h"
#include "base/error.h"
#include "core/comm.h"
#include "core/session.h"
#include "peer.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"

#define LINES_OF_BLOCK 512 /* measured: more blocks cost more than they bring */
#define WARP	       32
#define DETACHED       UINT64_MAX /* the library's own stream, for operations that none waits for */

/* ---- Which ---- */

static bool computes(const struct svc_record *r)
{
	return !svc_op_reduces(r->op) || (r->type <= NCCLSVC_BFLOAT16 && r->redop < SVC_REDOP_MADE);
}

enum kernel peer_choose(const struct op *op)
{
	const struct svc_record *r = &op->record;
	const ncclsvc_comm *comm = op->comm;
	/* Lists agree on more than a header holds. */
	if (!comm->peer || svc_op_is_p2p(r->op) || !computes(r) || r->agreement)
		return KERNEL_NONE;
	const uint32_t nranks = (uint32_t)comm->nranks;
	const uint64_t bytes = svc_task_bytes(r, nranks);
	const uint64_t slot = (uint64_t)PEER_SLOT_LINES(nranks) * PEER_LINE_DATA;
	if (bytes > comm->peer_bytes)
		return KERNEL_NONE;
	if (bytes <= PEER_LINES_MOST && r->count * svc_type_size(r->type) <= slot)
		return KERNEL_LINES;
	return comm->peer_bytes > PEER_LINES_MOST ? KERNEL_BULK : KERNEL_NONE;
}

/* ---- What the kernel is told ---- */

static bool is_root(const struct svc_record *r, unsigned rank)
{
	return svc_op_has_root(r->op) && (unsigned)r->peer == rank;
}

/* From one rank to another. */
static uint64_t call_bytes(const struct op *op)
{
	const struct svc_record *r = &op->record;
	return svc_operation(r->op)->kind & SVC_OP_HAS_DATA ? r->count * svc_type_size(r->type) : 0;
}

static void describe(const struct op *op, struct peer_call *c)
{
	const struct svc_record *r = &op->record;
	const struct svc_operation *what = svc_operation(r->op);
	const uint64_t bytes = call_bytes(op);
	const bool root = is_root(r, c->rank);
	c->src = (uintptr_t)op->src;
	c->dst = (uintptr_t)op->dst;
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
	c->type = r->type;
	c->redop = r->redop;
	c->posts = op->posts;
	c->header = peer_header(r->op, r->type, r->redop,
				svc_op_has_root(r->op) ? (uint8_t)r->peer : 0, (uint32_t)r->count);
}

static uint32_t at_most(uint64_t a, uint32_t b)
{
	return a < b ? (uint32_t)a : b;
}

/* The keepers' warp comes on top of those that move data. */
static void shape(const struct op *op, unsigned *blocks, unsigned *threads)
{
	const uint64_t bytes = call_bytes(op);
	if (op->kernel == KERNEL_BULK) {
		*blocks = PEER_BLOCKS;
		*threads = PEER_BULK_THREADS + WARP;
		return;
	}
	const uint64_t lines = (bytes + PEER_LINE_DATA - 1) / PEER_LINE_DATA;
	const uint32_t movers = at_most((lines + WARP - 1) / WARP * WARP, PEER_THREADS);
	*blocks = lines > LINES_OF_BLOCK ? at_most(lines / LINES_OF_BLOCK, PEER_BLOCKS) : 1;
	*threads = (movers ? movers : WARP) + WARP;
}

/* ---- Checks ---- */

static ncclsvc_result buffer_check(struct gpu *g, const struct op *op, const char *name,
				   const char *buffer)
{
	const uint64_t at = (uintptr_t)buffer;
	uint64_t *known = &op->comm->peer->checked[(at >> 9 ^ at >> 21) % PEER_CHECKED];
	if (*known == at)
		return NCCLSVC_OK;
	int what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	int type = 0, device = -1;
	void *to[] = {&type, &device};
	if (g->cuda->cuPointerGetAttributes(2, what, to, (uintptr_t)buffer) ||
	    type != CU_MEMORYTYPE_DEVICE)
		return error_set(NCCLSVC_UNSUPPORTED,
				 "%s: %s at %p is not device memory: a communicator of GPUs needs "
				 "memory of cudaMalloc or the like",
				 svc_op_name(op->record.op), name, (const void *)buffer);
	if (device != op->comm->device)
		return error_argument("%s: %s at %p is memory of GPU %d, communicator %s is of GPU "
				      "%d",
				      svc_op_name(op->record.op), name, (const void *)buffer,
				      device, op->comm->label, op->comm->device);
	return NCCLSVC_OK;
}

/* CUDA blocks whoever puts more on a stream than it has room for, about a thousand. */
#define PENDING_MAX 512

static ncclsvc_result room_check(const struct op *op)
{
	struct peer *p = op->comm->peer;
	if (p->sequence - p->over >= PENDING_MAX)
		peer_ask(p);
	if (p->sequence - p->over < PENDING_MAX)
		return NCCLSVC_OK;
	return error_set(NCCLSVC_AGAIN, "the stream has %d tasks pending on %s: wait for one",
			 PENDING_MAX, op->comm->label);
}

ncclsvc_result peer_prepare(struct gpu *g, struct op *op)
{
	struct stream st;
	ncclsvc_result r = room_check(op);
	if (!r)
		r = stream_identify(g, op->comm->device, op->stream, &st);
	if (!r && op->src_bytes)
		r = buffer_check(g, op, "sendbuf", op->src);
	if (!r && op->dst_bytes && op->dst != op->src)
		r = buffer_check(g, op, "recvbuf", op->dst);
	if (r)
		return r;
	op->push = st.push;
	op->stream_id = op->detached ? DETACHED : st.id;
	op->stream_context = op->detached ? NULL : st.context;
	return NCCLSVC_OK;
}

/* ---- Launching ---- */

void peer_enter(struct op *op, struct slot *slot)
{
	struct peer *p = op->comm->peer;
	if (op->kernel != KERNEL_NONE) {
		p->sequence = peer_sequence_after(p->sequence);
		__atomic_store_n(&p->page->entered, p->sequence, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&p->page->submitted, op->comm->collectives, __ATOMIC_RELEASE);
	if (op->kernel == KERNEL_NONE)
		return;
	op->peer = p;
	op->sequence = p->sequence;
	op->posts = p->posting;
	p->posting -= p->posting ? 1 : 0;
	slot->peer = p;
	slot->sequence = op->sequence;
	slot->posted = op->posts;
	unsigned blocks, threads;
	shape(op, &blocks, &threads);
	slot->blocks = (uint8_t)blocks;
}

static void note(const struct op *op, const struct peer_call *call)
{
	struct peer_page *page = op->peer->page;
	struct peer_record *record = &page->history[op->sequence % PEER_HISTORY];
	__atomic_store_n(&record->sequence, 0, __ATOMIC_RELEASE);
	record->operation = op->operation;
	record->collective = (uint32_t)op->collective;
	record->header = call->header;
	record->launched_ns = now_ns();
	record->timeout_ns = op->record.timeout_ns;
	__atomic_store_n(&record->sequence, op->sequence, __ATOMIC_RELEASE);
	__atomic_store_n(&page->launched, op->sequence, __ATOMIC_RELEASE);
}

/* The stream waits until all blocks of the kernel, or of later ones, have said that they ended. */
static CUresult wait_ended(const struct peer *p, CUstream stream, uint32_t sequence,
			   unsigned blocks)
{
	CUstreamBatchMemOpParams ops[PEER_BLOCKS];
	const CUdeviceptr ended = p->own.at + offsetof(struct peer_state, ended);
	for (unsigned i = 0; i < blocks; i++)
		ops[i] = (CUstreamBatchMemOpParams){
			.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
				      .address = ended + i * sizeof(uint32_t),
				      .value = sequence,
				      .flags = CU_STREAM_WAIT_VALUE_GEQ}};
	return p->cuda->cuStreamBatchMemOp(stream, blocks, ops, 0);
}

ncclsvc_result peer_stream_wait(ncclsvc_session *s, CUstream handle, const struct slot *slot)
{
	struct gpu *g = s->gpu;
	struct stream st;
	const ncclsvc_comm *comm = comm_by_key(s, slot->comm_key);
	ncclsvc_result r = comm ? stream_identify(g, comm->device, handle, &st) : NCCLSVC_OK;
	if (r || !comm)
		return r;
	CUresult e = cuda_push(g->cuda, st.push);
	if (!e) {
		e = wait_ended(slot->peer, handle, slot->sequence, slot->blocks);
		cuda_pop(g->cuda, st.push);
	}
	return e ? cuda_error(g->cuda, e, "the stream cannot wait for the task") : NCCLSVC_OK;
}

/* Where the kernel goes: behind all that is on the trainer's stream. */
static CUresult stream_for(const struct op *op, const struct peer *p, CUstream *stream)
{
	*stream = op->stream;
	if (!op->detached)
		return CUDA_SUCCESS;
	*stream = p->aside;
	CUresult e = p->cuda->cuEventRecord(p->input, op->stream);
	return e ? e : p->cuda->cuStreamWaitEvent(p->aside, p->input, 0);
}

static CUresult launch(const struct op *op, struct peer *p)
{
	struct peer_call call = p->call;
	void *parameters[] = {&call};
	unsigned blocks, threads;
	CUstream stream;
	describe(op, &call);
	shape(op, &blocks, &threads);
	/* The communicator's kernels run one after the other, also on several streams. */
	const bool same = p->stream_id == op->stream_id && p->stream_context == op->stream_context;
	CUresult e = cuda_push(p->cuda, op->push);
	if (e)
		return e;
	e = stream_for(op, p, &stream);
	if (!e && p->any && !same)
		e = wait_ended(p, stream, p->launched, p->blocks);
	note(op, &call);
	if (!e)
		e = p->cuda->cuLaunchKernel(p->module->functions[op->kernel], blocks, 1, 1, threads,
					    1, 1, 0, stream, parameters, NULL);
	cuda_pop(p->cuda, op->push);
	p->any = true;
	p->stream_id = op->stream_id;
	p->stream_context = op->stream_context;
	p->blocks = blocks;
	return e;
}

ncclsvc_result peer_launch(struct op *op)
{
	struct peer *p = op->peer;
	pthread_mutex_lock(&p->turn);
	while (peer_sequence_after(p->launched) != op->sequence)
		pthread_cond_wait(&p->turned, &p->turn);
	const CUresult e = launch(op, p);
	p->launched = op->sequence;
	pthread_cond_broadcast(&p->turned);
	pthread_mutex_unlock(&p->turn);
	if (!e)
		return NCCLSVC_OK;
	/* The others wait for what does not come: the daemon sees this, and ends the epoch. */
	peer_hooks.break_off(p);
	return cuda_error(p->cuda, e,
			  "the operation's kernel was not launched: its communicator ends");
}
