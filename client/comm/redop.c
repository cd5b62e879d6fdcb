/* SPDX-License-Identifier: Apache-2.0
 * Reduction operators created by a member. */
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "proto/names.h"

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

ncclsvc_result ncclsvc_redop_create_premulsum(ncclsvc_comm *comm, const void *scalar,
					      ncclsvc_type type, ncclsvc_redop *redop)
{
	struct call call = {0};
	struct svc_redop_reply reply;
	const size_t size = svc_type_size(type);
	if (!comm || !scalar || !redop)
		return error_argument("ncclsvc_redop_create_premulsum: comm, scalar or redop is "
				      "NULL");
	if (!size || !svc_type_reduces(type))
		return error_argument("ncclsvc_redop_create_premulsum: %d is not an element type, "
				      "or cannot be reduced",
				      (int)type);
	ncclsvc_session *s = comm->session;
	session_lock(s);
	ncclsvc_result r = check(comm);
	struct svc_redop_add request = {.comm = comm->handle, .type = (uint8_t)type};
	memcpy(request.scalar, scalar, size);
	if (!r)
		r = call_run(s, &call, SVC_REDOP_ADD, &request, -1, deadline_in(REQUEST_MS));
	memcpy(&reply, call.body, sizeof(reply));
	if (!r && !svc_redop_made(reply.redop)) {
		session_lose(s, "the daemon broke the protocol: it created reduction %u",
			     reply.redop);
		r = session_check(s);
	}
	session_unlock(s);
	if (!r)
		*redop = (ncclsvc_redop)reply.redop;
	return r;
}

ncclsvc_result ncclsvc_redop_destroy(ncclsvc_comm *comm, ncclsvc_redop redop)
{
	struct call call = {0};
	if (!comm)
		return error_argument("ncclsvc_redop_destroy: the communicator is NULL");
	ncclsvc_session *s = comm->session;
	session_lock(s);
	ncclsvc_result r = check(comm);
	const struct svc_redop_del request = {.comm = comm->handle, .redop = (uint32_t)redop};
	if (!r)
		r = call_run(s, &call, SVC_REDOP_DEL, &request, -1, deadline_in(REQUEST_MS));
	session_unlock(s);
	return r;
}
