/* SPDX-License-Identifier: Apache-2.0
 * Committing a plan to the daemon, and launching it. */
#include <string.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "member_plan.h"

/* The daemon answers by its own deadline; this allows for the answer's delivery. */
#define GRACE_NS UINT64_C(5000000000)

ncclsvc_result plan_live(const ncclsvc_plan *p, const char *function)
{
	ncclsvc_result r = plan_usable(p, function);
	if (!r)
		r = session_check(p->session);
	return r ? r : comm_check(p->comm);
}

ncclsvc_result plan_running(const ncclsvc_plan *p, const char *function)
{
	ncclsvc_result r = plan_usable(p, function);
	if (!r && p->phase != PLAN_LAUNCHED)
		r = error_argument("%s: the plan has not been launched", function);
	if (!r)
		r = plan_live(p, function);
	if (!r && plan_stale(p))
		r = error_set(NCCLSVC_STALE_EPOCH,
			      "%s: the plan belongs to an epoch of communicator %s that is over: "
			      "call ncclsvc_plan_reset to commit it again",
			      function, p->comm->label);
	return r;
}

void plan_begin_iteration(ncclsvc_plan *p)
{
	ncclsvc_session *s = p->session;
	memset(p->numbers, 0, p->ntasks * sizeof(*p->numbers));
	memset(p->full, 0, p->ntasks * sizeof(*p->full));
	for (uint32_t g = 0; g < p->ngroups; g++)
		p->missing[g] = p->first[g + 1] - p->first[g];
	p->group = 0;
	while (p->group < p->ngroups && !p->missing[p->group])
		p->group++;
	p->nsubmitted = 0;
	p->failures = s->tasks.nfailures;
	p->base = s->planned_groups + 1;
	s->planned_groups += p->ngroups;
	plan_count(p);
}

static void committed(ncclsvc_session *s, struct call *call)
{
	struct svc_plan_reply reply;
	ncclsvc_plan *p = call->arg;
	memcpy(&reply, call->body, sizeof(reply));
	if (p->over || !p->comm) { /* terminated, or its communicator was left, meanwhile */
		call_forget(s, SVC_PLAN_DROP,
			    &(struct svc_plan_drop){.comm = reply.comm, .plan = reply.plan});
		return;
	}
	p->comm->plans++;
	p->handle = reply.plan;
	p->uid = p->birth = reply.uid;
	p->generation = session_connections(s);
	p->epoch = p->comm->epoch;
	p->iteration = 0;
	plan_begin_iteration(p);
	if (p->phase == PLAN_ENDED)
		p->phase = PLAN_COMMITTED;
}

ncclsvc_result plan_commit(ncclsvc_plan *p, uint64_t deadline)
{
	int fd = -1;
	ncclsvc_session *s = p->session;
	struct call call = {.on_reply = committed, .arg = p};
	ncclsvc_result r = session_check(s);
	if (!r)
		r = comm_check(p->comm);
	if (!r)
		r = plan_write(p, false, &fd);
	if (r)
		return r;
	uint64_t now = now_ns();
	struct svc_plan_commit request = {
		.comm = p->comm->handle,
		.epoch = p->comm->epoch,
		.groups = p->ngroups,
		.tasks = p->ntasks,
		.timeout_ns = deadline == NO_DEADLINE ? 0
			      : deadline > now	      ? deadline - now
						      : 1,
	};
	p->busy = true;
	r = call_run(s, &call, SVC_PLAN_COMMIT, &request, fd,
		     deadline == NO_DEADLINE ? NO_DEADLINE : deadline + GRACE_NS);
	p->busy = false;
	close(fd);
	return r ? r : plan_usable(p, "the plan");
}

ncclsvc_result ncclsvc_plan_end(ncclsvc_plan *p, int timeout_ms)
{
	ncclsvc_result r = plan_lock(p, "ncclsvc_plan_end");
	if (r)
		return r;
	if (p->phase >= PLAN_COMMITTED)
		r = error_argument("ncclsvc_plan_end: the plan is already committed");
	else if (p->phase == PLAN_OPEN)
		r = plan_complete(p);
	if (!r)
		r = plan_commit(p, deadline_in(timeout_ms));
	plan_unlock(p);
	return r;
}

ncclsvc_result ncclsvc_plan_launch(ncclsvc_plan *p)
{
	ncclsvc_result r = plan_lock(p, "ncclsvc_plan_launch");
	if (r)
		return r;
	if (p->phase == PLAN_LAUNCHED)
		r = error_argument("ncclsvc_plan_launch: the plan is already launched");
	else if (p->phase != PLAN_COMMITTED)
		r = error_argument("ncclsvc_plan_launch: there is no committed plan: call "
				   "ncclsvc_plan_end first");
	else
		p->phase = PLAN_LAUNCHED;
	pthread_cond_broadcast(&p->session->changed); /* submissions may wait for it */
	plan_unlock(p);
	return r;
}

ncclsvc_result ncclsvc_plan_set_strict(ncclsvc_plan *p, bool strict)
{
	ncclsvc_result r = plan_lock(p, "ncclsvc_plan_set_strict");
	if (r)
		return r;
	if (p->phase == PLAN_LAUNCHED)
		r = error_argument("ncclsvc_plan_set_strict: the plan is already launched: call "
				   "this before the launch");
	else
		p->strict = strict;
	plan_unlock(p);
	return r;
}

uint64_t ncclsvc_plan_iterations(const ncclsvc_plan *p)
{
	if (!p)
		return 0;
	session_lock(p->session);
	uint64_t n = p->iterations;
	session_unlock(p->session);
	return n;
}
