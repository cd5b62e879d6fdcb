/* SPDX-License-Identifier: Apache-2.0
 * JOIN: which process may take a rank. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "comm.h"
#include "comms.h"
#include "gpu/gpu.h"
#include "gpu/mps_service.h"
#include "peer/comm_peer.h"
#include "peer/sleep.h"
#include "proto/names.h"
#include "remote.h"
#include "report.h"

#define UNREACHED_MAX 64 /* nodes of one tenant's JOINs that have not answered */

static bool check_join(struct comms *s, struct session *c, uint32_t request_id,
		       const struct svc_join *j)
{
	const char *wrong = NULL;
	bool world = j->flags & SVC_JOIN_WORLD;
	if (j->flags &
	    ~(SVC_JOIN_WORLD | SVC_JOIN_FAIL_FAST | SVC_JOIN_ADMIT_USER | SVC_JOIN_ADMIT_ANY))
		wrong = "unknown flags";
	else if (j->timeout_ns > SVC_TIMEOUT_MAX_NS)
		wrong = "the timeout is out of range";
	else if (world && (j->nranks || j->rank < -1))
		wrong = "to join the world, give nranks 0 and a rank, or -1 for any rank";
	else if (!world && j->nranks < 1)
		wrong = "nranks must be at least 1";
	else if (!world && (j->rank < 0 || j->rank >= j->nranks))
		wrong = "the rank must be from 0 to nranks - 1";
	else if (j->mps > NCCLSVC_MPS_UNKNOWN)
		wrong = "invalid mps value";
	else if (j->blocks > PEER_BLOCKS || j->reserved)
		wrong = "too many blocks, or a reserved field is not zero";
	else if (!svc_label_ok(j->label, sizeof(j->label)))
		wrong = "the label is not printable ASCII of at most 47 characters";
	if (wrong) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_INVALID_ARGUMENT, "%s", wrong);
		return false;
	}
	if (j->device != SVC_DEVICE_HOST && !gpu_find(s->gpus, j->device)) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_UNSUPPORTED,
			      "this daemon has no device %d (host ranks are -1)", j->device);
		return false;
	}
	if (j->device != SVC_DEVICE_HOST && world) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_UNSUPPORTED,
			      "the world has only host ranks (device -1)");
		return false;
	}
	const bool together = cluster_is_together(s->cluster);
	uint32_t most = together ? s->cluster->n * GPUS_MAX : s->gpus->ngpus;
	if (most < PEER_RANKS) /* on the direct transport, ranks can share a GPU */
		most = PEER_RANKS;
	if (j->device != SVC_DEVICE_HOST && (uint32_t)j->nranks > most) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "nranks is %d, but the GPUs of %s serve at most %u ranks", j->nranks,
			      together ? "all nodes" : "this node", most);
		return false;
	}
	if (!world && j->nranks > SVC_HOST_RANKS_MAX) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_LIMIT,
			      "a communicator has at most %d ranks", SVC_HOST_RANKS_MAX);
		return false;
	}
	return peer_staging_fits(c, SVC_JOIN, request_id, j->device, j->staging);
}

/* Which side is wrong nobody knows: "rank 0 (pid 7) and 2 more say" */
static void name_others(const struct communicator *m, char *text, size_t size)
{
	uint32_t k = 0;
	while (k < m->nranks && !comm_alive(&m->members[k]))
		k++;
	if (k == m->nranks)
		snprintf(text, size, "communicator %s has", m->label);
	else if (m->occupied == 1)
		snprintf(text, size, "rank %u (pid %d) says", k, m->members[k].pid);
	else
		snprintf(text, size, "rank %u (pid %d) and %u more say", k, m->members[k].pid,
			 m->occupied - 1);
}

static ncclsvc_admit admit_of(const struct svc_join *j)
{
	return j->flags & SVC_JOIN_ADMIT_ANY	? NCCLSVC_ADMIT_ANY
	       : j->flags & SVC_JOIN_ADMIT_USER ? NCCLSVC_ADMIT_USER
						: NCCLSVC_ADMIT_TENANT;
}

static bool admits(const struct communicator *m, const struct account *a)
{
	const bool user = m->account->tenant.uid == a->tenant.uid;
	return m->account == a || m->admit == NCCLSVC_ADMIT_ANY ||
	       (m->admit == NCCLSVC_ADMIT_USER && user);
}

/* A world without members passes to the next tenant that joins. Other communicators without members
 * pass only to tenants of the same user: a restarted job or pod is a new tenant. */
static bool may_take_over(const struct communicator *m, const struct account *a)
{
	const bool user = m->account->tenant.uid == a->tenant.uid;
	return !m->occupied && (m->world || user);
}

static void refuse_tenant(struct session *c, const struct communicator *m, uint32_t request_id)
{
	const struct account *owner = m->account, *a = c->account;
	const bool user = owner->tenant.uid == a->tenant.uid;
	report_refused_tenant(m, c);
	session_error(
		c, SVC_JOIN, request_id, NCCLSVC_PERMISSION,
		"communicator %s belongs to user %s; pid %d is of user %s: set NCCLSVC_ADMIT=%s "
		"in all its processes to admit it",
		m->label, owner->owner, c->pid, a->owner, user ? "user" : "any");
}

static struct communicator *find(const struct comms *s, const struct svc_join *j)
{
	struct communicator *m = NULL;
	if (j->flags & SVC_JOIN_WORLD)
		return s->world;
	HASH_FIND(hh, s->comms, j->id, sizeof(j->id), m);
	return m;
}

/* Returns the communicator that a JOIN names, created if needed; NULL after an error was sent. */
static struct communicator *find_or_create(struct comms *s, struct session *c, uint32_t request_id,
					   const struct svc_join *j)
{
	struct communicator *m = find(s, j);
	char text[SVC_TEXT_BYTES];
	if (m && m->account != c->account && may_take_over(m, c->account))
		comm_hand_over(m, c->account);
	if (m && !admits(m, c->account)) {
		refuse_tenant(c, m, request_id);
		return NULL;
	}
	if (m && !(j->flags & SVC_JOIN_WORLD) && m->nranks != (uint32_t)j->nranks) {
		if (m->occupied || epoch_held(&m->life) || m->start || m->world) {
			char others[96];
			name_others(m, others, sizeof(others));
			comm_turn_away(c, m, request_id, j->rank, NCCLSVC_MISMATCH,
				       "nranks differs: rank %d (pid %d) says %d, %s %u", j->rank,
				       c->pid, j->nranks, others, m->nranks);
			return NULL;
		}
		comm_forget(s, m);
		m = NULL;
	}
	int result;
	if (!m && !(m = comm_create(s, j->id, (uint32_t)j->nranks, c->account, &result, text)))
		session_error(c, SVC_JOIN, request_id, result, "%s", text);
	if (m && !m->occupied && m->account == c->account)
		m->admit = admit_of(j);
	return m;
}

/* Two members may share a GPU if kernels can run all their operations. An epoch keeps its members'
 * staging memory, so it is unknown here whether a member of the last one has kernels. */
static bool gpu_fits(struct session *c, struct communicator *m, uint32_t request_id,
		     const struct svc_join *j, int32_t rank)
{
	for (uint32_t k = 0; !m->comms->gpus->staging && k < m->nranks; k++) {
		const struct member *other = &m->members[k];
		if ((int32_t)k == rank || !comm_alive(other) || other->device != j->device)
			continue;
		const bool waits = other->state == NCCLSVC_MEMBER_JOINING;
		const bool kernels = j->staging || peer_joins_asleep(c, j);
		const int32_t without = !kernels			    ? rank
					: waits && !peer_has_kernels(other) ? (int32_t)k
									    : -1;
		if (without < 0)
			continue;
		comm_turn_away(c, m, request_id, rank, NCCLSVC_MISMATCH,
			       "ranks %u (pid %d) and %d (pid %d) both use GPU %d. NCCL refuses "
			       "that; only the direct transport does not, but rank %d does not use "
			       "it (NCCLSVC_PEER=0?): give each rank its own GPU",
			       k, other->pid, rank, c->pid, j->device, without);
		return false;
	}
	return true;
}

/* Members are either all on the host, or all on GPUs. */
bool comm_device_fits(struct session *c, struct communicator *m, uint32_t request_id,
		      const struct svc_join *j, int32_t rank)
{
	if (!m->occupied && !epoch_held(&m->life))
		m->cuda = j->device != SVC_DEVICE_HOST;
	if (m->cuda == (j->device != SVC_DEVICE_HOST))
		return !m->cuda || gpu_fits(c, m, request_id, j, rank);
	comm_turn_away(c, m, request_id, rank, NCCLSVC_MISMATCH,
		       "rank %d (pid %d) joins with %s, but the members of communicator %s "
		       "joined with %s",
		       rank, c->pid, m->cuda ? "host memory" : "a GPU", m->label,
		       m->cuda ? "GPUs" : "host memory");
	return false;
}

/* Returns a free rank. Each node has its own ranks of the world. */
static int32_t any_free_rank(const struct comms *s, const struct communicator *m)
{
	uint32_t first = 0, end = m->nranks;
	if (m->world && s->cluster) {
		first = s->world_first;
		end = first + (uint32_t)s->config->ranks;
	}
	for (uint32_t k = first; k < end; k++)
		if (!comm_alive(&m->members[k]) && (m->world || m->members[k].node < 0))
			return (int32_t)k;
	return -1;
}

static bool world_rank_is_ours(struct comms *s, struct session *c, uint32_t request_id,
			       int32_t rank)
{
	uint32_t first = s->world_first, n = (uint32_t)s->config->ranks;
	if (!s->cluster || ((uint32_t)rank >= first && (uint32_t)rank < first + n))
		return true;
	session_error(c, SVC_JOIN, request_id, NCCLSVC_INVALID_ARGUMENT,
		      "rank %d of the world is on another node; this node has ranks %u to %u", rank,
		      first, first + n - 1);
	return false;
}

/* The rendezvous compares it with the other members' JOINs. */
static bool resume_fits(struct session *c, struct communicator *m, uint32_t request_id,
			int32_t rank, const struct svc_resume *resume)
{
	if (resume->kind != SVC_RESUME_COMM || !m->cuda || peer_controls_fit(m, c))
		return true;
	comm_turn_away(c, m, request_id, rank, NCCLSVC_STALE_EPOCH,
		       "the epoch cannot be continued: the members' kernels do not share their "
		       "control blocks");
	return false;
}

/* This process has left an epoch that others may want to continue. The communicator is not created
 * for that: lack of room may be why the process left. */
static void note_left(struct comms *s, struct session *c, uint32_t request_id,
		      const struct svc_join *j, uint32_t lineage)
{
	const struct communicator *m = find(s, j);
	const bool known = !s->cluster || cluster_knows(s->cluster, j->id);
	if (m && !admits(m, c->account) && !may_take_over(m, c->account)) {
		refuse_tenant(c, m, request_id);
		return;
	}
	if (j->flags & SVC_JOIN_WORLD)
		remote_had_left(s, m->id, m->nranks, c, lineage);
	else
		remote_had_left(s, j->id, (uint32_t)j->nranks, c, lineage);
	if (!known)
		cluster_note_asker(s->cluster, j->id, c->account->number);
	session_error(c, SVC_JOIN, request_id, NCCLSVC_CANCELLED, "the epoch was left");
}

static void begin_attempt(struct communicator *m)
{
	m->refused.pid = 0;
	m->late_reported = false;
	for (uint32_t k = 0; k < m->nranks; k++)
		m->members[k].late = false;
}

static void take_rank(struct comms *s, struct session *c, struct communicator *m, int32_t rank,
		      uint32_t request_id, const struct svc_join *j,
		      const struct svc_resume *resume)
{
	struct member *member = &m->members[rank];
	const uint32_t handle = comm_alive(member) ? member->handle
				: resume->number   ? comm_claim_handle(c, m, rank, resume->number)
						   : comm_new_handle(c, m, rank);
	if (!handle) {
		comm_note_idle(m); /* it may have been created for this */
		session_error(c, SVC_JOIN, request_id, NCCLSVC_LIMIT,
			      "a session has at most %d communicators", SVC_SESSION_COMMS - 1);
		return;
	}
	if (m->life.state == NCCLSVC_EPOCH_LEFT)
		comm_event(m, NCCLSVC_CAUSE_RENEWED);
	member->fresh = !comm_alive(member);
	comm_name(m, c, j->label);
	m->occupied += member->fresh;
	member->session = c;
	member->handle = handle;
	if (!m->joining)
		begin_attempt(m);
	if (m->refused.rank == rank)
		m->refused.pid = 0;
	member->state = NCCLSVC_MEMBER_JOINING;
	member->suspended = false;
	member->overdue = member->late = false;
	member->pid = c->pid;
	member->device = j->device;
	member->fail_fast = j->flags & SVC_JOIN_FAIL_FAST;
	member->resume = (uint8_t)resume->kind;
	member->lineage = resume->lineage;
	member->done = resume->done;
	member->asleep = resume->kind == SVC_RESUME_COMM && peer_joins_asleep(c, j);
	if (j->staging || member->asleep)
		c->out_of_reach = j->out_of_reach;
	if (member->asleep)
		member->blocks = j->blocks;
	peer_staging_take(member, j->staging, j->blocks);
	if ((j->staging || member->asleep) && resume->kind == SVC_RESUME_COMM)
		peer_controls_take(member);
	m->reply_opcode = SVC_JOIN;
	member->request_id = request_id;
	member->since_ns = clock_now();
	comm_join_deadline(s, member, j->timeout_ns ? member->since_ns + j->timeout_ns : 0);
	m->joining++;
	comm_event(m, NCCLSVC_CAUSE_JOINED);
	remote_join(m, (uint32_t)rank);
}

/* Returns a rank whose member has left the epoch. */
static int32_t a_missing_rank(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!comm_takes_part(&m->members[k]) && m->members[k].node < 0)
			return (int32_t)k;
	return 0;
}

/* False: the id is made from the name of another user's job, and an error was sent. */
static bool own_job(struct session *c, uint32_t request_id, struct svc_join *j)
{
	struct svc_job job;
	memcpy(&job, j->id + SVC_JOB_AT, sizeof(job));
	if (job.tag != SVC_JOB_TAG || job.user == c->uid)
		return true;
	if (job.user != SVC_JOB_OWN) {
		session_error(
			c, SVC_JOIN, request_id, NCCLSVC_PERMISSION,
			"the id belongs to a job of user %u; a process of user %u cannot join",
			job.user, c->uid);
		return false;
	}
	job.user = c->uid;
	memcpy(j->id + SVC_JOB_AT, &job, sizeof(job));
	return true;
}

/* False: JOINs of this tenant already wait for many nodes that have not answered, and an error was
 * sent. Ids can name any address, and the table of nodes is everybody's. */
static bool may_connect(struct comms *s, struct session *c, uint32_t request_id,
			const struct svc_join *j)
{
	bool counted[CLUSTER_NODES_MAX] = {false};
	const struct communicator *m, *next;
	if (!s->cluster || cluster_knows(s->cluster, j->id))
		return true;
	uint32_t n = cluster_asked_for(s->cluster, c->account->number);
	HASH_ITER (hh, s->comms, m, next) {
		const bool waits = m->account == c->account && m->joining && !m->start;
		const uint32_t node =
			waits ? cluster_unreached(s->cluster, m->id) : CLUSTER_NO_NODE;
		if (node == CLUSTER_NO_NODE || counted[node])
			continue;
		counted[node] = true;
		n++;
	}
	if (n < UNREACHED_MAX)
		return true;
	session_error(
		c, SVC_JOIN, request_id, NCCLSVC_LIMIT,
		"JOINs of this tenant wait for %u nodes that have not answered yet: try again "
		"later",
		n);
	return false;
}

void comm_join(struct comms *s, struct session *c, uint32_t request_id,
	       const struct svc_join *request)
{
	struct svc_join own = *request;
	const struct svc_join *j = &own;
	const struct svc_resume resume = c->next_join;
	if (!own_job(c, request_id, &own) || !check_join(s, c, request_id, j) ||
	    !may_connect(s, c, request_id, j))
		return;
	if (resume.kind == SVC_RESUME_LEFT) {
		note_left(s, c, request_id, j, resume.lineage);
		return;
	}
	gpu_mps_joined(s->gpus, c, j);
	struct communicator *m = find_or_create(s, c, request_id, j);
	if (!m)
		return;
	int32_t rank = j->rank >= 0 ? j->rank : any_free_rank(s, m);
	if (rank < 0) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_LIMIT,
			      "all %u ranks of the world are taken", m->nranks);
		return;
	}
	if ((uint32_t)rank >= m->nranks) {
		session_error(c, SVC_JOIN, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the world has no rank %d; it has %u ranks (--ranks)", rank,
			      m->nranks);
		return;
	}
	if (m->world && !world_rank_is_ours(s, c, request_id, rank))
		return;
	const struct member *member = &m->members[rank];
	/* A member has left, so the epoch can do little more; its process may ask for the next one.
	 */
	if (member->session == c && member->state == NCCLSVC_MEMBER_JOINED &&
	    epoch_runs(&m->life) && !comm_is_whole(m))
		comm_break_epoch(m, NCCLSVC_CAUSE_RENEWED, a_missing_rank(m));
	if (comm_alive(member) &&
	    !(member->session == c && member->state == NCCLSVC_MEMBER_BROKEN)) {
		comm_turn_away(c, m, request_id, rank, NCCLSVC_RANK_TAKEN,
			       "rank %d of communicator %s is held by pid %d, session %u", rank,
			       m->label, member->session->pid, member->session->id);
		return;
	}
	if (comm_device_fits(c, m, request_id, j, rank) &&
	    resume_fits(c, m, request_id, rank, &resume))
		take_rank(s, c, m, rank, request_id, j, &resume);
}
