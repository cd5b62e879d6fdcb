/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes again and again with the same buffers is captured once into a CUDA graph and launched
 * as that. NCCL's call takes the processor 5 to 12 us and the launch of a graph 3 to 4, and the
 * kernel begins sooner. It is the same kernel, so each rank decides for itself.
 *
 * Now and then, for milliseconds or as long as the process lives, graphs of NCCL's kernels begin
 * 20 us and more too late; why is not known. So both ways are timed, and a graph that proved slower
 * is not taken, for a while. All ranks of a collective see the time of the slowest one: a graph
 * gains nothing while another rank still calls. So all change at the same moments, which the
 * machine's clock tells; one that is little worse than calls stays; and they are looked at again at
 * times. */
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "names.h"
#include "worker.h"

#define GRAPH_TASKS 16			  /* of one group */
#define GRAPH_BYTES ((size_t)32 << 20)	  /* of each: what lasts longer gains nothing */
#define GRAPHS	    64			  /* of one lane */
#define WAYS	    4			  /* places that a group may have */
#define TRIAL	    8			  /* launches that are timed before there is a verdict */
#define ROUND	    16			  /* and from then on, until the next one */
#define ROUNDS_ON   4			  /* at least, before calls are looked at again */
#define SOON_NS	    UINT64_C(1000000)	  /* multiples of it are moments to change at */
#define KEEP_MIN_NS UINT64_C(50000000)	  /* of this, where something speaks for the present way */
#define KEEP_MAX_NS (KEEP_MIN_NS << 7)	  /* and of 2, 4... times it */
#define STALE_NS    UINT64_C(10000000000) /* its place may go to another group */
#define TIMING_NS   UINT64_C(1000000000)  /* it waits for a trainer: another is timed */

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
	CUgraphExec exec; /* NULL: not captured yet */
	uint64_t used_ns;
	bool on;		/* launched as a graph */
	unsigned rounds;	/* of the present way, judged */
	uint64_t until_ns;	/* the present way is kept */
	uint64_t on_ns, off_ns; /* for so long the next time */
	unsigned ntook;		/* launches of this way that were timed */
	unsigned enough;	/* for a verdict */
	uint32_t took[ROUND];	/* ns */
	uint32_t direct;	/* the best median of those that were called; 0: not known */
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

/* Behind others that run already, a call costs nobody time, and calls follow each other faster. */
static bool first_in_line(const struct worker *w, const struct launch *first)
{
	if (!launch_usable(w, first))
		return false;
	const struct lane *l = &w->lanes[first->lane];
	return l->nranks > 1 && !l->due && l->enqueued <= completed(w, first->lane);
}

/* Its count is one rank's. */
static bool of_all_ranks(unsigned op)
{
	return !svc_op_is_p2p(op) && op != NCCLSVC_ALL_REDUCE && op != NCCLSVC_REDUCE &&
	       op != NCCLSVC_BROADCAST;
}

/* False: not of a kind that is captured. A reduction that a member has made may become another. */
static bool describe(const struct worker *w, uint64_t begin, uint64_t end, struct graph_task *tasks)
{
	const struct launch *first = launch_at(w, begin);
	if (end - begin > GRAPH_TASKS)
		return false;
	for (uint64_t i = begin; i < end; i++) {
		const struct launch *l = launch_at(w, i);
		const size_t ranks = of_all_ranks(l->op) ? (size_t)w->lanes[first->lane].nranks : 1;
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
		if (l->lane != first->lane || !launch_usable(w, l) || l->count > GRAPH_BYTES ||
		    l->count * svc_type_size(l->type) * ranks > GRAPH_BYTES ||
		    (svc_op_reduces(l->op) && l->redop >= SVC_REDOP_MADE) ||
		    !window_address(&w->lanes[l->lane], l->src_window, &t->src) ||
		    !window_address(&w->lanes[l->lane], l->dst_window, &t->dst))
			return false;
	}
	return true;
}

static void let_go(struct worker *w, struct graph *g)
{
	if (w->timing.graph == g)
		w->timing.graph = NULL;
	if (g->exec)
		cu.cuGraphExecDestroy(g->exec); /* when it has ended, if it runs */
	memset(g, 0, sizeof(*g));
}

/* Its place, or one for it. NULL: those that it may have are all in use. */
static struct graph *find(struct worker *w, struct lane_graphs *all, const struct graph_task *tasks,
			  uint32_t n, uint64_t now)
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
	let_go(w, old);
	old->ntasks = n;
	old->enough = TRIAL;
	memcpy(old->tasks, tasks, n * sizeof(*tasks));
	return old;
}

void graphs_drop(struct worker *w, struct lane *l)
{
	for (uint32_t i = 0; l->graphs && i < GRAPHS; i++)
		let_go(w, &l->graphs->places[i]);
	free(l->graphs);
	l->graphs = NULL;
}

/* ---- Capturing ---- */

/* Between nodes NCCL has the host do something for each launch, which would take longer. */
static bool host_has_part(CUgraph graph)
{
	CUgraphNode nodes[32];
	size_t n = sizeof(nodes) / sizeof(nodes[0]);
	int type;
	if (cu.cuGraphGetNodes(graph, NULL, &n) || n > sizeof(nodes) / sizeof(nodes[0]) ||
	    cu.cuGraphGetNodes(graph, nodes, &n))
		return true;
	for (size_t i = 0; i < n; i++)
		if (cu.cuGraphNodeGetType(nodes[i], &type) || type == CU_GRAPH_NODE_TYPE_HOST)
			return true;
	return false;
}

static bool capture(struct worker *w, struct graph *g, uint64_t begin, uint64_t end)
{
	struct lane *l = &w->lanes[launch_at(w, begin)->lane];
	CUgraph graph = NULL;
	CUresult error = cu.cuStreamBeginCapture(l->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (!error) {
		ncclResult_t result = launch_calls(w, begin, end);
		error = cu.cuStreamEndCapture(l->stream, &graph);
		if (result && !error)
			error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	if (!error && host_has_part(graph))
		error = CUDA_ERROR_NOT_SUPPORTED;
	if (!error)
		error = cu.cuGraphInstantiate(&g->exec, graph, 0);
	if (graph)
		cu.cuGraphDestroy(graph);
	if (!error)
		return true;
	log_info("lane %u: its operations are not captured into CUDA graphs: %s",
		 launch_at(w, begin)->lane, gpu_api_cuda_error(error));
	g->exec = NULL;
	l->graphs->never = true;
	return false;
}

/* ---- Choosing ---- */

static void change(struct worker *w, struct graph *g, bool on, uint64_t until)
{
	if (w->timing.graph == g) /* of the other way */
		w->timing.graph = NULL;
	g->on = on;
	g->rounds = 0;
	g->until_ns = until;
	g->ntook = 0;
	g->enough = TRIAL;
}

static int by_size(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* Half of it to one and a half from now. */
static uint64_t after(uint64_t now, uint64_t keep)
{
	return ((now + keep / 2) / keep + 1) * keep;
}

/* So long that all ranks, whose launches are of one age but for a few, find the same moment. */
static uint64_t common(uint64_t took)
{
	uint64_t keep = KEEP_MIN_NS;
	while (keep < ROUND * took && keep < KEEP_MAX_NS)
		keep *= 2;
	return keep;
}

static uint64_t longer(uint64_t keep)
{
	return keep < KEEP_MIN_NS ? KEEP_MIN_NS : keep < KEEP_MAX_NS ? 2 * keep : keep;
}

/* Enough of the present way has been seen. What is slow is so most of the time, not always; and
 * one that waited for a late rank says nothing: so medians count. By chance alone they seldom
 * differ by an eighth, and late graphs do by more. */
static void judge(struct worker *w, struct graph *g, uint64_t now)
{
	qsort(g->took, g->ntook, sizeof(g->took[0]), by_size);
	const uint32_t took = g->took[(g->ntook - 1) / 2];
	if (!g->on) {
		/* At best: of late, calls may have waited for another rank's graph. What cannot be
		 * reached any more is forgotten slowly. */
		g->direct += g->direct / 64;
		g->direct = g->direct && g->direct < took ? g->direct : took;
		if (!g->rounds++ && g->until_ns <= now)
			g->until_ns = after(now, SOON_NS);
		g->ntook = 0;
		return;
	}
	if (took <= g->direct + g->direct / 8) {
		g->off_ns /= 2;
		if (++g->rounds == ROUNDS_ON && g->until_ns <= now)
			g->until_ns = after(now, common(took));
		g->ntook = 0;
		g->enough = ROUND;
		return;
	}
	log_debug("lane %u: %s takes %u us as a CUDA graph, and %u us called: it is called",
		  w->timing.launch.lane, svc_op_name(g->tasks[0].op), took / 1000,
		  g->direct / 1000);
	g->on_ns = 0;
	g->off_ns = longer(g->off_ns);
	change(w, g, false, after(now, g->off_ns > common(took) ? g->off_ns : common(took)));
}

static void choose(struct worker *w, struct graph *g, uint64_t now)
{
	if (g->rounds < (g->on ? ROUNDS_ON : 1) || now < g->until_ns)
		return;
	if (g->on) {
		change(w, g, false, 0);
		return;
	}
	g->on_ns = longer(g->on_ns);
	change(w, g, true, after(now, g->on_ns));
}

void graph_timed(struct worker *w)
{
	struct graph *g = w->timing.graph;
	const struct launch *l = &w->timing.launch;
	const uint64_t now = worker_clock();
	const bool over = completed(w, l->lane) >= l->seq;
	if (!w->timing.since_ns && !over && launch_ready(w, l))
		w->timing.since_ns = now;
	if (!over)
		return;
	w->timing.graph = NULL;
	if (!w->timing.since_ns)
		return; /* nobody saw it begin */
	const uint64_t took = now - w->timing.since_ns;
	g->took[g->ntook++] = took < INT32_MAX ? (uint32_t)took : INT32_MAX;
	if (g->ntook == g->enough)
		judge(w, g, now);
}

ncclResult_t graph_call(struct worker *w, uint64_t begin, uint64_t end, bool waits)
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
				  : find(w, l->graphs, tasks, (uint32_t)(end - begin), now);
	if (!g)
		return launch_calls(w, begin, end);
	choose(w, g, now);
	g->used_ns = now;
	if (g->on && !g->exec && !capture(w, g, begin, end))
		return launch_calls(w, begin, end);
	if (!w->timing.graph || now - w->timing.begun_ns > TIMING_NS)
		w->timing = (struct graph_timing){.graph = g,
						  .launch = *launch_at(w, end - 1),
						  .begun_ns = now,
						  .since_ns = waits ? 0 : now};
	if (!g->on)
		return launch_calls(w, begin, end);
	CUresult error = cu.cuGraphLaunch(g->exec, l->stream);
	return worker_bad(w, error, "a CUDA graph could not be launched") ? ncclUnhandledCudaError
									  : ncclSuccess;
}
