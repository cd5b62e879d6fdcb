/* SPDX-License-Identifier: Apache-2.0
 * Inspection and cancellation. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/plan.h"

#define RECORD_MAX 65536 /* bytes of one record, of any daemon to come */

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
	reply.info.version[sizeof(reply.info.version) - 1] = '\0';
	*info = reply.info;
	return NCCLSVC_OK;
}

/* Reading, unlike mapping, needs no trust in the file. */
static bool read_whole(int fd, char *to, size_t bytes)
{
	size_t done = 0;
	while (done < bytes) {
		ssize_t n = pread(fd, to + done, bytes - done, (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

/* Records of the daemon's length to records of ours. */
static void *resize(char *records, size_t count, size_t theirs, size_t ours)
{
	if (theirs == ours)
		return records;
	char *out = calloc(count, ours);
	for (size_t i = 0; out && i < count; i++)
		memcpy(out + i * ours, records + i * theirs, theirs < ours ? theirs : ours);
	free(records);
	return out;
}

static ncclsvc_result read_list(const struct svc_list_reply *reply, int fd, size_t record_size,
				void **list)
{
	struct stat st;
	uint64_t bytes;
	void *records = NULL;
	if (!reply->record_size || reply->record_size > RECORD_MAX || fstat(fd, &st) < 0 ||
	    __builtin_mul_overflow(reply->count, (uint64_t)reply->record_size, &bytes) ||
	    st.st_size < 0 || bytes > (uint64_t)st.st_size || bytes > SIZE_MAX)
		return error_set(NCCLSVC_PROTOCOL,
				 "the daemon's list of %llu records of %u bytes is malformed",
				 (unsigned long long)reply->count, reply->record_size);
	if (reply->count) {
		records = malloc(bytes);
		if (!records)
			return error_set(NCCLSVC_NO_MEMORY, "no memory for a list of %llu bytes",
					 (unsigned long long)bytes);
		if (!read_whole(fd, records, bytes)) {
			free(records);
			return error_set(NCCLSVC_SYSTEM, "cannot read the daemon's list: %m");
		}
		records = resize(records, reply->count, reply->record_size, record_size);
		if (!records)
			return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	}
	*list = records;
	return NCCLSVC_OK;
}

static ncclsvc_result get_list(ncclsvc_session *s, uint32_t what, size_t record_size, void **list,
			       size_t *n)
{
	struct call call = {.fd = -1};
	struct svc_list_reply reply;
	if (!s || !list || !n)
		return error_argument("ncclsvc_list: the session, list or n is NULL");
	session_lock(s);
	ncclsvc_result r = call_run(s, &call, SVC_LIST, &(struct svc_list){.what = what}, -1,
				    deadline_in(REQUEST_MS));
	session_unlock(s);
	if (r)
		return r;
	memcpy(&reply, call.body, sizeof(reply));
	r = reply.what == what ? read_list(&reply, call.fd, record_size, list)
			       : error_set(NCCLSVC_PROTOCOL, "the daemon sent another list");
	close(call.fd);
	if (!r)
		*n = reply.count;
	return r;
}

#define LIST(function, what, type)                                                                 \
	ncclsvc_result function(ncclsvc_session *s, type **list, size_t *n)                        \
	{                                                                                          \
		return get_list(s, what, sizeof(type), (void **)list, n);                          \
	}

LIST(ncclsvc_list_sessions, SVC_LIST_SESSIONS, ncclsvc_session_info)
LIST(ncclsvc_list_comms, SVC_LIST_COMMS, ncclsvc_comm_info)
LIST(ncclsvc_list_members, SVC_LIST_MEMBERS, ncclsvc_member_info)
LIST(ncclsvc_list_tasks, SVC_LIST_TASKS, ncclsvc_task_info)
LIST(ncclsvc_list_regions, SVC_LIST_REGIONS, ncclsvc_region_info)
LIST(ncclsvc_list_devices, SVC_LIST_DEVICES, ncclsvc_device_info)
LIST(ncclsvc_list_nodes, SVC_LIST_NODES, ncclsvc_node_info)
LIST(ncclsvc_list_plans, SVC_LIST_PLANS, ncclsvc_plan_info)
LIST(ncclsvc_list_plan_tasks, SVC_LIST_PLAN_TASKS, ncclsvc_plan_task_info)

void ncclsvc_list_free(void *list)
{
	free(list);
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
