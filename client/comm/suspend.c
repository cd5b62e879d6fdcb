/* SPDX-License-Identifier: Apache-2.0
 * Communicators that the program suspends: their GPU memory is free until they are resumed. */
#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "cuda/capture/capture_graph.h"
#include "cuda/direct/peer_life.h"
#include "cuda/gpu_state.h"

static bool has_pending(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (uint32_t i = 0; i < s->tasks.entries; i++)
		if (s->tasks.slots[i].state == SLOT_PENDING &&
		    s->tasks.slots[i].comm_key == comm->key)
			return true;
	return false;
}

/* Waits until nothing of the communicator runs on this rank. Locked; yields. */
static ncclsvc_result await_quiet(ncclsvc_session *s, const ncclsvc_comm *comm, uint64_t deadline)
{
	for (;;) {
		tasks_ask(s);
		ncclsvc_result r = session_check(s);
		if (!r)
			r = comm_end(comm);
		if (r)
			return r;
		if (!has_pending(s, comm) &&
		    (!comm->capture ||
		     (capture_is_quiet(comm->capture) && capture_graphs_quiet(comm->capture))))
			return NCCLSVC_OK;
		if (now_ns() >= deadline)
			return error_set(NCCLSVC_TIMEOUT,
					 "communicator %s still has running operations; repeat the "
					 "call to keep waiting",
					 comm->label);
		session_nap(s);
		socket_pump(s);
	}
}

/* For a communicator without kernels, which has no GPU memory in this process. While its epoch is
 * suspended because another node's daemon has ended, repeats the request. Locked; yields. */
static ncclsvc_result send_sleep(ncclsvc_session *s, const ncclsvc_comm *comm, bool asleep,
				 uint64_t deadline)
{
	ncclsvc_result r;
	for (;;) {
		struct call call = {0};
		const struct svc_sleep request = {.comm = comm->handle, .asleep = asleep};
		r = call_run(s, &call, SVC_SLEEP, &request, -1, deadline_in(REQUEST_MS));
		if (r != NCCLSVC_STALE_EPOCH || comm->broken || now_ns() >= deadline)
			return r;
		session_nap(s);
		socket_pump(s);
	}
}

/* If the process was restored from a checkpoint, its old regions are not used any more.
 * UNSUPPORTED: CUDA graphs may still use them. Locked. */
static ncclsvc_result look_for_restore(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	bool restored;
	const struct capture *c = comm->capture;
	const ncclsvc_result r = checkpoint_look(s, s->gpu, &restored);
	if (r)
		return r;
	device_regions_sweep(s, s->gpu);
	if (comm->restores == s->gpu->restores || !c || !capture_graphs_live(c))
		return NCCLSVC_OK;
	if (!captured_groups_live(c) && !(comm->peer && comm->peer->shares))
		return NCCLSVC_OK;
	return error_set(
		NCCLSVC_UNSUPPORTED,
		"communicator %s: this process was restored from a checkpoint, and its CUDA graphs "
		"may use memory that other processes had mapped. Destroy the graphs, call "
		"ncclsvc_comm_resume again, and capture them again",
		comm->label);
}

static ncclsvc_result suspend(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline)
{
	struct peer *p = comm->peer;
	if (p && p->sleep == PEER_WAKING)
		return error_argument("communicator %s: an earlier ncclsvc_comm_resume has not "
				      "finished; call it again before suspending",
				      comm->label);
	if (!comm->asleep)
		comm->restores = s->gpu->restores;
	comm->asleep = true; /* no operation can begin */
	const ncclsvc_result r = await_quiet(s, comm, deadline);
	if (r)
		return r;
	return p ? peer_fall_asleep(s, comm, p, deadline) : send_sleep(s, comm, true, deadline);
}

static ncclsvc_result resume(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline)
{
	struct peer *p = comm->peer;
	if (!comm->asleep)
		return NCCLSVC_OK;
	ncclsvc_result r = look_for_restore(s, comm);
	if (!r && p && p->sleep < PEER_ASLEEP) /* suspending had timed out */
		r = suspend(s, comm, deadline);
	if (!r)
		r = p ? peer_wake_up(s, comm, p, deadline) : send_sleep(s, comm, false, deadline);
	if (!r)
		comm->asleep = false;
	return r;
}

/* OK if the communicator can be suspended or resumed. Locked; yields. */
static ncclsvc_result check(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_result r = session_back(s);
	if (!r)
		r = session_check(s);
	if (!r)
		r = comm_end(comm);
	if (!r && comm->peer && !peer_is_open(comm->peer))
		r = error_set(NCCLSVC_STALE_EPOCH, "communicator %s is still being joined",
			      comm->label);
	if (!r && comm->in_transition)
		r = error_set(NCCLSVC_BUSY,
			      "another thread is suspending or resuming communicator %s",
			      comm->label);
	return r;
}

static ncclsvc_result transition(ncclsvc_comm *comm, int timeout_ms,
				 ncclsvc_result (*what)(ncclsvc_session *s, ncclsvc_comm *comm,
							uint64_t deadline))
{
	ncclsvc_session *s = comm->session;
	session_lock(s);
	ncclsvc_result r = check(s, comm);
	if (!r) {
		struct capture *c = comm->capture; /* another thread may rejoin meanwhile */
		if (c)
			c->refs++;
		comm->in_transition = true;
		r = what(s, comm, deadline_in(timeout_ms));
		comm->in_transition = false;
		if (c)
			capture_unref(c);
		if (r && comm->broken)
			r = comm_end(comm);
	}
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_comm_suspend(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_suspend: the communicator is NULL");
	return comm->device < 0 ? NCCLSVC_OK : transition(comm, timeout_ms, suspend);
}

ncclsvc_result ncclsvc_comm_resume(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_resume: the communicator is NULL");
	return comm->device < 0 ? NCCLSVC_OK : transition(comm, timeout_ms, resume);
}

uint64_t ncclsvc_comm_gpu_bytes(ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	const uint64_t bytes = comm->peer ? comm->peer->own.bytes : 0;
	session_unlock(comm->session);
	return bytes;
}
