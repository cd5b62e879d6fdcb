/* SPDX-License-Identifier: Apache-2.0
 * Rejoining and leaving communicators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "cuda/direct/peer_life.h"
#include "cuda/session_gpu.h"
#include "join.h"
#include "join_request.h"
#include "resume.h"
#include "resume/compare.h"

static void rejoined(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = comm_by_key(s, call->comm_key);
	memcpy(&reply, call->body, sizeof(reply));
	if (!comm) { /* left before the request was sent */
		comm_give_back(s, &reply);
		call->result = NCCLSVC_CANCELLED;
		snprintf(call->text, sizeof(call->text),
			 "the communicator was left before all had joined");
		return;
	}
	const ncclsvc_comm *holder = comm_by_handle(s, reply.comm);
	if (!join_reply_valid(&reply) || reply.nranks != comm->nranks || reply.rank != comm->rank ||
	    (holder && holder != comm))
		join_answer_bad(s, call);
	else
		comm_apply(s, comm, &reply);
	if (!call->result)
		comm->asleep = false;
}

static ncclsvc_result rejoin(ncclsvc_comm *comm, int timeout_ms, const ncclsvc_comm *beside)
{
	ncclsvc_session *s = comm->session;
	struct call call = {.on_reply = rejoined, .comm_key = comm->key};
	int32_t number = SVC_DEVICE_HOST;
	ncclsvc_result r = NCCLSVC_OK;
	if (comm->device >= 0) /* a new daemon may number the device differently */
		r = device_match(s, comm->device, &number);
	if (r)
		return r;
	session_lock(s);
	socket_pump(s);
	const bool over = comm->broken;
	session_unlock(s);
	if (over) /* otherwise this session itself still holds the rank */
		peer_renew(s, comm, number);
	session_lock(s);
	comm->daemon_device = number;
	struct svc_join request = rejoin_request(comm, timeout_on_wire(timeout_ms));
	const uint64_t deadline = join_deadline(timeout_ms);
	do
		r = join_begin(s, &call, SVC_JOIN, &request, comm, &request.staging, deadline,
			       beside);
	while (join_retry(s, r));
	if (!r)
		r = join_finish(s, &call, comm, deadline, beside);
	session_unlock(s);
	if (!r && !over) /* the epoch was over, but this session had not learned it */
		peer_close(s, comm);
	if (!r)
		r = peer_open(s, comm);
	return r ? r : comm_compare(comm);
}

ncclsvc_result ncclsvc_comm_rejoin(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_rejoin: the communicator is NULL");
	return rejoin(comm, timeout_ms, NULL);
}

ncclsvc_result comm_renew(ncclsvc_comm *comm, int timeout_ms, const ncclsvc_comm *beside)
{
	ncclsvc_result r = rejoin(comm, timeout_ms, beside);
	if (r != NCCLSVC_RANK_TAKEN)
		return r;
	/* Ended by this session, if it knows of no other end of the epoch. */
	session_lock(comm->session);
	bool whole = !comm->broken;
	session_unlock(comm->session);
	return whole ? NCCLSVC_OK : r;
}

/* Prepares, but does not begin, a call for each communicator to rejoin, because a communicator may
 * go away whenever a call yields. NULL: out of memory. */
static struct call *rejoin_calls(const ncclsvc_session *s, size_t *n)
{
	size_t room = 0;
	*n = 0;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		room++;
	struct call *calls = calloc(room ? room : 1, sizeof(*calls));
	for (const ncclsvc_comm *c = s->comms; calls && c; c = c->next)
		if (!c->split && !c->handle)
			calls[(*n)++] = (struct call){.on_reply = rejoined, .comm_key = c->key};
	return calls;
}

static ncclsvc_result renew(ncclsvc_session *s, ncclsvc_comm *comm)
{
	if (!comm->handle)
		peer_renew(s, comm, comm->daemon_device);
	return NCCLSVC_OK;
}

/* Calls the function, without the lock, for each GPU communicator. Locked; yields. */
static ncclsvc_result each_gpu_comm(ncclsvc_session *s, const struct call *calls, size_t n,
				    ncclsvc_result (*what)(ncclsvc_session *s, ncclsvc_comm *comm))
{
	ncclsvc_result first = NCCLSVC_OK;
	for (size_t i = 0; i < n; i++) {
		ncclsvc_comm *c = comm_by_key(s, calls[i].comm_key);
		if (!c || c->device == NCCLSVC_DEVICE_HOST)
			continue;
		session_unlock(s);
		const ncclsvc_result r = what(s, c);
		session_lock(s);
		first = first ? first : r;
	}
	return first;
}

ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline)
{
	ncclsvc_result first = NCCLSVC_OK;
	struct error why = {0};
	size_t n, begun = 0;
	uint64_t now = now_ns();
	uint64_t timeout_ns = deadline == NO_DEADLINE ? 0 : deadline > now ? deadline - now : 1;
	struct call *calls = rejoin_calls(s, &n);
	if (!calls)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	if (deadline != NO_DEADLINE)
		deadline += JOIN_GRACE_NS;
	each_gpu_comm(s, calls, n, renew);
	/* Begin all of them at once: members may have joined their communicators in different
	 * orders. */
	for (; begun < n; begun++) {
		const ncclsvc_comm *c = comm_by_key(s, calls[begun].comm_key);
		calls[begun].done = !c || c->handle;
		if (calls[begun].done)
			continue;
		struct svc_join request = rejoin_request(c, timeout_ns);
		first = call_begin(s, &calls[begun], SVC_JOIN, &request, -1, deadline);
		if (first)
			break;
	}
	if (first)
		error_keep(&why);
	for (size_t i = 0; i < begun; i++) {
		ncclsvc_result r = call_finish(s, &calls[i], deadline);
		/* If another thread has left the communicator meanwhile, this is not a failure. */
		if (r && !first && comm_by_key(s, calls[i].comm_key)) {
			first = r;
			error_keep(&why);
		}
	}
	if (!first)
		first = each_gpu_comm(s, calls, begun, peer_open);
	if (first && !why.status.result)
		error_keep(&why);
	free(calls);
	return first ? error_again(&why) : NCCLSVC_OK;
}

ncclsvc_result ncclsvc_comm_leave(ncclsvc_comm *comm)
{
	if (!comm)
		return NCCLSVC_OK;
	ncclsvc_session *s = comm->session;
	struct call call = {0};
	ncclsvc_result r = NCCLSVC_OK;
	peer_close(s, comm);
	session_lock(s);
	comm->leaving = true;
	resume_leave(s, comm);
	if (!s->lost && comm->handle)
		r = call_run(s, &call, SVC_LEAVE, &(struct svc_leave){.comm = comm->handle}, -1,
			     deadline_in(REQUEST_MS));
	if (s->lost || r == NCCLSVC_NOT_FOUND)
		r = NCCLSVC_OK;
	comm->leaving = !r;
	if (!r) {
		resume_left(s, comm);
		if (s->plan_callbacks)
			s->plan_callbacks->comm_left(s, comm);
		comm_unlink(s, comm);
		calls_give_up(s, comm->key);
	}
	session_unlock(s);
	if (!r)
		comm_free(comm);
	return r;
}
