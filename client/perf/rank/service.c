/* SPDX-License-Identifier: Apache-2.0 */
#include "service.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

ncclsvc_result service_open(const struct service_options *o, ncclsvc_session **session)
{
	char path[128];
	const char *here = o->nodes > 1 ? strstr(o->socket, "%r") : NULL;
	const int nodes = (int)o->nodes;
	if (here)
		snprintf(path, sizeof(path), "%.*s%d%s", (int)(here - o->socket), o->socket,
			 o->dealt ? o->rank % nodes : o->rank * nodes / o->nranks, here + 2);
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = here ? path : o->socket,
				   .name = "ncclsvc-perf",
				   .no_ring = o->no_ring,
				   .timeout_ms = o->timeout_ms};
	return ncclsvc_open(&options, session);
}

ncclsvc_result service_join(ncclsvc_session *session, const struct service_options *o,
			    const uint8_t id[NCCLSVC_ID_BYTES], int device, ncclsvc_comm **comm)
{
	ncclsvc_unique_id unique;
	ncclsvc_result result;
	memcpy(unique.bytes, id, sizeof(unique.bytes));
	ncclsvc_comm_tuning_next(o->blocks, o->copy_engines);
	if (device == NCCLSVC_DEVICE_HOST)
		result = ncclsvc_comm_join(session, &unique, o->nranks, o->rank, o->timeout_ms,
					   comm);
	else
		result = ncclsvc_comm_join_device(session, &unique, o->nranks, o->rank, device,
						  o->timeout_ms, comm);
	return result ? result : ncclsvc_comm_set_timeout(*comm, o->timeout_ms);
}

static ncclsvc_result send_and_receive(ncclsvc_session *session, ncclsvc_comm *comm,
				       const struct work *w, const void *send, void *recv,
				       ncclsvc_task task[2])
{
	int rank = ncclsvc_comm_rank(comm), n = ncclsvc_comm_size(comm);
	ncclsvc_result result = ncclsvc_group_begin(session);
	if (result)
		return result;
	/* If an operation in between is refused, group_end fails with its error. */
	(void)ncclsvc_send(send, w->count, w->type, (rank + 1) % n, comm, &task[0]);
	(void)ncclsvc_recv(recv, w->count, w->type, (rank + n - 1) % n, comm, &task[1]);
	return ncclsvc_group_end(session);
}

ncclsvc_result service_submit(ncclsvc_session *session, ncclsvc_comm *comm, const struct work *w,
			      void *send, void *recv, ncclsvc_task task[2])
{
	ncclsvc_task *t = &task[0];
	task[0] = task[1] = 0;
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
		return ncclsvc_all_reduce(send, recv, w->count, w->type, w->redop, comm, t);
	case NCCLSVC_ALL_GATHER:
		return ncclsvc_all_gather(send, recv, w->count, w->type, comm, t);
	case NCCLSVC_REDUCE_SCATTER:
		return ncclsvc_reduce_scatter(send, recv, w->count, w->type, w->redop, comm, t);
	case NCCLSVC_BROADCAST:
		return ncclsvc_broadcast(send, recv, w->count, w->type, w->root, comm, t);
	case NCCLSVC_REDUCE:
		return ncclsvc_reduce(send, recv, w->count, w->type, w->redop, w->root, comm, t);
	case NCCLSVC_ALL_TO_ALL:
		return ncclsvc_all_to_all(send, recv, w->count, w->type, comm, t);
	case NCCLSVC_GATHER:
		return ncclsvc_gather(send, recv, w->count, w->type, w->root, comm, t);
	case NCCLSVC_SCATTER:
		return ncclsvc_scatter(send, recv, w->count, w->type, w->root, comm, t);
	case PERF_SENDRECV:
		return send_and_receive(session, comm, w, send, recv, task);
	case NCCLSVC_BARRIER:
		return ncclsvc_barrier(comm, t);
	}
	return NCCLSVC_INVALID_ARGUMENT;
}

int service_patience_ms(const struct service_options *o)
{
	return o->timeout_ms + 2000;
}

ncclsvc_result service_barrier(ncclsvc_session *session, const struct service_options *o,
			       ncclsvc_comm *comm)
{
	ncclsvc_task task = 0;
	ncclsvc_result result = ncclsvc_barrier(comm, &task);
	return result ? result : ncclsvc_wait(session, task, service_patience_ms(o));
}

ncclsvc_result service_limit(ncclsvc_session *session, uint64_t *bytes)
{
	ncclsvc_member_info *members = NULL;
	ncclsvc_comm_info *comms = NULL;
	size_t n_members = 0, n_comms = 0;
	ncclsvc_result result = ncclsvc_list_members(session, &members, &n_members);
	if (!result)
		result = ncclsvc_list_comms(session, &comms, &n_comms);
	for (size_t i = 0; i < n_members; i++)
		for (size_t k = 0; k < n_comms && members[i].pid == getpid(); k++)
			if (comms[k].comm == members[i].comm && comms[k].peer_bytes > *bytes)
				*bytes = comms[k].peer_bytes;
	ncclsvc_list_free(members);
	ncclsvc_list_free(comms);
	return result;
}

/* Enough that resets are rare, few enough that all fit into the ring. */
#define PLAN_GROUPS 128

ncclsvc_result service_plan_start(struct service_plan *p, ncclsvc_comm *comm, int timeout_ms)
{
	int rank = ncclsvc_comm_rank(comm), n = ncclsvc_comm_size(comm);
	ncclsvc_result result = ncclsvc_plan_start(comm, &p->plan);
	for (int g = 0; g < PLAN_GROUPS && !result; g++) {
		result = ncclsvc_plan_group_start(p->plan);
		if (!result)
			result = ncclsvc_plan_send(p->plan, NCCLSVC_PLAN_ANY, NCCLSVC_INT8,
						   (rank + 1) % n);
		if (!result)
			result = ncclsvc_plan_recv(p->plan, NCCLSVC_PLAN_ANY, NCCLSVC_INT8,
						   (rank + n - 1) % n);
		if (!result)
			result = ncclsvc_plan_group_end(p->plan);
	}
	if (!result)
		result = ncclsvc_plan_end(p->plan, timeout_ms);
	return result ? result : ncclsvc_plan_launch(p->plan);
}

ncclsvc_result service_plan_submit(struct service_plan *p, ncclsvc_comm *comm, const struct work *w,
				   void *send, void *recv, int timeout_ms, ncclsvc_task task[2])
{
	int rank = ncclsvc_comm_rank(comm), n = ncclsvc_comm_size(comm);
	ncclsvc_result result = NCCLSVC_OK;
	if (p->at == PLAN_GROUPS) {
		result = ncclsvc_plan_reset(p->plan, timeout_ms);
		p->at = 0;
	}
	if (!result)
		result = ncclsvc_plan_submit_send(p->plan, send, w->count, w->type, (rank + 1) % n,
						  &task[0]);
	if (!result)
		result = ncclsvc_plan_submit_recv(p->plan, recv, w->count, w->type,
						  (rank + n - 1) % n, &task[1]);
	p->at++;
	return result;
}

void service_explain(struct reply *reply, ncclsvc_result result)
{
	reply->result = result;
	const char *why = ncclsvc_last_error();
	snprintf(reply->text, sizeof(reply->text), "%s: %s", ncclsvc_result_name(result),
		 *why ? why : ncclsvc_result_meaning(result));
}
