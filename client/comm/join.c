/* SPDX-License-Identifier: Apache-2.0
 * Joining, splitting, rejoining and leaving communicators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm.h"
#include "core/session.h"
#include "core/socket.h"
#include "cuda/gpu.h"
#include "cuda/mps.h"
#include "cuda/peer.h"
#include "join.h"
#include "launcher.h"

/* The daemon answers a JOIN by its deadline; this is for the answer's way. */
#define GRACE_NS UINT64_C(5000000000)

ncclsvc_result ncclsvc_unique_id_create(ncclsvc_unique_id *id)
{
	if (!id)
		return error_argument("the id is NULL");
	if (getrandom(id->bytes, sizeof(id->bytes), 0) != (ssize_t)sizeof(id->bytes))
		return error_set(NCCLSVC_SYSTEM, "getrandom: %m");
	return NCCLSVC_OK;
}

static uint64_t answer_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? NO_DEADLINE : deadline_in(timeout_ms) + GRACE_NS;
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

/* One that never became a communicator. Not locked. */
static void comm_discard(ncclsvc_session *s, ncclsvc_comm *comm)
{
	if (comm && comm->peer)
		peer_discard(s, comm->peer);
	free(comm);
}

static void label(ncclsvc_comm *comm, const ncclsvc_comm *parent)
{
	if (comm->world) {
		snprintf(comm->label, sizeof(comm->label), "world");
	} else if (parent) {
		snprintf(comm->label, sizeof(comm->label), "split of %llu",
			 (unsigned long long)parent->uid);
	} else {
		for (int i = 0; i < 8; i++)
			snprintf(comm->label + (size_t)2 * i, 3, "%02x", comm->id.bytes[i]);
	}
}

/* Fails the call: the daemon's answer makes no sense. */
static void answer_bad(ncclsvc_session *s, struct call *call)
{
	session_lose(s, "the daemon broke the protocol: its answer to %s is out of range",
		     svc_shape_of(s->connection->version, call->opcode)->name);
	call->result = NCCLSVC_DAEMON_LOST;
	snprintf(call->text, sizeof(call->text), "%s", s->lost_text);
}

/* A handle has to be known before the next message, which may be its EVENT_COMM. */
static void joined(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = call->arg;
	memcpy(&reply, call->body, sizeof(reply));
	if (call->opcode == SVC_SPLIT && !reply.comm)
		return;
	if (!join_reply_valid(&reply)) {
		answer_bad(s, call);
		return;
	}
	ncclsvc_comm *holder = comm_by_handle(s, reply.comm);
	if (holder) {
		comm_apply(s, holder, &reply);
		call->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(call->text, sizeof(call->text),
			 "this session has joined communicator %s already; what was meant is "
			 "ncclsvc_comm_rejoin",
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

static void rejoined(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = comm_by_key(s, call->comm_key);
	memcpy(&reply, call->body, sizeof(reply));
	if (!comm) { /* left before the request was under way */
		comm_give_back(s, &reply);
		call->result = NCCLSVC_CANCELLED;
		snprintf(call->text, sizeof(call->text),
			 "the communicator was left before all had joined");
		return;
	}
	const ncclsvc_comm *holder = comm_by_handle(s, reply.comm);
	if (!join_reply_valid(&reply) || reply.nranks != comm->nranks || reply.rank != comm->rank ||
	    (holder && holder != comm))
		answer_bad(s, call);
	else
		comm_apply(s, comm, &reply);
}

/* ---- A JOIN or SPLIT that makes a handle ---- */

struct ncclsvc_joining {
	ncclsvc_session *session;
	ncclsvc_comm *comm; /* NULL: it is the caller's, or never became one */
	struct call call;
	uint64_t deadline; /* of the answer */
	const ncclsvc_comm *beside;
};

/* Begins a call that the end of beside's epoch cancels (NULL: nothing does). Locked. */
static ncclsvc_result begin_beside(ncclsvc_session *s, struct call *call, unsigned opcode,
				   const void *body, uint64_t deadline, const ncclsvc_comm *beside)
{
	const ncclsvc_result r = beside ? comm_end(beside) : NCCLSVC_OK;
	call->beside = beside ? beside->key : 0;
	return r ? r : call_begin(s, call, opcode, body, -1, deadline);
}

/* If it was cancelled so, the error is that of the end. Locked; yields. */
static ncclsvc_result finish_beside(ncclsvc_session *s, struct call *call, uint64_t deadline,
				    const ncclsvc_comm *beside)
{
	const ncclsvc_result r = call_finish(s, call, deadline);
	return r == NCCLSVC_CANCELLED && beside && beside->broken ? comm_end(beside) : r;
}

/* On OK, takes comm over, and j has to stay where it is until joining_wait. Locked. */
static ncclsvc_result joining_begin(ncclsvc_session *s, ncclsvc_comm *comm, unsigned opcode,
				    const void *body, int timeout_ms, const ncclsvc_comm *beside,
				    struct ncclsvc_joining *j)
{
	*j = (struct ncclsvc_joining){
		.session = s,
		.comm = comm,
		.call = {.on_reply = joined, .arg = comm},
		.deadline = answer_deadline(timeout_ms),
		.beside = beside,
	};
	return begin_beside(s, &j->call, opcode, body, j->deadline, beside);
}

static ncclsvc_result joining_wait(struct ncclsvc_joining *j, ncclsvc_comm **out)
{
	session_lock(j->session);
	ncclsvc_result r = finish_beside(j->session, &j->call, j->deadline, j->beside);
	session_unlock(j->session);
	ncclsvc_comm *comm = j->comm;
	j->comm = NULL;
	if (r || !comm->key) { /* refused; or a split that this member has no part in */
		comm_discard(j->session, comm);
		comm = NULL;
	}
	if (!r && comm)
		r = peer_open(j->session, comm);
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
	if (device != NCCLSVC_DEVICE_HOST)
		comm->peer = peer_new(s, device, request->device, request->nranks);
	request->staging = peer_region(comm->peer);
	comm->world = request->flags & SVC_JOIN_WORLD;
	comm->device = device;
	comm->daemon_device = request->device;
	memcpy(comm->id.bytes, request->id, sizeof(comm->id.bytes));
	label(comm, NULL);
	session_lock(s);
	ncclsvc_result r = joining_begin(s, comm, SVC_JOIN, request, timeout_ms, beside, j);
	session_unlock(s);
	if (r)
		comm_discard(s, comm);
	return r;
}

static void say_mps(int device, struct svc_join *request)
{
	if (device != NCCLSVC_DEVICE_HOST)
		request->mps = mps_of_device(device, &request->mps_server);
}

/* device: this process's, or NCCLSVC_DEVICE_HOST. */
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
		return error_argument("nranks is %d, 1 to %d are possible", nranks, SVC_RANKS_MAX);
	if (rank < 0 || rank >= nranks)
		return error_argument("rank %d is not within 0 to %d", rank, nranks - 1);
	*request = (struct svc_join){
		.nranks = nranks,
		.rank = rank,
		.device = number,
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
	memcpy(request->id, id->bytes, sizeof(request->id));
	say_mps(device, request);
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
	comm->device = parent->device;
	comm->daemon_device = parent->daemon_device;
	/* How many ranks its part has, the member learns with the answer. */
	if (comm->device != NCCLSVC_DEVICE_HOST && colour >= 0)
		comm->peer = peer_new(s, comm->device, comm->daemon_device,
				      parent->nranks < PEER_RANKS ? parent->nranks : PEER_RANKS);
	session_lock(s);
	label(comm, parent);
	ncclsvc_result r = session_check(s);
	if (!r)
		r = comm_check(parent);
	struct svc_split request = {
		.comm = parent->handle,
		.colour = colour,
		.key = key,
		.staging = peer_region(comm->peer),
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
	if (!r)
		r = joining_begin(s, comm, SVC_SPLIT, &request, timeout_ms, NULL, j);
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
		return error_argument("ncclsvc_joining_wait: this has been waited for");
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

/* ---- Rejoining ---- */

static struct svc_join rejoin_request(const ncclsvc_comm *comm, uint64_t timeout_ns)
{
	struct svc_join request = {
		.nranks = comm->world ? 0 : comm->nranks,
		.rank = comm->rank,
		.device = comm->daemon_device,
		.flags = comm->world ? SVC_JOIN_WORLD : 0,
		.staging = peer_region(comm->peer),
		.timeout_ns = timeout_ns,
	};
	if (!comm->world)
		memcpy(request.id, comm->id.bytes, sizeof(request.id));
	say_mps(comm->device, &request);
	return request;
}

static ncclsvc_result rejoin(ncclsvc_comm *comm, int timeout_ms, const ncclsvc_comm *beside)
{
	ncclsvc_session *s = comm->session;
	struct call call = {.on_reply = rejoined, .comm_key = comm->key};
	int32_t number = SVC_DEVICE_HOST;
	ncclsvc_result r = NCCLSVC_OK;
	if (comm->device >= 0) /* its number may be new, if the daemon is */
		r = device_match(s, comm->device, &number);
	if (r)
		return r;
	session_lock(s);
	socket_pump(s);
	const bool over = comm->broken;
	session_unlock(s);
	if (over) /* else the rank is taken: by this session itself */
		peer_renew(s, comm, number);
	session_lock(s);
	comm->daemon_device = number;
	struct svc_join request = rejoin_request(comm, timeout_on_wire(timeout_ms));
	const uint64_t deadline = answer_deadline(timeout_ms);
	r = begin_beside(s, &call, SVC_JOIN, &request, deadline, beside);
	if (!r)
		r = finish_beside(s, &call, deadline, beside);
	session_unlock(s);
	if (!r && !over) /* it was over, but this session had not heard of it */
		peer_close(s, comm);
	return r ? r : peer_open(s, comm);
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
	/* By this session, if it has heard of no end of the epoch. */
	session_lock(comm->session);
	bool whole = !comm->broken;
	session_unlock(comm->session);
	return whole ? NCCLSVC_OK : r;
}

/* Calls for those that are to be rejoined, not begun: what yields may outlive a communicator. NULL:
 * no memory. */
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

/* Calls it, without the lock, for those of GPUs. Locked; yields. */
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
		deadline += GRACE_NS;
	each_gpu_comm(s, calls, n, renew);
	/* All at once: members may have joined their communicators in different orders. */
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
		/* Another thread may have left the communicator meanwhile: not a failure. */
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
	if (!s->lost && comm->handle)
		r = call_run(s, &call, SVC_LEAVE, &(struct svc_leave){.comm = comm->handle}, -1,
			     deadline_in(REQUEST_MS));
	if (s->lost || r == NCCLSVC_NOT_FOUND)
		r = NCCLSVC_OK;
	if (!r) {
		if (s->plan_hooks)
			s->plan_hooks->comm_left(s, comm);
		comm_unlink(s, comm);
		calls_give_up(s, comm->key);
	}
	session_unlock(s);
	if (!r)
		free(comm);
	return r;
}
