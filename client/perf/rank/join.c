/* SPDX-License-Identifier: Apache-2.0
 * COMMAND_JOIN_AND_PLAN: joins one communicator to wait for the others, then another one that is
 * timed, and commits a plan on it. */
#include <string.h>

#include "service.h"

struct joining {
	ncclsvc_session *session;
	const struct service_options *options;
	const struct command *command;
	int device;
};

static ncclsvc_result join(const struct joining *j, uint8_t which, ncclsvc_comm **comm)
{
	struct service_options o = *j->options;
	uint8_t id[NCCLSVC_ID_BYTES];
	memcpy(id, j->command->id, sizeof(id));
	id[0] ^= which;
	o.nranks = (int)j->command->work.nranks;
	return service_join(j->session, &o, id, j->device, comm);
}

static ncclsvc_result time_join(const struct joining *j, ncclsvc_comm **comm, struct reply *reply)
{
	uint64_t start = perf_now_ns();
	ncclsvc_result result = join(j, 1, comm);
	reply->elapsed_ns = perf_now_ns() - start;
	return result;
}

static ncclsvc_result time_plan(const struct joining *j, ncclsvc_comm *comm,
				struct service_plan *plan, struct reply *reply)
{
	uint64_t start = perf_now_ns();
	ncclsvc_result result = service_plan_start(plan, comm, j->options->timeout_ms);
	reply->commit_ns = perf_now_ns() - start;
	return result;
}

ncclsvc_result service_join_and_plan(ncclsvc_session *session, const struct service_options *o,
				     int device, const struct command *c, struct reply *reply)
{
	const struct joining j = {session, o, c, device};
	ncclsvc_comm *first = NULL, *comm = NULL;
	struct service_plan plan = {0};
	ncclsvc_result result = join(&j, 0, &first);
	if (!result)
		result = time_join(&j, &comm, reply);
	if (!result)
		result = service_barrier(session, o, first);
	if (!result)
		result = time_plan(&j, comm, &plan, reply);
	if (!result && device != NCCLSVC_DEVICE_HOST)
		result = service_limit(session, &reply->peer_bytes);
	if (!result) /* no rank may stop while others still wait for it */
		result = service_barrier(session, o, first);
	ncclsvc_result ended[] = {ncclsvc_plan_terminate(plan.plan, o->timeout_ms),
				  ncclsvc_comm_leave(comm), ncclsvc_comm_leave(first)};
	for (size_t i = 0; i < sizeof(ended) / sizeof(ended[0]) && !result; i++)
		result = ended[i];
	return result;
}
