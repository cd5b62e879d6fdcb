/* SPDX-License-Identifier: Apache-2.0
 * Operations that the library refuses by itself never reach the daemon, and the other ranks wait
 * for them. The daemon is told, so that `ncclsvc-ctl why` can say what happened. */
#include "refusal.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "core/call.h"
#include "core/comm.h"
#include "core/session.h"
#include "proto/names.h"
#include "proto/operation.h"

/* The caller tries again after AGAIN or BUSY, and the daemon knows the other causes. */
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

void refusal_tell(const struct op *op)
{
	struct error why;
	error_keep(&why);
	const ncclsvc_result result = (ncclsvc_result)why.status.result;
	const ncclsvc_comm *comm = op->comm;
	ncclsvc_session *s = comm->session;
	if (op->entered || !is_refusal(result) || !svc_op_known(op->record.op) || !comm->handle ||
	    s->lost || s->connection->version < 3)
		return;
	struct svc_refused told = {.comm = comm->handle,
				   .epoch = comm->epoch,
				   .seq = comm->seq,
				   .result = result,
				   .op = op->record.op};
	snprintf(told.text, sizeof(told.text), "%.*s", (int)sizeof(told.text) - 1,
		 sentence(&why, op->record.op));
	call_forget(s, SVC_REFUSED, &told);
}
