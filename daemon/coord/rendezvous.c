/* SPDX-License-Identifier: Apache-2.0
 * The node where a communicator's members gather: makes the checks that need to know all of them,
 * and starts the epochs. */
#include "rendezvous.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Sends once to every node that has a member here. */
static void tell(struct coord *c, const struct rendezvous *r, enum control_kind kind,
		 const void *body, size_t size)
{
	bool notified[CLUSTER_NODES_MAX] = {false};
	for (uint32_t k = 0; k < r->nranks; k++) {
		const struct member_slot *s = &r->members[k];
		if (s->state == SLOT_FREE || notified[s->node])
			continue;
		notified[s->node] = true;
		coord_send(c, s->node, kind, body, size);
	}
}

/* The epoch has ended, for whatever reason, and members must join again. Their nodes know why. */
static void end_epoch(struct rendezvous *r)
{
	r->running = false;
	for (uint32_t k = 0; k < r->nranks; k++)
		if (r->members[k].state == SLOT_JOINED)
			r->members[k].state = SLOT_BROKEN;
}

static void tell_once(struct coord *c, uint32_t node, const struct control_break *b, bool *notified)
{
	if (!notified[node] && !coord_is_gone(c, node))
		coord_send(c, node, CONTROL_BREAK, b, sizeof(*b));
	notified[node] = true;
}

/* Sends to all nodes that have or had members, and to one more. */
static void tell_over(struct coord *c, const struct rendezvous *r, uint32_t epoch, int32_t rank,
		      bool suspends, uint32_t also)
{
	bool notified[CLUSTER_NODES_MAX] = {false};
	const int32_t pid = rank >= 0 ? r->members[rank].pid : 0; /* of the member that has left */
	struct control_break b = {
		.epoch = epoch,
		.result = pid ? NCCLSVC_PEER_GONE : NCCLSVC_STALE_EPOCH,
		.rank = pid ? rank : -1,
		.pid = pid,
		.node = pid && r->members[rank].lost ? (int32_t)r->members[rank].node : -1,
		.by = c->me,
		.renewed = true,
		.suspends = suspends};
	memcpy(b.id, r->id, sizeof(b.id));
	tell_once(c, also, &b, notified);
	for (uint32_t k = 0; k < r->nranks; k++)
		tell_once(c, r->members[k].node, &b, notified);
}

/* A newcomer needs an epoch with all members, or not all nodes know of this one. The newcomer's
 * node may be about to learn that the epoch has begun. suspends: the newcomer continues it. */
static void break_epoch(struct coord *c, struct rendezvous *r, int32_t rank, bool suspends,
			uint32_t from)
{
	tell_over(c, r, r->epoch, rank, suspends, from);
	end_epoch(r);
}

/* A member's message shows that its epoch is over. Its node has told the nodes that it can reach.
 * Or START was lost, and the node never knew of the epoch. */
static void is_over_for(struct coord *c, struct rendezvous *r, uint32_t rank, bool suspends,
			uint32_t from)
{
	if (r->running && !c->together)
		break_epoch(c, r, (int32_t)rank, suspends, from);
	else
		end_epoch(r);
}

/* ---- Refusing ---- */

static void note_refusal(struct rendezvous *r, uint32_t rank, int32_t pid, const char *text)
{
	refusal_note(&r->refused, (int32_t)rank, pid, text);
}

static void send_refusal(struct coord *c, uint32_t node, const struct control_join *m, int result,
			 const char *text)
{
	struct control_refuse refusal = {.rank = m->rank,
					 .session = m->session,
					 .request_id = m->request_id,
					 .result = result};
	memcpy(refusal.id, m->id, sizeof(refusal.id));
	snprintf(refusal.text, sizeof(refusal.text), "%s", text);
	coord_send(c, node, CONTROL_REFUSE, &refusal, sizeof(refusal));
}

static void fail_all_joins(struct coord *c, struct rendezvous *r, int result, const char *text);

/* Control groups differ between nodes, so each node has compared those of its own members. */
static bool admits(const struct rendezvous *r, const struct control_join *m)
{
	return r->uid == m->uid || r->admit == NCCLSVC_ADMIT_ANY;
}

/* Reports a refused JOIN to those that wait for the rank. If it does not fit the others' JOINs, no
 * JOIN of that program ever will, so they need not wait for their deadlines. */
static void tell_refusal(struct coord *c, struct rendezvous *r, uint32_t rank, int32_t pid,
			 int result, const char *text)
{
	note_refusal(r, rank, pid, text);
	if (result == NCCLSVC_MISMATCH)
		fail_all_joins(c, r, result, text);
}

/* Refuses a new JOIN. */
__attribute__((format(printf, 6, 7))) static void refuse(struct coord *c, uint32_t node,
							 struct rendezvous *r,
							 const struct control_join *m, int result,
							 const char *format, ...)
{
	char text[SVC_TEXT_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	send_refusal(c, node, m, result, text);
	if (r && admits(r, m))
		tell_refusal(c, r, m->rank, m->pid, result, text);
}

/* Fails a JOIN that was accepted. */
static void fail_join(struct coord *c, struct rendezvous *r, uint32_t rank, int result,
		      const char *text)
{
	const struct member_slot *s = &r->members[rank];
	struct control_join m = {.rank = rank, .session = s->session, .request_id = s->request_id};
	memcpy(m.id, r->id, sizeof(m.id));
	send_refusal(c, s->node, &m, result, text);
}

static void fail_slot(struct coord *c, struct rendezvous *r, uint32_t rank, int result,
		      const char *text)
{
	if (r->members[rank].state != SLOT_JOINING)
		return;
	fail_join(c, r, rank, result, text);
	rendezvous_free_slot(c, r, &r->members[rank]);
}

static void fail_all_joins(struct coord *c, struct rendezvous *r, int result, const char *text)
{
	for (uint32_t k = 0; k < r->nranks; k++)
		fail_slot(c, r, k, result, text);
}

/* No other client can ever take a slot of this SPLIT's subcommunicator: its JOINs fail, now and
 * later, and its epoch cannot begin. */
static void refuse_subcomm(struct coord *c, struct rendezvous *r, int result, const char *text)
{
	note_refusal(r, 0, 0, text);
	r->unjoinable = result;
	fail_all_joins(c, r, result, text);
	if (r->running) /* not all members' nodes know of the epoch */
		break_epoch(c, r, -1, false, c->me);
}

void rendezvous_refused(struct coord *c, uint32_t from, const struct control_refuse *m)
{
	struct rendezvous *r = rendezvous_find(c, m->id);
	if (m->session)
		return; /* it is on this node */
	if (!r && m->subcomm)
		r = rendezvous_create(c, m->id, m->uid, m->nranks, true);
	if (!r || m->rank >= r->nranks)
		return;
	if (r->members[m->rank].state != SLOT_FREE && r->members[m->rank].node != from)
		return;
	if (m->subcomm)
		refuse_subcomm(c, r, m->result, m->text);
	else
		tell_refusal(c, r, m->rank, m->pid, m->result, m->text);
}

/* ---- JOIN ---- */

static void begin_attempt(struct rendezvous *r)
{
	r->refused.pid = 0;
	for (uint32_t k = 0; k < r->nranks; k++)
		r->members[k].late = false;
}

static uint32_t next_epoch(const struct rendezvous *r)
{
	return 1 + (r->epoch > r->known ? r->epoch : r->known);
}

/* ---- Epochs that continue one ---- */

static bool continues(const struct member_slot *s)
{
	return s->state == SLOT_JOINING && s->resume == SVC_RESUME_COMM;
}

static uint32_t lineage_name(uint32_t lineage)
{
	return lineage & ~SVC_LINEAGE_RESUMED;
}

static uint32_t new_lineage(const struct coord *c)
{
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t random = (uint32_t)coord_now(c);
	if (!c->ops->random_id(c->arg, id))
		memcpy(&random, id, sizeof(random));
	random = lineage_name(random);
	return random ? random : 1;
}

/* All ranks wait in JOIN. 0: nobody can continue the epoch that begins. */
static uint32_t choose_lineage(const struct coord *c, const struct rendezvous *r)
{
	bool again = false, survive = !c->together;
	if (r->cuda && r->transport == NCCLSVC_TRANSPORT_MPI)
		return 0;
	for (uint32_t k = 0; k < r->nranks; k++) {
		again |= continues(&r->members[k]);
		survive &= r->members[k].survives;
	}
	if (again)
		return r->lineage | SVC_LINEAGE_RESUMED;
	return survive ? new_lineage(c) : 0;
}

/* Fails the JOINs that continue an epoch, and those whose daemon has not answered them. */
static void not_continued(struct coord *c, struct rendezvous *r, const char *why)
{
	bool any = false;
	for (uint32_t k = 0; k < r->nranks; k++)
		any |= continues(&r->members[k]);
	if (any)
		fail_all_joins(c, r, NCCLSVC_PEER_GONE, why);
}

/* Members that continue an epoch wait only for each other, and for JOINs that the previous daemon
 * has not answered. A new process has nothing to continue. False: it was refused. */
static bool resume_fits(struct coord *c, uint32_t from, struct rendezvous *r,
			const struct control_join *m)
{
	const uint32_t known = lineage_name(r->lineage);
	int32_t anew = -1;
	bool others = false;
	if (!m->resume)
		not_continued(c, r,
			      "another process has joined with a rank of the epoch that was to be "
			      "continued");
	if (m->resume != SVC_RESUME_COMM)
		return true;
	for (uint32_t k = 0; k < r->nranks; k++) {
		const struct member_slot *s = &r->members[k];
		if (k != m->rank && s->state == SLOT_JOINING && !s->resume)
			anew = (int32_t)k;
		others |= k != m->rank && continues(s);
	}
	if (anew >= 0)
		refuse(c, from, r, m, NCCLSVC_PEER_GONE,
		       "the epoch cannot be continued: rank %d (pid %d) joined as a new process",
		       anew, r->members[anew].pid);
	else if (r->left_lineage == m->lineage)
		refuse(c, from, r, m, NCCLSVC_PEER_GONE,
		       "the epoch cannot be continued: a member had left it");
	else if ((r->epoch || others) && known != m->lineage)
		refuse(c, from, r, m, NCCLSVC_STALE_EPOCH,
		       "the epoch cannot be continued: another one has begun");
	else
		return true;
	return false;
}

/* The sum of what NCCL has done (proto/group/done.h) shows whether an operation ran on some ranks
 * only. */
static bool done_differs(const struct rendezvous *r)
{
	bool again = false;
	uint64_t done = 0;
	for (uint32_t k = 0; k < r->nranks; k++) {
		again |= continues(&r->members[k]);
		done += r->members[k].done;
	}
	return again && r->cuda && done;
}

/* A process that has left the epoch says so. */
static void note_left(struct coord *c, const struct control_join *m)
{
	struct rendezvous *r = rendezvous_find(c, m->id);
	if (r && r->held && !admits(r, m))
		return;
	if (!r)
		r = rendezvous_create(c, m->id, m->uid, m->nranks, false);
	if (!r || (r->epoch && lineage_name(r->lineage) != m->lineage))
		return;
	r->left_lineage = m->lineage;
	if (lineage_name(r->lineage) == m->lineage)
		not_continued(c, r, "the epoch cannot be continued: a member had left it");
}

/* ---- START ---- */

/* lost: as in struct control_start. False: no memory. */
static bool tell_start(struct coord *c, const struct rendezvous *r, int32_t lost)
{
	const size_t size =
		sizeof(struct control_start) + r->nranks * sizeof(struct control_member);
	struct control_start *m = calloc(1, size);
	if (!m)
		return false;
	memcpy(m->id, r->id, sizeof(m->id));
	memcpy(m->label, r->label, sizeof(m->label));
	m->epoch = r->epoch;
	m->nranks = r->nranks;
	m->internode_id = r->internode_id;
	m->lost = lost;
	m->lineage = r->lineage;
	for (uint32_t k = 0; k < r->nranks; k++) {
		const struct member_slot *s = &r->members[k];
		m->members[k] = (struct control_member){s->node, s->session, s->request_id, s->pid,
							s->device};
	}
	tell(c, r, CONTROL_START, m, size);
	free(m);
	return true;
}

static void start(struct coord *c, struct rendezvous *r)
{
	r->lineage = choose_lineage(c, r);
	r->epoch = next_epoch(r);
	r->internode_id = ++c->names;
	if (!tell_start(c, r, -1)) {
		log_error("communicator %s: out of memory for an epoch: its JOINs fail", r->label);
		fail_all_joins(c, r, NCCLSVC_NO_MEMORY, "the daemon has no memory for an epoch");
		return;
	}
	for (uint32_t k = 0; k < r->nranks; k++)
		r->members[k].state = SLOT_JOINED;
	r->joining = 0;
	r->running = true;
	r->split = false;
}

/* A held slot is given only to its holder, when the slot's epoch has ended. */
static bool may_take(struct coord *c, uint32_t from, struct rendezvous *r,
		     const struct control_join *m)
{
	struct member_slot *s = &r->members[m->rank];
	bool same = s->node == from && s->session == m->session;
	if (s->state == SLOT_JOINED && same && (m->epoch >= r->epoch || !c->together))
		is_over_for(c, r, m->rank, m->resume == SVC_RESUME_COMM, from);
	if (s->state == SLOT_FREE || (s->state == SLOT_BROKEN && same))
		return true;
	refuse(c, from, r, m, NCCLSVC_RANK_TAKEN,
	       "rank %u of communicator %s is held by pid %d, session %u of node %u (%s)", m->rank,
	       r->label, s->pid, s->session, s->node, coord_host(c, s->node));
	return false;
}

static const char *transport_name(uint32_t transport)
{
	return transport == NCCLSVC_TRANSPORT_MPI ? "MPI" : "NCCL";
}

/* The last one, if none is held. */
static uint32_t first_held(const struct rendezvous *r)
{
	uint32_t k = 0;
	while (r->members[k].state == SLOT_FREE && k + 1 < r->nranks)
		k++;
	return k;
}

/* False: the JOIN does not fit the other members', and was refused. */
static bool fits_others(struct coord *c, uint32_t from, struct rendezvous *r,
			const struct control_join *m)
{
	const uint32_t k = first_held(r);
	if (r->cuda != m->cuda)
		refuse(c, from, r, m, NCCLSVC_MISMATCH,
		       "rank %u (pid %d, node %u) joins with %s, but the members of communicator "
		       "%s joined with %s",
		       m->rank, m->pid, from, m->cuda ? "a GPU" : "host memory", r->label,
		       r->cuda ? "GPUs" : "host memory");
	else if (r->cuda && r->transport != m->transport)
		refuse(c, from, r, m, NCCLSVC_MISMATCH,
		       "device memory is carried by %s on node %u (rank %u, pid %d), and by %s on "
		       "node %u (rank %u): set the same transport on all nodes",
		       transport_name(m->transport), from, m->rank, m->pid,
		       transport_name(r->transport), r->members[k].node, k);
	else if (r->unjoinable)
		refuse(c, from, NULL, m, r->unjoinable, "%s", r->refused.text);
	else
		return true;
	return false;
}

/* Returns the rendezvous for a JOIN, created if needed; NULL after it was refused. */
static struct rendezvous *rendezvous_for(struct coord *c, uint32_t from,
					 const struct control_join *m)
{
	struct rendezvous *r = rendezvous_find(c, m->id);
	if (r && r->held && !admits(r, m)) {
		refuse(c, from, r, m, NCCLSVC_PERMISSION,
		       "communicator %s belongs to user %u; pid %d of node %u is of user %u: set "
		       "NCCLSVC_ADMIT=any in all its processes to admit it",
		       r->label, r->uid, m->pid, from, m->uid);
		return NULL;
	}
	if (r && r->nranks != m->nranks && r->held) {
		const uint32_t k = first_held(r);
		refuse(c, from, r, m, NCCLSVC_MISMATCH,
		       "nranks differs: rank %u (pid %d, node %u) says %u, rank %u (pid %d, node "
		       "%u) and %u more said %u",
		       m->rank, m->pid, from, m->nranks, k, r->members[k].pid, r->members[k].node,
		       r->held - 1, r->nranks);
		return NULL;
	}
	if (r && r->nranks != m->nranks) {
		rendezvous_forget(c, r);
		r = NULL;
	}
	if (!r && !(r = rendezvous_create(c, m->id, m->uid, m->nranks, m->split))) {
		refuse(c, from, NULL, m, NCCLSVC_LIMIT,
		       "node %u has no room for more communicators", c->me);
		return NULL;
	}
	if (!r->held)
		rendezvous_hand_over(c, r, m);
	if (r->known < m->epoch)
		r->known = m->epoch;
	return fits_others(c, from, r, m) ? r : NULL;
}

void rendezvous_join(struct coord *c, uint32_t from, const struct control_join *m)
{
	if (m->resume == SVC_RESUME_LEFT) {
		note_left(c, m);
		return;
	}
	struct rendezvous *r = rendezvous_for(c, from, m);
	if (!r || !may_take(c, from, r, m) || !resume_fits(c, from, r, m))
		return;
	if (!r->joining)
		begin_attempt(r);
	if (r->refused.rank == (int32_t)m->rank)
		r->refused.pid = 0;
	r->split = m->split;
	const bool again = m->resume == SVC_RESUME_COMM;
	if (r->running)
		break_epoch(c, r, (int32_t)m->rank, again, from);
	if (again)
		r->lineage = m->lineage;
	rendezvous_take_slot(c, from, r, m, SLOT_JOINING);
	if (++r->joining < r->nranks)
		return;
	if (done_differs(r))
		fail_all_joins(c, r, NCCLSVC_UNSUPPORTED,
			       "the epoch cannot be continued: when the daemon ended, NCCL "
			       "operations, a split or a plan were done on only some ranks");
	else
		start(c, r);
}

/* ---- Giving up and leaving ---- */

static void refuse_late(struct coord *c, struct rendezvous *r, uint32_t rank)
{
	struct absent_ranks absent = {0};
	char text[SVC_TEXT_BYTES];
	for (uint32_t k = 0; k < r->nranks; k++)
		if (r->members[k].state != SLOT_JOINING)
			absent_add(&absent, k, r->members[k].late);
	absent_text(&absent, r->label, rank, &r->refused, text);
	fail_join(c, r, rank, NCCLSVC_TIMEOUT, text);
	r->members[rank].late = true;
}

static void fail_subcomm(struct coord *c, struct rendezvous *r, uint32_t rank, bool late)
{
	char text[SVC_TEXT_BYTES] = "a member left or died before the split was done";
	if (late)
		snprintf(text, sizeof(text), "the split was not done by rank %u's deadline", rank);
	refuse_subcomm(c, r, late ? NCCLSVC_TIMEOUT : NCCLSVC_PEER_GONE, text);
}

/* This rank's member died while it waited; its slot is free. */
static void fail_fast(struct coord *c, struct rendezvous *r, uint32_t rank)
{
	char text[SVC_TEXT_BYTES];
	snprintf(text, sizeof(text),
		 "rank %u (pid %d) of communicator %s ended before all ranks had joined: start it "
		 "again, and join again",
		 rank, r->members[rank].pid, r->label);
	for (uint32_t k = 0; k < r->nranks; k++)
		if (r->members[k].fail_fast)
			fail_slot(c, r, k,
				  continues(&r->members[k]) ? NCCLSVC_AGAIN : NCCLSVC_PEER_GONE,
				  text);
}

void rendezvous_withdrawn(struct coord *c, uint32_t from, const struct control_withdraw *m)
{
	struct rendezvous *r = rendezvous_find(c, m->id);
	if (!r || m->epoch || m->rank >= r->nranks)
		return;
	struct member_slot *s = &r->members[m->rank];
	const bool late = m->why == WITHDRAW_LATE, joining = s->state == SLOT_JOINING;
	const bool again = continues(s);
	if (s->node != from || s->session != m->session || s->state == SLOT_FREE)
		return;
	if (late && !joining)
		return; /* it has begun meanwhile, or has ended */
	if (s->state == SLOT_JOINED)
		is_over_for(c, r, m->rank, false, from); /* the culprit's node may report later */
	if (late)
		refuse_late(c, r, m->rank);
	rendezvous_free_slot(c, r, s);
	if (joining && r->split)
		fail_subcomm(c, r, m->rank, late);
	else if (again && !late)
		not_continued(c, r,
			      "the epoch cannot be continued: a member has exited or left it");
	else if (joining && m->why == WITHDRAW_DIED)
		fail_fast(c, r, m->rank);
}

/* The node that reports it may be cut off from others. */
static void relay_end(struct coord *c, const struct rendezvous *r, uint32_t from,
		      const struct control_break *m)
{
	bool notified[CLUSTER_NODES_MAX] = {false};
	notified[from] = true;
	for (uint32_t k = 0; k < r->nranks; k++)
		if (r->members[k].state != SLOT_FREE)
			tell_once(c, r->members[k].node, m, notified);
}

void rendezvous_broken(struct coord *c, uint32_t from, const struct control_break *m)
{
	struct rendezvous *r = rendezvous_find(c, m->id);
	if (!r || m->epoch != r->epoch)
		return;
	if (r->running && !c->together)
		relay_end(c, r, from, m);
	end_epoch(r);
	if (m->result == NCCLSVC_PEER_GONE && m->node < 0 && m->rank >= 0 &&
	    (uint32_t)m->rank < r->nranks && r->members[m->rank].state == SLOT_BROKEN &&
	    r->members[m->rank].node == from)
		rendezvous_free_slot(c, r, &r->members[m->rank]);
}

void rendezvous_left(struct coord *c, uint32_t from, const struct control_left *m)
{
	struct rendezvous *r = rendezvous_find(c, m->id);
	if (!r || m->plan || m->epoch != r->epoch || m->rank >= r->nranks)
		return;
	struct member_slot *s = &r->members[m->rank];
	if (s->node != from || s->state == SLOT_JOINING || s->state == SLOT_FREE)
		return;
	rendezvous_free_slot(c, r, s);
	r->left_lineage = lineage_name(r->lineage);
	if (!r->held)
		r->running = false;
}

/* Daemons that were started together all notice the loss. Otherwise the epoch may go on; if that
 * node missed START, the other nodes forward it. */
static void lose_in_epoch(struct coord *c, struct rendezvous *r, uint32_t node)
{
	if (c->together || !r->held)
		end_epoch(r);
	else if (!tell_start(c, r, (int32_t)node))
		break_epoch(c, r, -1, false, c->me);
}

void rendezvous_node_lost(struct coord *c, uint32_t node)
{
	struct rendezvous *r, *next;
	HASH_ITER (hh, c->rendezvous, r, next) {
		bool member = false;
		for (uint32_t k = 0; k < r->nranks; k++)
			member |= r->members[k].state != SLOT_FREE && r->members[k].node == node;
		if (!member)
			continue;
		const bool waits = r->joining;
		int32_t died = -1; /* a waiting member of that node */
		for (uint32_t k = 0; k < r->nranks; k++) {
			if (r->members[k].node != node)
				continue;
			died = r->members[k].state == SLOT_JOINING ? (int32_t)k : died;
			r->members[k].lost = r->members[k].state != SLOT_FREE;
			rendezvous_free_slot(c, r, &r->members[k]);
		}
		if (r->running)
			lose_in_epoch(c, r, node);
		if (waits && r->split)
			fail_subcomm(c, r, 0, false);
		else if (died >= 0)
			fail_fast(c, r, (uint32_t)died);
	}
}
