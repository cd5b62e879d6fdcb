/* SPDX-License-Identifier: Apache-2.0
 * Operations that the library refuses by itself never reach the daemon, and the other ranks wait
 * for them. The daemon is told, so that `ncclsvc-ctl why` can say what happened. */
#include "refusal.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "call.h"
#include "comm_handle.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "session_handle.h"

/* The caller tries again after AGAIN or BUSY, and the daemon knows the other causes. After
 * PEER_GONE it only wants to know that the rank still had something to do. */
static bool is_refusal(ncclsvc_result result)
{
	switch (result) {
	case NCCLSVC_INVALID_ARGUMENT:
	case NCCLSVC_LIMIT:
	case NCCLSVC_PERMISSION:
	case NCCLSVC_NOT_FOUND:
	case NCCLSVC_NO_MEMORY:
	case NCCLSVC_UNSUPPORTED:
	case NCCLSVC_SYSTEM:
	case NCCLSVC_PEER_GONE:
		return true;
	default:
		return false;
	}
}

/* Skips the name of the operation, which the daemon writes itself. */
static const char *sentence(const struct error *e, unsigned op)
{
	const char *name = svc_op_name(op);
	const size_t n = strlen(name);
	return !strncmp(e->text, name, n) && !strncmp(e->text + n, ": ", 2) ? e->text + n + 2
									    : e->text;
}

static void send_refused(const ncclsvc_comm *comm, unsigned op, uint64_t seq, ncclsvc_result result,
			 const char *text)
{
	ncclsvc_session *s = comm->session;
	if (!is_refusal(result) || !svc_op_known(op) || !comm->handle || s->lost)
		return;
	struct svc_refused request = {.comm = comm->handle,
				      .epoch = comm->epoch,
				      .seq = seq,
				      .result = result,
				      .op = (uint8_t)op};
	snprintf(request.text, sizeof(request.text), "%.*s", (int)sizeof(request.text) - 1, text);
	call_forget(s, SVC_REFUSED, &request);
}

void refusal_tell(const struct op *op)
{
	struct error why;
	error_keep(&why);
	if (!op->entered)
		send_refused(op->comm, op->record.op, op->comm->seq,
			     (ncclsvc_result)why.status.result, sentence(&why, op->record.op));
}

void refusal_tell_too_late(ncclsvc_session *s, const struct slot *slot)
{
	ncclsvc_comm *comm = comm_by_key(s, slot->comm_key);
	if (!comm || comm->epoch != slot->epoch || comm->too_late == comm->epoch)
		return;
	comm->too_late = comm->epoch;
	send_refused(comm, slot->op, slot->seq, NCCLSVC_PEER_GONE, "");
}
