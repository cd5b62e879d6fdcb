/* SPDX-License-Identifier: Apache-2.0
 * Captured groups on streams: in graphs, and outside while such graphs exist. */
#include "base/error.h"
#include "base/session_memory.h"
#include "capture_graph.h"
#include "captured_group.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"

#define WORD(op, word) ((op)->capture->groups.words + offsetof(struct svc_timeline, word))

/* Memory operations for one stream, sent together. */
struct batch {
	const struct cuda *cuda;
	CUstream stream;
	unsigned n;
	CUresult error;
	CUstreamBatchMemOpParams ops[CUDA_BATCH_MEM_OPS_MAX];
};

static void flush(struct batch *b)
{
	if (b->n && !b->error)
		b->error = b->cuda->cuStreamBatchMemOp(b->stream, b->n, b->ops, 0);
	b->n = 0;
}

static void add(struct batch *b, CUstreamBatchMemOpParams op)
{
	if (b->n == CUDA_BATCH_MEM_OPS_MAX)
		flush(b);
	b->ops[b->n++] = op;
}

/* For all communicators, with every start before the first wait. */
static CUresult put(const struct op *ops, unsigned n, CUstream stream, unsigned phases)
{
	struct batch b;
	b.cuda = ops->capture->cuda;
	b.stream = stream;
	b.n = 0;
	b.error = CUDA_SUCCESS;
	for (unsigned i = 0; phases & CAPTURED_GROUP_START && i < n;
	     i += captured_group_run(&ops[i], n - i)) {
		add(&b, memop_write_32(WORD(&ops[i], go), 1));
		add(&b, memop_write_64(WORD(&ops[i], ready), ops[i].kept.number));
	}
	for (unsigned i = 0; phases & CAPTURED_GROUP_END && i < n;
	     i += captured_group_run(&ops[i], n - i))
		add(&b, memop_wait_64(WORD(&ops[i], done), SVC_CAPTURED_GROUP_DONE));
	for (unsigned i = 0; phases & CAPTURED_GROUP_END && i < n;
	     i += captured_group_run(&ops[i], n - i))
		add(&b, memop_write_32(WORD(&ops[i], done), 0));
	flush(&b);
	return b.error;
}

/* Makes the operations' streams wait for the work on that stream. */
static CUresult streams_follow(const struct op *ops, unsigned n, CUstream stream)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && i < n; i++)
		if (!ops[i].detached && ops[i].stream != stream)
			e = capture_follow(ops->capture, ops->capture->input, stream,
					   ops[i].stream);
	return e;
}

/* Orders each communicator's operations behind what its graph already has of it. */
static CUresult capture_behind(const struct op *ops, unsigned n, CUstream stream)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && i < n; i += captured_group_run(&ops[i], n - i)) {
		pthread_mutex_lock(&ops[i].capture->turn);
		e = capture_graph_follow(ops[i].capture, stream);
		pthread_mutex_unlock(&ops[i].capture->turn);
	}
	return e;
}

/* Makes the graph hold the captured groups. */
static CUresult capture_hold(const struct op *ops, unsigned n, CUstream stream)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; i < n; i += captured_group_run(&ops[i], n - i)) {
		if (!e)
			e = capture_graph_hold(ops[i].capture, stream, ops[i].kept.group,
					       captured_group_gone);
		else
			captured_group_gone(ops[i].kept.group);
	}
	return e;
}

static CUresult capture_note(const struct op *ops, unsigned n, CUstream stream)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0, k; !e && i < n; i += k) {
		k = captured_group_run(&ops[i], n - i);
		pthread_mutex_lock(&ops[i].capture->turn);
		e = capture_graph_note(&ops[i], k, stream);
		pthread_mutex_unlock(&ops[i].capture->turn);
	}
	return e;
}

static CUresult capture(const struct op *ops, unsigned n, unsigned phases)
{
	const CUstream stream = ops->stream;
	CUresult e = CUDA_SUCCESS;
	if (phases & CAPTURED_GROUP_START)
		e = capture_hold(ops, n, stream);
	if (!e && phases & CAPTURED_GROUP_START)
		e = capture_streams_join(ops, n, ops->capture, stream, ops);
	if (!e)
		e = capture_behind(ops, n, stream);
	if (!e)
		e = put(ops, n, stream, phases);
	if (!e && phases & CAPTURED_GROUP_END)
		e = capture_note(ops, n, stream);
	return e || !(phases & CAPTURED_GROUP_END) ? e : streams_follow(ops, n, stream);
}

ncclsvc_result captured_groups_capture(const struct op *ops, unsigned n, unsigned phases)
{
	const struct cuda *cuda = ops->capture->cuda;
	CUresult e = cuda_push(cuda, ops->route.push);
	if (!e) {
		e = capture(ops, n, phases);
		cuda_pop(cuda, ops->route.push);
	} else if (phases & CAPTURED_GROUP_START) {
		for (unsigned i = 0; i < n; i += captured_group_run(&ops[i], n - i))
			captured_group_gone(ops[i].kept.group);
	}
	return e ? cuda_error(cuda, e, "the operations were not captured") : NCCLSVC_OK;
}

/* ---- Outside graphs ---- */

static bool any_detached(const struct op *ops, unsigned n)
{
	while (n && !ops[n - 1].detached)
		n--;
	return n;
}

static CUresult launch(const struct op *ops, unsigned n, unsigned phases)
{
	const struct capture *c = ops->capture;
	const bool side = any_detached(ops, n);
	const CUstream stream = side ? c->side_stream : ops->stream;
	CUresult e = CUDA_SUCCESS;
	if (phases & CAPTURED_GROUP_START)
		e = capture_streams_join(ops, n, c, stream, side ? NULL : ops);
	for (unsigned i = 0; !e && phases & CAPTURED_GROUP_START && i < n;
	     i += captured_group_run(&ops[i], n - i))
		e = c->cuda->cuStreamWaitEvent(stream, ops[i].capture->order,
					       CU_EVENT_WAIT_DEFAULT);
	if (!e)
		e = put(ops, n, stream, phases);
	for (unsigned i = 0; !e && phases & CAPTURED_GROUP_END && i < n;
	     i += captured_group_run(&ops[i], n - i))
		e = c->cuda->cuEventRecord(ops[i].capture->order, stream);
	return e || !(phases & CAPTURED_GROUP_END) ? e : streams_follow(ops, n, stream);
}

/* Starts operations that no stream starts: they run on whatever their buffers hold. */
static void start_all(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i += captured_group_run(&ops[i], n - i)) {
		struct svc_timeline *words = stream_counters(s->gpu, ops[i].record.timeline);
		atomic_store(&words->go, 1);
		atomic_store(&words->ready, ops[i].kept.number);
	}
	ring_doorbell(s->connection);
}

/* Holds the turns, so that no kernel comes between the first phase and the last. */
static void turns(const struct op *ops, unsigned n, int (*call)(pthread_mutex_t *mutex))
{
	for (unsigned i = 0; i < n; i += captured_group_run(&ops[i], n - i))
		call(&ops[i].capture->turn);
}

ncclsvc_result captured_groups_launch(ncclsvc_session *s, const struct op *ops, unsigned n,
				      unsigned phases)
{
	const struct cuda *cuda = ops->capture->cuda;
	if (phases & CAPTURED_GROUP_START)
		turns(ops, n, pthread_mutex_lock);
	CUresult e = cuda_push(cuda, ops->route.push);
	if (!e) {
		e = launch(ops, n, phases);
		cuda_pop(cuda, ops->route.push);
	}
	if (phases & CAPTURED_GROUP_END)
		turns(ops, n, pthread_mutex_unlock);
	if (!e)
		return NCCLSVC_OK;
	start_all(s, ops, n);
	return cuda_error(cuda, e,
			  "the driver put nothing on the stream: the tasks are submitted and run "
			  "without its order, and the contents of their buffers are undefined");
}

ncclsvc_result captured_group_stream_wait(ncclsvc_session *s, CUstream handle,
					  const struct slot *slot)
{
	const ncclsvc_comm *comm = comm_by_key(s, slot->comm_key);
	struct stream st;
	if (!comm || !comm->capture) /* the task ends with its epoch */
		return NCCLSVC_OK;
	const struct cuda *cuda = s->gpu->cuda;
	ncclsvc_result r = stream_identify(s->gpu, comm->device, handle, &st);
	CUresult e = r ? CUDA_SUCCESS : cuda_push(cuda, st.push);
	if (!r && !e) {
		e = cuda->cuStreamWaitEvent(handle, comm->capture->order, CU_EVENT_WAIT_DEFAULT);
		cuda_pop(cuda, st.push);
	}
	return e ? cuda_error(cuda, e, "the stream cannot wait for the task") : r;
}
