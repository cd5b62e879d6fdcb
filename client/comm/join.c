/* SPDX-License-Identifier: Apache-2.0
 * Creates communicators: from an id, from a world, or by splitting one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/direct/peer_life.h"
#include "cuda/session_gpu.h"
#include "join.h"
#include "join_request.h"
#include "launcher.h"
#include "resume.h"
#include "resume/compare.h"

ncclsvc_result ncclsvc_unique_id_create(ncclsvc_unique_id *id)
{
	if (!id)
		return error_argument("the id is NULL");
	if (getrandom(id->bytes, sizeof(id->bytes), 0) != (ssize_t)sizeof(id->bytes))
		return error_set(NCCLSVC_SYSTEM, "getrandom: %m");
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_unique_id_request(ncclsvc_session *s, ncclsvc_unique_id *id)
{
	struct call call = {0};
	if (!s || !id)
		return error_argument("ncclsvc_unique_id_request: the %s is NULL",
				      s ? "id" : "session");
	session_lock(s);
	const ncclsvc_result r =
		call_run(s, &call, SVC_ID, &(struct svc_id){0}, -1, deadline_in(REQUEST_MS));
	session_unlock(s);
	if (!r)
		memcpy(id->bytes, call.body, sizeof(id->bytes));
	return r;
}

static ncclsvc_comm *comm_new(ncclsvc_session *s)
{
	ncclsvc_comm *comm = calloc(1, sizeof(*comm));
	if (comm) {
		comm->session = s;
		comm->device = NCCLSVC_DEVICE_HOST;
		comm->daemon_device = SVC_DEVICE_HOST;
	}
	return comm;
}

/* Discards a handle that never became a communicator. Not locked. */
static void comm_discard(ncclsvc_session *s, ncclsvc_comm *comm)
{
	if (comm && comm->peer)
		peer_discard(s, comm);
	comm_free(comm);
}

/* Callers' buffers are sized for the number of ranks they requested. */
static bool is_as_asked(const ncclsvc_comm *comm, const struct svc_join_reply *reply)
{
	return (!comm->nranks || reply->nranks == comm->nranks) &&
	       (comm->rank < 0 || reply->rank == comm->rank);
}

/* The handle must be known before the next message, which may be its EVENT_COMM. */
static void joined(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = call->arg;
	memcpy(&reply, call->body, sizeof(reply));
	if (call->opcode == SVC_SPLIT) {
		struct svc_split request;
		memcpy(&request, call->request, sizeof(request));
		ncclsvc_comm *parent = comm_by_handle(s, request.comm);
		if (parent)
			parent->splits++;
	}
	if (call->opcode == SVC_SPLIT && !reply.comm)
		return;
	ncclsvc_comm *holder = comm_by_handle(s, reply.comm);
	if (!join_reply_valid(&reply) || (!holder && !is_as_asked(comm, &reply))) {
		join_answer_bad(s, call);
		return;
	}
	if (holder) {
		comm_apply(s, holder, &reply);
		call->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(call->text, sizeof(call->text),
			 "this session has already joined communicator %s; use ncclsvc_comm_rejoin",
			 holder->label);
		return;
	}
	comm_apply(s, comm, &reply);
	comm->nranks = reply.nranks;
	comm->rank = reply.rank;
	memcpy(comm->id.bytes, reply.id, sizeof(comm->id.bytes));
	comm->key = ++s->comm_keys;
	comm->next = s->comms;
	s->comms = comm;
}

/* ---- A JOIN or SPLIT that makes a handle ---- */

struct ncclsvc_joining {
	ncclsvc_session *session;
	ncclsvc_comm *comm; /* NULL: the caller owns it, or it never became one */
	struct call call;
	uint64_t deadline; /* deadline of the answer */
	const ncclsvc_comm *beside;
};

/* On OK, takes ownership of comm; j must then stay in place until joining_wait. Locked. */
static ncclsvc_result joining_begin(ncclsvc_session *s, ncclsvc_comm *comm, unsigned opcode,
				    const void *body, uint32_t *staging, int timeout_ms,
				    const ncclsvc_comm *beside, struct ncclsvc_joining *j)
{
	*j = (struct ncclsvc_joining){
		.session = s,
		.comm = comm,
		.call = {.on_reply = joined, .arg = comm},
		.deadline = join_deadline(timeout_ms),
		.beside = beside,
	};
	return join_begin(s, &j->call, opcode, body, comm, staging, j->deadline, beside);
}

static ncclsvc_result joining_wait(struct ncclsvc_joining *j, ncclsvc_comm **out)
{
	session_lock(j->session);
	ncclsvc_result r = join_finish(j->session, &j->call, j->comm, j->deadline, j->beside);
	session_unlock(j->session);
	ncclsvc_comm *comm = j->comm;
	j->comm = NULL;
	if (r || !comm->key) { /* refused, or a split that excludes this member */
		comm_discard(j->session, comm);
		comm = NULL;
	}
	if (!r && comm)
		r = peer_open(j->session, comm);
	if (!r && comm)
		r = comm_compare(comm);
	if (r && comm) {
		struct error why;
		error_keep(&why);
		ncclsvc_comm_leave(comm);
		return error_again(&why);
	}
	if (!r)
		*out = comm;
	return r;
}

static void joining_cancel(struct ncclsvc_joining *j)
{
	session_lock(j->session);
	call_cancel(j->session, &j->call, "the request was cancelled before all had joined");
	session_unlock(j->session);
}

static ncclsvc_result begin_join(ncclsvc_session *s, struct svc_join *request, int device,
				 int timeout_ms, const ncclsvc_comm *beside,
				 struct ncclsvc_joining *j)
{
	ncclsvc_comm *comm = comm_new(s);
	if (!comm)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	comm->device = device;
	comm->tuning = join_take_tuning();
	if (device != NCCLSVC_DEVICE_HOST)
		peer_new(s, comm, request->device, request->nranks);
	request->flags |= join_admit_flags(s);
	request->out_of_reach = peer_out_of_reach(comm->peer);
	request->blocks = comm->tuning.blocks;
	comm->world = request->flags & SVC_JOIN_WORLD;
	comm->nranks = request->nranks;
	comm->rank = request->rank;
	comm->daemon_device = request->device;
	memcpy(comm->id.bytes, request->id, sizeof(comm->id.bytes));
	join_take_label(request->label);
	ncclsvc_result r;
	session_lock(s);
	do
		r = joining_begin(s, comm, SVC_JOIN, request, &request->staging, timeout_ms, beside,
				  j);
	while (join_retry(s, r));
	session_unlock(s);
	if (r)
		comm_discard(s, comm);
	return r;
}

/* device: one of this process, or NCCLSVC_DEVICE_HOST. */
static ncclsvc_result id_request(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks,
				 int rank, int device, int timeout_ms, struct svc_join *request)
{
	int32_t number = SVC_DEVICE_HOST;
	ncclsvc_result r = NCCLSVC_OK;
	if (device != NCCLSVC_DEVICE_HOST)
		r = gpu_usable(s);
	if (!r && device != NCCLSVC_DEVICE_HOST)
		r = device_match(s, device, &number);
	if (r)
		return r;
	if (nranks < 1 || nranks > SVC_RANKS_MAX)
		return error_argument("nranks is %d, the valid range is 1 to %d", nranks,
				      SVC_RANKS_MAX);
	if (rank < 0 || rank >= nranks)
		return error_argument("rank %d is outside 0 to %d", rank, nranks - 1);
	*request = (struct svc_join){
		.nranks = nranks,
		.rank = rank,
		.device = number,
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
	memcpy(request->id, id->bytes, sizeof(request->id));
	join_say_mps(device, request);
	return NCCLSVC_OK;
}

static ncclsvc_result begin_join_id(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks,
				    int rank, int device, int timeout_ms, struct ncclsvc_joining *j)
{
	struct svc_join request;
	ncclsvc_result r = id_request(s, id, nranks, rank, device, timeout_ms, &request);
	return r ? r : begin_join(s, &request, device, timeout_ms, NULL, j);
}

ncclsvc_result ncclsvc_comm_join(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks,
				 int rank, int timeout_ms, ncclsvc_comm **comm)
{
	struct ncclsvc_joining j;
	if (!s || !id || !comm)
		return error_argument("ncclsvc_comm_join: the session, id or comm is NULL");
	ncclsvc_result r = begin_join_id(s, id, nranks, rank, NCCLSVC_DEVICE_HOST, timeout_ms, &j);
	return r ? r : joining_wait(&j, comm);
}

ncclsvc_result ncclsvc_comm_join_device(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks,
					int rank, int device, int timeout_ms, ncclsvc_comm **comm)
{
	struct ncclsvc_joining j;
	if (!s || !id || !comm)
		return error_argument("ncclsvc_comm_join_device: the session, id or comm is NULL");
	ncclsvc_result r = begin_join_id(s, id, nranks, rank, device, timeout_ms, &j);
	return r ? r : joining_wait(&j, comm);
}

ncclsvc_result world_ask(ncclsvc_session *s, struct svc_world_reply *reply)
{
	struct call call = {0};
	session_lock(s);
	ncclsvc_result r =
		call_run(s, &call, SVC_WORLD, &(struct svc_world){0}, -1, deadline_in(REQUEST_MS));
	session_unlock(s);
	memcpy(reply, call.body, sizeof(*reply));
	return r;
}

ncclsvc_result world_rank(int given, int ranks, int *rank)
{
	*rank = given;
	if (given < NCCLSVC_RANK_LAUNCHER)
		return error_argument("rank is %d: give a rank, -1 for any free one, or "
				      "NCCLSVC_RANK_LAUNCHER",
				      given);
	return given == NCCLSVC_RANK_LAUNCHER ? launcher_rank(ranks, rank) : NCCLSVC_OK;
}

static struct svc_join world_request(int rank, int timeout_ms)
{
	return (struct svc_join){
		.rank = rank,
		.device = SVC_DEVICE_HOST,
		.flags = SVC_JOIN_WORLD,
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
}

ncclsvc_result ncclsvc_comm_world(ncclsvc_session *s, int rank, int timeout_ms, ncclsvc_comm **comm)
{
	struct ncclsvc_joining j;
	struct svc_world_reply world = {0};
	if (!s || !comm)
		return error_argument("ncclsvc_comm_world: the session or comm is NULL");
	ncclsvc_result r = rank == NCCLSVC_RANK_LAUNCHER ? world_ask(s, &world) : NCCLSVC_OK;
	if (!r)
		r = world_rank(rank, world.ranks, &rank);
	if (r)
		return r;
	struct svc_join request = world_request(rank, timeout_ms);
	r = begin_join(s, &request, NCCLSVC_DEVICE_HOST, timeout_ms, NULL, &j);
	return r ? r : joining_wait(&j, comm);
}

ncclsvc_result world_join(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks, int rank,
			  int timeout_ms, ncclsvc_comm **comm)
{
	struct ncclsvc_joining j;
	struct svc_join request = world_request(rank, timeout_ms);
	ncclsvc_result r = NCCLSVC_OK;
	if (id)
		r = id_request(s, id, nranks, rank, NCCLSVC_DEVICE_HOST, timeout_ms, &request);
	if (r)
		return r;
	request.flags |= SVC_JOIN_FAIL_FAST;
	r = begin_join(s, &request, NCCLSVC_DEVICE_HOST, timeout_ms, NULL, &j);
	return r ? r : joining_wait(&j, comm);
}

ncclsvc_result group_join(const ncclsvc_comm *world, const ncclsvc_unique_id *id, int nranks,
			  int rank, int device, int timeout_ms, ncclsvc_comm **comm)
{
	struct ncclsvc_joining j;
	struct svc_join request;
	ncclsvc_session *s = world->session;
	ncclsvc_result r = id_request(s, id, nranks, rank, device, timeout_ms, &request);
	if (!r)
		r = begin_join(s, &request, device, timeout_ms, world, &j);
	return r ? r : joining_wait(&j, comm);
}

static ncclsvc_result begin_split(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
				  struct ncclsvc_joining *j)
{
	ncclsvc_session *s = parent->session;
	ncclsvc_comm *comm = comm_new(s);
	if (!comm)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	comm->split = true;
	comm->rank = -1;
	comm->device = parent->device;
	comm->daemon_device = parent->daemon_device;
	/* The member learns the number of ranks from the answer. */
	comm->tuning = join_take_tuning();
	if (comm->device != NCCLSVC_DEVICE_HOST && colour >= 0)
		peer_new(s, comm, comm->daemon_device,
			 parent->nranks < PEER_RANKS ? parent->nranks : PEER_RANKS);
	struct svc_split request = {
		.colour = colour,
		.key = key,
		.timeout_ns = timeout_on_wire(timeout_ms),
		.out_of_reach = peer_out_of_reach(comm->peer),
		.blocks = comm->tuning.blocks,
	};
	join_take_label(request.label);
	ncclsvc_result r;
	session_lock(s);
	do {
		r = session_back(s);
		if (!r)
			r = session_check(s);
		if (!r)
			r = comm_check(parent);
		request.comm = parent->handle;
		if (!r)
			r = joining_begin(s, comm, SVC_SPLIT, &request, &request.staging,
					  timeout_ms, NULL, j);
	} while (join_retry(s, r));
	session_unlock(s);
	if (r)
		comm_discard(s, comm);
	return r;
}

ncclsvc_result ncclsvc_comm_split(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
				  ncclsvc_comm **newcomm)
{
	struct ncclsvc_joining j;
	if (!parent || !newcomm)
		return error_argument("ncclsvc_comm_split: a communicator is NULL");
	ncclsvc_result r = begin_split(parent, colour, key, timeout_ms, &j);
	return r ? r : joining_wait(&j, newcomm);
}

/* ---- The same in two steps ---- */

static ncclsvc_joining *joining_new(void)
{
	ncclsvc_joining *j = malloc(sizeof(*j));
	if (!j)
		error_set(NCCLSVC_NO_MEMORY, "out of memory");
	return j;
}

static ncclsvc_result joining_begun(ncclsvc_joining *j, ncclsvc_result r, ncclsvc_joining **out)
{
	if (r)
		free(j);
	else
		*out = j;
	return r;
}

ncclsvc_result ncclsvc_comm_join_begin(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks,
				       int rank, int device, int timeout_ms,
				       ncclsvc_joining **joining)
{
	if (!s || !id || !joining)
		return error_argument(
			"ncclsvc_comm_join_begin: the session, id or joining is NULL");
	ncclsvc_joining *j = joining_new();
	return j ? joining_begun(j, begin_join_id(s, id, nranks, rank, device, timeout_ms, j),
				 joining)
		 : NCCLSVC_NO_MEMORY;
}

ncclsvc_result ncclsvc_comm_split_begin(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
					ncclsvc_joining **joining)
{
	if (!parent || !joining)
		return error_argument("ncclsvc_comm_split_begin: the parent or joining is NULL");
	ncclsvc_joining *j = joining_new();
	return j ? joining_begun(j, begin_split(parent, colour, key, timeout_ms, j), joining)
		 : NCCLSVC_NO_MEMORY;
}

ncclsvc_result ncclsvc_joining_wait(ncclsvc_joining *j, ncclsvc_comm **comm)
{
	if (!j || !comm)
		return error_argument("ncclsvc_joining_wait: joining or comm is NULL");
	if (!j->comm)
		return error_argument(
			"ncclsvc_joining_wait: this joining has already been waited for");
	return joining_wait(j, comm);
}

void ncclsvc_joining_cancel(ncclsvc_joining *j)
{
	if (j)
		joining_cancel(j);
}

void ncclsvc_joining_free(ncclsvc_joining *j)
{
	ncclsvc_comm *comm = NULL;
	if (!j)
		return;
	if (j->comm) {
		joining_cancel(j);
		j->deadline = deadline_in(REQUEST_MS);
		joining_wait(j, &comm);
		ncclsvc_comm_leave(comm);
	}
	free(j);
}
