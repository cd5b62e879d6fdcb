/* SPDX-License-Identifier: Apache-2.0
 * Plans on their way through the supervisor: members commit them, and all get the same result; each
 * member terminates its own. */
#include "coord/plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "comm.h"
#include "comms.h"
#include "coord/messages.h"
#include "peer/shared_gpu.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "remote.h"
#include "requests.h"

/* ---- Quota ---- */

static bool charge(struct communicator *m, struct plan *p, uint32_t n, char text[PLAN_TEXT])
{
	if (!account_take(m->account, SHARE_PLAN_TASKS, n, text))
		return false;
	p->quota += n;
	return true;
}

/* ---- The result ---- */

/* It is in force, but was given up here: no member of this node takes part. */
static void leave_plan(struct comms *s, struct communicator *m, uint32_t number)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (!comm_takes_part(&m->members[k]))
			continue;
		scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_PLAN_DROP,
								  .plan = {.comm = m->slot,
									   .rank = (int32_t)k,
									   .number = number}});
		remote_left(m, k, number);
	}
}

static uint32_t members_here(const struct communicator *m)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		n += comm_takes_part(&m->members[k]);
	return n;
}

static void put_in_force(struct comms *s, struct communicator *m, uint64_t plan_uid)
{
	struct plan *p = m->forming;
	struct commit *commits = m->commits;
	m->forming = NULL;
	m->commits = NULL;
	m->plan = p;
	p->uid = plan_uid;
	p->nheld = m->committing;
	p->since_ns = clock_now();
	p->account = m->account;
	p->comm = m->slot;
	m->committing = 0;
	DL_APPEND(s->plans, p);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct session *c = m->members[k].session;
		if (!comm_takes_part(&m->members[k])) /* on another node */
			continue;
		if (!commits[k].handle)
			c->last_plan += c->last_plan == UINT32_MAX ? 2 : 1;
		else if (c->last_plan < commits[k].handle)
			c->last_plan = commits[k].handle;
		p->members[k].handle = commits[k].handle ? commits[k].handle : c->last_plan;
	}
	scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_PLAN_ADD,
							  .plan = {.comm = m->slot, .plan = p}});
	/* A failed answer may end its session, and with it the plan. */
	uint64_t uid = p->uid;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct svc_plan_reply r = {uid, p->members[k].handle, m->members[k].handle};
		if (comm_takes_part(&m->members[k]))
			session_reply(m->members[k].session, SVC_PLAN_COMMIT, commits[k].request_id,
				      &r, sizeof(r), NULL, 0);
	}
	free(commits);
}

/* Members that continue a plan of the previous daemon are in the middle of an iteration. */
static bool all_continue_or_none(const struct communicator *m)
{
	uint32_t continuing = 0;
	for (uint32_t k = 0; m->commits && k < m->nranks; k++)
		continuing += m->commits[k].handle != 0;
	return !continuing || continuing == m->committing;
}

void plan_result(struct communicator *m, const struct control_result *v)
{
	struct comms *s = m->comms;
	if (v->seq != m->plan_seq)
		return;
	const uint32_t number = ++m->plan_seq;
	m->plan_lost = false;
	if (v->result) {
		plan_refused(m, v->result, v->text);
	} else if (m->forming && !all_continue_or_none(m)) {
		plan_refused(m, NCCLSVC_MISMATCH,
			     "some ranks continue a plan of the previous daemon, and others "
			     "commit a new one");
		leave_plan(s, m, number);
	} else if (!m->forming || m->committing != members_here(m)) {
		plan_forget(m);
		leave_plan(s, m, number);
	} else {
		m->forming->number = number;
		put_in_force(s, m, v->uid);
	}
}

void plan_left_elsewhere(struct communicator *m, uint32_t rank, uint32_t number)
{
	struct comms *s = m->comms;
	if (m->members[rank].node >= 0 && epoch_lives(&m->life))
		scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_PLAN_DROP,
								  .plan = {.comm = m->slot,
									   .rank = (int32_t)rank,
									   .number = number}});
}

/* ---- Requests ---- */

/* Returns NULL after an error was sent. */
static struct communicator *comm_of(struct session *c, unsigned opcode, uint32_t request_id,
				    uint32_t handle, uint32_t *rank)
{
	if (!handle || handle >= c->nmemberships || !c->memberships[handle].comm) {
		session_error(c, opcode, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", handle);
		return NULL;
	}
	*rank = (uint32_t)c->memberships[handle].rank;
	return c->memberships[handle].comm;
}

static bool may_commit(struct session *c, uint32_t request_id, const struct communicator *m,
		       uint32_t rank, const struct svc_plan_commit *r)
{
	int result = NCCLSVC_OK;
	const char *wrong = NULL;
	char text[SVC_TEXT_BYTES];
	if (r->reserved || r->timeout_ns > SVC_TIMEOUT_MAX_NS) {
		result = NCCLSVC_INVALID_ARGUMENT;
		wrong = "the timeout is out of range, or a reserved field is not zero";
	} else if (r->groups > SVC_PLAN_TASKS || r->tasks > SVC_PLAN_TASKS) {
		result = NCCLSVC_LIMIT;
		wrong = "a plan has at most 65536 groups and as many tasks";
	} else if (!comm_is_whole(m) || m->epoch != r->epoch) {
		result = NCCLSVC_STALE_EPOCH;
		wrong = "the communicator's epoch is over, or it lacks members: rejoin it first";
	} else if (m->commits && m->commits[rank].here) {
		result = NCCLSVC_BUSY;
		wrong = "this rank has committed a plan that waits for the other ranks'";
	} else if (m->plan_lost) {
		result = NCCLSVC_BUSY;
		wrong = "the nodes have not yet agreed how the previous plan ended: try again";
	} else if (m->plan && !m->plan->members[rank].dropped) {
		result = NCCLSVC_BUSY;
		wrong = "this rank has a plan on the communicator: terminate it first";
	} else if (comm_lacks_nccl(m, "a plan", text)) {
		result = NCCLSVC_UNSUPPORTED;
		wrong = text;
	}
	if (result)
		session_error(c, SVC_PLAN_COMMIT, request_id, result, "%s", wrong);
	return !result;
}

static bool read_whole(int fd, char *to, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = pread(fd, to + done, bytes - done, (off_t)done);
		if (n <= 0) /* signals do not interrupt reads of a memfd */
			return false;
		done += (size_t)n;
	}
	return true;
}

/* Returns a result, with a sentence. */
static int take_plan(struct communicator *m, uint32_t rank, const struct svc_plan_commit *r, int fd,
		     bool continues, char *text)
{
	const size_t bytes = r->tasks * sizeof(struct svc_plan_task);
	if (!svc_memfd_trusted(fd, bytes, text))
		return NCCLSVC_INVALID_ARGUMENT;
	if (!charge(m, m->forming, r->groups + r->tasks + 1, text))
		return NCCLSVC_LIMIT;
	struct svc_plan_task *tasks =
		account_memory_left(m->account, bytes) ? malloc(bytes ? bytes : 1) : NULL;
	if (!tasks || !read_whole(fd, (char *)tasks, bytes)) {
		snprintf(text, PLAN_TEXT, tasks ? "the plan cannot be read" : "out of memory");
		int result = tasks ? NCCLSVC_SYSTEM : NCCLSVC_NO_MEMORY;
		free(tasks);
		return result;
	}
	return plan_set(m->forming, rank, r->groups, r->tasks, tasks, continues, text);
}

void plan_commit(struct session *c, uint32_t request_id, const struct svc_plan_commit *r, int fd)
{
	uint32_t rank;
	char text[PLAN_TEXT];
	struct communicator *m = comm_of(c, SVC_PLAN_COMMIT, request_id, r->comm, &rank);
	if (!m || m->members[rank].suspended || /* it will send it again */
	    !may_commit(c, request_id, m, rank, r))
		return;
	if (!m->forming)
		m->forming = plan_create(m->nranks);
	if (m->forming && !m->commits)
		m->commits = calloc(m->nranks, sizeof(*m->commits));
	if (!m->commits) {
		session_error(c, SVC_PLAN_COMMIT, request_id, NCCLSVC_NO_MEMORY, "out of memory");
		return;
	}
	uint32_t before = m->forming->quota;
	int result = take_plan(m, rank, r, fd, c->next_plan.kind, text);
	if (!result && !remote_plan(m, rank, request_id)) {
		result = NCCLSVC_BUSY;
		snprintf(text, sizeof(text),
			 "the coordinator's node has too many plans to take another: try "
			 "again");
	}
	if (result) {
		account_give(m->account, SHARE_PLAN_TASKS, m->forming->quota - before);
		m->forming->quota = before;
		plan_unset(m->forming, rank);
		session_error(c, SVC_PLAN_COMMIT, request_id, result, "%s", text);
		if (!m->committing)
			plan_forget(m);
		return;
	}
	m->commits[rank] = (struct commit){
		.here = true,
		.request_id = request_id,
		.handle = c->next_plan.number,
		.deadline_ns = r->timeout_ns ? clock_now() + r->timeout_ns : 0,
		.since_ns = clock_now(),
	};
	if (r->timeout_ns)
		comm_deadline(m, m->commits[rank].deadline_ns);
	m->committing++;
}

void plan_member_gone(struct communicator *m, uint32_t rank)
{
	struct plan *p = m->plan;
	if (!p || p->members[rank].dropped)
		return;
	p->members[rank].dropped = true;
	if (++p->ndropped == p->nheld)
		m->plan = NULL; /* the scheduler returns it */
}

void plan_terminate(struct comms *s, struct session *c, uint32_t request_id,
		    const struct svc_plan_drop *r)
{
	uint32_t rank;
	struct communicator *m = comm_of(c, SVC_PLAN_DROP, request_id, r->comm, &rank);
	if (!m)
		return;
	if (!m->plan || m->plan->members[rank].dropped ||
	    m->plan->members[rank].handle != r->plan) {
		session_error(c, SVC_PLAN_DROP, request_id, NCCLSVC_NOT_FOUND,
			      "this rank has no plan %u on the communicator", r->plan);
		return;
	}
	const uint32_t number = m->plan->number;
	plan_member_gone(m, rank);
	remote_left(m, rank, number);
	scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_PLAN_DROP,
							  .plan = {.comm = m->slot,
								   .rank = (int32_t)rank,
								   .number = number,
								   .asker = c->id,
								   .request_id = request_id}});
}

/* The member's held tasks have ended, and its resources have been returned. */
void plan_dropped(struct comms *s, uint32_t asker, uint32_t request_id)
{
	struct session *c = sessions_find(s->sessions, asker);
	if (c)
		session_reply(c, SVC_PLAN_DROP, request_id, NULL, 0, NULL, 0);
}

/* ---- The end ---- */

void plan_gone(struct comms *s, struct plan *p)
{
	struct communicator *m = s->comm_by_slot[p->comm];
	if (m && m->plan == p)
		m->plan = NULL;
	DL_DELETE(s->plans, p);
	plan_discard(p->account, p);
}

void plan_free_all(struct comms *s)
{
	while (s->plans) {
		struct plan *p = s->plans;
		DL_DELETE(s->plans, p);
		plan_free(p);
	}
}
