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
#include "cuda/direct/peer.h"

ncclsvc_result capture_cannot_detach(void)
{
	return error_set(NCCLSVC_UNSUPPORTED,
			 "the stream is being captured into a CUDA graph, which ends only when "
			 "everything in it has: operations cannot be detached from it");
}

ncclsvc_result capture_unsupported(void)
{
	return error_set(NCCLSVC_UNSUPPORTED, "operations cannot be captured into CUDA graphs: the "
					      "NVIDIA driver lacks the calls for it");
}

/* ---- Streams ---- */

CUresult capture_follow(const struct capture *c, CUevent event, CUstream from, CUstream stream)
{
	CUresult e = c->cuda->cuEventRecord(event, from);
	return e ? e : c->cuda->cuStreamWaitEvent(stream, event, 0);
}

CUresult capture_streams_join(const struct op *ops, unsigned n, const struct capture *c,
			      CUstream stream, const struct op *done)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned i = 0; !e && !ops->route.beside_nccl && i < n; i++) {
		if (done && ops[i].stream == done->stream)
			continue;
		e = capture_follow(c, c->input, ops[i].stream, stream);
		done = &ops[i];
	}
	return e;
}

/* ---- Existing graphs ---- */

/* NULL: the communicator has no kernels. */
static struct peer_control *control_of(const struct capture *c)
{
	return c->peer ? c->peer->control : NULL;
}

/* A user object's destructor: the driver calls it on its own thread. */
static void graph_gone(void *arg)
{
	struct capture_graph *graph = arg;
	struct capture *c = graph->capture;
	struct peer_control *control = control_of(c);
	if (control)
		atomic_fetch_sub_explicit(&control->graphs, 1, memory_order_release);
	atomic_store_explicit(&graph->gone, true, memory_order_release);
	atomic_fetch_add_explicit(&c->graphs_gone, 1,
				  memory_order_release); /* this may be the last reference to c */
}

void capture_graphs_sweep(struct capture *c)
{
	for (struct capture_graph **link = &c->graphs, *graph; (graph = *link);) {
		if (atomic_load_explicit(&graph->gone, memory_order_acquire)) {
			*link = graph->next;
			free(graph);
		} else {
			link = &graph->next;
		}
	}
}

bool capture_order_reached(const struct capture *c)
{
	if (cuda_push(c->cuda, c->context))
		return true;
	const int mode = relaxed_begin(c->cuda);
	const bool reached = c->cuda->cuEventQuery(c->order) != CUDA_ERROR_NOT_READY;
	relaxed_end(c->cuda, mode);
	cuda_pop(c->cuda, c->context);
	return reached;
}

bool capture_graphs_quiet(const struct capture *c)
{
	return !capture_graphs_live(c) || capture_order_reached(c);
}

unsigned ncclsvc_comm_graphs(ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	const struct capture *c = comm->capture;
	const unsigned n =
		c ? atomic_load_explicit(&c->ngraphs, memory_order_acquire) -
				atomic_load_explicit(&c->graphs_gone, memory_order_acquire)
		  : 0;
	session_unlock(comm->session);
	return n;
}

/* If so, the daemon ends the epoch. */
static bool is_broken_off(const struct capture *c)
{
	if (c->groups.timeline &&
	    atomic_load(&c->groups.page->timelines[c->groups.timeline].done) >=
		    SVC_CAPTURED_GROUP_DEAD)
		return true;
	const struct peer_control *control = control_of(c);
	return control && (atomic_load_explicit(&control->abort, memory_order_relaxed) ||
			   atomic_load_explicit(&control->failed, memory_order_relaxed));
}

int ncclsvc_comm_graphs_running(ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	const struct capture *c = comm->capture;
	const bool running = c && (!capture_graphs_quiet(c) || (!comm->broken && is_broken_off(c)));
	session_unlock(comm->session);
	return running;
}

/* Without graphs, nothing has recorded the event. */
static CUresult order_begin(const struct capture *c)
{
	CUresult e = CUDA_SUCCESS;
	if (capture_graphs_live(c))
		return CUDA_SUCCESS;
	if (c->peer && c->peer->newest.any)
		e = peer_wait_ended(c->peer, c->side_stream, c->peer->newest.kernel_seq,
				    c->peer->newest.blocks);
	return e ? e : c->cuda->cuEventRecord(c->order, c->side_stream);
}

/* ---- Capturing ---- */

/* Handles the capture's first kernel. */
static CUresult graph_begin(struct capture *c, uint64_t id, CUgraph handle, CUstream stream)
{
	const struct cuda *cuda = c->cuda;
	CUuserObject object;
	CUresult e = order_begin(c);
	struct capture_graph *graph = e ? NULL : malloc(sizeof(*graph));
	if (!graph)
		return e ? e : CUDA_ERROR_OUT_OF_MEMORY;
	*graph = (struct capture_graph){
		.next = c->graphs,
		.id = id,
		.number = atomic_load_explicit(&c->ngraphs, memory_order_relaxed) + 1,
		.graph = handle,
		.stream = stream,
		.capture = c};
	e = cuda->cuUserObjectCreate(&object, graph, graph_gone, 1,
				     CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (e) {
		free(graph);
		return e;
	}
	c->graphs = graph;
	struct peer_control *control = control_of(c);
	if (control)
		atomic_fetch_add_explicit(&control->graphs, 1, memory_order_release);
	atomic_store_explicit(&c->ngraphs, graph->number, memory_order_release);
	e = cuda->cuGraphRetainUserObject(handle, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
	if (!e)
		return cuda->cuStreamWaitEvent(stream, c->order, CU_EVENT_WAIT_EXTERNAL);
	graph->id = 0;
	cuda->cuUserObjectRelease(object, 1); /* this destroys it */
	return e;
}

/* Finds the capture's graph, and moves it to the front. */
static CUresult graph_find(struct capture *c, CUstream stream)
{
	int status;
	uint64_t id;
	CUgraph handle;
	CUresult e = c->cuda->cuStreamGetCaptureInfo_v2(stream, &status, &id, &handle, NULL, NULL);
	if (e)
		return e;
	if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (struct capture_graph **link = &c->graphs, *graph; (graph = *link);
	     link = &graph->next) {
		if (graph->id != id)
			continue;
		*link = graph->next;
		graph->next = c->graphs;
		c->graphs = graph;
		return CUDA_SUCCESS;
	}
	return graph_begin(c, id, handle, stream);
}

/* Records the event behind the newest kernel; nothing in the graph waits for the record. */
static CUresult record_behind(const struct capture *c, struct capture_graph *graph,
			      CUgraphNode kernel)
{
	const struct cuda *cuda = c->cuda;
	if (!graph->record)
		return cuda->cuGraphAddEventRecordNode(&graph->record, graph->graph, &kernel, 1,
						       c->order);
	CUresult e = cuda->cuGraphAddDependencies(graph->graph, &kernel, &graph->record, 1);
	return e ? e
		 : cuda->cuGraphRemoveDependencies(graph->graph, &graph->last, &graph->record, 1);
}

static CUresult last_node(const struct capture *c, CUstream stream, CUgraphNode *kernel)
{
	int status;
	const CUgraphNode *last;
	size_t n;
	CUresult e = c->cuda->cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &last, &n);
	if (!e && n != 1)
		e = CUDA_ERROR_UNKNOWN;
	if (!e)
		*kernel = last[0];
	return e;
}

CUresult capture_graph_follow(struct capture *c, CUstream stream)
{
	capture_graphs_sweep(c);
	CUresult e = graph_find(c, stream);
	struct capture_graph *graph = c->graphs;
	if (!e && graph->last && graph->stream != stream)
		e = c->cuda->cuStreamUpdateCaptureDependencies(stream, &graph->last, 1,
							       CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
	return e;
}

CUresult capture_graph_note(const struct op *op, unsigned n, CUstream stream)
{
	struct capture *c = op->capture;
	struct peer_control *control = control_of(c);
	CUgraphNode node = NULL;
	CUresult e = graph_find(c, stream);
	struct capture_graph *graph = c->graphs;
	if (!e)
		e = last_node(c, stream, &node);
	if (!e)
		e = record_behind(c, graph, node);
	if (e)
		return e;
	graph->stream = stream;
	graph->last = node;
	graph->operations += n;
	if (control)
		atomic_store_explicit(&control->timeout_ns, op->record.timeout_ns,
				      memory_order_release);
	return CUDA_SUCCESS;
}

ncclsvc_result capture_position(const struct op *op, struct capture_position *at)
{
	struct capture *c = op->comm->capture;
	CUresult e = cuda_push(c->cuda, op->route.push);
	if (!e) {
		pthread_mutex_lock(&c->turn);
		capture_graphs_sweep(c);
		e = graph_find(c, op->stream);
		if (!e)
			*at = (struct capture_position){c->graphs->number, c->graphs->operations};
		pthread_mutex_unlock(&c->turn);
		cuda_pop(c->cuda, op->route.push);
	}
	return e ? cuda_error(c->cuda, e, "cannot use the stream's capture") : NCCLSVC_OK;
}

CUresult capture_graph_hold(const struct capture *c, CUstream stream, void *arg,
			    void (*gone)(void *))
{
	int status;
	CUgraph graph;
	CUuserObject object;
	const struct cuda *cuda = c->cuda;
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
