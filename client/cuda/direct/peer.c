/* SPDX-License-Identifier: Apache-2.0
 * The memory and kernels that a member shares with others, from JOIN to LEAVE. The kernels are
 * loaded and the staging memory is mapped before JOIN, because neither may happen while a peer's
 * kernel waits. */
#include "cuda/capture/capture.h"
#include "cuda/capture/capture_graph.h"
#include "cuda/capture/captured_group.h"
#include "shares.h"

#include <stdlib.h>
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"

/* How long a leaving member waits for kernels that it has aborted. */
#define CLOSE_NS UINT64_C(2000000000)

/* ---- Before JOIN ---- */

static bool wanted(const ncclsvc_session *s, int nranks)
{
	const char *text = getenv("NCCLSVC_PEER");
	return !(text && text[0] == '0' && !text[1]) && nranks > 1 && nranks <= PEER_RANKS &&
	       ncclsvc_has_kernels() && s->gpu->cuda->cuLaunchKernel;
}

/* ---- A new member ---- */

struct peer *peer_new(ncclsvc_session *s, int device, int32_t number, int nranks)
{
	peers_kept_sweep();
	if (!wanted(s, nranks))
		return NULL;
	struct peer *p = peer_allocate();
	if (!p)
		return NULL;
	session_lock(s);
	bool good = peer_prepare_gpu(s, p, device, true);
	session_unlock(s);
	if (good)
		good = !lent_map(s, number, device, PEER_STAGING, &p->own);
	if (good) { /* otherwise nothing is mapped there */
		p->out_of_reach = devices_out_of_reach(s, device);
		p->call.staging[0] =
			p->own.at; /* the member's own memory, until it knows its rank */
		return p;
	}
	session_lock(s);
	peer_unref(p);
	session_unlock(s);
	return NULL;
}

void peer_discard(ncclsvc_session *s, struct peer *p)
{
	lent_forget(s, &p->own);
	session_lock(s);
	peer_unref(p);
	session_unlock(s);
}

void peer_renew(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number)
{
	peer_close(s, comm);
	if (comm->device == NCCLSVC_DEVICE_HOST)
		return;
	struct peer *p = peer_new(s, comm->device, number, comm->nranks);
	session_lock(s);
	comm->peer = p;
	session_unlock(s);
}

/* ---- After JOIN ---- */

ncclsvc_result peer_open(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	if (!p || peer_is_open(p))
		return NCCLSVC_OK;
	ncclsvc_result r = NCCLSVC_OK;
	/* A member of a split has staging memory before it knows how many ranks its part has. */
	const bool used = comm->peer_bytes && comm->nranks <= PEER_RANKS;
	if (used) {
		p->call.staging[0] = 0;
		p->call.staging[comm->rank] = p->own.at;
		p->call.rank = (uint8_t)comm->rank;
		p->call.nranks = (uint8_t)comm->nranks;
		r = peer_map_all(s, comm, p);
	}
	/* The daemon now holds it for the member. This could not happen earlier, because the daemon
	 * sends no descriptor while an answer of its is unread. */
	lent_forget(s, &p->own);
	p->own.region = 0;
	if (used && !r) {
		session_lock(s);
		s->kernel_callbacks = &peer_callbacks;
		session_unlock(s);
		imports_begin(s, p);
		return NCCLSVC_OK;
	}
	session_lock(s);
	comm->peer = NULL;
	comm->peer_bytes = 0;
	peer_unref(p);
	session_unlock(s);
	/* A member has left: operations then fail on NCCL's path, as they would on the direct
	 * transport. */
	return r == NCCLSVC_PEER_GONE || r == NCCLSVC_STALE_EPOCH ? NCCLSVC_OK : r;
}

/* ---- The end ---- */

static void pause_unlocked(ncclsvc_session *s)
{
	session_unlock(s);
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	session_lock(s);
}

/* Tells the GPU to make later launches of the graphs do nothing. */
static void graphs_end(const struct peer *p)
{
	const CUdeviceptr dead = p->own.at + offsetof(struct peer_state, dead);
	if (cuda_push(p->cuda, p->context))
		return;
	const int mode = relaxed_begin(p->cuda);
	if (!p->cuda->cuMemsetD32Async(dead, PEER_ABORTED, 1, p->asking))
		p->cuda->cuStreamSynchronize(p->asking);
	relaxed_end(p->cuda, mode);
	cuda_pop(p->cuda, p->context);
}

/* Lets running launches end, or aborts them; later launches do nothing. Locked; yields. */
static void graphs_quiesce(ncclsvc_session *s, struct peer *p, uint64_t deadline)
{
	const peer_atomic32 *abort = &p->control->abort;
	while (!atomic_load_explicit(abort, memory_order_relaxed) && !peer_graphs_quiet(p) &&
	       now_ns() < deadline)
		pause_unlocked(s);
	if (!peer_graphs_quiet(p))
		peer_callbacks.break_off(p);
	graphs_end(p);
}

/* Locked; yields. */
static void quiesce(ncclsvc_session *s, struct peer *p)
{
	const uint64_t deadline = now_ns() + CLOSE_NS;
	if (!p->control)
		return;
	if (!peer_becomes_quiet(p))
		peer_callbacks.break_off(p);
	if (peer_graphs_live(p))
		graphs_quiesce(s, p, deadline);
	while (!peer_becomes_quiet(p) && now_ns() < deadline)
		pause_unlocked(s);
}

/* Cancels the kernels' tasks, which would not end otherwise. Locked. */
static void cancel_tasks(ncclsvc_session *s, const struct peer *p)
{
	tasks_look(s);
	for (uint32_t i = 0; i < s->tasks.entries; i++) {
		struct slot *slot = &s->tasks.slots[i];
		if (slot->state == SLOT_PENDING && slot->peer == p)
			kernel_task_cancel(s, slot);
	}
}

static void close_one(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	quiesce(s, p);
	cancel_tasks(s, p);
	captured_groups_sweep(s, p);
	captured_groups_forget(s, p);
	if (p->own.region && p->own.generation == s->generation) /* it was never open */
		call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = p->own.region});
	comm->peer = NULL;
	comm->peer_bytes = 0;
	shares_end(s->gpu, p);
	peer_unref(p);
}

static void close_bare(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->bare;
	const uint64_t deadline = now_ns() + CLOSE_NS;
	while (p && !peer_graphs_quiet(p) && !comm->broken && now_ns() < deadline) {
		pause_unlocked(s);
		socket_pump(s); /* the epoch may be over */
	}
	if (!p)
		return;
	captured_groups_sweep(s, p);
	captured_groups_forget(s, p);
	comm->bare = NULL;
	peer_unref(p);
}

void peer_close(ncclsvc_session *s, ncclsvc_comm *comm)
{
	session_lock(s);
	if (comm->peer)
		close_one(s, comm);
	close_bare(s, comm);
	peers_kept_sweep();
	session_unlock(s);
}

void peers_close(ncclsvc_session *s)
{
	session_lock(s);
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->peer)
			peer_callbacks.break_off(c->peer);
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		if (c->peer)
			close_one(s, c);
		close_bare(s, c);
	}
	peers_kept_sweep();
	session_unlock(s);
}

void peer_modules_unload(struct gpu *g)
{
	if (peers_kept_use(g)) {
		g->modules = NULL;
		return;
	}
	for (int d = 0; g->modules && d < GPU_DEVICES; d++) {
		struct peer_module *m = &g->modules[d];
		if (!m->functions[KERNEL_LL] || cuda_push(g->cuda, g->primary[d]))
			continue;
		peer_module_unload(g->cuda, m);
		cuda_pop(g->cuda, g->primary[d]);
	}
	free(g->modules);
	g->modules = NULL;
}
