/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes again and again with the same buffers is captured once, and its kernel launched again
 * as NCCL launched it: NCCL's call takes the processor 7 to 12 us, the launch 2, and the operation
 * begins that much sooner. It is the same kernel, so each rank decides for itself.
 *
 * The graph itself is not launched: graphs of NCCL's kernels often begin 20 us and more too late,
 * for as long as the processes live, which launches never did. But it is kept. It owns NCCL's plan,
 * the kernel's parameters and perhaps a buffer on the GPU, and NCCL knows nothing of our launches:
 * so it goes only when the stream has ended the last of them. NCCL fills that buffer on a stream of
 * its own; its next call on ours waits for that, a replay would not. So a call follows a capture.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/timings.h"
#include "launch.h"
#include "names.h"
#include "operation.h"
#include "worker.h"

#define REPLAY_TASKS 16	 /* of one group */
#define REPLAYS	     256 /* of one slot */
#define WAYS	     4	 /* places that a group may have */
#define CALLS	     8	 /* until it is captured */
#define NODES	     32	 /* with more there is more than a kernel */

/* A task's arguments to NCCL. */
struct replay_task {
	uint64_t src, dst, count;
	int32_t peer;
	uint8_t op, type, redop;
	uint8_t windows; /* an address can have been another kind of memory's */
};
_Static_assert(sizeof(struct replay_task) == 32, "compared as a whole");

/* What NCCL gives its kernels or might. Symmetric ones may begin before their former has ended (and
 * wait for it): a graph says that elsewhere, and they are correct without. */
static const int attributes[] = {
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
	CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
	CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
	CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING,
};
#define ATTRIBUTES (sizeof(attributes) / sizeof(attributes[0]))

struct replay {
	uint32_t ntasks; /* 0: a free place, or soon */
	unsigned calls;
	struct replay_task tasks[REPLAY_TASKS];
	uint64_t used_ns;
	CUgraph graph; /* NULL: not captured */
	bool refused;  /* it has no single kernel */
	CUDA_KERNEL_NODE_PARAMS kernel;
	CUlaunchAttribute attributes[ATTRIBUTES];
	unsigned nattributes;
};

struct replays {
	bool never; /* this communicator's operations cannot be captured, or launched */
	bool told;  /* that something is replayed */
	struct replay places[REPLAYS];
};

/* ---- Finding ---- */

static uint64_t hash_of(const struct replay_task *tasks, uint32_t n)
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

/* False: not of a kind that is captured. A reduction that a member has made may become another. */
static bool describe(const struct worker *w, uint64_t begin, uint64_t end,
		     struct replay_task *tasks)
{
	const struct launch *first = launch_at(w, begin);
	if (end - begin > REPLAY_TASKS || !launch_usable(w, first) ||
	    w->slots[first->slot].nranks == 1)
		return false;
	for (uint64_t i = begin; i < end; i++) {
		const struct launch *l = launch_at(w, i);
		struct replay_task *t = &tasks[i - begin];
		*t = (struct replay_task){
			.src = l->src,
			.dst = l->dst,
			.count = l->count,
			.peer = l->peer,
			.op = l->op,
			.type = l->type,
			.redop = l->redop,
			.windows = (uint8_t)(!!l->src_window << 1 | !!l->dst_window)};
		if (l->slot != first->slot || !launch_usable(w, l) || launch_copies(l) ||
		    (svc_op_reduces(l->op) && l->redop >= SVC_REDOP_MADE) ||
		    !window_address(&w->slots[l->slot], l->src_window, &t->src) ||
		    !window_address(&w->slots[l->slot], l->dst_window, &t->dst))
			return false;
	}
	return true;
}

static void let_go(struct replay *r)
{
	if (r->graph)
		cu.cuGraphDestroy(r->graph);
	memset(r, 0, sizeof(*r));
}

/* A captured one that has not been used for long, and is not in flight. */
static bool may_go(const struct worker *w, uint32_t slot, const struct replay *r, uint64_t now)
{
	return (!r->ntasks || now - r->used_ns >= REPLAY_STALE_NS) && comm_slot_idle(w, slot);
}

/* The group's place, or one of the few that it may have. NULL: all of them are in use. */
static struct replay *place_of(const struct worker *w, uint32_t slot,
			       const struct replay_task *tasks, uint32_t n)
{
	struct replays *all = w->slots[slot].replays;
	const uint64_t now = worker_clock();
	struct replay *set = &all->places[hash_of(tasks, n) % (REPLAYS / WAYS) * WAYS];
	struct replay *rare = NULL, *old = NULL; /* not captured, and captured */
	for (struct replay *r = set; r < set + WAYS; r++) {
		if (r->ntasks == n && !memcmp(r->tasks, tasks, n * sizeof(*tasks))) {
			r->used_ns = now;
			return r;
		}
		if (r->graph)
			old = old && old->used_ns <= r->used_ns ? old : r;
		else
			rare = rare && rare->calls <= r->calls ? rare : r;
	}
	struct replay *place = rare && !rare->calls		  ? rare
			       : old && may_go(w, slot, old, now) ? old
								  : NULL;
	if (!place) {
		/* A miss costs who comes least one call, not all: the others get on, too. */
		if (rare)
			rare->calls--;
		return NULL;
	}
	let_go(place);
	place->ntasks = n;
	place->used_ns = now;
	memcpy(place->tasks, tasks, n * sizeof(*tasks));
	return place;
}

void replays_free(struct replays *all)
{
	for (uint32_t i = 0; all && i < REPLAYS; i++)
		let_go(&all->places[i]);
	free(all);
}

void replays_forget(const struct worker *w, uint32_t slot, bool in_windows)
{
	struct replays *all = w->slots[slot].replays;
	const bool now = comm_slot_idle(w, slot);
	for (uint32_t i = 0; all && i < REPLAYS; i++) {
		struct replay *r = &all->places[i];
		bool forget = !in_windows;
		for (uint32_t k = 0; k < r->ntasks; k++)
			forget = forget || r->tasks[k].windows;
		if (!forget)
			continue;
		if (now)
			let_go(r);
		r->ntasks = 0;
		r->used_ns = 0;
	}
}

/* ---- Capturing ---- */

/* NULL: there are several kernels, or none, or more than one between two events: an order among
 * communicators (NCCL_LAUNCH_ORDER_IMPLICIT) has more. An error: the host has a part in each
 * launch, as between nodes, so it will in others. */
static CUresult find_kernel(CUgraph graph, CUgraphNode *kernel)
{
	CUgraphNode nodes[NODES];
	size_t n = 0;
	unsigned kernels = 0, events = 0;
	*kernel = NULL;
	CUresult error = cu.cuGraphGetNodes(graph, NULL, &n);
	if (!error && n > NODES)
		return CUDA_SUCCESS;
	if (!error)
		error = cu.cuGraphGetNodes(graph, nodes, &n);
	for (size_t i = 0; i < n && !error; i++) {
		int type = CU_GRAPH_NODE_TYPE_HOST;
		error = cu.cuGraphNodeGetType(nodes[i], &type);
		if (!error && type == CU_GRAPH_NODE_TYPE_HOST)
			error = CUDA_ERROR_NOT_SUPPORTED;
		events += type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ||
			  type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
		if (type == CU_GRAPH_NODE_TYPE_KERNEL && !kernels++)
			*kernel = nodes[i];
	}
	if (error || kernels != 1 || events > 2 || kernels + events != n)
		*kernel = NULL;
	return error;
}

/* 0 is what a launch has without it, and need not be valid. */
static bool is_set(const CUlaunchAttributeValue *value)
{
	static const CUlaunchAttributeValue unset;
	return memcmp(value, &unset, sizeof(unset));
}

static CUresult take_kernel(struct replay *r, CUgraphNode kernel)
{
	CUresult error = cu.cuGraphKernelNodeGetParams(kernel, &r->kernel);
	r->nattributes = 0;
	for (size_t i = 0; i < ATTRIBUTES && !error; i++) {
		CUlaunchAttribute *a = &r->attributes[r->nattributes];
		*a = (CUlaunchAttribute){.id = attributes[i]};
		/* An error: this driver or GPU does not have it, so neither has the kernel. */
		if (!cu.cuGraphKernelNodeGetAttribute(kernel, a->id, &a->value) &&
		    is_set(&a->value))
			r->nattributes++;
	}
	return error;
}

static void capture(struct worker *w, struct replay *r, uint64_t begin, uint64_t end)
{
	const uint32_t slot = launch_at(w, begin)->slot;
	struct comm_slot *l = &w->slots[slot];
	CUresult error = cu.cuStreamBeginCapture(l->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (!error) {
		ncclResult_t result = launch_calls(w, begin, end);
		error = cu.cuStreamEndCapture(l->stream, &r->graph);
		if (result && !error)
			error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	CUgraphNode kernel = NULL;
	if (!error)
		error = find_kernel(r->graph, &kernel);
	if (!error && kernel)
		error = take_kernel(r, kernel);
	if (!error && kernel) {
		if (!l->replays->told)
			log_info("NCCL communicator %u: repeated operations are launched without "
				 "NCCL's call (replay in ncclsvcd.conf(5))",
				 slot);
		l->replays->told = true;
		return;
	}
	if (r->graph)
		cu.cuGraphDestroy(r->graph);
	r->graph = NULL;
	r->refused = true;
	if (error)
		log_info("NCCL communicator %u: repeated operations need NCCL's call each time: %s",
			 slot,
			 error == CUDA_ERROR_NOT_SUPPORTED ? "NCCL uses the host in them"
							   : gpu_api_cuda_error(error));
	l->replays->never = error;
}

/* ---- Launching ---- */

static CUresult launch(const struct replay *r, CUstream stream)
{
	const CUDA_KERNEL_NODE_PARAMS *k = &r->kernel;
	const CUlaunchConfig config = {.gridDimX = k->gridDimX,
				       .gridDimY = k->gridDimY,
				       .gridDimZ = k->gridDimZ,
				       .blockDimX = k->blockDimX,
				       .blockDimY = k->blockDimY,
				       .blockDimZ = k->blockDimZ,
				       .sharedMemBytes = k->sharedMemBytes,
				       .hStream = stream,
				       .attrs = r->attributes,
				       .numAttrs = r->nattributes};
	return cu.cuLaunchKernelEx(&config, k->func, k->kernelParams, k->extra);
}

/* NULL: it is called. */
static struct replay *replay_of(struct worker *w, uint64_t begin, uint64_t end)
{
	struct replay_task tasks[REPLAY_TASKS];
	if (!w->may_replay || !describe(w, begin, end, tasks))
		return NULL;
	const uint32_t slot = launch_at(w, begin)->slot;
	struct comm_slot *l = &w->slots[slot];
	if (!l->replays)
		l->replays = calloc(1, sizeof(*l->replays));
	if (!l->replays || l->replays->never)
		return NULL;
	return place_of(w, slot, tasks, (uint32_t)(end - begin));
}

ncclResult_t replay_call(struct worker *w, uint64_t begin, uint64_t end)
{
	struct replay *r = replay_of(w, begin, end);
	if (!r)
		return launch_calls(w, begin, end);
	const struct launch *first = launch_at(w, begin);
	struct comm_slot *l = &w->slots[first->slot];
	if (r->graph) {
		CUresult error = launch(r, l->stream);
		if (!worker_bad(w, error, "NCCL's kernel could not be launched"))
			return ncclSuccess;
		if (w->dying[0])
			return ncclUnhandledCudaError;
		log_warning(
			"NCCL communicator %u: repeated operations cannot be launched without "
			"NCCL's call (replay in ncclsvcd.conf(5)): from now on NCCL launches each",
			first->slot);
		l->replays->never = true;
	} else if (!r->refused && ++r->calls == CALLS) {
		capture(w, r, begin, end);
	}
	return launch_calls(w, begin, end); /* behind a capture, too: see above */
}
