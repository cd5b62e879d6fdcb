/* SPDX-License-Identifier: Apache-2.0
 * A communicator's operations in CUDA graphs. The library does not see launches of a graph, so the
 * GPU counts (proto/abi/peer_abi.h). An event that graphs and single kernels record and wait for
 * keeps them in the program's launch order: a graph waits for it before the communicator's first
 * kernel, and records it behind the last one. */
#include <stdlib.h>

#include "base/error.h"
#include "capture_graph.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"

ncclsvc_result peer_cannot_detach(void)
{
	return error_set(NCCLSVC_UNSUPPORTED,
			 "the stream is being captured into a CUDA graph, which ends only when "
			 "everything in it has: operations cannot be detached from it");
}

ncclsvc_result peer_cannot_capture(void)
{
	return error_set(NCCLSVC_UNSUPPORTED, "operations cannot be captured into CUDA graphs: the "
					      "NVIDIA driver lacks the calls for it");
}

/* ---- Streams ---- */

CUresult peer_follow(const struct peer *p, CUevent event, CUstream from, CUstream stream)
{
	CUresult e = p->cuda->cuEventRecord(event, from);
	return e ? e : p->cuda->cuStreamWaitEvent(stream, event, 0);
}

CUresult peer_wait_ended(const struct peer *p, CUstream stream, uint32_t kernel_seq,
			 unsigned blocks)
{
	CUstreamBatchMemOpParams ops[PEER_BLOCKS];
	const CUdeviceptr completed = p->own.at + offsetof(struct peer_state, completed);
	for (unsigned i = 0; i < blocks; i++)
		ops[i] = (CUstreamBatchMemOpParams){
			.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
				      .address = completed + i * sizeof(uint32_t),
				      .value = kernel_seq,
				      .flags = CU_STREAM_WAIT_VALUE_GEQ}};
	return p->cuda->cuStreamBatchMemOp(stream, blocks, ops, 0);
}

CUresult peer_streams_join(const struct op *ops, unsigned n, const struct peer *p, CUstream stream,
			   const struct op *done)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && !ops->beside_nccl && i < n; i++) {
		if (done && ops[i].stream == done->stream)
			continue;
		e = peer_follow(p, p->input, ops[i].stream, stream);
		done = &ops[i];
	}
	return e;
}

/* ---- Existing graphs ---- */

/* A user object's destructor: the driver calls it on its own thread. */
static void graph_gone(void *arg)
{
	struct peer_graph *graph = arg;
	struct peer *p = graph->peer;
	if (p->control)
		atomic_fetch_sub_explicit(&p->control->graphs, 1, memory_order_release);
	atomic_store_explicit(&graph->gone, true, memory_order_release);
	atomic_fetch_add_explicit(&p->graphs_gone, 1,
				  memory_order_release); /* this may be the last reference to p */
}

void peer_graphs_sweep(struct peer *p)
{
	for (struct peer_graph **link = &p->graphs, *graph; (graph = *link);) {
		if (atomic_load_explicit(&graph->gone, memory_order_acquire)) {
			*link = graph->next;
			free(graph);
		} else {
			link = &graph->next;
		}
	}
}

bool peer_order_reached(const struct peer *p)
{
	if (cuda_push(p->cuda, p->context))
		return true;
	const int mode = relaxed_begin(p->cuda);
	const bool reached = p->cuda->cuEventQuery(p->order) != CUDA_ERROR_NOT_READY;
	relaxed_end(p->cuda, mode);
	cuda_pop(p->cuda, p->context);
	return reached;
}

bool peer_graphs_quiet(const struct peer *p)
{
	return !peer_graphs_live(p) || peer_order_reached(p);
}

unsigned ncclsvc_comm_graphs(ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	const struct peer *p = comm_captures(comm);
	const unsigned n =
		p ? atomic_load_explicit(&p->ngraphs, memory_order_acquire) -
				atomic_load_explicit(&p->graphs_gone, memory_order_acquire)
		  : 0;
	session_unlock(comm->session);
	return n;
}

/* If so, the daemon ends the epoch. */
static bool is_broken_off(const struct peer *p)
{
	if (p->captured_timeline &&
	    atomic_load(&svc_timelines(p->captured_page->connection->ring)[p->captured_timeline]
				 .done) >= SVC_CAPTURED_GROUP_DEAD)
		return true;
	return p->control && (atomic_load_explicit(&p->control->abort, memory_order_relaxed) ||
			      atomic_load_explicit(&p->control->failed, memory_order_relaxed));
}

int ncclsvc_comm_graphs_running(ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	const struct peer *p = comm_captures(comm);
	const bool running = p && (!peer_graphs_quiet(p) || (!comm->broken && is_broken_off(p)));
	session_unlock(comm->session);
	return running;
}

/* Without graphs, nothing has recorded the event. */
static CUresult order_begin(const struct peer *p)
{
	CUresult e = CUDA_SUCCESS;
	if (peer_graphs_live(p))
		return CUDA_SUCCESS;
	if (p->any)
		e = peer_wait_ended(p, p->side_stream, p->latest, p->blocks);
	return e ? e : p->cuda->cuEventRecord(p->order, p->side_stream);
}

/* ---- Capturing ---- */

/* Handles the capture's first kernel. */
static CUresult graph_begin(struct peer *p, uint64_t capture, CUgraph handle, CUstream stream)
{
	const struct cuda *cuda = p->cuda;
	CUuserObject object;
	CUresult e = order_begin(p);
	struct peer_graph *graph = e ? NULL : malloc(sizeof(*graph));
	if (!graph)
		return e ? e : CUDA_ERROR_OUT_OF_MEMORY;
	*graph = (struct peer_graph){
		.next = p->graphs,
		.capture = capture,
		.number = atomic_load_explicit(&p->ngraphs, memory_order_relaxed) + 1,
		.graph = handle,
		.stream = stream,
		.peer = p};
	e = cuda->cuUserObjectCreate(&object, graph, graph_gone, 1,
				     CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (e) {
		free(graph);
		return e;
	}
	p->graphs = graph;
	if (p->control)
		atomic_fetch_add_explicit(&p->control->graphs, 1, memory_order_release);
	atomic_store_explicit(&p->ngraphs, graph->number, memory_order_release);
	e = cuda->cuGraphRetainUserObject(handle, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
	if (!e)
		return cuda->cuStreamWaitEvent(stream, p->order, CU_EVENT_WAIT_EXTERNAL);
	graph->capture = 0;
	cuda->cuUserObjectRelease(object, 1); /* this destroys it */
	return e;
}

/* Finds the capture's graph, and moves it to the front. */
static CUresult graph_find(struct peer *p, CUstream stream)
{
	int status;
	uint64_t capture;
	CUgraph handle;
	CUresult e =
		p->cuda->cuStreamGetCaptureInfo_v2(stream, &status, &capture, &handle, NULL, NULL);
	if (e)
		return e;
	if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (struct peer_graph **link = &p->graphs, *graph; (graph = *link); link = &graph->next) {
		if (graph->capture != capture)
			continue;
		*link = graph->next;
		graph->next = p->graphs;
		p->graphs = graph;
		return CUDA_SUCCESS;
	}
	return graph_begin(p, capture, handle, stream);
}

/* Records the event behind the newest kernel; nothing in the graph waits for the record. */
static CUresult record_behind(const struct peer *p, struct peer_graph *graph, CUgraphNode kernel)
{
	const struct cuda *cuda = p->cuda;
	if (!graph->record)
		return cuda->cuGraphAddEventRecordNode(&graph->record, graph->graph, &kernel, 1,
						       p->order);
	CUresult e = cuda->cuGraphAddDependencies(graph->graph, &kernel, &graph->record, 1);
	return e ? e
		 : cuda->cuGraphRemoveDependencies(graph->graph, &graph->kernel, &graph->record, 1);
}

static CUresult last_node(const struct peer *p, CUstream stream, CUgraphNode *kernel)
{
	int status;
	const CUgraphNode *last;
	size_t n;
	CUresult e = p->cuda->cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &last, &n);
	if (!e && n != 1)
		e = CUDA_ERROR_UNKNOWN;
	if (!e)
		*kernel = last[0];
	return e;
}

CUresult peer_graph_follow(struct peer *p, CUstream stream)
{
	peer_graphs_sweep(p);
	CUresult e = graph_find(p, stream);
	struct peer_graph *graph = p->graphs;
	if (!e && graph->kernel && graph->stream != stream)
		e = p->cuda->cuStreamUpdateCaptureDependencies(stream, &graph->kernel, 1,
							       CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
	return e;
}

CUresult peer_graph_note(const struct op *op, unsigned n, CUstream stream)
{
	struct peer *p = op->peer;
	CUgraphNode node = NULL;
	CUresult e = graph_find(p, stream);
	struct peer_graph *graph = p->graphs;
	if (!e)
		e = last_node(p, stream, &node);
	if (!e)
		e = record_behind(p, graph, node);
	if (e)
		return e;
	graph->stream = stream;
	graph->kernel = node;
	graph->operations += n;
	if (p->control)
		atomic_store_explicit(&p->control->timeout_ns, op->record.timeout_ns,
				      memory_order_release);
	return CUDA_SUCCESS;
}

ncclsvc_result peer_graph_position(const struct op *op, struct peer_graph_position *at)
{
	struct peer *p = comm_captures(op->comm);
	CUresult e = cuda_push(p->cuda, op->push);
	if (!e) {
		pthread_mutex_lock(&p->turn);
		peer_graphs_sweep(p);
		e = graph_find(p, op->stream);
		if (!e)
			*at = (struct peer_graph_position){p->graphs->number,
							   p->graphs->operations};
		pthread_mutex_unlock(&p->turn);
		cuda_pop(p->cuda, op->push);
	}
	return e ? cuda_error(p->cuda, e, "cannot use the stream's capture") : NCCLSVC_OK;
}

CUresult peer_graph_hold(const struct peer *p, CUstream stream, void *arg, void (*gone)(void *))
{
	int status;
	CUgraph graph;
	CUuserObject object;
	const struct cuda *cuda = p->cuda;
	CUresult e = cuda->cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL);
	if (!e)
		e = cuda->cuUserObjectCreate(&object, arg, gone, 1,
					     CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (e) {
		gone(arg);
		return e;
	}
	e = cuda->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
	if (e)
		cuda->cuUserObjectRelease(object, 1); /* this destroys it */
	return e;
}
