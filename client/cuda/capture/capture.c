/* SPDX-License-Identifier: Apache-2.0
 * The life of what a communicator needs on streams in one epoch. */
#include "capture.h"
#include "capture_graph.h"
#include "captured_group.h"

#include <stdlib.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"

/* ---- Epochs that are over ---- */

static bool is_quiet(const struct peer *p)
{
	if (atomic_load_explicit(&p->failed,
				 memory_order_relaxed)) /* nothing was launched after that kernel */
		return !p->any || peer_reached(p->over, p->latest) ||
		       peer_blocks_completed(p, p->latest, p->blocks);
	return !p->kernel_seq || peer_reached(p->over, p->kernel_seq);
}

/* Asks the GPU if nothing else reports the end, and checks that streams are done with
 * captured groups. */
bool peer_becomes_quiet(struct peer *p)
{
	if (p->control && !is_quiet(p))
		peer_ask(p);
	return (!p->control || is_quiet(p)) && (!p->captured_timeline || peer_order_reached(p));
}

static void release(struct peer *p)
{
	const int mode = relaxed_begin(p->cuda);
	peer_destroy(p);
	relaxed_end(p->cuda, mode);
	pthread_mutex_destroy(&p->turn);
	pthread_cond_destroy(&p->turned);
	free(p);
}

/* Parts whose kernels are still queued on a stream, or whose graphs may still be launched. They
 * belong to all sessions, including closed ones. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer *kept;

static void unused(struct peer *p)
{
	if (!peer_graphs_live(p) && peer_becomes_quiet(p)) {
		release(p);
		return;
	}
	pthread_mutex_lock(&kept_lock);
	p->next = kept;
	kept = p;
	pthread_mutex_unlock(&kept_lock);
}

void peers_kept_sweep(void)
{
	pthread_mutex_lock(&kept_lock);
	for (struct peer **link = &kept, *p; (p = *link);) {
		if (peer_graphs_live(p) || !peer_becomes_quiet(p)) {
			link = &p->next;
			continue;
		}
		*link = p->next;
		release(p);
	}
	pthread_mutex_unlock(&kept_lock);
}

bool peers_kept_use(const struct gpu *g)
{
	bool any = false;
	pthread_mutex_lock(&kept_lock);
	for (const struct peer *p = kept; p; p = p->next)
		any = any || (g->modules && p->module >= g->modules &&
			      p->module < g->modules + GPU_DEVICES);
	pthread_mutex_unlock(&kept_lock);
	return any;
}

/* ---- New epochs ---- */

bool peer_prepare_gpu(ncclsvc_session *s, struct peer *p, int device, bool kernels)
{
	struct gpu *g = s->gpu;
	p->cuda = g->cuda;
	if (cuda_device(g->cuda, device, &p->device))
		return false;
	if (g->cuda->cuDevicePrimaryCtxRetain(&p->context, p->device))
		p->context = NULL;
	if (!p->context || cuda_push(g->cuda, p->context))
		return false;
	if (kernels)
		p->module = peer_module_of(g, device);
	const bool good = (p->module || !kernels) &&
			  !g->cuda->cuStreamCreate(&p->asking, CU_STREAM_NON_BLOCKING) &&
			  !g->cuda->cuStreamCreate(&p->side_stream, CU_STREAM_NON_BLOCKING) &&
			  !g->cuda->cuEventCreate(&p->input, CU_EVENT_DISABLE_TIMING) &&
			  !g->cuda->cuEventCreate(&p->fork, CU_EVENT_DISABLE_TIMING) &&
			  !g->cuda->cuEventCreate(&p->order, CU_EVENT_DISABLE_TIMING);
	cuda_pop(g->cuda, p->context);
	return good;
}

struct peer *peer_allocate(void)
{
	struct peer *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	pthread_mutex_init(&p->turn, NULL);
	pthread_cond_init(&p->turned, NULL);
	p->refs = 1;
	p->unused = unused;
	return p;
}

ncclsvc_result peer_bare(ncclsvc_session *s, ncclsvc_comm *comm)
{
	if (comm_captures(comm))
		return NCCLSVC_OK;
	struct peer *p = peer_allocate();
	if (!p)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	p->own.generation = s->generation;
	const int mode = relaxed_begin(s->gpu->cuda);
	const bool good = peer_prepare_gpu(s, p, comm->device, false);
	relaxed_end(s->gpu->cuda, mode);
	if (good) {
		comm->bare = p;
		return NCCLSVC_OK;
	}
	peer_unref(p);
	return error_set(NCCLSVC_SYSTEM, "cannot create streams and events on GPU %d",
			 comm->device);
}
