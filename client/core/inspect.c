/* SPDX-License-Identifier: Apache-2.0
 * Inspection and cancellation. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "call.h"
#include "proto/printable.h"
#include "session_handle.h"

ncclsvc_result ncclsvc_daemon(ncclsvc_session *s, ncclsvc_daemon_info *info)
{
	struct call call = {0};
	if (!s || !info)
		return error_argument("ncclsvc_daemon: the session or info is NULL");
	session_lock(s);
	ncclsvc_result r = call_run(s, &call, SVC_DAEMON_INFO, &(struct svc_daemon_info_request){0},
				    -1, deadline_in(REQUEST_MS));
	session_unlock(s);
	if (r)
		return r;
	struct svc_daemon_info_reply reply;
	memcpy(&reply, call.body, sizeof(reply));
	svc_make_printable(reply.info.version, sizeof(reply.info.version));
	svc_make_printable(reply.info.mps_text, sizeof(reply.info.mps_text));
	*info = reply.info;
	return NCCLSVC_OK;
}

#define LIST_BYTES_MAX ((size_t)1 << 30) /* no daemon has this much to list */

/* A list that is received in chunks. */
struct list {
	char *records;
	size_t n, room, record_size; /* records in our format */
};

/* Converts records of the daemon's length to ours. */
static bool append(struct list *l, const struct list_chunk *p)
{
	const size_t theirs = p->head.record_size, ours = l->record_size;
	if (p->head.count > l->room - l->n) {
		size_t room = 2 * (l->n + p->head.count);
		char *more = realloc(l->records, room * ours);
		if (!more)
			return false;
		l->records = more;
		l->room = room;
	}
	for (uint32_t i = 0; i < p->head.count; i++) {
		char *to = l->records + l->n++ * ours;
		memset(to, 0, ours);
		memcpy(to, p->records + i * theirs, theirs < ours ? theirs : ours);
	}
	return true;
}

static ncclsvc_result get_chunks(ncclsvc_session *s, uint32_t what, uint64_t from, struct list *l,
				 struct list_chunk *chunk)
{
	struct svc_list request = {.what = what, .node = s->list_node, .from = from};
	uint64_t deadline = deadline_in(REQUEST_MS);
	do {
		struct call call = {.fd = -1, .chunk = chunk};
		ncclsvc_result r = call_run(s, &call, SVC_LIST, &request, -1, deadline);
		if (r)
			return r;
		if (chunk->head.what != what || !chunk->head.record_size ||
		    (chunk->head.next && chunk->head.next <= request.from))
			return error_set(NCCLSVC_PROTOCOL, "the daemon's list %u is malformed",
					 what);
		if ((l->n + chunk->head.count) * l->record_size > LIST_BYTES_MAX)
			return error_set(NCCLSVC_LIMIT, "the daemon's list %u is longer than 1 GiB",
					 what);
		if (!append(l, chunk))
			return error_set(NCCLSVC_NO_MEMORY, "no memory for a list of %zu records",
					 l->n + chunk->head.count);
		request.from = chunk->head.next;
	} while (request.from);
	return NCCLSVC_OK;
}

static ncclsvc_result get_list(ncclsvc_session *s, uint32_t what, uint64_t from, size_t record_size,
			       void **list, size_t *n)
{
	struct list l = {.record_size = record_size};
	if (!s || !list || !n)
		return error_argument("ncclsvc_list: the session, list or n is NULL");
	struct list_chunk *chunk = malloc(sizeof(*chunk));
	if (!chunk)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	session_lock(s);
	ncclsvc_result r = get_chunks(s, what, from, &l, chunk);
	session_unlock(s);
	free(chunk);
	if (r) {
		free(l.records);
		return r;
	}
	*list = l.records;
	*n = l.n;
	return NCCLSVC_OK;
}

/* texts: the record's text fields, made printable here so that callers can print them as they are.
 */
#define LIST(function, what, type, texts)                                                          \
	ncclsvc_result function(ncclsvc_session *s, type **list, size_t *n)                        \
	{                                                                                          \
		ncclsvc_result r = get_list(s, what, 0, sizeof(type), (void **)list, n);           \
		for (type *x = r ? NULL : *list; x && x < *list + *n; x++) {                       \
			texts                                                                      \
		}                                                                                  \
		return r;                                                                          \
	}
#define TEXT(field) svc_make_printable(x->field, sizeof(x->field));

LIST(ncclsvc_list_sessions, SVC_LIST_SESSIONS, ncclsvc_session_info,
     TEXT(name) TEXT(job) TEXT(cgroup) TEXT(tenant))
LIST(ncclsvc_list_comms, SVC_LIST_COMMS, ncclsvc_comm_info,
     TEXT(label) TEXT(refused) TEXT(job) TEXT(tenant))
LIST(ncclsvc_list_members, SVC_LIST_MEMBERS, ncclsvc_member_info, )
LIST(ncclsvc_list_tasks, SVC_LIST_TASKS, ncclsvc_task_info, TEXT(label) TEXT(tenant))
LIST(ncclsvc_list_regions, SVC_LIST_REGIONS, ncclsvc_region_info, )
LIST(ncclsvc_list_devices, SVC_LIST_DEVICES, ncclsvc_device_info, TEXT(name) TEXT(text))
LIST(ncclsvc_list_operations, SVC_LIST_OPERATIONS, ncclsvc_operation_info,
     TEXT(comm_label) TEXT(label))
LIST(ncclsvc_list_nodes, SVC_LIST_NODES, ncclsvc_node_info, TEXT(host) TEXT(address))
LIST(ncclsvc_list_lateness, SVC_LIST_LATENESS, ncclsvc_lateness_info, )
LIST(ncclsvc_list_plans, SVC_LIST_PLANS, ncclsvc_plan_info, )
LIST(ncclsvc_list_plan_tasks, SVC_LIST_PLAN_TASKS, ncclsvc_plan_task_info, TEXT(label))

ncclsvc_result ncclsvc_list_from(ncclsvc_session *s, int node)
{
	if (!s || node < -1)
		return error_argument("ncclsvc_list_from: the session is NULL, or node is "
				      "below -1");
	session_lock(s);
	s->list_node = (uint32_t)(node + 1);
	session_unlock(s);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_list_failures(ncclsvc_session *s, uint64_t from, ncclsvc_failure_info **list,
				     size_t *n)
{
	ncclsvc_result r = get_list(s, SVC_LIST_FAILURES, from, sizeof(**list), (void **)list, n);
	for (ncclsvc_failure_info *x = r ? NULL : *list; x && x < *list + *n; x++) {
		TEXT(label) TEXT(host) TEXT(job) TEXT(text) TEXT(tenant)
	}
	return r;
}

void ncclsvc_list_free(void *list)
{
	free(list);
}

uint32_t ncclsvc_session_id(ncclsvc_session *s)
{
	if (!s)
		return 0;
	session_lock(s);
	const uint32_t id = s->connection->session;
	session_unlock(s);
	return id;
}

static ncclsvc_result cancel(ncclsvc_session *s, uint32_t kind, uint64_t id, uint64_t *cancelled)
{
	struct call call = {0};
	struct svc_cancel_reply reply;
	if (!s)
		return error_argument("ncclsvc_cancel: the session is NULL");
	session_lock(s);
	ncclsvc_result r =
		call_run(s, &call, SVC_CANCEL, &(struct svc_cancel){.kind = kind, .id = id}, -1,
			 deadline_in(REQUEST_MS));
	session_unlock(s);
	memcpy(&reply, call.body, sizeof(reply));
	if (!r && cancelled)
		*cancelled = reply.cancelled;
	return r;
}

ncclsvc_result ncclsvc_drain(ncclsvc_session *s, int on)
{
	struct call call = {0};
	if (!s)
		return error_argument("ncclsvc_drain: the session is NULL");
	session_lock(s);
	const ncclsvc_result r = call_run(s, &call, SVC_DRAIN, &(struct svc_drain){.on = on != 0},
					  -1, deadline_in(REQUEST_MS));
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_cancel_task(ncclsvc_session *s, uint64_t task, uint64_t *cancelled)
{
	return cancel(s, SVC_CANCEL_TASK, task, cancelled);
}

ncclsvc_result ncclsvc_cancel_comm(ncclsvc_session *s, uint64_t comm, uint64_t *cancelled)
{
	return cancel(s, SVC_CANCEL_COMM, comm, cancelled);
}

ncclsvc_result ncclsvc_cancel_session(ncclsvc_session *s, uint32_t id, uint64_t *cancelled)
{
	return cancel(s, SVC_CANCEL_SESSION, id, cancelled);
}
