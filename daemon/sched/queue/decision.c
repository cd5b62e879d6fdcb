/* SPDX-License-Identifier: Apache-2.0
 *
 * The first decision about a collective is final.
 *
 * A collective can fail before all members have posted it, and while it waits behind others in
 * their queues: by one member's deadline, another's cancellation, or both. The member whose task
 * fails first is told at once, and its task stays as a tombstone. That tombstone is the decision:
 * all other members' tasks of the same collective get its status, whatever happens to them.
 *
 * Collectives of a communicator are numbered in the order in which they run. A task gets its number
 * (nth) when it enters its member's queue: the number of the current collective plus the
 * collectives before it in the queue. Numbers change only when all members wait for each other,
 * since some then lose a collective that the others have not posted. Tombstones are found by
 * communicator and number in a table as large as the task table, so nothing is allocated.
 *
 * When a member has left, or the epoch has ended, no collective matches any more, and each task
 * gets the corresponding status.
 */
#include <utlist.h>

#include "proto/names.h"
#include "proto/operation.h"
#include "release.h"

static struct task **bucket_of(const struct scheduler *sched, const struct comm *c, uint64_t nth)
{
	const uint64_t mixed = (c->uid + nth) * UINT64_C(0x9e3779b97f4a7c15);
	return &sched->decided[mixed >> 32 & sched->published_mask];
}

static void put(const struct scheduler *sched, struct task *t)
{
	struct task **at = bucket_of(sched, t->comm, t->nth);
	t->next_decided = *at;
	*at = t;
}

static void take(const struct scheduler *sched, const struct task *t)
{
	struct task **at = bucket_of(sched, t->comm, t->nth);
	while (*at != t)
		at = &(*at)->next_decided;
	*at = t->next_decided;
}

static bool is_numbered(const struct task *t)
{
	return !svc_op_is_p2p(t->record.op) && t->stage >= IN_QUEUE && t->stage <= POSTED;
}

static void number_again(struct scheduler *sched, struct comm *c)
{
	struct task *t;
	c->misnumbered = false;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		m->nth = c->collectives;
		DL_FOREACH (m->queue, t) {
			sched->steps++;
			if (!is_numbered(t))
				continue;
			if (t->decided)
				take(sched, t);
			t->nth = m->nth++;
			if (t->decided)
				put(sched, t);
		}
	}
}

static const ncclsvc_status *find(struct scheduler *sched, struct comm *c, uint64_t nth)
{
	const struct task *t = c->decisions ? *bucket_of(sched, c, nth) : NULL;
	while (t && (t->comm != c || t->nth != nth))
		t = t->next_decided;
	return t ? &t->end : NULL;
}

const ncclsvc_status *decision_current(struct scheduler *sched, struct comm *c)
{
	if (c->poisoned)
		return &c->poison;
	if (!c->decisions || c->gone || c->ended)
		return NULL;
	if (c->misnumbered)
		number_again(sched, c);
	return find(sched, c, c->collectives);
}

const ncclsvc_status *decision_of(struct scheduler *sched, const struct task *t)
{
	struct comm *c = t->comm;
	if (!(c->decisions || c->poisoned) || !is_numbered(t) || c->gone || c->ended)
		return NULL;
	if (c->misnumbered)
		number_again(sched, c);
	return c->poisoned && t->nth == c->collectives ? &c->poison : find(sched, c, t->nth);
}

void decision_keep(struct scheduler *sched, struct task *t)
{
	struct comm *c = t->comm;
	if (!is_numbered(t) || c->gone || c->ended)
		return;
	if (c->misnumbered)
		number_again(sched, c);
	t->decided = true;
	c->decisions++;
	put(sched, t);
}

void decision_forget(struct scheduler *sched, struct task *t)
{
	if (t->decided) {
		take(sched, t);
		t->decided = false;
		t->comm->decisions--;
	}
	if (is_numbered(t) && t->stage < POSTED)
		t->comm->misnumbered = true;
}
