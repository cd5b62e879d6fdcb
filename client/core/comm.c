/* SPDX-License-Identifier: Apache-2.0
 * Communicator handles, and what the daemon reports about them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "call.h"
#include "comm.h"
#include "dispatch.h"
#include "failure.h"
#include "proto/names.h"
#include "proto/printable.h"
#include "session.h"
#include "socket.h"

void id_derive(const ncclsvc_unique_id *from, uint64_t key, ncclsvc_unique_id *to)
{
	uint64_t words[NCCLSVC_ID_BYTES / sizeof(uint64_t)];
	const size_t last = sizeof(words) / sizeof(words[0]) - 1;
	memcpy(words, from->bytes, sizeof(words));
	/* Deriving twice with one key must not restore the first id. */
	words[last] = (words[last] ^ key) * UINT64_C(0x9e3779b97f4a7c15);
	words[last] ^= words[last] >> 32;
	words[0] ^= words[last]; /* people see its first bytes */
	memcpy(to->bytes, words, sizeof(words));
}

ncclsvc_comm *comm_by_key(const ncclsvc_session *s, uint32_t key)
{
	ncclsvc_comm *c = s->comms;
	while (c && c->key != key)
		c = c->next;
	return c;
}

const char *comm_label(const ncclsvc_session *s, uint32_t key)
{
	const ncclsvc_comm *c = comm_by_key(s, key);
	return c ? c->label : "(left)";
}

ncclsvc_comm *comm_by_handle(const ncclsvc_session *s, uint32_t handle)
{
	ncclsvc_comm *c = s->comms;
	while (c && c->handle != handle)
		c = c->next;
	return handle ? c : NULL;
}

void comm_unlink(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_comm **at = &s->comms;
	while (*at && *at != comm)
		at = &(*at)->next;
	if (*at)
		*at = comm->next;
}

void comm_apply(ncclsvc_session *s, ncclsvc_comm *comm, const struct svc_join_reply *reply)
{
	comm->handle = reply->comm;
	comm->uid = reply->comm_uid;
	comm->epoch = reply->epoch;
	comm->seq = comm->collectives = 0;
	comm->peer_bytes = reply->peer_bytes;
	comm->broken = NCCLSVC_OK;
	memcpy(comm->label, reply->label, sizeof(comm->label));
	svc_make_printable(comm->label, sizeof(comm->label));
	comm->broken_told = comm->end_told = true;
	if (comm->key)
		failures_forgive(s, comm->key);
}

bool join_reply_valid(const struct svc_join_reply *r)
{
	return r->comm && r->nranks > 0 && r->nranks <= SVC_RANKS_MAX && r->rank >= 0 &&
	       r->rank < r->nranks;
}

void comm_give_back(ncclsvc_session *s, const struct svc_join_reply *reply)
{
	ncclsvc_comm *comm = comm_by_handle(s, reply->comm);
	if (comm && join_reply_valid(reply))
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
	comm->end = event->status;
	comm->broken_told = false;
	comm->end_told = failure_told(s, comm->key, comm->epoch, comm->broken);
	calls_cancel_beside(s, comm->key);
	dispatch_kick(s);
}

void comms_break(ncclsvc_session *s)
{
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		c->handle = 0;
		c->broken = NCCLSVC_DAEMON_LOST;
		c->broken_told = false;
		c->end_told = true; /* session_check reports it */
		c->end =
			(ncclsvc_status){.result = NCCLSVC_DAEMON_LOST, .rank_a = -1, .rank_b = -1};
		if (c->peer && s->kernel_hooks)
			s->kernel_hooks->break_off(c->peer);
	}
}

static ncclsvc_result broken_error(const ncclsvc_comm *comm, ncclsvc_result result)
{
	if (comm->broken == NCCLSVC_DAEMON_LOST)
		return error_set(result, "communicator %s ended with its daemon: %s", comm->label,
				 comm->split ? "reattach, then split again"
					     : "reattach, or rejoin it");
	char sentence[SVC_TEXT_BYTES];
	ncclsvc_status status = comm->end;
	svc_status_reason(&status, sentence, sizeof(sentence));
	status.result = result;
	status.number = 0; /* the status belongs to no task */
	return error_set_status(
		&status, "communicator %s: epoch %u is over: %s%s", comm->label, comm->epoch,
		sentence, comm->broken == NCCLSVC_PEER_GONE ? "" : "; rejoin the communicator");
}

ncclsvc_result comm_check(ncclsvc_comm *comm)
{
	if (!comm->broken)
		return NCCLSVC_OK;
	const ncclsvc_result r = comm->end_told ? NCCLSVC_STALE_EPOCH : comm->broken;
	comm->end_told = true;
	return broken_error(comm, r);
}

ncclsvc_result comm_end(const ncclsvc_comm *comm)
{
	return comm->broken ? broken_error(comm, comm->broken) : NCCLSVC_OK;
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
		comm->broken_told = comm->end_told = true;
		r = broken_error(comm, comm->broken);
	}
	session_unlock(s);
	return r;
}

void ncclsvc_comm_abort(ncclsvc_comm *comm)
{
	if (!comm)
		return;
	ncclsvc_session *s = comm->session;
	session_lock(s);
	if (comm->peer && s->kernel_hooks)
		s->kernel_hooks->break_off(comm->peer);
	if (comm->handle)
		call_forget(s, SVC_ABORT,
			    &(struct svc_abort){.comm = comm->handle, .epoch = comm->epoch});
	session_unlock(s);
}

ncclsvc_result ncclsvc_comm_set_timeout(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_set_timeout: the communicator is NULL");
	session_lock(comm->session);
	__atomic_store_n(&comm->timeout_ns, timeout_on_wire(timeout_ms), __ATOMIC_RELAXED);
	session_unlock(comm->session);
	return NCCLSVC_OK;
}
