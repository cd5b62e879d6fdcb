/* SPDX-License-Identifier: Apache-2.0
 * From kernels to streams. */
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/capture/capture_graph.h"
#include "peer_kernel.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"

#define OPEN_NS	 UINT64_C(1000000000) /* how long a first kernel waits for other ranks' mapping */
#define DETACHED UINT64_MAX	      /* the library's own stream, which no stream waits for */

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
				 "%s: %s at %p is not device memory: a GPU communicator needs "
				 "memory from cudaMalloc or the like",
				 svc_op_name(op->record.op), name, (const void *)buffer);
	if (device != op->comm->device)
		return error_argument(
			"%s: %s at %p is memory of GPU %d, but communicator %s uses GPU %d",
			svc_op_name(op->record.op), name, (const void *)buffer, device,
			op->comm->label, op->comm->device);
	*known = at;
	return NCCLSVC_OK;
}

/* CUDA blocks a thread that puts more on a stream than its queue holds, about a thousand entries.
 */
#define PENDING_MAX 512

static uint32_t pending_most(const struct peer *p)
{
	if (p->copy_slot)
		return PENDING_MAX / COPIES_ENTRIES;
	/* While graphs exist, each kernel also waits for an event and records it. */
	return capture_graphs_live(p->capture) ? PENDING_MAX / 3 : PENDING_MAX;
}

/* Whether one more kernel may be pending. A group of more than pending_most waits until no other
 * kernel is. */
static bool has_room(const struct peer *p, uint32_t before)
{
	const uint32_t pending = p->kernel_seq - p->over;
	return !pending || pending + before < pending_most(p);
}

static ncclsvc_result room_check(const struct op *op, uint32_t before)
{
	struct peer *p = op->comm->peer;
	if (!has_room(p, before))
		peer_ask(p);
	if (has_room(p, before))
		return NCCLSVC_OK;
	return error_set(NCCLSVC_AGAIN, "%u kernels are pending on %s: wait for a task",
			 p->kernel_seq - p->over, op->comm->label);
}

/* The operation's input is what is on the stream now. The group's NCCL operations come next on the
 * stream, and do not belong to the input. */
static ncclsvc_result side_stream_fork(struct gpu *g, const struct op *op)
{
	const struct peer *p = op->comm->peer;
	const struct capture *c = p->capture;
	CUresult e = cuda_push(g->cuda, op->route.push);
	if (!e) {
		e = capture_follow(c, p->fork, op->stream, c->side_stream);
		if (!e && capture_graphs_live(c))
			e = c->cuda->cuStreamWaitEvent(c->side_stream, c->order,
						       CU_EVENT_WAIT_DEFAULT);
		cuda_pop(g->cuda, op->route.push);
	}
	return e ? cuda_error(g->cuda, e,
			      "cannot run the group's messages beside its other operations")
		 : NCCLSVC_OK;
}

ncclsvc_result peer_prepare(struct gpu *g, struct op *op, uint32_t before)
{
	struct stream st;
	ncclsvc_result r = stream_look(g, op->comm->device, op->stream, &st);
	if (!r && st.captured && op->detached)
		r = capture_cannot_detach();
	if (!r && st.captured && !cuda_captures(g->cuda))
		r = capture_unsupported();
	if (!r && !st.captured)
		r = room_check(op, before);
	if (!r && op->src_bytes)
		r = buffer_check(g, op, "sendbuf", op->src);
	if (!r && op->dst_bytes && op->dst != op->src)
		r = buffer_check(g, op, "recvbuf", op->dst);
	if (r)
		return r;
	op->route.push = st.push;
	op->route.captured = st.captured;
	op->launch.stream_id = op->detached ? DETACHED : st.id;
	op->launch.stream_context = op->detached || op->route.beside_nccl ? NULL : st.context;
	return op->route.beside_nccl && !op->route.captured ? side_stream_fork(g, op) : NCCLSVC_OK;
}

/* ---- Launching ---- */

/* Called in the order in which the operations were entered. */
static void control_enter(const struct op *op)
{
	struct peer_control *control = op->comm->peer->control;
	if (op->route.kernel == KERNEL_MESSAGES)
		atomic_store_explicit(&control->messages[peer_dir_of(&op->record)],
				      op->launch.message, memory_order_release);
	else if (op->route.kernel != KERNEL_NONE)
		atomic_store_explicit(&control->entered, op->launch.coll_seq, memory_order_release);
	atomic_store_explicit(&control->submitted, op->comm->collectives, memory_order_release);
}

void peer_enter(struct op *op, struct slot *slot)
{
	struct peer *p = op->comm->peer;
	if (op->route.kernel != KERNEL_NONE && !op->launch.joined) {
		p->kernel_seq = peer_seq_after(p->kernel_seq);
		p->kernel_seq_blocks = op->launch.blocks;
		p->posting -= p->posting ? 1 : 0;
	}
	op->launch.coll_seq = 0;
	if (op->route.kernel == KERNEL_MESSAGES)
		op->launch.message = ++p->messages[peer_dir_of(&op->record)];
	else if (op->route.kernel != KERNEL_NONE)
		op->launch.coll_seq = p->coll_seq = peer_seq_after(p->coll_seq);
	control_enter(op);
	if (op->route.kernel == KERNEL_NONE)
		return;
	op->capture = p->capture;
	op->launch.kernel_seq = p->kernel_seq;
	op->launch.newest_coll_seq = p->coll_seq;
	op->launch.posts = p->posting;
	slot->peer = p;
	slot->kernel_seq = op->launch.kernel_seq;
	slot->posted = op->launch.posts;
	slot->blocks = op->launch.blocks;
	device_pin(op->comm->session, op, slot->number);
}

static void note(const struct op *op)
{
	struct peer *p = op->capture->peer;
	struct peer_record *record = &p->control->history[p->records % PEER_HISTORY];
	peer_atomic32 *const kernel_seq = (peer_atomic32 *)&record->kernel_seq;
	atomic_store_explicit(kernel_seq, 0, memory_order_release);
	record->operation = op->launch.operation;
	record->collective = (uint32_t)op->launch.collective;
	record->coll_seq = op->launch.coll_seq;
	record->message = op->launch.message;
	record->header = peer_header_of(&op->record);
	record->launched_ns = now_ns();
	record->timeout_ns = op->record.timeout_ns;
	atomic_store_explicit(kernel_seq, op->launch.kernel_seq, memory_order_release);
	atomic_store_explicit(&p->control->records, ++p->records, memory_order_release);
	if (op->launch.coll_seq)
		atomic_store_explicit(&p->control->reached, op->launch.coll_seq,
				      memory_order_release);
}

ncclsvc_result peer_stream_wait(ncclsvc_session *s, CUstream handle, const struct slot *slot)
{
	struct gpu *g = s->gpu;
	struct stream st;
	const ncclsvc_comm *comm = comm_by_key(s, slot->comm_key);
	if (atomic_load_explicit(&slot->peer->failed, memory_order_acquire))
		return NCCLSVC_OK; /* the task ends with its epoch */
	ncclsvc_result r = comm ? stream_identify(g, comm->device, handle, &st) : NCCLSVC_OK;
	if (r || !comm)
		return r;
	CUresult e = cuda_push(g->cuda, st.push);
	if (!e) {
		e = peer_wait_ended(slot->peer, handle, slot->kernel_seq, slot->blocks);
		cuda_pop(g->cuda, st.push);
	}
	return e ? cuda_error(g->cuda, e, "the stream cannot wait for the task") : NCCLSVC_OK;
}

/* The operations of one kernel can come from several streams, detached or not. */
static bool uses_side_stream(const struct op *ops, unsigned n)
{
	bool side = ops->route.beside_nccl;
	for (unsigned i = 0; !side && i < n; i++)
		side = ops[i].detached;
	return side;
}

/* Makes all streams with operations in the kernel wait for it, except for detached operations. */
static CUresult streams_follow(const struct op *ops, unsigned n, const struct peer *p,
			       const struct op *done)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && i < n; i++) {
		if (ops[i].detached || (done && ops[i].stream == done->stream))
			continue;
		e = peer_wait_ended(p, ops[i].stream, ops->launch.kernel_seq, ops->launch.blocks);
		done = &ops[i];
	}
	return e;
}

/* Notes that the kernel is on its stream. */
static void put_note(struct peer *p, const struct op *op, uint64_t id, CUcontext context)
{
	p->newest.any = true;
	p->newest.kernel_seq = op->launch.kernel_seq;
	p->newest.stream_id = id;
	p->newest.stream_context = context;
	p->newest.blocks = op->launch.blocks;
}

static bool is_opening(const struct peer *p, uint32_t rank)
{
	const struct peer_control *c = peer_control_of(p->controls, rank);
	return c->pid == p->control->pid && c->device == p->control->device &&
	       !atomic_load_explicit(&c->open, memory_order_acquire);
}

/* Another rank of this process on this GPU may still map the communicator's memory, and the driver
 * may wait for running kernels then. A kernel that waits for that rank would never end. */
static void await_open(const struct peer *p)
{
	const uint64_t until = now_ns() + OPEN_NS;
	for (uint32_t k = 0; k < p->call.nranks; k++)
		while (is_opening(p, k) && now_ns() < until &&
		       !atomic_load_explicit(&p->control->abort, memory_order_relaxed))
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static CUresult launch(const struct op *ops, unsigned n, struct peer *p)
{
	const struct capture *c = p->capture;
	const bool side = uses_side_stream(ops, n);
	const CUstream stream = side ? c->side_stream : ops->stream;
	const CUcontext context = side ? NULL : ops->launch.stream_context;
	const uint64_t id = side ? DETACHED : ops->launch.stream_id;
	/* The communicator's kernels run one after the other, also on different streams. */
	const bool same = p->newest.stream_id == id && p->newest.stream_context == context;
	if (!p->newest.any && p->ranks_per_gpu > 1)
		await_open(p);
	CUresult e = cuda_push(c->cuda, ops->route.push);
	if (e)
		return e;
	const bool graphs = capture_graphs_live(c);
	e = capture_streams_join(ops, n, c, stream, side ? NULL : ops);
	/* A kernel beside NCCL waited for the event before its group, which may have recorded it
	 * since. */
	if (!e && graphs && !ops->route.beside_nccl)
		e = c->cuda->cuStreamWaitEvent(stream, c->order, CU_EVENT_WAIT_DEFAULT);
	else if (!e && p->newest.any && !same)
		e = peer_wait_ended(p, stream, p->newest.kernel_seq, p->newest.blocks);
	for (unsigned i = 0; i < n; i++)
		note(&ops[i]);
	const bool begun = !e;
	if (begun)
		e = peer_put(ops, n, p, stream, NULL);
	/* Copies that cannot be put on the stream leave a kernel there. */
	if (!e || (begun && ops->route.kernel == KERNEL_COPIES))
		put_note(p, ops, id, context);
	if (!e && graphs && ops->route.beside_nccl)
		e = c->cuda->cuStreamWaitEvent(stream, c->order, CU_EVENT_WAIT_DEFAULT);
	if (!e && graphs)
		e = c->cuda->cuEventRecord(c->order, stream);
	if (!e)
		e = streams_follow(ops, n, p, side ? NULL : ops);
	cuda_pop(c->cuda, ops->route.push);
	return e;
}

ncclsvc_result peer_launch(const struct op *ops, unsigned n)
{
	struct capture *c = ops->capture;
	struct peer *p = c->peer;
	pthread_mutex_lock(&c->turn);
	while (peer_seq_after(p->launched) != ops->launch.kernel_seq)
		pthread_cond_wait(&p->turned, &c->turn);
	/* After a failed launch nothing may be left on a stream that waits for this kernel. */
	const CUresult e = atomic_load_explicit(&p->failed, memory_order_relaxed)
				   ? CUDA_SUCCESS
				   : launch(ops, n, p);
	if (e) {
		p->failed_seq = ops->launch.kernel_seq;
		atomic_store_explicit(&p->failed, true, memory_order_release);
	}
	p->launched = ops->launch.kernel_seq;
	pthread_cond_broadcast(&p->turned);
	pthread_mutex_unlock(&c->turn);
	if (!e)
		return NCCLSVC_OK;
	/* Other ranks wait for the missing kernel: the daemon notices, and ends the epoch. */
	peer_callbacks.break_off(p);
	return cuda_error(c->cuda, e,
			  "the operation's kernel was not launched, so its communicator ends");
}

/* ---- Capturing ---- */

static CUresult capture(const struct op *ops, unsigned n, struct peer *p)
{
	struct capture *c = p->capture;
	const CUstream stream = ops->stream;
	CUresult e = capture_streams_join(ops, n, c, stream, ops);
	if (!e)
		e = capture_graph_follow(c, stream);
	const bool begun = !e;
	if (begun)
		e = peer_put(ops, n, p, stream, c->graphs);
	if (!e || (begun && ops->route.kernel == KERNEL_COPIES)) {
		const CUresult noted = capture_graph_note(ops, n, stream);
		e = e ? e : noted;
	}
	for (unsigned i = 1; !e && i < n; i++)
		if (ops[i].stream != stream)
			e = capture_follow(c, c->input, stream, ops[i].stream);
	return e;
}

ncclsvc_result peer_capture(const struct op *ops, unsigned n)
{
	struct capture *c = ops->capture;
	struct peer *p = c->peer;
	CUresult e = cuda_push(c->cuda, ops->route.push);
	if (!e) {
		pthread_mutex_lock(&c->turn);
		e = capture(ops, n, p);
		pthread_mutex_unlock(&c->turn);
		cuda_pop(c->cuda, ops->route.push);
	}
	return e ? cuda_error(c->cuda, e, "the operation's kernel was not captured") : NCCLSVC_OK;
}

ncclsvc_result peer_capture_alone(const struct gpu *g, struct op *op)
{
	const struct svc_record *r = &op->record;
	CUresult e = CUDA_SUCCESS;
	if (svc_op_is_p2p(r->op) || op_is_premulsum(op))
		return error_set(NCCLSVC_UNSUPPORTED,
				 "%s: communicator %s has one rank, and there messages to oneself "
				 "and premulsum cannot be captured into CUDA graphs",
				 svc_op_name(r->op), op->comm->label);
	if (op->task)
		*op->task = 0;
	if (!op->dst_bytes || op->src == op->dst)
		return NCCLSVC_OK;
	e = cuda_push(g->cuda, op->route.push);
	if (!e) {
		e = g->cuda->cuMemcpyDtoDAsync((uintptr_t)op->dst, (uintptr_t)op->src,
					       op->dst_bytes, op->stream);
		cuda_pop(g->cuda, op->route.push);
	}
	return e ? cuda_error(g->cuda, e, "the operation's copy was not captured") : NCCLSVC_OK;
}
