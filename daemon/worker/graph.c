/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes again and again with the same buffers is captured once into a CUDA graph and launched
 * as that. NCCL's call takes the processor 5 to 12 us and the launch of a graph of one kernel 1 to
 * 2, and the kernel begins sooner. It is the same kernel, so each rank decides for itself.
 *
 * NCCL captures a wait for an event and a record of it, too, which order its calls and graphs on
 * several streams. A lane has one stream, which does that. And they make graphs begin 20 us and
 * more too late on some cores. So they are taken out. What NCCL uploads on a stream of its own for
 * a graph comes before the next call on the lane's stream; so one follows every capture. */
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "names.h"
#include "worker.h"

#define GRAPH_TASKS 16			  /* of one group */
#define GRAPHS	    64			  /* of one lane */
#define WAYS	    4			  /* places that a group may have */
#define CALLS	    8			  /* until it is captured */
#define NODES	    32			  /* that NCCL captures for it, at most */
#define STALE_NS    UINT64_C(10000000000) /* its place may go to another group */

/* What NCCL is told of a task. */
struct graph_task {
	uint64_t src, dst, count;
	int32_t peer;
	uint8_t op, type, redop;
	uint8_t windows; /* an address can have been another kind of memory's */
};
_Static_assert(sizeof(struct graph_task) == 32, "compared as a whole");

struct graph {
	uint32_t ntasks; /* 0: a free place */
	struct graph_task tasks[GRAPH_TASKS];
	CUgraphExec exec; /* NULL: not captured */
	uint64_t used_ns;
	unsigned calls;
};

struct lane_graphs {
	bool never; /* something of this communicator could not be captured */
	struct graph places[GRAPHS];
};

static uint64_t completed(const struct worker *w, uint32_t lane)
{
	return atomic_load_explicit(&w->queue->lanes[lane].completed, memory_order_acquire);
}

/* ---- Finding ---- */

static uint64_t hash_of(const struct graph_task *tasks, uint32_t n)
{
	uint64_t h = n, word;
	const char *p = (const char *)tasks;
	for (size_t i = 0; i < n * sizeof(*tasks); i += sizeof(word)) {
		memcpy(&word, p + i, sizeof(word));
		h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		h ^= h >> 29;
	}
	return h;
}

/* Behind others that run already, a call costs nobody time; and few graphs have room in a stream,
 * so the worker might wait in a launch for what another lane has to do first. */
static bool first_in_line(const struct worker *w, const struct launch *first)
{
	if (!launch_usable(w, first))
		return false;
	const struct lane *l = &w->lanes[first->lane];
	return l->nranks > 1 && !l->due && l->enqueued <= completed(w, first->lane);
}

/* False: not of a kind that is captured. A reduction that a member has made may become another. */
static bool describe(const struct worker *w, uint64_t begin, uint64_t end, struct graph_task *tasks)
{
	const struct launch *first = launch_at(w, begin);
	if (end - begin > GRAPH_TASKS)
		return false;
	for (uint64_t i = begin; i < end; i++) {
		const struct launch *l = launch_at(w, i);
		struct graph_task *t = &tasks[i - begin];
		*t = (struct graph_task){.src = l->src,
					 .dst = l->dst,
					 .count = l->count,
					 .peer = l->peer,
					 .op = l->op,
					 .type = l->type,
					 .redop = l->redop,
					 .windows =
						 (uint8_t)(!!l->src_window << 1 | !!l->dst_window)};
		if (l->lane != first->lane || !launch_usable(w, l) ||
		    (svc_op_reduces(l->op) && l->redop >= SVC_REDOP_MADE) ||
		    !window_address(&w->lanes[l->lane], l->src_window, &t->src) ||
		    !window_address(&w->lanes[l->lane], l->dst_window, &t->dst))
			return false;
	}
	return true;
}

static void let_go(struct graph *g)
{
	if (g->exec)
		cu.cuGraphExecDestroy(g->exec); /* when it has ended, if it runs */
	memset(g, 0, sizeof(*g));
}

/* Its place, or one for it. NULL: those that it may have are all in use. */
static struct graph *find(struct lane_graphs *all, const struct graph_task *tasks, uint32_t n,
			  uint64_t now)
{
	struct graph *set = &all->places[hash_of(tasks, n) % (GRAPHS / WAYS) * WAYS], *old = set;
	for (struct graph *g = set; g < set + WAYS; g++) {
		if (g->ntasks == n && !memcmp(g->tasks, tasks, n * sizeof(*tasks)))
			return g;
		if (g->used_ns < old->used_ns)
			old = g;
	}
	if (old->exec && now - old->used_ns < STALE_NS)
		return NULL;
	let_go(old);
	old->ntasks = n;
	memcpy(old->tasks, tasks, n * sizeof(*tasks));
	return old;
}

void graphs_drop(struct lane *l)
{
	for (uint32_t i = 0; l->graphs && i < GRAPHS; i++)
		let_go(&l->graphs->places[i]);
	free(l->graphs);
	l->graphs = NULL;
}

/* ---- Capturing ---- */

/* Leaves its kernels, and says how many there are. Between nodes NCCL has the host do something for
 * each launch, which would take longer. */
static CUresult leave_kernels(CUgraph graph, unsigned *kernels)
{
	CUgraphNode nodes[NODES];
	size_t n = 0;
	int type;
	*kernels = 0;
	CUresult error = cu.cuGraphGetNodes(graph, NULL, &n);
	if (!error && n > NODES)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!error)
		error = cu.cuGraphGetNodes(graph, nodes, &n);
	for (size_t i = 0; i < n && !error; i++) {
		error = cu.cuGraphNodeGetType(nodes[i], &type);
		if (error)
			break;
		if (type == CU_GRAPH_NODE_TYPE_KERNEL)
			++*kernels;
		else if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ||
			 type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
			error = cu.cuGraphDestroyNode(nodes[i]);
		else
			error = CUDA_ERROR_NOT_SUPPORTED;
	}
	return error;
}

static void capture(struct worker *w, struct graph *g, uint64_t begin, uint64_t end)
{
	struct lane *l = &w->lanes[launch_at(w, begin)->lane];
	CUgraph graph = NULL;
	unsigned kernels = 0;
	CUresult error = cu.cuStreamBeginCapture(l->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (!error) {
		ncclResult_t result = launch_calls(w, begin, end);
		error = cu.cuStreamEndCapture(l->stream, &graph);
		if (result && !error)
			error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	if (!error)
		error = leave_kernels(graph, &kernels);
	if (!error && kernels == 1) /* the order of several was in what connected them */
		error = cu.cuGraphInstantiate(&g->exec, graph, 0);
	if (graph)
		cu.cuGraphDestroy(graph);
	if (!error)
		return;
	log_info("lane %u: its operations are not captured into CUDA graphs: %s",
		 launch_at(w, begin)->lane, gpu_api_cuda_error(error));
	g->exec = NULL;
	l->graphs->never = true;
}

ncclResult_t graph_call(struct worker *w, uint64_t begin, uint64_t end)
{
	struct graph_task tasks[GRAPH_TASKS];
	const struct launch *first = launch_at(w, begin);
	if (!w->graphs || !first_in_line(w, first) || !describe(w, begin, end, tasks))
		return launch_calls(w, begin, end);
	struct lane *l = &w->lanes[first->lane];
	if (!l->graphs)
		l->graphs = calloc(1, sizeof(*l->graphs));
	const uint64_t now = worker_clock();
	struct graph *g = !l->graphs || l->graphs->never
				  ? NULL
				  : find(l->graphs, tasks, (uint32_t)(end - begin), now);
	if (g)
		g->used_ns = now;
	if (g && g->exec) {
		CUresult error = cu.cuGraphLaunch(g->exec, l->stream);
		return worker_bad(w, error, "a CUDA graph could not be launched")
			       ? ncclUnhandledCudaError
			       : ncclSuccess;
	}
	if (g && ++g->calls == CALLS)
		capture(w, g, begin, end);
	return launch_calls(w, begin, end);
}
