/* SPDX-License-Identifier: Apache-2.0
 * The operations that tasks put on their streams, and waits of streams for tasks. */
#include "base/error.h"
#include "base/session_memory.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "cuda/capture/captured_group.h"
#include "cuda/direct/peer.h"
#include "gpu_state.h"

static CUdeviceptr done_of(const struct pair *p)
{
	return p->ready + offsetof(struct svc_timeline, done);
}

static CUresult one_by_one(const struct cuda *cuda, CUstream stream,
			   const CUstreamBatchMemOpParams *ops, unsigned n)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && i < n; i++) {
		if (ops[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
			e = cuda->cuStreamWriteValue64(stream, ops[i].writeValue.address,
						       ops[i].writeValue.value64,
						       ops[i].writeValue.flags);
		else
			e = cuda->cuStreamWaitValue64(stream, ops[i].waitValue.address,
						      ops[i].waitValue.value64,
						      ops[i].waitValue.flags);
	}
	return e;
}

static bool same_stream(const struct pair *a, const struct pair *b)
{
	return a->stream_id == b->stream_id && a->context == b->context;
}

/* Enqueues all pairs of one stream together, every write before the first wait: the group's tasks
 * may start only all together. */
static CUresult enqueue(struct gpu *g, const struct pair *first, const uint32_t *touched,
			unsigned n)
{
	CUstreamBatchMemOpParams ops[2 * SVC_TIMELINES];
	unsigned nops = 0;
	for (unsigned i = 0; i < n; i++) {
		const struct pair *p = &g->pairs[touched[i]];
		if (same_stream(p, first) && !p->idle)
			ops[nops++] = memop_write_64(p->ready, p->timeline->last);
	}
	for (unsigned i = 0; i < n; i++)
		if (same_stream(&g->pairs[touched[i]], first) && g->pairs[touched[i]].wait_to)
			ops[nops++] = memop_wait_64(done_of(&g->pairs[touched[i]]),
						    g->pairs[touched[i]].wait_to);
	CUresult e = nops ? cuda_push(g->cuda, first->push) : CUDA_SUCCESS;
	if (e || !nops)
		return e;
	if (!g->no_batch && nops > 1)
		e = g->cuda->cuStreamBatchMemOp(first->stream, nops, ops, 0);
	if (g->no_batch || nops == 1 || e) {
		bool batched = !g->no_batch && nops > 1;
		e = one_by_one(g->cuda, first->stream, ops, nops);
		g->no_batch = g->no_batch || (batched && !e);
	}
	cuda_pop(g->cuda, first->push);
	return e;
}

/* The tasks are submitted and others wait for them, so they run on whatever their buffers hold. */
static ncclsvc_result not_enqueued(ncclsvc_session *s, const struct gpu *g,
				   const struct pair *first, const uint32_t *touched, unsigned n,
				   CUresult e)
{
	for (unsigned i = 0; i < n; i++)
		if (same_stream(&g->pairs[touched[i]], first))
			timeline_raise(&stream_counters(g, touched[i])->ready,
				       g->pairs[touched[i]].timeline->last);
	ring_doorbell(s->connection);
	return cuda_error(g->cuda, e,
			  "the driver put nothing on the stream: the tasks are submitted and run "
			  "without its order, and the contents of their buffers are undefined");
}

/* If everything ever put on the stream is over, the input is ready, and the CPU can signal it
 * without a turn of the GPU. The driver is asked only if our own tasks make this likely. It is not
 * asked about a default stream, where the query could break another thread's capture, or about a
 * stream that waits for the default stream's work, which the answer does not cover. */
static void signal_idle(struct gpu *g, uint32_t index)
{
	struct pair *p = &g->pairs[index];
	p->idle = p->rested && !g->cuda->cuStreamQuery(p->stream);
	if (p->idle)
		timeline_raise(&stream_counters(g, index)->ready, p->timeline->last);
}

ncclsvc_result streams_enqueue(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	struct gpu *g = s->gpu;
	uint32_t touched[SVC_TIMELINES];
	unsigned ntouched = 0;
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; i < n; i++) {
		uint32_t index = ops[i].record.timeline;
		if (ops[i].comm->device < 0 || !g->pairs[index].touched)
			continue;
		g->pairs[index].touched = false;
		touched[ntouched++] = index;
		signal_idle(g, index);
	}
	for (unsigned i = 0; i < ntouched; i++) {
		const struct pair *p = &g->pairs[touched[i]];
		unsigned j = 0;
		while (!same_stream(&g->pairs[touched[j]], p))
			j++;
		CUresult e = i == j ? enqueue(g, p, touched, ntouched) : CUDA_SUCCESS;
		if (e)
			r = not_enqueued(s, g, p, touched, ntouched, e);
	}
	return r;
}

/* ---- Waiting for a task ---- */

/* Locked. */
static ncclsvc_result wait_on(ncclsvc_session *s, CUstream handle, ncclsvc_task task)
{
	struct gpu *g = s->gpu;
	const struct slot *slot = &s->tasks.slots[task & (s->tasks.entries - 1)];
	enum task_state state = task_look(s, task);
	if (state == TASK_FORGOTTEN)
		return NCCLSVC_OK;
	if (!slot->entry) /* a kernel */
		return state == TASK_ENDED ? NCCLSVC_OK : peer_stream_wait(s, handle, slot);
	const ncclsvc_timeline *timeline = s->timelines[slot->timeline];
	if (!slot->timeline || (timeline && !timeline->of_stream))
		return error_argument(
			"task %llu belongs to a host communicator: no stream can wait for it",
			(unsigned long long)task);
	if (state == TASK_ENDED || !timeline)
		return NCCLSVC_OK;
	if (timeline->last == SVC_CAPTURED_GROUP_DEAD)
		return captured_group_stream_wait(s, handle, slot);
	const struct pair *p = &g->pairs[slot->timeline];
	struct stream st;
	CUdevice device;
	CUdeviceptr page;
	ncclsvc_result r = stream_identify(g, p->device, handle, &st);
	if (!r)
		r = page_address(g, &st, &device, &page);
	if (r)
		return r;
	CUdeviceptr at = page + slot->timeline * sizeof(struct svc_timeline) +
			 offsetof(struct svc_timeline, done);
	CUresult e = cuda_push(g->cuda, st.push);
	if (!e) {
		e = g->cuda->cuStreamWaitValue64(handle, at, slot->timeline_value,
						 CU_STREAM_WAIT_VALUE_GEQ);
		cuda_pop(g->cuda, st.push);
	}
	return e ? cuda_error(g->cuda, e, "the stream cannot wait for the task") : NCCLSVC_OK;
}

ncclsvc_result ncclsvc_stream_wait(ncclsvc_session *s, CUstream stream, ncclsvc_task task)
{
	ncclsvc_result r;
	if (!s)
		return error_argument("ncclsvc_stream_wait: the session is NULL");
	if (!task)
		return NCCLSVC_OK;
	session_lock(s);
	if (task >= s->tasks.next)
		r = error_set(NCCLSVC_NOT_FOUND, "task %llu was never submitted in this session",
			      (unsigned long long)task);
	else
		r = wait_on(s, stream, task);
	session_unlock(s);
	return r;
}
