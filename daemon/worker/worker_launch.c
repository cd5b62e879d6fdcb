/* SPDX-License-Identifier: Apache-2.0
 *
 * From the queue to the GPU. A task group is, on each of its slots' streams: wait for the inputs,
 * the NCCL calls as one ncclGroup, and one batch that writes the timelines' done and the slot's
 * progress. The host never waits. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/timings.h"
#include "nvtx.h"
#include "proto/group/done.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "worker.h"
#include "worker_launch.h"

/* Memory operations for one stream, sent together. */
struct batch {
	CUstream stream;
	unsigned n;
	CUstreamBatchMemOpParams ops[CUDA_BATCH_MEM_OPS_MAX];
};

static const struct launch *launch_at(const struct worker *w, uint64_t i)
{
	return &w->queue->launches[i & (WORKER_LAUNCHES - 1)];
}

static CUresult flush(struct batch *b)
{
	CUresult error = CUDA_SUCCESS;
	if (b->n == 1 && b->ops[0].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
		error = cu.cuStreamWaitValue64(b->stream, b->ops[0].waitValue.address,
					       b->ops[0].waitValue.value64,
					       CU_STREAM_WAIT_VALUE_GEQ);
	else if (b->n)
		error = cu.cuStreamBatchMemOp(b->stream, b->n, b->ops, 0);
	b->n = 0;
	return error;
}

static CUresult add(struct batch *b, int operation, CUdeviceptr address, uint64_t value)
{
	CUresult error = b->n == CUDA_BATCH_MEM_OPS_MAX ? flush(b) : CUDA_SUCCESS;
	CUstreamBatchMemOpParams *op = &b->ops[b->n++];
	memset(op, 0, sizeof(*op));
	op->waitValue.operation = operation;
	op->waitValue.address = address;
	op->waitValue.value64 = value;
	return error;
}

static CUdeviceptr device_address(const struct session_timelines *s, uint32_t timeline, size_t at)
{
	return s->device + timeline * sizeof(struct svc_timeline) + at;
}

/* If the host sees that the input is ready, the GPU need not wait for it. */
static bool is_ready(const struct worker *w, const struct launch *l)
{
	const struct session_timelines *s = &w->sessions[l->session];
	return !l->timeline || !s->ring ||
	       atomic_load_explicit(&s->host[l->timeline].ready, memory_order_acquire) >= l->value;
}

/* If the previous task is done, `ready` is imminent: spin briefly. */
static bool ready_soon(const struct worker *w, const struct launch *l)
{
	const struct session_timelines *s = &w->sessions[l->session];
	if (atomic_load_explicit(&s->host[l->timeline].done, memory_order_relaxed) + 1 < l->value)
		return false;
	for (uint64_t end = clock_now() + INPUT_POLL_NS; clock_now() < end;)
		if (is_ready(w, l))
			return true;
	return false;
}

/* The word is for the stream's next operation. If that may be an earlier launch, which the GPU has
 * not begun yet, only the GPU resets the word. */
static CUresult add_go(struct worker *w, struct batch *b, const struct launch *l)
{
	const struct session_timelines *s = &w->sessions[l->session];
	const CUdeviceptr go = device_address(s, l->timeline, offsetof(struct svc_timeline, go));
	if (!(l->flags & LAUNCH_AHEAD)) {
		atomic_store(&s->host[l->timeline].go, 0);
		return CUDA_SUCCESS;
	}
	w->slots[l->slot].waits_seq = l->seq;
	CUresult error = add(b, CU_STREAM_MEM_OP_WAIT_VALUE_32, go, 1);
	return error ? error : add(b, CU_STREAM_MEM_OP_WRITE_VALUE_32, go, 0);
}

static CUresult add_wait(struct worker *w, struct batch *b, const struct launch *l)
{
	const struct session_timelines *s = &w->sessions[l->session];
	if (l->flags & LAUNCH_CAPTURED)
		return add_go(w, b, l);
	if (is_ready(w, l) || ready_soon(w, l))
		return CUDA_SUCCESS;
	w->slots[l->slot].waits_seq = l->seq;
	return add(b, CU_STREAM_MEM_OP_WAIT_VALUE_64,
		   device_address(s, l->timeline, offsetof(struct svc_timeline, ready)), l->value);
}

/* Only the last of a group's tasks on a timeline writes its value. */
static bool last_on_timeline(const struct worker *w, uint64_t i, uint64_t end)
{
	const struct launch *l = launch_at(w, i);
	for (uint64_t j = i + 1; j < end; j++) {
		const struct launch *m = launch_at(w, j);
		if (m->slot == l->slot && m->session == l->session && m->timeline == l->timeline)
			return false;
	}
	return true;
}

/* A single rank gets its own data. NCCL 2.28 omits the end of some unaligned buffers. */
static ncclResult_t alone(const struct launch *l, CUstream stream)
{
	size_t bytes = l->op == NCCLSVC_BARRIER ? 0 : l->count * svc_type_size(l->type);
	if (!bytes || l->src == l->dst)
		return ncclSuccess;
	return cu.cuMemcpyDtoDAsync(l->dst, l->src, bytes, stream) ? ncclUnhandledCudaError
								   : ncclSuccess;
}

/* Does it need a copy of its source, outside NCCL? */
static bool copies(const struct launch *l)
{
	return l->op == NCCLSVC_ALL_TO_ALL && l->src == l->dst && l->count;
}

/* A copy of NCCL's send buffer, on a slot's stream, until it has been sent. */
struct sent {
	struct sent *next;
	CUdeviceptr at;
	CUstream stream;
};

/* AllToAll in place: NCCL would write other ranks' blocks over blocks that it has yet to send. The
 * copy does not affect other ranks, so each rank decides for itself. */
static ncclResult_t copy_source(struct comm_slot *slot, const struct launch *l, uint64_t *src,
				struct sent **list)
{
	const uint64_t bytes = l->count * svc_type_size(l->type) * (uint64_t)slot->nranks;
	struct sent *s = malloc(sizeof(*s));
	CUdeviceptr at = 0;
	if (!s)
		return ncclSystemError;
	CUresult error = cu.cuMemAllocAsync(&at, bytes, slot->stream);
	if (error) {
		log_error("AllToAll in place needs another %llu bytes of the GPU: %s",
			  (unsigned long long)bytes, gpu_api_cuda_error(error));
		free(s);
		return ncclUnhandledCudaError;
	}
	slot->copied = true;
	*s = (struct sent){*list, at, slot->stream};
	*list = s;
	error = cu.cuMemcpyDtoDAsync(at, *src, bytes, slot->stream);
	*src = at;
	return error ? ncclUnhandledCudaError : ncclSuccess;
}

static void free_sources(struct sent *list)
{
	while (list) {
		struct sent *s = list;
		list = s->next;
		cu.cuMemFreeAsync(s->at, s->stream);
		free(s);
	}
}

static ncclResult_t call(struct worker *w, const struct launch *l, struct sent **sent)
{
	struct comm_slot *slot = &w->slots[l->slot];
	uint64_t from = l->src;
	ncclResult_t result = ncclSuccess;
	if (copies(l) && slot->nranks > 1)
		result = copy_source(slot, l, &from, sent);
	if (result)
		return result;
	const void *src = (const void *)(uintptr_t)from;
	void *dst = (void *)(uintptr_t)l->dst, *scratch = (void *)(uintptr_t)w->scratch;
	ncclComm_t c = slot->comm;
	CUstream s = slot->stream;
	const int type = (int)svc_nccl_type(l->type);
	ncclRedOp_t redop = NCCLSVC_SUM;
	if (svc_op_reduces(l->op) && !redop_find(slot, l->redop, l->type, &redop))
		return ncclInvalidArgument;
	if (slot->nranks == 1 && !svc_op_is_p2p(l->op) && l->redop < SVC_REDOP_MADE)
		return alone(l, s);
	switch (l->op) {
	case NCCLSVC_ALL_REDUCE:
		return nccl.ncclAllReduce(src, dst, l->count, type, redop, c, s);
	case NCCLSVC_ALL_GATHER:
		return nccl.ncclAllGather(src, dst, l->count, type, c, s);
	case NCCLSVC_REDUCE_SCATTER:
		return nccl.ncclReduceScatter(src, dst, l->count, type, redop, c, s);
	case NCCLSVC_BROADCAST:
		return nccl.ncclBroadcast(src, dst, l->count, type, l->peer, c, s);
	case NCCLSVC_REDUCE:
		return nccl.ncclReduce(src, dst, l->count, type, redop, l->peer, c, s);
	case NCCLSVC_ALL_TO_ALL:
		return nccl.ncclAlltoAll(src, dst, l->count, type, c, s);
	case NCCLSVC_GATHER:
		return nccl.ncclGather(src, dst, l->count, type, l->peer, c, s);
	case NCCLSVC_SCATTER:
		return nccl.ncclScatter(src, dst, l->count, type, l->peer, c, s);
	case NCCLSVC_SEND:
		return nccl.ncclSend(src, l->count, type, l->peer, c, s);
	case NCCLSVC_RECV:
		return nccl.ncclRecv(dst, l->count, type, l->peer, c, s);
	case NCCLSVC_BARRIER:
		return nccl.ncclAllReduce(scratch, scratch, 1, NCCLSVC_INT8, NCCLSVC_SUM, c, s);
	}
	return ncclInvalidArgument;
}

/* Waits, calls and writes of the launches [begin, end) on one slot. */
static CUresult before(struct worker *w, uint64_t begin, uint64_t end, uint32_t slot)
{
	struct batch b = {.stream = w->slots[slot].stream};
	CUresult error = CUDA_SUCCESS;
	for (uint64_t i = begin; i < end && !error; i++)
		if (launch_at(w, i)->slot == slot && last_on_timeline(w, i, end))
			error = add_wait(w, &b, launch_at(w, i));
	return error ? error : flush(&b);
}

static CUresult tell(struct worker *w, uint32_t slot)
{
	struct comm_slot *l = &w->slots[slot];
	struct batch b = {.stream = l->stream};
	CUresult error = CUDA_SUCCESS;
	if (!l->due)
		return CUDA_SUCCESS;
	for (unsigned i = 0; i < l->ntimelines && !error; i++)
		error = add(&b, l->done[i].operation, l->done[i].address, l->done[i].value);
	if (!error)
		error = add(&b, CU_STREAM_MEM_OP_WRITE_VALUE_64,
			    w->progress + slot * sizeof(struct slot_progress), l->due);
	if (!error)
		error = flush(&b);
	if (!error)
		l->enqueued = l->due;
	l->due = l->ntimelines = l->ntasks = 0;
	return error;
}

/* Only the last value of each timeline is written. */
static CUresult owe(struct worker *w, uint32_t slot, const struct launch *launch)
{
	struct comm_slot *l = &w->slots[slot];
	const CUdeviceptr address = device_address(&w->sessions[launch->session], launch->timeline,
						   offsetof(struct svc_timeline, done));
	const uint64_t value = launch->value;
	CUresult error = CUDA_SUCCESS;
	for (unsigned i = 0; i < l->ntimelines; i++)
		if (l->done[i].address == address) {
			l->done[i].value = value;
			return CUDA_SUCCESS;
		}
	if (l->ntimelines == SLOT_WRITES)
		error = tell(w, slot);
	l->done[l->ntimelines].operation = launch->flags & LAUNCH_CAPTURED
						   ? CU_STREAM_MEM_OP_WRITE_VALUE_32
						   : CU_STREAM_MEM_OP_WRITE_VALUE_64;
	l->done[l->ntimelines].address = address;
	l->done[l->ntimelines++].value = value;
	return error;
}

/* A captured group: behind `done`, how many have ended. */
static CUresult owe_ended(struct worker *w, uint32_t slot, const struct launch *launch)
{
	struct comm_slot *l = &w->slots[slot];
	const struct session_timelines *s = &w->sessions[launch->session];
	const CUdeviceptr address =
		device_address(s, launch->timeline, offsetof(struct svc_timeline, ended));
	const CUresult error = l->ntimelines == SLOT_WRITES ? tell(w, slot) : CUDA_SUCCESS;
	l->done[l->ntimelines].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	l->done[l->ntimelines].address = address;
	l->done[l->ntimelines++].value = (uint32_t)atomic_load(&s->host[launch->timeline].launched);
	return error;
}

static CUresult after(struct worker *w, uint64_t begin, uint64_t end, uint32_t slot)
{
	CUresult error = CUDA_SUCCESS;
	for (uint64_t i = begin; i < end && !error; i++) {
		const struct launch *l = launch_at(w, i);
		if (l->slot != slot)
			continue;
		if (l->timeline)
			error = owe(w, slot, l);
		if (!error && l->flags & LAUNCH_CAPTURED && last_on_timeline(w, i, end))
			error = owe_ended(w, slot, l);
		w->slots[slot].due = l->seq;
		w->slots[slot].ntasks++;
	}
	/* Each write costs a driver call. If more launches follow, a waiter for just this task
	 * waits only a little longer when writes are combined. */
	bool more = end < atomic_load_explicit(&w->queue->head, memory_order_acquire) &&
		    launch_at(w, end)->slot == slot && is_ready(w, launch_at(w, end)) &&
		    w->slots[slot].ntasks < SLOT_WRITES;
	return error || more ? error : tell(w, slot);
}

/* True for the first launch of the group on its slot. */
static bool first_on_slot(const struct worker *w, uint64_t begin, uint64_t i)
{
	for (uint64_t j = begin; j < i; j++)
		if (launch_at(w, j)->slot == launch_at(w, i)->slot)
			return false;
	return true;
}

/* Skips a slot that was aborted meanwhile: its tasks have ended, or will end without this. The rest
 * of their groups is launched anyway. */
static bool is_usable(const struct worker *w, const struct launch *l)
{
	const struct comm_slot *slot = l->slot < WORKER_COMM_SLOTS ? &w->slots[l->slot] : NULL;
	return slot && slot->comm && !slot->failed && !slot->draining &&
	       l->timeline < SVC_TIMELINES && l->session < SVC_SESSIONS_MAX &&
	       (!l->timeline || w->sessions[l->session].ring);
}

/* ---- What is launched, for the next daemon ---- */

static uint64_t did(const struct comm_slot *slot, const struct launch *l)
{
	if (l->op == NCCLSVC_SEND)
		return done_message(slot->rank, l->peer);
	if (l->op == NCCLSVC_RECV)
		return -done_message(l->peer, slot->rank);
	return done_by_all(DONE_COLLECTIVES, slot->rank, slot->nranks);
}

static void note_captured(struct svc_timeline *t, const struct launch *l, uint64_t all)
{
	const uint64_t before = atomic_load(&t->did);
	atomic_store(&t->did_before, before);
	atomic_fetch_add(&t->launched, 1); /* from here on, the group counts as begun */
	atomic_store(&t->did, before + all);
	if (l->once)
		atomic_store(&t->once, l->once);
}

/* The launches [begin, end) are about to run. */
static void note(struct worker *w, uint64_t begin, uint64_t end)
{
	uint64_t all = 0; /* of a captured group, whose launches follow one another */
	for (uint64_t i = begin; i < end; i++) {
		const struct launch *l = launch_at(w, i);
		if (!l->timeline || !is_usable(w, l))
			continue;
		struct svc_timeline *t = &w->sessions[l->session].host[l->timeline];
		if (!(l->flags & LAUNCH_CAPTURED)) {
			atomic_store_explicit(&t->launched, l->value, memory_order_relaxed);
			continue;
		}
		all += did(&w->slots[l->slot], l);
		if (last_on_timeline(w, i, end)) {
			note_captured(t, l, all);
			all = 0;
		}
	}
}

/* The NCCL calls of the launches [begin, end), one group. */
static ncclResult_t calls(struct worker *w, uint64_t begin, uint64_t end)
{
	struct sent *sent = NULL;
	ncclResult_t result = end - begin > 1 ? nccl.ncclGroupStart() : ncclSuccess;
	for (uint64_t i = begin; i < end && !result; i++)
		if (is_usable(w, launch_at(w, i)))
			result = call(w, launch_at(w, i), &sent);
	if (end - begin > 1) {
		ncclResult_t ended = nccl.ncclGroupEnd();
		result = result ? result : ended;
	}
	free_sources(sent);
	return result;
}

static void launch_group(struct worker *w, uint64_t begin, uint64_t end)
{
	CUresult error = CUDA_SUCCESS;
	ncclResult_t result = ncclSuccess;
	const struct nvtx_names *names = nvtx_names_of(launch_at(w, begin)->op);
	nvtx_begin(names->pre);
	for (uint64_t i = begin; i < end && !error; i++)
		if (is_usable(w, launch_at(w, i)) && first_on_slot(w, begin, i))
			error = before(w, begin, end, launch_at(w, i)->slot);
	nvtx_end();
	nvtx_begin(names->op);
	note(w, begin, end);
	if (!error)
		result = calls(w, begin, end);
	nvtx_end();
	nvtx_begin(names->post);
	for (uint64_t i = begin; i < end && !error && !result; i++)
		if (is_usable(w, launch_at(w, i)) && first_on_slot(w, begin, i))
			error = after(w, begin, end, launch_at(w, i)->slot);
	nvtx_end();
	if (worker_bad(w, error, "a task could not be launched"))
		result = ncclUnhandledCudaError;
	if (result)
		for (uint64_t i = begin; i < end; i++)
			if (is_usable(w, launch_at(w, i)))
				comm_slot_failed(w, launch_at(w, i)->slot,
						 svc_op_name(launch_at(w, i)->op), result);
}

bool launch_next(struct worker *w)
{
	uint64_t head = atomic_load_explicit(&w->queue->head, memory_order_acquire);
	uint64_t end = w->tail;
	if (w->staging)
		return copy_next(w);
	if (end == head)
		return false;
	while (end < head && launch_at(w, end++)->flags & LAUNCH_MORE)
		;
	const struct launch *first = launch_at(w, w->tail);
	if (first->op == LAUNCH_INIT) {
		if (!comm_slot_init_run(w, first))
			return false;
	} else {
		launch_group(w, w->tail, end);
	}
	w->tail = end;
	atomic_store_explicit(&w->queue->tail, end, memory_order_release);
	return true;
}

/* Frees the copies of sources. Memory freed in stream order returns to the GPU when the stream is
 * synchronized; the stream is idle here, so this does not wait long. */
static void return_copies(struct worker *w, uint32_t slot)
{
	struct comm_slot *l = &w->slots[slot];
	if (!l->copied || !l->comm || l->failed || !comm_slot_idle(w, slot))
		return;
	l->copied = false;
	worker_bad(w, cu.cuStreamSynchronize(l->stream), "an idle stream has failed");
}

/* Does it have work to do? */
static bool comm_slot_in_flight(struct comm_slot *l, uint64_t completed, uint64_t now)
{
	const bool in_flight = completed < l->enqueued;
	if (!in_flight || completed != l->completed)
		l->moved_ns = now;
	l->completed = completed;
	return in_flight;
}

void launch_watch(struct worker *w)
{
	if (w->staging) {
		copy_watch(w);
		return;
	}
	w->in_flight = 0;
	endings_watch(w);
	w->stuck = w->in_flight > 0;
	uint64_t now = clock_now();
	bool look = now - w->checked_ns >= WORKER_WATCH_NS;
	for (uint32_t i = 0; i < w->high_slot; i++) {
		struct comm_slot *l = &w->slots[i];
		if (l->draining) {
			w->in_flight++;
			w->stuck = true;
			comm_slot_drain(w, i);
			continue;
		}
		return_copies(w, i);
		if (!l->comm || l->failed ||
		    !comm_slot_in_flight(l, atomic_load(&w->queue->slots[i].completed), now))
			continue;
		w->in_flight++;
		w->stuck = w->stuck || l->completed < l->waits_seq ||
			   now - l->moved_ns > SLOT_STUCK_NS;
		if (!look)
			continue;
		CUresult error = cu.cuStreamQuery(l->stream);
		if (error != CUDA_ERROR_NOT_READY &&
		    worker_bad(w, error, "a task failed on the GPU"))
			worker_die(w, "a task failed on the GPU");
		ncclResult_t bad = ncclSuccess;
		if (!nccl.ncclCommGetAsyncError(l->comm, &bad) && bad && bad != ncclInProgress)
			comm_slot_failed(w, i, "NCCL reports an asynchronous error", bad);
	}
	if (look)
		w->checked_ns = now;
}
