/* SPDX-License-Identifier: Apache-2.0 */
#include "capture.h"

#include <stdlib.h>

#include "base/error.h"
#include "capture_graph.h"
#include "captured_group.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/direct/peer.h"

/* ---- Epochs that are over ---- */

bool capture_is_quiet(struct capture *c)
{
	return (!c->peer || peer_is_quiet(c->peer)) &&
	       (!c->groups.timeline || capture_order_reached(c));
}

static void streams_free(struct capture *c)
{
	const struct cuda *cuda = c->cuda;
	if (!c->context)
		return;
	if (!cuda_push(cuda, c->context)) {
		if (c->side_stream)
			cuda->cuStreamDestroy(c->side_stream);
		if (c->input)
			cuda->cuEventDestroy(c->input);
		if (c->order)
			cuda->cuEventDestroy(c->order);
		cuda_pop(cuda, c->context);
	}
	cuda->cuDevicePrimaryCtxRelease(c->device);
}

static void release(struct capture *c)
{
	const int mode = relaxed_begin(c->cuda);
	peer_free(c->peer);
	streams_free(c);
	capture_graphs_sweep(c);
	captured_groups_free(c);
	relaxed_end(c->cuda, mode);
	pthread_mutex_destroy(&c->turn);
	free(c);
}

/* Captures without references whose operations are still queued on a stream, or whose graphs may
 * still be launched. They belong to all sessions, including closed ones. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *kept;

static void unused(struct capture *c)
{
	if (!capture_graphs_live(c) && capture_is_quiet(c)) {
		release(c);
		return;
	}
	pthread_mutex_lock(&kept_lock);
	c->next = kept;
	kept = c;
	pthread_mutex_unlock(&kept_lock);
}

void captures_sweep(void)
{
	pthread_mutex_lock(&kept_lock);
	for (struct capture **link = &kept, *c; (c = *link);) {
		if (capture_graphs_live(c) || !capture_is_quiet(c)) {
			link = &c->next;
			continue;
		}
		*link = c->next;
		release(c);
	}
	pthread_mutex_unlock(&kept_lock);
}

bool captures_use(const struct gpu *g)
{
	bool any = false;
	pthread_mutex_lock(&kept_lock);
	for (const struct capture *c = kept; c; c = c->next)
		any = any || (g->modules && c->peer && c->peer->module >= g->modules &&
			      c->peer->module < g->modules + GPU_DEVICES);
	pthread_mutex_unlock(&kept_lock);
	return any;
}

/* ---- New epochs ---- */

static bool streams_create(struct capture *c, int device)
{
	const struct cuda *cuda = c->cuda;
	if (cuda_device(cuda, device, &c->device))
		return false;
	if (cuda->cuDevicePrimaryCtxRetain(&c->context, c->device))
		c->context = NULL;
	if (!c->context || cuda_push(cuda, c->context))
		return false;
	const bool good = !cuda->cuStreamCreate(&c->side_stream, CU_STREAM_NON_BLOCKING) &&
			  !cuda->cuEventCreate(&c->input, CU_EVENT_DISABLE_TIMING) &&
			  !cuda->cuEventCreate(&c->order, CU_EVENT_DISABLE_TIMING);
	cuda_pop(cuda, c->context);
	return good;
}

ncclsvc_result capture_new(ncclsvc_session *s, int device, struct capture **capture)
{
	struct capture *c = calloc(1, sizeof(*c));
	if (!c)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	pthread_mutex_init(&c->turn, NULL);
	c->refs = 1;
	c->unused = unused;
	c->cuda = s->gpu->cuda;
	c->connections = session_connections(s);
	c->table = s->generation;
	const int mode = relaxed_begin(c->cuda);
	const bool good = streams_create(c, device);
	relaxed_end(c->cuda, mode);
	if (good) {
		*capture = c;
		return NCCLSVC_OK;
	}
	capture_unref(c);
	return error_set(NCCLSVC_SYSTEM, "cannot create streams and events on GPU %d", device);
}

ncclsvc_result capture_open(ncclsvc_session *s, ncclsvc_comm *comm)
{
	return comm->capture ? NCCLSVC_OK : capture_new(s, comm->device, &comm->capture);
}
