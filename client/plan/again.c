/* SPDX-License-Identifier: Apache-2.0
 * Plans as the daemon gets them. After its restart, plans that were in force are committed to the
 * next daemon under their old handles, even in the middle of an iteration. What has run is marked;
 * the tasks that are left are submitted again (comm/resume.c). A plan with lists does not continue,
 * because its members would have to exchange shapes again. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "member_plan.h"
#include "proto/fdio.h"
#include "resume/history.h"

bool plan_stale(const ncclsvc_plan *p)
{
	return p->epoch != p->comm->epoch || p->generation != session_connections(p->session);
}

/* ---- The plan, for the daemon ---- */

static bool has_run(const ncclsvc_plan *p, uint32_t slot)
{
	const uint64_t number = p->numbers[slot];
	const struct slot *at = task_slot(&p->session->tasks, number);
	return number != PLAN_SLOT_FREE && number != PLAN_SLOT_TAKEN &&
	       !(at->number == number && at->state == SLOT_PENDING);
}

ncclsvc_result plan_write(const ncclsvc_plan *p, bool again, int *fd)
{
	const size_t bytes = (p->ntasks ? p->ntasks : 1) * sizeof(*p->tasks);
	*fd = svc_memfd_create("ncclsvc-plan", bytes, false);
	if (*fd < 0)
		return error_set(NCCLSVC_SYSTEM, "cannot create a memory file for the plan: %s",
				 strerror(-*fd));
	struct svc_plan_task *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (to == MAP_FAILED) {
		close(*fd);
		return error_set(NCCLSVC_SYSTEM, "cannot write the plan: %m");
	}
	if (p->ntasks)
		memcpy(to, p->tasks, bytes);
	for (uint32_t i = 0; again && i < p->ntasks; i++)
		to[i].done = has_run(p, i);
	munmap(to, bytes);
	return NCCLSVC_OK;
}

/* ---- Orders ---- */

/* Sends to a rank, or Recvs from it, that plans of the communicator have numbered so far. */
static uint64_t *count_of(const ncclsvc_plan *p, uint32_t slot)
{
	const struct svc_plan_task *t = &p->tasks[slot];
	return comm_planned(p->comm, t->op == NCCLSVC_SEND, t->peer);
}

void plan_count(ncclsvc_plan *p)
{
	p->counts = p->comm->counts;
	for (uint32_t i = 0; i < p->ntasks && p->comm->messages; i++)
		p->orders[i] = (*count_of(p, i))++;
}

void plan_give_back(ncclsvc_plan *p)
{
	for (uint32_t i = 0; p->counts == p->comm->counts && i < p->ntasks && p->comm->messages;
	     i++)
		--*count_of(p, i);
	p->counts = 0;
}

bool plan_is_fresh(const ncclsvc_plan *p)
{
	bool fresh = !p->nsubmitted;
	for (uint32_t i = 0; fresh && p->numbers && i < p->ntasks; i++)
		fresh = p->numbers[i] == PLAN_SLOT_FREE;
	return fresh;
}

/* ---- After a restart ---- */

static bool has_lists(const ncclsvc_plan *p)
{
	for (uint32_t i = 0; i < p->ntasks; i++)
		if (p->tasks[i].agreement)
			return true;
	return false;
}

/* Whether all of this iteration has ended. */
static bool is_done(const ncclsvc_plan *p)
{
	bool done = p->nsubmitted == p->ntasks;
	for (uint32_t i = 0; done && i < p->ntasks; i++)
		done = has_run(p, i);
	return done;
}

static bool rests(const ncclsvc_plan *p)
{
	return plan_is_fresh(p) || is_done(p);
}

static uint64_t judge(const ncclsvc_plan *p)
{
	if (p->over)
		return PLAN_ODD;
	if (has_lists(p))
		return rests(p) ? 0 : PLAN_ODD;
	return p->birth;
}

/* Called again after each failed attempt. By then the plan is stale, and keeps its earlier verdict.
 */
void plans_away(ncclsvc_session *s)
{
	for (ncclsvc_plan *p = s->plans; p; p = p->next)
		if (p->phase >= PLAN_COMMITTED && p->comm && !plan_stale(p))
			p->in_force = judge(p);
}

void plans_back(ncclsvc_session *s)
{
	for (ncclsvc_plan *p = s->plans; p; p = p->next)
		p->in_force = 0;
}

/* NULL: none was in force. */
static ncclsvc_plan *plan_on(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_plan *p = s->plans;
	while (p && !(p->in_force && p->comm == comm))
		p = p->next;
	return p;
}

uint64_t plan_in_force_on(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const ncclsvc_plan *p = plan_on(s, comm);
	return p ? p->in_force : 0;
}

bool plan_rests_on(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const ncclsvc_plan *p = plan_on(s, comm);
	return !p || rests(p);
}

void plan_drop_on(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_plan *p = plan_on(s, comm);
	if (p)
		p->in_force = 0;
}

bool plan_continues(const ncclsvc_session *s, const ncclsvc_comm *comm, uint32_t handle)
{
	const ncclsvc_plan *p = plan_on(s, comm);
	return p && p->in_force != PLAN_ODD && p->handle == handle;
}

static bool add_unsubmitted(const ncclsvc_plan *p, struct history *h)
{
	bool good = true;
	for (uint32_t i = 0; good && i < p->ntasks; i++) {
		if (p->numbers[i] != PLAN_SLOT_FREE && p->numbers[i] != PLAN_SLOT_TAKEN)
			continue;
		const bool send = p->tasks[i].op == NCCLSVC_SEND;
		good = history_add(h, &(struct history_line){.order = send ? HISTORY_PLANNED_SENDS
									   : HISTORY_PLANNED_RECVS,
							     .kind = HISTORY_PENDING,
							     .peer = p->tasks[i].peer,
							     .from = p->orders[i],
							     .to = p->orders[i] + 1});
	}
	return good;
}

bool plans_history(const ncclsvc_session *s, const ncclsvc_comm *comm, struct history *h)
{
	bool good = true;
	for (const ncclsvc_plan *p = s->plans; good && p; p = p->next)
		if (p->comm == comm && p->counts == comm->counts)
			good = add_unsubmitted(p, h);
	return good;
}

/* Its members had no iteration under way, and need no orders until they commit it again. */
static void drop_resting(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (ncclsvc_plan *p = s->plans; p; p = p->next)
		if (p->comm == comm && !p->in_force && p->counts && plan_is_fresh(p))
			plan_give_back(p);
}

static void committed(ncclsvc_session *s, struct call *call)
{
	ncclsvc_plan *p = call->arg;
	struct svc_plan_reply reply;
	memcpy(&reply, call->body, sizeof(reply));
	if (reply.plan != p->handle) { /* RESUME was refused */
		call_forget(s, SVC_PLAN_DROP,
			    &(struct svc_plan_drop){.comm = reply.comm, .plan = reply.plan});
		return;
	}
	p->uid = reply.uid;
	p->generation = session_connections(s);
	p->epoch = p->comm->epoch;
}

static bool begin_commit(ncclsvc_session *s, ncclsvc_plan *p, uint64_t deadline)
{
	const uint64_t now = now_ns();
	const struct svc_plan_commit request = {.comm = p->comm->handle,
						.epoch = p->comm->epoch,
						.groups = p->ngroups,
						.tasks = p->ntasks,
						.timeout_ns = deadline > now ? deadline - now : 1};
	int fd = -1;
	*p->again = (struct call){.on_reply = committed, .arg = p};
	if (plan_write(p, true, &fd))
		return false;
	const struct svc_resume resume = {.kind = SVC_RESUME_PLAN, .number = p->handle};
	const bool said = call_forget(s, SVC_RESUME, &resume);
	const bool begun = said && !call_begin(s, p->again, SVC_PLAN_COMMIT, &request, fd,
					       deadline + JOIN_GRACE_NS);
	close(fd);
	if (said && !begun && s->away == AWAY_RESUMING) /* RESUME is for no other commit */
		session_lose_daemon(s, "the daemon does not take the session's plans");
	return begun;
}

void plan_commit_again(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline)
{
	ncclsvc_plan *p = plan_on(s, comm);
	if (!p) {
		drop_resting(s, comm);
		return;
	}
	p->again = calloc(1, sizeof(*p->again));
	if (p->again && begin_commit(s, p, deadline))
		return;
	free(p->again);
	p->again = NULL;
}

bool plan_committed_again(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline)
{
	ncclsvc_plan *p = plan_on(s, comm);
	if (!p)
		return true;
	/* A daemon forgets the requests of epochs that are suspended. */
	if (p->again && !p->again->done && !comm->suspended && !s->lost &&
	    s->away == AWAY_RESUMING && now_ns() < deadline + JOIN_GRACE_NS)
		return false;
	if (p->again)
		call_finish(s, p->again, now_ns());
	free(p->again);
	p->again = NULL;
	if (s->away == AWAY_RESUMING && !comm->suspended &&
	    plan_stale(p)) /* from now on, the members' counts may differ */
		comm->spoilt = true;
	return true;
}
