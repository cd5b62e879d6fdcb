/* SPDX-License-Identifier: Apache-2.0
 * Sends and Recvs whose turn it is on arrival.
 *
 * Most small transfers are of this kind: a task group without other tasks, of a member with an
 * empty queue, on a communicator of this host's memory. order.c would queue them, find at once that
 * it is their turn, post them, and match them. Here they are posted on arrival, and a small task
 * whose peer is already posted ends without ever being queued. Remaining tasks are left in the
 * state that order.c would leave them in; all other cases go through order.c. */
#include <utlist.h>

#include "complete.h"
#include "fast_path.h"
#include "match.h"
#include "order.h"
#include "release.h"
#include "sched/base/task_state.h"
#include "sched/base/tasks.h"
#include "set.h"

#define FAST_PATH_TASKS 64 /* per group; larger groups are taken in slices */

static bool may_post(const struct task *first, uint32_t n)
{
	const struct member *m = first->member;
	const struct comm *c = m->comm;
	return n <= FAST_PATH_TASKS && !m->queue && c->here == c->nranks && !c->gone;
}

static void post(struct scheduler *sched, struct task *t)
{
	struct member *m = t->member;
	order_admit(sched, t);
	t->stage = POSTED;
	m->posted++;
	m->head_tasks++;
	DL_APPEND(m->queue, t);
	task_offer(t);
}

/* Both have ended: t was never queued, and u was posted. */
static void end_at_once(struct scheduler *sched, struct task *t, struct task *u)
{
	ncclsvc_status failed;
	const ncclsvc_status *st = complete_ran((struct task *[]){t, u}, 2, &failed);
	struct member *m = t->member;
	t->seq = m->submitted++;
	m->completed++;
	complete_task(sched, t, st);
	task_free(sched, t);
	release_end(sched, u, st);
}

/* u is posted. BEGUN_NO_MEMORY: nothing was started, for whatever reason. */
static enum begun start_at_once(struct scheduler *sched, struct task *t, struct task *u)
{
	const struct svc_record *a = &t->record, *b = &u->record;
	const bool sends = a->op == NCCLSVC_SEND;
	if (!u->simple || u->tombstone || a->type != b->type || a->count != b->count)
		return BEGUN_NO_MEMORY;
	struct task *const pair[] = {sends ? t : u, sends ? u : t};
	const struct match match = {.comm = t->comm, .tasks = pair, .ntasks = 2};
	return t->comm->transport->start(sched, &match);
}

static void post_group(struct scheduler *sched, struct task *first, uint32_t n)
{
	struct member *m = first->member;
	struct task *t = first, *next, *u;
	for (uint32_t i = 0; i < n; i++, t = next) {
		next = t->next;
		u = task_find_peer(sched, t);
		const enum begun begun = u ? start_at_once(sched, t, u) : BEGUN_NO_MEMORY;
		if (begun == BEGUN_DONE) {
			end_at_once(sched, t, u);
			continue;
		}
		post(sched, t);
		if (begun == BEGUN_RUNNING) {
			match_set_running(t);
			match_set_running(u);
		} else if (u) {
			match_pair(sched, t, u);
		}
	}
	struct member_progress *b = m->progress;
	atomic_store_explicit(&b->submitted, m->submitted, memory_order_relaxed);
	atomic_store_explicit(&b->completed, m->completed, memory_order_relaxed);
	if (m->queue)
		atomic_store_explicit(&b->head_ns, m->queue->submitted_ns, memory_order_relaxed);
	member_update_blocked(m);
	/* Perhaps no member can continue; order.c checks that. */
	if (m->comm->blocked == m->comm->nranks)
		member_make_ready(sched, m);
}

void fast_path_group(struct scheduler *sched, struct task *first, uint32_t n)
{
	uint32_t id = n > 1 ? ++sched->groups : 0;
	bool simple = true;
	struct task *t;
	DL_FOREACH (first, t) {
		t->group = id;
		simple = simple && t->simple && t->member == first->member;
	}
	if (n > 1 && !simple)
		set_link(first);
	if (simple && may_post(first, n))
		post_group(sched, first, n);
	else
		order_enqueue(sched, first, n);
}
