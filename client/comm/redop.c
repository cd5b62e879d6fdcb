/* SPDX-License-Identifier: Apache-2.0
 * Reductions that a member creates. Kernels get the scalar with each operation. The daemon gets it
 * when the first operation needs NCCL. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "proto/names.h"
#include "submit.h"

/* Locked. */
static ncclsvc_result check(ncclsvc_comm *comm)
{
	ncclsvc_result r = session_check(comm->session);
	if (!r)
		r = comm_check(comm);
	if (!r && comm->device < 0)
		r = error_set(NCCLSVC_UNSUPPORTED,
			      "communicator %s is a host communicator: premulsum needs GPUs",
			      comm->label);
	return r;
}

/* *at: a free entry. Locked. */
static ncclsvc_result find_free(ncclsvc_comm *comm, struct made_redop **at)
{
	if (!comm->redops)
		comm->redops = calloc(SVC_REDOPS_MADE, sizeof(*comm->redops));
	if (!comm->redops)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	for (*at = comm->redops; *at < comm->redops + SVC_REDOPS_MADE; ++*at)
		if (!(*at)->made)
			return NCCLSVC_OK;
	return error_set(NCCLSVC_LIMIT, "communicator %s has %d reductions already: destroy some",
			 comm->label, SVC_REDOPS_MADE);
}

ncclsvc_result ncclsvc_redop_create_premulsum(ncclsvc_comm *comm, const void *scalar,
					      ncclsvc_type type, ncclsvc_redop *redop)
{
	const size_t size = svc_type_size(type);
	struct made_redop *at = NULL;
	if (!comm || !scalar || !redop)
		return error_argument("ncclsvc_redop_create_premulsum: comm, scalar or redop is "
				      "NULL");
	if (!size || !svc_type_reduces(type))
		return error_argument("ncclsvc_redop_create_premulsum: %d is not an element type, "
				      "or cannot be reduced",
				      (int)type);
	session_lock(comm->session);
	ncclsvc_result r = check(comm);
	if (!r)
		r = find_free(comm, &at);
	if (!r) {
		*at = (struct made_redop){.made = true, .type = (uint8_t)type};
		memcpy(at->scalar, scalar, size);
		*redop = (ncclsvc_redop)(SVC_REDOP_MADE + (at - comm->redops));
	}
	session_unlock(comm->session);
	return r;
}

/* Keeps the daemon's number, unless the reduction was destroyed meanwhile, or another thread has
 * sent it, too. Locked. */
static void number_put(ncclsvc_comm *comm, unsigned redop, const struct svc_redop_add *sent,
		       uint32_t number)
{
	struct made_redop *at = comm_redop(comm, redop);
	if (comm->handle != sent->comm)
		return;
	if (at && !at->number && at->type == sent->type &&
	    !memcmp(at->scalar, sent->scalar, sizeof(at->scalar)))
		at->number = number;
	else
		call_forget(comm->session, SVC_REDOP_DEL,
			    &(struct svc_redop_del){.comm = sent->comm, .redop = number});
}

ncclsvc_result redop_send(ncclsvc_comm *comm, unsigned redop)
{
	ncclsvc_session *s = comm->session;
	const struct made_redop *at = comm_redop(comm, redop);
	struct call call = {0};
	struct svc_redop_reply reply;
	if (!at)
		return error_argument("reduction %u of communicator %s has been destroyed", redop,
				      comm->label);
	struct svc_redop_add request = {.comm = comm->handle, .type = at->type};
	memcpy(request.scalar, at->scalar, sizeof(request.scalar));
	ncclsvc_result r = call_run(s, &call, SVC_REDOP_ADD, &request, -1, deadline_in(REQUEST_MS));
	if (r)
		return r;
	memcpy(&reply, call.body, sizeof(reply));
	if (!svc_redop_made(reply.redop)) {
		session_lose(s, "the daemon broke the protocol: it created reduction %u",
			     reply.redop);
		return session_check(s);
	}
	number_put(comm, redop, &request, reply.redop);
	return NCCLSVC_OK;
}

void redops_forget(const ncclsvc_comm *comm)
{
	for (unsigned i = 0; comm->redops && i < SVC_REDOPS_MADE; i++)
		comm->redops[i].number = 0;
}

ncclsvc_result ncclsvc_redop_destroy(ncclsvc_comm *comm, ncclsvc_redop redop)
{
	struct call call = {0};
	if (!comm)
		return error_argument("ncclsvc_redop_destroy: the communicator is NULL");
	ncclsvc_session *s = comm->session;
	session_lock(s);
	ncclsvc_result r = check(comm);
	struct made_redop *at = r ? NULL : comm_redop(comm, (unsigned)redop);
	if (!r && !at)
		r = error_argument(
			"ncclsvc_redop_destroy: communicator %s has no reduction %d in this epoch",
			comm->label, (int)redop);
	if (!r) {
		const struct svc_redop_del request = {.comm = comm->handle, .redop = at->number};
		*at = (struct made_redop){0};
		if (request.redop)
			r = call_run(s, &call, SVC_REDOP_DEL, &request, -1,
				     deadline_in(REQUEST_MS));
	}
	session_unlock(s);
	return r;
}
