/* SPDX-License-Identifier: Apache-2.0
 * A communicator's epoch, from the reply to JOIN or SPLIT to its end. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "call.h"
#include "comm_handle.h"
#include "failure.h"
#include "proto/names.h"
#include "proto/printable.h"
#include "session_handle.h"

static void begin_lineage(ncclsvc_session *s, ncclsvc_comm *comm,
			  const struct svc_join_reply *reply)
{
	free(comm->messages);
	free(comm->damaged);
	comm->messages = comm->damaged = NULL;
	comm->ndamaged = 0;
	comm->order = comm->splits = comm->plans = 0;
	comm->counts++;
	comm->spoilt = false;
	comm->why[0] = '\0';
	comm->resuming = reply->lineage & SVC_LINEAGE_RESUMED;
	comm->lineage = reply->lineage & ~SVC_LINEAGE_RESUMED;
	if (comm->lineage)
		comm->messages = calloc(4 * (size_t)reply->nranks, sizeof(*comm->messages));
	if (!comm->messages)
		session_survives(s, false);
}

void comm_apply(ncclsvc_session *s, ncclsvc_comm *comm, const struct svc_join_reply *reply)
{
	comm->handle = reply->comm;
	comm->uid = reply->comm_uid;
	comm->epoch = reply->epoch;
	comm->first_here = (int32_t)reply->first_here;
	comm->suspended = false;
	comm->seq = comm->collectives = 0;
	free(comm->redops);
	comm->redops = NULL;
	begin_lineage(s, comm, reply);
	comm->peer_bytes = reply->peer_bytes;
	comm->broken = NCCLSVC_OK;
	memcpy(comm->label, reply->label, sizeof(comm->label));
	svc_make_printable(comm->label, sizeof(comm->label));
	comm->broken_reported = comm->end_reported = true;
	if (comm->key)
		failures_forgive(s, comm->key);
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
	comm->end = event->status;
	if (event->suspended && comm->lineage && session_suspend(s)) {
		comm->suspended = true;
		return;
	}
	comm->broken = event->reason < 0 ? (ncclsvc_result)event->reason : NCCLSVC_PEER_GONE;
	comm->broken_ns = now_ns();
	comm->broken_reported = false;
	comm->end_reported = failure_reported(s, comm->key, comm->epoch, comm->broken);
	calls_cancel_beside(s, comm->key);
	session_kick(s);
}

void comms_break(ncclsvc_session *s)
{
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		c->handle = 0;
		c->broken = NCCLSVC_DAEMON_LOST;
		c->broken_reported = false;
		c->end_reported = true; /* session_check reports it */
		c->end =
			(ncclsvc_status){.result = NCCLSVC_DAEMON_LOST, .rank_a = -1, .rank_b = -1};
		if (c->peer && s->kernel_callbacks)
			s->kernel_callbacks->break_off(c->peer);
	}
}

static ncclsvc_result broken_error(const ncclsvc_comm *comm, ncclsvc_result result)
{
	if (comm->why[0])
		return error_set(result,
				 "communicator %s was not continued after a restart of the "
				 "daemon: %s",
				 comm->label, comm->why);
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
	if (!comm->broken && comm->asleep)
		return error_argument(
			"communicator %s is suspended: call ncclsvc_comm_resume first",
			comm->label);
	if (!comm->broken)
		return NCCLSVC_OK;
	const ncclsvc_result r = comm->end_reported ? NCCLSVC_STALE_EPOCH : comm->broken;
	comm->end_reported = true;
	return broken_error(comm, r);
}

ncclsvc_result comm_end(const ncclsvc_comm *comm)
{
	return comm->broken ? broken_error(comm, comm->broken) : NCCLSVC_OK;
}
