/* SPDX-License-Identifier: Apache-2.0
 * Lists on a communicator, and the second communicator that they use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "batch.h"
#include "comm/join.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "list_request.h"

#define COMPANION UINT64_C(0x6c69737473) /* key of the second communicator's id */
#define LABEL	  "lists on "

static ncclsvc_result check_first(const ncclsvc_comm *comm, const ncclsvc_unique_id *id)
{
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(comm->session);
	for (const ncclsvc_comm *c = comm->session->comms; !r && c; c = c->next)
		if (c->rank == comm->rank && !memcmp(&c->id, id, sizeof(*id)))
			r = error_set(NCCLSVC_RANK_TAKEN,
				      "this rank already has lists on communicator %s",
				      comm->label);
	session_unlock(comm->session);
	return r;
}

ncclsvc_result ncclsvc_tensors_open(ncclsvc_comm *comm, int timeout_ms, ncclsvc_tensors **lists)
{
	ncclsvc_unique_id id;
	char label[NCCLSVC_NAME_BYTES];
	if (!comm || !lists)
		return error_argument("ncclsvc_tensors_open: the communicator or lists is NULL");
	id_derive(&comm->id, COMPANION, &id);
	ncclsvc_result r = check_first(comm, &id);
	if (r)
		return r;
	ncclsvc_tensors *l = calloc(1, sizeof(*l));
	if (!l)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	*l = (ncclsvc_tensors){.session = comm->session, .comm = comm};
	snprintf(label, sizeof(label), LABEL "%.*s", (int)(sizeof(label) - sizeof(LABEL)),
		 comm->label);
	ncclsvc_comm_label_next(label);
	r = ncclsvc_comm_join(l->session, &id, comm->nranks, comm->rank, timeout_ms, &l->host);
	if (r) {
		free(l);
		return r;
	}
	*lists = l;
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_tensors_open_group(const ncclsvc_world *world, ncclsvc_group_type type,
					  int timeout_ms, ncclsvc_tensors **lists)
{
	ncclsvc_comm *comm = ncclsvc_world_comm(world, type);
	if (!comm)
		return error_argument("group type is %d: use 0 to %d, of a world", (int)type,
				      NCCLSVC_GROUP_TYPES - 1);
	return ncclsvc_tensors_open(comm, timeout_ms, lists);
}

ncclsvc_result ncclsvc_tensors_rejoin(ncclsvc_tensors *l, int timeout_ms)
{
	if (!l)
		return error_argument("ncclsvc_tensors_rejoin: lists is NULL");
	const ncclsvc_result r = lists_callable(l);
	return r ? r : comm_renew(l->host, timeout_ms, NULL);
}

ncclsvc_result ncclsvc_tensors_close(ncclsvc_tensors *l)
{
	if (!l)
		return NCCLSVC_OK;
	lists_go_on(l);
	for (struct ncclsvc_request *q = l->requests; q; q = q->next)
		if (q->batch || request_close(q))
			return error_set(NCCLSVC_BUSY, "a list is in progress: wait for it first");
	while (l->requests)
		request_drop(l->requests);
	for (struct stage_buffer *b = l->buffers; b; b = b->next)
		if (copy_done(l, &b->copied) == NCCLSVC_IN_PROGRESS)
			return error_set(NCCLSVC_BUSY, "a copy of a list that failed is still on "
						       "its stream: synchronize the stream first");
	ncclsvc_result r = buffers_free(l);
	if (!r)
		r = ncclsvc_comm_leave(l->host);
	if (!r)
		free(l);
	return r;
}

uint64_t ncclsvc_tensors_copied(const ncclsvc_tensors *l)
{
	return l ? l->copied : 0;
}
