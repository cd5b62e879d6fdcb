/* SPDX-License-Identifier: Apache-2.0
 * The memory and kernels that a member shares with others, from JOIN to LEAVE. The kernels are
 * loaded and the staging memory is mapped before JOIN, because neither may happen while a peer's
 * kernel waits. */
#include <stdlib.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "cuda/capture/capture_graph.h"
#include "cuda/capture/captured_group.h"
#include "peer_life.h"
#include "shares.h"

/* How long a leaving member waits for kernels that it has aborted. */
#define CLOSE_NS UINT64_C(2000000000)

/* ---- Before JOIN ---- */

static bool wanted(const ncclsvc_session *s, int nranks)
{
	const char *text = getenv("NCCLSVC_PEER");
	return !(text && text[0] == '0' && !text[1]) && nranks > 1 && nranks <= PEER_RANKS &&
	       ncclsvc_has_kernels() && s->gpu->cuda->cuLaunchKernel;
}

/* Loads the kernels, and creates what only they need. NULL: that is not possible. Locked. */
static struct peer *kernels_new(struct gpu *g, int device, struct capture *c)
{
	struct peer *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->capture = c;
	p->ranks_per_gpu = 1;
	p->controls_fd = -1;
	c->peer = p;
	pthread_cond_init(&p->turned, NULL);
	if (cuda_push(g->cuda, c->context))
		return NULL;
	p->module = peer_module_of(g, device);
	const bool good = p->module &&
			  !g->cuda->cuStreamCreate(&p->asking, CU_STREAM_NON_BLOCKING) &&
			  !g->cuda->cuEventCreate(&p->fork, CU_EVENT_DISABLE_TIMING);
	cuda_pop(g->cuda, c->context);
	return good ? p : NULL;
}

void peer_new(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number, int nranks)
{
	struct capture *c = NULL;
	captures_sweep();
	if (!wanted(s, nranks))
		return;
	session_lock(s);
	struct peer *p =
		capture_new(s, comm->device, &c) ? NULL : kernels_new(s->gpu, comm->device, c);
	session_unlock(s);
	/* If there is no room for the part that is for copy engines, kernels do without it. */
	bool good = p && peer_staging_make(s, p, number, comm->tuning.copy_engines);
	if (p && !good && !p->own.base && comm->tuning.copy_engines)
		good = peer_staging_make(s, p, number, false);
	if (good) { /* otherwise nothing is mapped there */
		p->out_of_reach = devices_out_of_reach(s);
		/* The member's own memory, until it knows its rank. */
		p->call.staging[0] = p->own.base;
		p->staging_bytes[0] = p->own.bytes;
		c->connections = p->own_connections;
	}
	session_lock(s);
	if (good) {
		comm->capture = c;
		comm->peer = p;
	} else if (c) {
		capture_unref(c);
	}
	session_unlock(s);
}

/* The communicator has neither kernels nor graphs any more. Locked. */
static void drop(ncclsvc_comm *comm)
{
	struct capture *c = comm->capture;
	comm->peer = NULL;
	comm->peer_bytes = 0;
	comm->capture = NULL;
	capture_unref(c);
}

/* The daemon forgets the region of the staging memory, which stays mapped. Locked. */
static void region_forget(ncclsvc_session *s, struct peer *p)
{
	if (p->own_region && p->own_connections == session_connections(s))
		call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = p->own_region});
	p->own_region = 0;
}

void peer_discard(ncclsvc_session *s, ncclsvc_comm *comm)
{
	session_lock(s);
	region_forget(s, comm->peer);
	drop(comm);
	session_unlock(s);
}

void peer_renew(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number)
{
	peer_close(s, comm);
	if (comm->device != NCCLSVC_DEVICE_HOST)
		peer_new(s, comm, number, comm->nranks);
}

/* ---- After JOIN ---- */

ncclsvc_result peer_open(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	if (!p || peer_is_open(p))
		return NCCLSVC_OK;
	ncclsvc_result r = NCCLSVC_OK;
	/* A communicator from a split has staging memory before it knows how many ranks it has. */
	const bool used = comm->peer_bytes && comm->nranks <= PEER_RANKS;
	if (used) {
		p->call.staging[0] = 0;
		p->call.staging[comm->rank] = p->own.base;
		p->staging_bytes[comm->rank] = p->own.bytes;
		p->call.rank = (uint8_t)comm->rank;
		p->call.nranks = (uint8_t)comm->nranks;
		r = peer_map_all(s, comm, p);
	}
	/* The daemon now holds it for the member. This could not happen earlier, because the daemon
	 * sends no descriptor while an answer of its is unread. */
	session_lock(s);
	region_forget(s, p);
	if (used && !r)
		s->kernel_callbacks = &peer_callbacks;
	else
		drop(comm);
	session_unlock(s);
	if (used && !r) {
		imports_begin(s, p);
		return NCCLSVC_OK;
	}
	/* A member has left: operations then fail on NCCL's path, as they would on the direct
	 * transport. */
	return r == NCCLSVC_PEER_GONE || r == NCCLSVC_STALE_EPOCH ? NCCLSVC_OK : r;
}

/* ---- After a restart of the daemon ---- */

void peer_beat(const struct peer *p)
{
	if (peer_is_open(p))
		atomic_fetch_add_explicit(&p->control->heartbeat, 1, memory_order_release);
}

static ncclsvc_result memory_again(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p)
{
	struct call call = {0};
	/* A JOIN with control blocks alone says that the member sleeps. */
	const ncclsvc_result r =
		p->saved_staging ? NCCLSVC_OK : peer_staging_again(s, p, comm->daemon_device);
	if (r || p->controls_fd < 0) /* the daemon has not sent them yet */
		return r;
	return call_run(s, &call, SVC_CONTROLS, &(struct svc_controls){0}, p->controls_fd,
			deadline_in(REQUEST_MS));
}

/* Its kernels' numbers continue, those of the daemon do not. */
static void numbers_renew(ncclsvc_session *s, ncclsvc_comm *comm, const struct peer *p)
{
	p->capture->connections = session_connections(s);
	for (uint64_t n = tasks_first_pending(&s->tasks); n < s->tasks.next; n++) {
		struct slot *slot = task_slot(&s->tasks, n);
		if (slot->number == n && slot->peer == p)
			slot->epoch = comm->epoch;
	}
}

/* Another thread may leave the communicator meanwhile, which drops its kernels. */
ncclsvc_result peer_resume(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	struct capture *c = p->capture;
	c->refs++;
	const ncclsvc_result r = memory_again(s, comm, p);
	capture_unref(c);
	return r;
}

ncclsvc_result peer_resumed(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	if (!p)
		return NCCLSVC_OK;
	struct capture *c = p->capture;
	c->refs++;
	numbers_renew(s, comm, p);
	ncclsvc_result r = NCCLSVC_OK;
	if (peer_is_open(p)) /* otherwise peer_open goes on, with the new daemon */
		region_forget(s, p);
	if (peer_is_open(p) && !p->saved_staging && p->sleep != PEER_ASLEEP) {
		p->said = 0;
		r = imports_again(s, p);
		if (!r)
			r = shares_again(s, p, comm->handle);
	}
	capture_unref(c);
	return r;
}

/* ---- The end ---- */

/* Tells the GPU to make later launches of the graphs do nothing. */
static void graphs_end(const struct peer *p)
{
	const struct capture *c = p->capture;
	const CUdeviceptr dead = p->own.base + offsetof(struct peer_state, dead);
	if (p->saved_staging || cuda_push(c->cuda, c->context))
		return;
	const int mode = relaxed_begin(c->cuda);
	if (!c->cuda->cuMemsetD32Async(dead, PEER_ABORTED, 1, p->asking))
		c->cuda->cuStreamSynchronize(p->asking);
	relaxed_end(c->cuda, mode);
	cuda_pop(c->cuda, c->context);
}

/* Lets running launches end, or aborts them; later launches do nothing. Locked; yields. */
static void graphs_quiesce(ncclsvc_session *s, struct peer *p, uint64_t deadline)
{
	const struct capture *c = p->capture;
	const peer_atomic32 *abort = &p->control->abort;
	while (!atomic_load_explicit(abort, memory_order_relaxed) && !capture_graphs_quiet(c) &&
	       now_ns() < deadline)
		session_nap(s);
	if (!capture_graphs_quiet(c))
		peer_callbacks.break_off(p);
	graphs_end(p);
}

/* Locked; yields. */
static void quiesce(ncclsvc_session *s, struct peer *p)
{
	struct capture *c = p->capture;
	const uint64_t deadline = now_ns() + CLOSE_NS;
	if (!p->control)
		return;
	peer_sleep_leave(p);
	if (p->unmapped && capture_graphs_live(c))
		peer_sleep_end(p);
	if (!capture_is_quiet(c))
		peer_callbacks.break_off(p);
	if (capture_graphs_live(c))
		graphs_quiesce(s, p, deadline);
	while (!capture_is_quiet(c) && now_ns() < deadline)
		session_nap(s);
	if (!atomic_load_explicit(&p->control->abort, memory_order_relaxed))
		peer_post_end(p);
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

/* Locked. */
static void memory_end(ncclsvc_session *s, struct peer *p)
{
	region_forget(s, p); /* if it was never open */
	shares_end(s->gpu, p);
}

/* Lets running launches of graphs without kernels end. Locked; yields. */
static void graphs_wait(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const uint64_t deadline = now_ns() + CLOSE_NS;
	while (!capture_graphs_quiet(comm->capture) && !comm->broken && now_ns() < deadline) {
		session_nap(s);
		socket_pump(s); /* the epoch may be over */
	}
}

/* Locked; yields. */
static void close_one(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct capture *c = comm->capture;
	if (!c)
		return;
	if (comm->peer) {
		quiesce(s, comm->peer);
		cancel_tasks(s, comm->peer);
	} else {
		graphs_wait(s, comm);
	}
	captured_groups_sweep(s, c);
	captured_groups_forget(s, c);
	if (comm->peer)
		memory_end(s, comm->peer);
	drop(comm);
}

void peer_close(ncclsvc_session *s, ncclsvc_comm *comm)
{
	session_lock(s);
	close_one(s, comm);
	captures_sweep();
	session_unlock(s);
}

void peers_close(ncclsvc_session *s)
{
	session_lock(s);
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->peer)
			peer_callbacks.break_off(c->peer);
	for (ncclsvc_comm *c = s->comms; c; c = c->next)
		close_one(s, c);
	captures_sweep();
	session_unlock(s);
}

void peer_modules_unload(struct gpu *g)
{
	if (captures_use(g)) {
		g->modules = NULL;
		return;
	}
	for (int d = 0; g->modules && d < GPU_DEVICES; d++) {
		struct peer_module *m = &g->modules[d];
		if (!m->modules[KERNEL_LL] || cuda_push(g->cuda, g->primary[d]))
			continue;
		peer_module_unload(g->cuda, m);
		cuda_pop(g->cuda, g->primary[d]);
	}
	free(g->modules);
	g->modules = NULL;
}
