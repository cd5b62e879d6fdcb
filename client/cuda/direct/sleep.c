/* SPDX-License-Identifier: Apache-2.0
 * Suspending frees the GPU memory of a member's kernels and unmaps other members' memory, so that
 * the driver can checkpoint the process. The addresses stay reserved: resuming maps memory at the
 * same addresses, so kernels in CUDA graphs remain valid.
 *
 * Members synchronize through counters in their control blocks, which survive restarts of the
 * daemon. A member unmaps memory only after all are QUIET, reallocates its own only after all are
 * ASLEEP, and maps the others' only after all are WAKING. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "peer_life.h"
#include "shares.h"

#define REASON_MS  1000
#define STEPS_LEFT (UINT32_C(1) << 31) /* in a counter: the member has left */

/* ---- Keeping in step ---- */

static void step_advance(struct peer *p, enum peer_sleep sleep)
{
	p->sleep = sleep;
	atomic_fetch_add_explicit(&p->control->sleep_steps, 1, memory_order_release);
}

static uint32_t steps_of(const struct peer *p, unsigned rank)
{
	return atomic_load_explicit(&peer_control_of(p->controls, rank)->sleep_steps,
				    memory_order_acquire);
}

/* The lowest rank whose step counter is behind this rank's; -1: none. Counters wrap around. */
static int find_behind(const struct peer *p)
{
	const uint32_t own = steps_of(p, p->call.rank);
	for (unsigned r = 0; r < p->call.nranks; r++)
		if ((int32_t)((steps_of(p, r) - own) << 1) < 0)
			return (int)r;
	return -1;
}

ncclsvc_result peer_check_current(ncclsvc_session *s, const ncclsvc_comm *comm,
				  const struct peer *p)
{
	ncclsvc_result r = session_check(s);
	if (!r)
		r = comm_end(comm);
	if (!r && comm->peer != p)
		r = error_set(NCCLSVC_STALE_EPOCH, "communicator %s has a new epoch", comm->label);
	return r;
}

static bool is_aborted(const struct peer *p)
{
	return atomic_load_explicit(&p->control->abort, memory_order_acquire);
}

/* Aborted by the daemon, which then says why, or by this process. Locked; yields. */
static ncclsvc_result why_aborted(ncclsvc_session *s, const ncclsvc_comm *comm,
				  const struct peer *p)
{
	const uint64_t until = deadline_in(REASON_MS);
	ncclsvc_result r;
	while (!(r = peer_check_current(s, comm, p)) && now_ns() < until) {
		session_nap(s);
		socket_pump(s);
	}
	return r ? r : error_set(NCCLSVC_CANCELLED, "communicator %s was aborted", comm->label);
}

static ncclsvc_result late_error(const ncclsvc_comm *comm, const struct peer *p, unsigned rank,
				 const char *call)
{
	const int32_t pid = peer_control_of(p->controls, rank)->pid;
	if (steps_of(p, rank) & STEPS_LEFT)
		return error_set(NCCLSVC_PEER_GONE, "communicator %s: rank %u (pid %d) has left it",
				 comm->label, rank, pid);
	return error_set(
		NCCLSVC_TIMEOUT,
		"communicator %s: rank %u (pid %d) has not called %s yet; repeat your own call "
		"to keep waiting",
		comm->label, rank, pid, call);
}

/* Locked; yields. */
static ncclsvc_result await_others(ncclsvc_session *s, const ncclsvc_comm *comm,
				   const struct peer *p, const char *call, uint64_t deadline)
{
	int behind;
	ncclsvc_result r = NCCLSVC_OK;
	while (!r && (behind = find_behind(p)) >= 0) {
		if (now_ns() >= deadline || steps_of(p, (unsigned)behind) & STEPS_LEFT)
			return late_error(comm, p, (unsigned)behind, call);
		session_nap(s);
		socket_pump(s);
		r = is_aborted(p) ? why_aborted(s, comm, p) : peer_check_current(s, comm, p);
	}
	return r;
}

void peer_sleep_leave(const struct peer *p)
{
	atomic_fetch_or_explicit(&p->control->sleep_steps, STEPS_LEFT, memory_order_release);
}

/* Sends SLEEP, but only to the daemon of that connection. Locked; yields. */
static ncclsvc_result ask(ncclsvc_session *s, const ncclsvc_comm *comm, uint32_t connections,
			  uint32_t asleep, uint32_t staging)
{
	struct call call = {.bound = true, .connections = connections};
	const struct svc_sleep request = {
		.comm = comm->handle, .asleep = asleep, .staging = staging};
	return call_run(s, &call, SVC_SLEEP, &request, -1, deadline_in(REQUEST_MS));
}

/* Whether the daemon was restarted since `connections` was read: the caller must repeat its
 * requests. Locked; yields. */
static bool was_restarted(ncclsvc_session *s, ncclsvc_result r, uint32_t connections)
{
	if (r && r != NCCLSVC_DAEMON_LOST)
		return false;
	return !session_back(s) && connections != session_connections(s);
}

/* ---- Memory ---- */

static bool is_unmapped(const struct peer *p, unsigned rank)
{
	return p->unmapped >> rank & 1;
}

static void set_unmapped(struct peer *p, unsigned rank, bool unmapped)
{
	const unsigned bit = 1u << rank;
	p->unmapped = (uint16_t)(unmapped ? p->unmapped | bit : p->unmapped & ~bit);
}

/* Copies the staging memory to or from the host; one of `to` and `from` is NULL. Slots of copy
 * engines are not saved. */
static CUresult copy(const struct peer *p, void *to, const void *from)
{
	const struct cuda *cuda = p->capture->cuda;
	CUresult e = from ? cuda->cuMemcpyHtoDAsync(p->own.base, from, PEER_STAGING, p->asking)
			  : cuda->cuMemcpyDtoHAsync(to, p->own.base, PEER_STAGING, p->asking);
	return e ? e : cuda->cuStreamSynchronize(p->asking);
}

/* Saves the member's staging memory, and unmaps it. Zeroes the saved table of other ranks' mapped
 * shares. */
static CUresult own_unmap(struct peer *p)
{
	char *kept = malloc(PEER_STAGING);
	if (!kept)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult e = copy(p, kept, NULL);
	if (!e)
		e = p->capture->cuda->cuMemUnmap(p->own.base, p->own.bytes);
	if (e) {
		free(kept);
		return e;
	}
	memset(kept + PEER_MAPPED, 0, PEER_CHUNKS - PEER_MAPPED);
	p->saved_staging = kept;
	set_unmapped(p, p->call.rank, true);
	return CUDA_SUCCESS;
}

static CUresult own_remap(struct peer *p)
{
	int fd = -1;
	CUresult e = allocation_remap(p->capture->cuda, &p->own, &fd);
	if (fd >= 0)
		close(fd);
	if (e)
		return e;
	e = copy(p, NULL, p->saved_staging);
	if (e) {
		p->capture->cuda->cuMemUnmap(p->own.base, p->own.bytes);
		return e;
	}
	free(p->saved_staging);
	p->saved_staging = NULL;
	set_unmapped(p, p->call.rank, false);
	return CUDA_SUCCESS;
}

static CUresult others_unmap(struct peer *p)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned r = 0; !e && r < p->call.nranks; r++) {
		if (r == p->call.rank || is_unmapped(p, r))
			continue;
		e = p->capture->cuda->cuMemUnmap(p->call.staging[r], p->staging_bytes[r]);
		if (!e)
			set_unmapped(p, r, true);
	}
	return e;
}

/* Maps memory that nobody else has at the addresses of other ranks' staging memory. */
static CUresult others_fill(struct peer *p)
{
	CUresult e = CUDA_SUCCESS;
	for (unsigned r = 0; !e && r < p->call.nranks; r++) {
		const struct allocation a = {.base = p->call.staging[r],
					     .bytes = p->staging_bytes[r],
					     .device = p->own.device};
		int fd = -1;
		if (!is_unmapped(p, r))
			continue;
		e = allocation_remap(p->capture->cuda, &a, &fd);
		if (fd >= 0)
			close(fd);
		if (!e)
			set_unmapped(p, r, false);
	}
	return e;
}

/* Calls it with the member's context. */
static ncclsvc_result with_context(struct peer *p, CUresult (*what)(struct peer *p),
				   const char *failure)
{
	const struct capture *c = p->capture;
	CUresult e = cuda_push(c->cuda, c->context);
	if (!e) {
		const int mode = relaxed_begin(c->cuda);
		e = what(p);
		relaxed_end(c->cuda, mode);
		cuda_pop(c->cuda, c->context);
	}
	return e ? cuda_error(c->cuda, e, failure) : NCCLSVC_OK;
}

static ncclsvc_result memory_unmap(struct peer *p)
{
	ncclsvc_result r =
		with_context(p, others_unmap, "cannot unmap other ranks' staging memory");
	if (!r && !p->saved_staging)
		r = with_context(p, own_unmap, "cannot save and unmap staging memory");
	return r;
}

static ncclsvc_result memory_remap(struct peer *p)
{
	return p->saved_staging ? with_context(p, own_remap, "cannot allocate staging memory again")
				: NCCLSVC_OK;
}

void peer_sleep_end(struct peer *p)
{
	if (!memory_remap(p))
		with_context(p, others_fill, "cannot map memory for graphs");
}

/* ---- Falling asleep ---- */

/* Locked; yields. */
static ncclsvc_result release_memory(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p,
				     uint64_t deadline)
{
	uint32_t connections;
	ncclsvc_result r;
	if (!imports_sleep(s, comm, p, deadline)) {
		r = is_aborted(p) ? why_aborted(s, comm, p) : peer_check_current(s, comm, p);
		return r ? r
			 : error_set(NCCLSVC_TIMEOUT,
				     "communicator %s: other ranks' buffers are still mapped, "
				     "because they cannot be unmapped while this process runs "
				     "kernels; repeat the call once they have ended",
				     comm->label);
	}
	do {
		connections = session_connections(s);
		r = peer_check_current(s, comm, p);
		if (!r)
			r = memory_unmap(p);
		if (!r)
			r = ask(s, comm, connections, 1, 0);
	} while (was_restarted(s, r, connections));
	return r ? r : peer_check_current(s, comm, p);
}

ncclsvc_result peer_fall_asleep(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p,
				uint64_t deadline)
{
	ncclsvc_result r = peer_check_current(s, comm, p);
	if (!r && p->sleep == PEER_AWAKE)
		step_advance(p, PEER_QUIET);
	if (r || p->sleep != PEER_QUIET)
		return r;
	r = await_others(s, comm, p, "ncclsvc_comm_suspend", deadline);
	if (!r)
		r = release_memory(s, comm, p, deadline);
	if (!r)
		step_advance(p, PEER_ASLEEP);
	return r;
}

/* ---- Waking up ---- */

static uint32_t region_of(const struct call *call)
{
	struct svc_region_reply reply;
	memcpy(&reply, call->body, sizeof(reply));
	return reply.region;
}

/* Hands the member's memory to the daemon, which holds it for the member. Locked; yields. */
static ncclsvc_result register_staging(ncclsvc_session *s, const ncclsvc_comm *comm,
				       const struct peer *p, uint32_t connections)
{
	const struct cuda *cuda = p->capture->cuda;
	struct call call = {.bound = true, .connections = connections};
	const struct svc_region_cuda request = {.bytes = p->own.bytes,
						.device = comm->daemon_device};
	int fd = -1;
	const CUresult e = mapping_export(cuda, p->own.base, &fd);
	if (e)
		return cuda_error(cuda, e, "cannot export staging memory");
	ncclsvc_result r =
		call_run(s, &call, SVC_REGION_CUDA_FD, &request, fd, deadline_in(REQUEST_MS));
	close(fd);
	if (r)
		return r;
	r = ask(s, comm, connections, 0, region_of(&call));
	if (connections == session_connections(s))
		call_forget(s, SVC_REGION_DEL,
			    &(struct svc_region_del){.region = region_of(&call)});
	return r;
}

/* Locked; yields. */
static ncclsvc_result restore_memory(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p)
{
	ncclsvc_result r;
	do {
		p->wake_connections = session_connections(s);
		r = peer_check_current(s, comm, p);
		if (!r)
			r = memory_remap(p);
		if (!r)
			r = register_staging(s, comm, p, p->wake_connections);
	} while (was_restarted(s, r, p->wake_connections));
	return r ? r : peer_check_current(s, comm, p);
}

static CUresult map_other(const struct peer *p, unsigned rank, int fd)
{
	const struct capture *c = p->capture;
	CUresult e = cuda_push(c->cuda, c->context);
	if (e)
		return e;
	const int mode = relaxed_begin(c->cuda);
	e = allocation_import_at(c->cuda, fd, c->device, p->staging_bytes[rank],
				 p->call.staging[rank]);
	relaxed_end(c->cuda, mode);
	cuda_pop(c->cuda, c->context);
	return e;
}

/* Locked; yields. */
static ncclsvc_result others_remap(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned k = 0; !r && k < p->call.nranks; k++) {
		int fd = -1;
		if (!is_unmapped(p, k))
			continue;
		r = peer_staging_fetch(s, comm, (int32_t)k, &fd);
		if (!r)
			r = peer_check_current(s, comm, p);
		const CUresult e = r ? CUDA_SUCCESS : map_other(p, k, fd);
		if (fd >= 0)
			close(fd);
		if (e)
			r = cuda_error(p->capture->cuda, e,
				       "cannot map another rank's staging memory");
		else if (!r)
			set_unmapped(p, k, false);
	}
	return r;
}

/* The log of shares was reset. If the daemon restarts meanwhile, the watcher does the same
 * with the next one. Locked; yields. */
static ncclsvc_result shares_restore(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (p->wake_connections == session_connections(s))
		r = imports_again(s, p);
	if (!r && p->wake_connections == session_connections(s))
		r = shares_again(s, p, comm->handle);
	if (was_restarted(s, r, p->wake_connections))
		r = NCCLSVC_OK;
	return r ? r : peer_check_current(s, comm, p);
}

ncclsvc_result peer_wake_up(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p,
			    uint64_t deadline)
{
	ncclsvc_result r = peer_check_current(s, comm, p);
	if (!r && p->sleep == PEER_ASLEEP) {
		r = await_others(s, comm, p, "ncclsvc_comm_suspend", deadline);
		if (!r)
			r = restore_memory(s, comm, p);
		if (!r) {
			p->said = 0;
			step_advance(p, PEER_WAKING);
		}
	}
	if (!r)
		r = await_others(s, comm, p, "ncclsvc_comm_resume", deadline);
	if (!r)
		r = others_remap(s, comm, p);
	if (!r)
		r = shares_restore(s, comm, p);
	if (r)
		return r;
	p->sleep = PEER_AWAKE;
	p->imports.asleep = false;
	if (p->imports.importer)
		importer_wake(p->imports.importer);
	return NCCLSVC_OK;
}
