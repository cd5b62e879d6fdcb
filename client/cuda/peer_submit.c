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

/* Above it NCCL is faster, since its lines are all data. */
#define MESSAGE_BYTES_MOST (UINT64_C(2) << 20)

static enum kernel choose_message(const struct op *op)
{
	const uint64_t bytes = op->record.count * svc_type_size(op->record.type);
	return bytes <= op->comm->peer_bytes && bytes <= MESSAGE_BYTES_MOST ? KERNEL_MESSAGES
									    : KERNEL_NONE;
}

enum kernel peer_choose(const struct op *op)
{
	const struct svc_record *r = &op->record;
	const ncclsvc_comm *comm = op->comm;
	/* Lists agree on more than a header holds; the daemon runs plans. */
	if (!comm->peer || !computes(r) || r->agreement || op->planned)
		return KERNEL_NONE;
	if (svc_op_is_p2p(r->op))
		return choose_message(op);
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

static uint64_t header_of(const struct svc_record *r)
{
	const bool peer = svc_op_has_root(r->op) || svc_op_is_p2p(r->op);
	return peer_header(r->op, r->type, r->redop, peer ? (uint8_t)r->peer : 0,
			   (uint32_t)r->count);
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
	c->header = header_of(r);
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

_Static_assert(PEER_WAYS <= PEER_PARTS, "a turn fits");

/* How many messages: of whole turns, so that what they wait for is not in a later kernel of another
 * rank, which has other messages, but as many turns at least. */
static unsigned messages_join(const struct op *ops, unsigned n)
{
	unsigned most = 0, k = 0;
	while (most < n && ops[most].kernel == KERNEL_MESSAGES && ops[most].comm == ops->comm)
		most++;
	for (unsigned i = 1; i <= most && i <= PEER_PARTS; i++)
		if (i == most || ops[i].turn != ops[i - 1].turn)
			k = i;
	return k;
}

unsigned peer_join(struct op *ops, unsigned n)
{
	const unsigned k = ops->kernel == KERNEL_MESSAGES ? messages_join(ops, n) : 1;
	unsigned blocks, threads;
	if (ops->kernel == KERNEL_MESSAGES)
		blocks = peer_messages_describe(ops->comm->peer, ops, k, NULL, &threads);
	else
		shape(ops, &blocks, &threads);
	for (unsigned i = 0; i < k; i++) {
		ops[i].joined = i;
		ops[i].blocks = (uint8_t)blocks;
		ops[i].threads = (uint16_t)threads;
	}
	return k;
}

/* ---- Streams ---- */

static CUresult follow(const struct peer *p, CUevent event, CUstream from, CUstream stream)
{
	CUresult e = p->cuda->cuEventRecord(event, from);
	return e ? e : p->cuda->cuStreamWaitEvent(stream, event, 0);
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
	*known = at;
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
	return error_set(NCCLSVC_AGAIN, "%d kernels are pending on %s: wait for a task",
			 PENDING_MAX, op->comm->label);
}

/* What waits on the stream by now is the operation's input; what the group gives to NCCL, and comes
 * there next, is not. */
static ncclsvc_result fork_aside(struct gpu *g, const struct op *op)
{
	const struct peer *p = op->comm->peer;
	CUresult e = cuda_push(g->cuda, op->push);
	if (!e) {
		e = follow(p, p->fork, op->stream, p->aside);
		cuda_pop(g->cuda, op->push);
	}
	return e ? cuda_error(g->cuda, e, "the group's messages cannot go beside the others")
		 : NCCLSVC_OK;
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
	op->stream_context = op->detached || op->aside ? NULL : st.context;
	return op->aside ? fork_aside(g, op) : NCCLSVC_OK;
}

/* ---- Launching ---- */

/* In this order: what is submitted has been entered. */
static void page_enter(const struct op *op)
{
	struct peer_page *page = op->comm->peer->page;
	if (op->kernel == KERNEL_MESSAGES)
		__atomic_store_n(&page->messages[peer_way(&op->record)], op->message,
				 __ATOMIC_RELEASE);
	else if (op->kernel != KERNEL_NONE)
		__atomic_store_n(&page->entered, op->round, __ATOMIC_RELEASE);
	__atomic_store_n(&page->submitted, op->comm->collectives, __ATOMIC_RELEASE);
}

void peer_enter(struct op *op, struct slot *slot)
{
	struct peer *p = op->comm->peer;
	if (op->kernel != KERNEL_NONE && !op->joined) {
		p->sequence = peer_sequence_after(p->sequence);
		p->posting -= p->posting ? 1 : 0;
	}
	op->round = 0;
	if (op->kernel == KERNEL_MESSAGES)
		op->message = ++p->messages[peer_way(&op->record)];
	else if (op->kernel != KERNEL_NONE)
		op->round = p->round = peer_sequence_after(p->round);
	page_enter(op);
	if (op->kernel == KERNEL_NONE)
		return;
	op->peer = p;
	op->sequence = p->sequence;
	op->posts = p->posting;
	slot->peer = p;
	slot->sequence = op->sequence;
	slot->round = op->round;
	slot->posted = op->posts;
	slot->blocks = op->blocks;
}

static void note(const struct op *op)
{
	struct peer *p = op->peer;
	struct peer_record *record = &p->page->history[p->records % PEER_HISTORY];
	__atomic_store_n(&record->sequence, 0, __ATOMIC_RELEASE);
	record->operation = op->operation;
	record->collective = (uint32_t)op->collective;
	record->round = op->round;
	record->message = op->message;
	record->header = header_of(&op->record);
	record->launched_ns = now_ns();
	record->timeout_ns = op->record.timeout_ns;
	__atomic_store_n(&record->sequence, op->sequence, __ATOMIC_RELEASE);
	__atomic_store_n(&p->page->records, ++p->records, __ATOMIC_RELEASE);
	if (op->round)
		__atomic_store_n(&p->page->reached, op->round, __ATOMIC_RELEASE);
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
	if (__atomic_load_n(&slot->peer->failed, __ATOMIC_ACQUIRE))
		return NCCLSVC_OK; /* it ends with its epoch */
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

/* Operations of one kernel can be of several streams, detached or not. */
static bool is_apart(const struct op *ops, unsigned n)
{
	bool apart = ops->aside;
	for (unsigned i = 0; !apart && i < n; i++)
		apart = ops[i].detached;
	return apart;
}

/* The kernel's stream goes behind all that is on the trainer's streams. `done`: with the
 * operation's own stream nothing is left to do. */
static CUresult streams_join(const struct op *ops, unsigned n, const struct peer *p,
			     CUstream stream, const struct op *done)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && !ops->aside && i < n; i++) {
		if (done && ops[i].stream == done->stream)
			continue;
		e = follow(p, p->input, ops[i].stream, stream);
		done = &ops[i];
	}
	return e;
}

/* All streams whose operations are in the kernel wait for it, but those of detached ones. */
static CUresult streams_follow(const struct op *ops, unsigned n, const struct peer *p,
			       const struct op *done)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && i < n; i++) {
		if (ops[i].detached || (done && ops[i].stream == done->stream))
			continue;
		e = wait_ended(p, ops[i].stream, ops->sequence, ops->blocks);
		done = &ops[i];
	}
	return e;
}

static CUresult put(const struct op *ops, unsigned n, const struct peer *p, CUstream stream)
{
	struct peer_messages m = {.call = p->call};
	void *parameters[] = {&m};
	unsigned threads;
	m.call.posts = ops->posts;
	if (ops->kernel == KERNEL_MESSAGES)
		peer_messages_describe(p, ops, n, &m, &threads);
	else
		describe(ops, &m.call);
	return p->cuda->cuLaunchKernel(p->module->functions[ops->kernel], ops->blocks, 1, 1,
				       ops->threads, 1, 1, 0, stream, parameters, NULL);
}

static CUresult launch(const struct op *ops, unsigned n, struct peer *p)
{
	const bool apart = is_apart(ops, n);
	const CUstream stream = apart ? p->aside : ops->stream;
	const CUcontext context = apart ? NULL : ops->stream_context;
	const uint64_t id = apart ? DETACHED : ops->stream_id;
	/* The communicator's kernels run one after the other, also on several streams. */
	const bool same = p->stream_id == id && p->stream_context == context;
	CUresult e = cuda_push(p->cuda, ops->push);
	if (e)
		return e;
	e = streams_join(ops, n, p, stream, apart ? NULL : ops);
	if (!e && p->any && !same)
		e = wait_ended(p, stream, p->latest, p->blocks);
	for (unsigned i = 0; i < n; i++)
		note(&ops[i]);
	if (!e)
		e = put(ops, n, p, stream);
	if (!e)
		e = streams_follow(ops, n, p, apart ? NULL : ops);
	cuda_pop(p->cuda, ops->push);
	if (e)
		return e;
	p->any = true;
	p->latest = ops->sequence;
	p->stream_id = id;
	p->stream_context = context;
	p->blocks = ops->blocks;
	return CUDA_SUCCESS;
}

ncclsvc_result peer_launch(const struct op *ops, unsigned n)
{
	struct peer *p = ops->peer;
	pthread_mutex_lock(&p->turn);
	while (peer_sequence_after(p->launched) != ops->sequence)
		pthread_cond_wait(&p->turned, &p->turn);
	/* Nothing is to wait on a stream for a kernel that does not come. */
	const CUresult e = p->failed ? CUDA_SUCCESS : launch(ops, n, p);
	if (e)
		__atomic_store_n(&p->failed, true, __ATOMIC_RELEASE);
	p->launched = ops->sequence;
	pthread_cond_broadcast(&p->turned);
	pthread_mutex_unlock(&p->turn);
	if (!e)
		return NCCLSVC_OK;
	/* The others wait for what does not come: the daemon sees this, and ends the epoch. */
	peer_hooks.break_off(p);
	return cuda_error(p->cuda, e,
			  "the operation's kernel was not launched: its communicator ends");
}
