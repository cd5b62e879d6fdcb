/* SPDX-License-Identifier: Apache-2.0
 * Communicators: the handles, and what the daemon says of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "internal.h"
#include "names.h"

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
	if (comm)
		comm->session = s;
	return comm;
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

const char *comm_label(const ncclsvc_session *s, uint32_t key)
{
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->key == key)
			return c->label;
	return "(left)";
}

static ncclsvc_comm *comm_by_handle(const ncclsvc_session *s, uint32_t handle)
{
	ncclsvc_comm *c = s->comms;
	while (c && c->handle != handle)
		c = c->next;
	return c;
}

static void comm_unlink(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_comm **at = &s->comms;
	while (*at && *at != comm)
		at = &(*at)->next;
	if (*at)
		*at = comm->next;
}

/* A new epoch begins. */
static void comm_apply(ncclsvc_session *s, ncclsvc_comm *comm, const struct svc_join_reply *reply)
{
	comm->handle = reply->comm;
	comm->uid = reply->comm_uid;
	comm->epoch = reply->epoch;
	comm->nranks = reply->nranks;
	comm->rank = reply->rank;
	comm->seq = 0;
	comm->broken = NCCLSVC_OK;
	comm->broken_told = true;
	memcpy(comm->id.bytes, reply->id, sizeof(comm->id.bytes));
	if (comm->key)
		failures_forgive(s, comm->key);
}

/* Fails the call: the daemon's answer makes no sense. */
static void answer_bad(ncclsvc_session *s, struct call *call)
{
	session_lose(s, "the daemon broke the protocol: its answer to %s is out of range",
		     svc_shape_of(call->opcode)->name);
	call->result = NCCLSVC_DAEMON_LOST;
	snprintf(call->text, sizeof(call->text), "%s", s->lost_text);
}

static bool join_valid(const struct svc_join_reply *r)
{
	return r->comm && r->nranks > 0 && r->nranks <= SVC_RANKS_MAX && r->rank >= 0 &&
	       r->rank < r->nranks;
}

/* A handle has to be known before the next message, which may be its EVENT_COMM. */
static void joined(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = call->arg;
	memcpy(&reply, call->body, sizeof(reply));
	if (call->opcode == SVC_SPLIT && !reply.comm)
		return;
	if (!join_valid(&reply) || comm_by_handle(s, reply.comm)) {
		answer_bad(s, call);
		return;
	}
	comm_apply(s, comm, &reply);
	comm->key = ++s->comm_keys;
	comm->next = s->comms;
	s->comms = comm;
}

static void rejoined(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = call->arg;
	memcpy(&reply, call->body, sizeof(reply));
	const ncclsvc_comm *holder = comm_by_handle(s, reply.comm);
	if (!join_valid(&reply) || reply.nranks != comm->nranks || reply.rank != comm->rank ||
	    (holder && holder != comm))
		answer_bad(s, call);
	else
		comm_apply(s, comm, &reply);
}

void comm_orphan(ncclsvc_session *s, const struct svc_join_reply *reply)
{
	ncclsvc_comm *comm = comm_by_handle(s, reply->comm);
	if (comm && join_valid(reply))
		comm_apply(s, comm, reply);
	else if (reply->comm)
		call_forget(s, SVC_LEAVE, &(struct svc_leave){.comm = reply->comm});
}

void comm_event(ncclsvc_session *s, const struct svc_event_comm *event)
{
	ncclsvc_comm *comm = comm_by_handle(s, event->comm);
	if (!comm || comm->epoch != event->epoch)
		return;
	comm->broken = event->reason < 0 ? (ncclsvc_result)event->reason : NCCLSVC_PEER_GONE;
	comm->broken_rank = event->rank;
	comm->broken_pid = event->pid;
	comm->broken_told = false;
	dispatch_kick(s);
}

void comms_break(ncclsvc_session *s)
{
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		c->handle = 0;
		c->broken = NCCLSVC_DAEMON_LOST;
		c->broken_told = false;
	}
}

static ncclsvc_result broken_error(const ncclsvc_comm *comm, ncclsvc_result result)
{
	if (comm->broken == NCCLSVC_DAEMON_LOST)
		return error_set(result, "communicator %s ended with its daemon: %s", comm->label,
				 comm->split ? "reattach, then split again"
					     : "reattach, or rejoin it");
	ncclsvc_status st = {
		.result = comm->broken,
		.rank_a = comm->broken_rank,
		.pid_a = comm->broken_pid,
		.rank_b = -1,
	};
	char sentence[SVC_TEXT_BYTES];
	svc_status_sentence(&st, sentence, sizeof(sentence));
	return error_set(result, "communicator %s: epoch %u is over: %s%s", comm->label, comm->epoch,
			 sentence,
			 comm->broken == NCCLSVC_PEER_GONE ? "" : "; rejoin the communicator");
}

ncclsvc_result comm_check(const ncclsvc_comm *comm)
{
	return comm->broken ? broken_error(comm, NCCLSVC_STALE_EPOCH) : NCCLSVC_OK;
}

/* Runs a JOIN or SPLIT that makes a handle. */
static ncclsvc_result join(ncclsvc_session *s, ncclsvc_comm *comm, unsigned opcode,
			   const void *body, int timeout_ms)
{
	struct call call = {.on_reply = joined, .arg = comm};
	session_lock(s);
	ncclsvc_result r = call_run(s, &call, opcode, body, -1, answer_deadline(timeout_ms));
	session_unlock(s);
	return r;
}

static ncclsvc_result join_new(ncclsvc_session *s, const struct svc_join *request, int timeout_ms,
			       ncclsvc_comm **out)
{
	ncclsvc_comm *comm = comm_new(s);
	if (!comm)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	comm->world = request->flags & SVC_JOIN_WORLD;
	memcpy(comm->id.bytes, request->id, sizeof(comm->id.bytes));
	label(comm, NULL);
	ncclsvc_result r = join(s, comm, SVC_JOIN, request, timeout_ms);
	if (r)
		free(comm);
	else
		*out = comm;
	return r;
}

ncclsvc_result ncclsvc_comm_join(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks,
				 int rank, int timeout_ms, ncclsvc_comm **comm)
{
	if (!s || !id || !comm)
		return error_argument("ncclsvc_comm_join: the session, id or comm is NULL");
	if (nranks < 1 || nranks > SVC_RANKS_MAX)
		return error_argument("nranks is %d, 1 to %d are possible", nranks, SVC_RANKS_MAX);
	if (rank < 0 || rank >= nranks)
		return error_argument("rank %d is not within 0 to %d", rank, nranks - 1);
	struct svc_join request = {
		.nranks = nranks,
		.rank = rank,
		.device = SVC_DEVICE_HOST,
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
	memcpy(request.id, id->bytes, sizeof(request.id));
	return join_new(s, &request, timeout_ms, comm);
}

ncclsvc_result ncclsvc_comm_world(ncclsvc_session *s, int rank, int timeout_ms, ncclsvc_comm **comm)
{
	if (!s || !comm)
		return error_argument("ncclsvc_comm_world: the session or comm is NULL");
	if (rank < -1)
		return error_argument("rank is %d: give a rank, or -1 for any free one", rank);
	struct svc_join request = {
		.rank = rank,
		.device = SVC_DEVICE_HOST,
		.flags = SVC_JOIN_WORLD,
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
	return join_new(s, &request, timeout_ms, comm);
}

ncclsvc_result ncclsvc_comm_split(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
				  ncclsvc_comm **newcomm)
{
	if (!parent || !newcomm)
		return error_argument("ncclsvc_comm_split: a communicator is NULL");
	ncclsvc_session *s = parent->session;
	ncclsvc_comm *comm = comm_new(s);
	if (!comm)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	session_lock(s);
	ncclsvc_result r = session_check(s);
	if (!r)
		r = comm_check(parent);
	struct svc_split request = {
		.comm = parent->handle,
		.colour = colour,
		.key = key,
		.timeout_ns = timeout_on_wire(timeout_ms),
	};
	comm->split = true;
	label(comm, parent);
	session_unlock(s);
	if (!r)
		r = join(s, comm, SVC_SPLIT, &request, timeout_ms);
	bool member = !r && comm->key;
	if (!r)
		*newcomm = member ? comm : NULL;
	if (!member)
		free(comm);
	return r;
}

static struct svc_join rejoin_request(const ncclsvc_comm *comm, uint64_t timeout_ns)
{
	struct svc_join request = {
		.nranks = comm->world ? 0 : comm->nranks,
		.rank = comm->rank,
		.device = SVC_DEVICE_HOST,
		.flags = comm->world ? SVC_JOIN_WORLD : 0,
		.timeout_ns = timeout_ns,
	};
	if (!comm->world)
		memcpy(request.id, comm->id.bytes, sizeof(request.id));
	return request;
}

ncclsvc_result ncclsvc_comm_rejoin(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_rejoin: the communicator is NULL");
	ncclsvc_session *s = comm->session;
	struct call call = {.on_reply = rejoined, .arg = comm};
	session_lock(s);
	struct svc_join request = rejoin_request(comm, timeout_on_wire(timeout_ms));
	ncclsvc_result r = call_run(s, &call, SVC_JOIN, &request, -1, answer_deadline(timeout_ms));
	session_unlock(s);
	return r;
}

ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline)
{
	ncclsvc_result first = NCCLSVC_OK;
	char why[LOST_TEXT] = "";
	size_t n = 0, begun = 0;
	uint64_t now = now_ns();
	uint64_t timeout_ns = deadline == NO_DEADLINE ? 0 : deadline > now ? deadline - now : 1;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		n++;
	struct call *calls = calloc(n ? n : 1, sizeof(*calls));
	if (!calls)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	if (deadline != NO_DEADLINE)
		deadline += GRACE_NS;
	/* All at once: members may have joined their communicators in different orders. */
	for (ncclsvc_comm *c = s->comms; c && begun < n; c = c->next) {
		if (c->split)
			continue;
		struct svc_join request = rejoin_request(c, timeout_ns);
		calls[begun] = (struct call){.on_reply = rejoined, .arg = c};
		first = call_begin(s, &calls[begun], SVC_JOIN, &request, -1, deadline);
		if (first)
			break;
		begun++;
	}
	if (first)
		snprintf(why, sizeof(why), "%s", ncclsvc_last_error());
	for (size_t i = 0; i < begun; i++) {
		ncclsvc_result r = call_finish(s, &calls[i], deadline);
		if (r && !first) {
			first = r;
			snprintf(why, sizeof(why), "%s", ncclsvc_last_error());
		}
	}
	free(calls);
	return first ? error_set(first, "%s", why) : NCCLSVC_OK;
}

ncclsvc_result ncclsvc_comm_leave(ncclsvc_comm *comm)
{
	if (!comm)
		return NCCLSVC_OK;
	ncclsvc_session *s = comm->session;
	struct call call = {0};
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	if (!s->lost && comm->handle)
		r = call_run(s, &call, SVC_LEAVE, &(struct svc_leave){.comm = comm->handle}, -1,
			     deadline_in(REQUEST_MS));
	if (s->lost || r == NCCLSVC_NOT_FOUND)
		r = NCCLSVC_OK;
	if (!r)
		comm_unlink(s, comm);
	session_unlock(s);
	if (!r)
		free(comm);
	return r;
}

void comms_free(ncclsvc_session *s)
{
	while (s->comms) {
		ncclsvc_comm *c = s->comms;
		s->comms = c->next;
		free(c);
	}
}

int ncclsvc_comm_rank(const ncclsvc_comm *comm)
{
	return comm ? comm->rank : -1;
}

int ncclsvc_comm_size(const ncclsvc_comm *comm)
{
	return comm ? comm->nranks : -1;
}

uint32_t ncclsvc_comm_epoch(const ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	uint32_t epoch = comm->epoch;
	session_unlock(comm->session);
	return epoch;
}

void ncclsvc_comm_get_id(const ncclsvc_comm *comm, ncclsvc_unique_id *id)
{
	if (comm && id)
		*id = comm->id;
}

ncclsvc_result ncclsvc_comm_error(ncclsvc_comm *comm)
{
	if (!comm)
		return error_argument("ncclsvc_comm_error: the communicator is NULL");
	ncclsvc_session *s = comm->session;
	session_lock(s);
	socket_pump(s);
	tasks_look(s);
	ncclsvc_result r = failures_report(s, comm->key, UINT64_MAX);
	if (!r && comm->broken && !comm->broken_told) {
		comm->broken_told = true;
		r = broken_error(comm, comm->broken);
	}
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_comm_set_timeout(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_set_timeout: the communicator is NULL");
	session_lock(comm->session);
	comm->timeout_ns = timeout_on_wire(timeout_ms);
	session_unlock(comm->session);
	return NCCLSVC_OK;
}
