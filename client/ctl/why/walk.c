/* SPDX-License-Identifier: Apache-2.0
 * Follows the waits of ranks, depth first, to a rank that waits for no other, or round a circle.
 */
#include "internal.h"

static bool walk(struct why *w, uint64_t comm, int32_t rank, struct why_path *at,
		 struct why_path *best);

static bool walk_session(struct why *w, const ncclsvc_member_info *m, struct why_path *at,
			 struct why_path *best, bool *followed);

/* The path ends here; the gravest cause wins, and of equal ones the first. */
static void ends(const struct why_path *at, enum why_cause cause, struct why_path *best)
{
	if (cause <= best->cause)
		return;
	*best = *at;
	best->cause = cause;
}

/* It has yet to submit the rest of a group of its plan. */
static bool walk_held(struct why *w, struct why_path *at, struct why_path *best)
{
	const ncclsvc_member_info *m = at->step[at->n - 1].m;
	bool followed = false, halted = process_is_halted(why_process(w, m));
	if (!halted && m && walk_session(w, m, at, best, &followed))
		return true;
	if (!followed)
		ends(at, halted ? WHY_STOPPED : WHY_PLAN, best);
	return false;
}

static bool walk_tasks(struct why *w, const ncclsvc_task_info **tasks, size_t n,
		       struct why_path *at, struct why_path *best)
{
	struct why_step *here = &at->step[at->n - 1];
	for (size_t i = 0; i < n && why_goes_on(w); i++) {
		const ncclsvc_task_info *t = tasks[i];
		here->t = t;
		if (t->state == NCCLSVC_WAITING_INPUT) {
			bool halted = process_is_halted(why_process(w, here->m));
			ends(at, halted ? WHY_STOPPED : WHY_INPUT, best);
		} else if (t->state == NCCLSVC_WAITING_GROUP) {
			if (walk_held(w, at, best))
				return true;
		} else if (t->state != NCCLSVC_WAITING_PEERS ||
			   (!t->waits_count && !t->ask_count)) {
			ends(at, WHY_RUNNING, best);
		} else {
			ends(at, why_asks(w, t), best);
			for (uint32_t k = 0; k < task_waits_shown(t); k++)
				if (walk(w, t->comm, t->waits_for[k], at, best))
					return true;
		}
	}
	return false;
}

/* A rank with nothing pending: its session may be held up in another communicator. Tasks that are
 * younger than the threshold there are no hold-up. *followed: some was found. */
static bool walk_session(struct why *w, const ncclsvc_member_info *m, struct why_path *at,
			 struct why_path *best, bool *followed)
{
	size_t n, ntasks;
	if (!m->session)
		return false;
	const ncclsvc_member_info **places = why_memberships(w, m->session, &n);
	for (size_t i = 0; i < n && why_goes_on(w); i++) {
		if (places[i]->comm == m->comm)
			continue;
		const ncclsvc_task_info **tasks =
			why_tasks(w, places[i]->comm, places[i]->rank, &ntasks);
		if (!ntasks || tasks[0]->state_ns < w->in->after_ns)
			continue;
		*followed = true;
		if (walk(w, places[i]->comm, places[i]->rank, at, best))
			return true;
	}
	return false;
}

static void walk_idle(struct why *w, const ncclsvc_member_info *m, struct why_path *at,
		      struct why_path *best)
{
	const struct process *p = why_process(w, m);
	enum why_cause cause = WHY_MISSING;
	const ncclsvc_task_info *before = at->n > 1 ? at->step[at->n - 2].t : NULL;
	if (process_is_halted(p))
		cause = WHY_STOPPED;
	else if (p->state == PROCESS_GONE)
		cause = WHY_DEAD;
	else if (why_worker_is_halted(w, m))
		cause = WHY_WORKER;
	else if (before && op_is_p2p(before->op))
		cause = WHY_UNMATCHED;
	ends(at, cause, best);
}

/* With at's last step filled in. True: it waits in a circle. */
static bool walk_step(struct why *w, struct why_path *at, struct why_path *best)
{
	const struct why_step *here = &at->step[at->n - 1];
	const ncclsvc_member_info *m = here->m;
	size_t n;
	const ncclsvc_task_info **tasks = why_tasks(w, here->comm, here->rank, &n);
	if (n)
		return walk_tasks(w, tasks, n, at, best);
	if (!m || m->state == NCCLSVC_MEMBER_ABSENT || m->state == NCCLSVC_MEMBER_JOINING) {
		ends(at, WHY_JOINING, best);
		return false;
	}
	if (m->state == NCCLSVC_MEMBER_DEAD || m->state == NCCLSVC_MEMBER_BROKEN) {
		ends(at, WHY_DEAD, best);
		return false;
	}
	bool followed = false;
	if (!process_is_halted(why_process(w, m)) && walk_session(w, m, at, best, &followed))
		return true;
	if (!followed)
		walk_idle(w, m, at, best);
	return false;
}

static bool walk(struct why *w, uint64_t comm, int32_t rank, struct why_path *at,
		 struct why_path *best)
{
	if (!why_goes_on(w)) {
		ends(at, WHY_RUNNING, best);
		return false;
	}
	for (unsigned i = 0; i < at->n; i++) {
		if (at->step[i].comm != comm || at->step[i].rank != rank)
			continue;
		*best = *at;
		best->cycle = (int)i;
		best->cause = WHY_DEADLOCK;
		return true;
	}
	const ncclsvc_member_info *m = why_member(w, comm, rank);
	if (m) {
		uint32_t *seen = &w->seen[m - w->s->members];
		if (*seen == w->walk)
			return false;
		*seen = w->walk;
	}
	if (at->n == WHY_STEPS) {
		ends(at, WHY_RUNNING, best);
		return false;
	}
	at->step[at->n++] = (struct why_step){comm, rank, m, NULL};
	bool circle = walk_step(w, at, best);
	at->n--;
	return circle;
}

void why_walk(struct why *w, const ncclsvc_task_info *t, int32_t rank, struct why_path *best)
{
	struct why_path at = {.n = 1, .cycle = -1};
	at.step[0] = (struct why_step){t->comm, t->rank, why_member(w, t->comm, t->rank), t};
	*best = at;
	if (rank == t->rank) {
		best->step[best->n++] = at.step[0];
		best->cause = op_is_p2p(t->op) ? WHY_UNMATCHED : WHY_MISSING;
		return;
	}
	w->walk++;
	walk(w, t->comm, rank, &at, best);
}
