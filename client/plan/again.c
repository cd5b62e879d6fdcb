/* SPDX-License-Identifier: Apache-2.0
 * Plans as the daemon gets them. After its restart: plans that were in force are committed to the
 * next daemon, under their old handles, in the middle of an iteration. What has run is marked; the
 * tasks that are left are submitted again (comm/resume.c). Plans of lists are over: their members
 * exchange shapes. */
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

/* ---- After a restart ---- */

static bool has_lists(const ncclsvc_plan *p)
{
	for (uint32_t i = 0; i < p->ntasks; i++)
		if (p->tasks[i].agreement)
			return true;
	return false;
}

void plans_away(ncclsvc_session *s)
{
	for (ncclsvc_plan *p = s->plans; p; p = p->next)
		if (p->phase >= PLAN_COMMITTED && p->comm && !p->over && !plan_stale(p))
			p->continues = !has_lists(p);
}

/* NULL: it has no plan that continues. */
static ncclsvc_plan *plan_on(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_plan *p = s->plans;
	while (p && !(p->continues && p->comm == comm))
		p = p->next;
	return p;
}

bool plan_continues(const ncclsvc_session *s, const ncclsvc_comm *comm, uint32_t handle)
{
	const ncclsvc_plan *p = plan_on(s, comm);
	return p && p->handle == handle;
}

bool plans_history(const ncclsvc_session *s, const ncclsvc_comm *comm, struct history *h)
{
	const ncclsvc_plan *p = plan_on(s, comm);
	bool good = true;
	for (uint32_t i = 0; p && good && i < p->ntasks; i++) {
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

static void committed(ncclsvc_session *s, struct call *call)
{
	ncclsvc_plan *p = call->arg;
	struct svc_plan_reply reply;
	memcpy(&reply, call->body, sizeof(reply));
	if (reply.plan != p->handle)
		return;
	p->uid = reply.uid;
	p->generation = session_connections(s);
	p->epoch = p->comm->epoch;
}

void plan_commit_again(ncclsvc_session *s, const ncclsvc_comm *comm, uint64_t deadline)
{
	ncclsvc_plan *p = plan_on(s, comm);
	int fd = -1;
	if (!p)
		return;
	p->again = calloc(1, sizeof(*p->again));
	if (!p->again || plan_write(p, true, &fd)) {
		free(p->again);
		p->again = NULL;
		return;
	}
	*p->again = (struct call){.on_reply = committed, .arg = p};
	const uint64_t now = now_ns();
	const struct svc_plan_commit request = {.comm = comm->handle,
						.epoch = comm->epoch,
						.groups = p->ngroups,
						.tasks = p->ntasks,
						.timeout_ns = deadline > now ? deadline - now : 1};
	call_forget(s, SVC_RESUME,
		    &(struct svc_resume){.kind = SVC_RESUME_PLAN, .number = p->handle});
	if (call_begin(s, p->again, SVC_PLAN_COMMIT, &request, fd, deadline + JOIN_GRACE_NS)) {
		free(p->again);
		p->again = NULL;
	}
	close(fd);
}

void plan_committed_again(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_plan *p = plan_on(s, comm);
	if (!p)
		return;
	if (p->again)
		call_finish(s, p->again, NO_DEADLINE);
	free(p->again);
	p->again = NULL;
	p->continues = s->away != AWAY_RESUMING; /* the daemon has ended again */
}
