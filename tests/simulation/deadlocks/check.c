/* SPDX-License-Identifier: Apache-2.0
 * The invariants. Without disturbances, each task ends as expect.c says, and deadlocks are found in
 * time, with one status that names ranks of different nodes and the tasks they wait in. With
 * disturbances: everything with a deadline ends, members of an operation agree, and a program
 * without a deadlock gets no such status. */
#include "base/timings.h"
#include "deadlocks.h"

#define EXACT_DELAY_NS (DEADLOCK_LOOK_NS - 5 * MS) /* no vote is running when a node reports */
#define LOOKS	       4 /* at most, until a node has reported: the intervals vary */

#define NAME	   "task %u of rank %u of communicator %u"
#define NAME_OF(t) (uint32_t)((t)-tasks), (t)->rank, (t)->comm

bool is_deadlock(const ncclsvc_status *st)
{
	return st->result == NCCLSVC_MISMATCH && st->field == NCCLSVC_FIELD_ORDER;
}

static bool expects_deadlock(uint32_t comm)
{
	for (uint32_t i = 0; i < ntasks; i++)
		if (tasks[i].comm == comm && tasks[i].expected == EXPECT_DEADLOCK)
			return true;
	return false;
}

/* A vote that takes longer than two looks may arrive after its node has broken the deadlock, and
 * match a later task. */
static bool is_exact(uint32_t comm)
{
	return profile_undisturbed() &&
	       (profile.delay <= EXACT_DELAY_NS || !expects_deadlock(comm));
}

void check_completed(const struct task_plan *t)
{
	const ncclsvc_status *st = &t->status;
	if (t->ended)
		fail(NAME " ends twice", NAME_OF(t));
	if (is_deadlock(st) && !profile.strays)
		fail(NAME " reports a deadlock, but there is none", NAME_OF(t));
	if (profile_undisturbed() && !comms[t->comm].ending && st->result && !is_deadlock(st))
		fail(NAME " ends with %d", NAME_OF(t), st->result);
}

/* ---- Without disturbances ---- */

static const struct task_plan *head_of(uint32_t comm, int32_t rank, uint32_t number)
{
	for (uint32_t i = 0; i < ntasks; i++)
		if (tasks[i].comm == comm && (int32_t)tasks[i].rank == rank && tasks[i].first &&
		    tasks[i].deadlock == number)
			return &tasks[i];
	return NULL;
}

static void check_names(const struct task_plan *t)
{
	const ncclsvc_status *st = &t->status;
	const struct task_plan *a = head_of(t->comm, st->rank_a, t->deadlock);
	const struct task_plan *b = head_of(t->comm, st->rank_b, t->deadlock);
	const uint32_t *node_of = comms[t->comm].node_of, *pids = comms[t->comm].session_of;
	if (!a || !b || node_of[a->rank] == node_of[b->rank] || st->value_a != a->op ||
	    st->value_b != b->op || (uint32_t)st->pid_a != pids[a->rank] + 100 ||
	    (uint32_t)st->pid_b != pids[b->rank] + 100)
		fail(NAME
		     " reports a false deadlock: rank %d in operation %d, rank %d in operation %d",
		     NAME_OF(t), st->rank_a, (int)st->value_a, st->rank_b, (int)st->value_b);
}

static bool same_status(const ncclsvc_status *a, const ncclsvc_status *b)
{
	return a->result == b->result && a->field == b->field && a->rank_a == b->rank_a &&
	       a->rank_b == b->rank_b && a->value_a == b->value_a && a->value_b == b->value_b &&
	       a->pid_a == b->pid_a && a->pid_b == b->pid_b;
}

/* Checks that the deadlock was reported soon after the last rank had begun to wait. */
static void check_in_time(const struct task_plan *t)
{
	const uint64_t limit = LOOKS * DEADLOCK_LOOK_NS + 6 * profile.delay;
	uint64_t since = 0;
	for (uint32_t i = 0; i < ntasks; i++) {
		const struct task_plan *u = &tasks[i];
		if (u->comm != t->comm)
			continue;
		if (u->expected == EXPECT_DEADLOCK && u->deadlock == t->deadlock)
			since = u->posted_ns > since ? u->posted_ns : since;
		else if (u->ended && u->ended_ns < t->ended_ns)
			since = u->ended_ns > since ? u->ended_ns : since;
	}
	if (t->ended_ns > since + limit)
		fail(NAME " reports a deadlock only after %d ms", NAME_OF(t),
		     (int)((t->ended_ns - since) / MS));
}

static void check_deadlock(const struct task_plan *t)
{
	const struct task_plan *one = head_of(t->comm, (int32_t)t->rank, t->deadlock);
	for (int32_t k = 0; (uint32_t)k < comms[t->comm].nranks; k++) {
		one = head_of(t->comm, k, t->deadlock);
		if (one->ended && !same_status(&one->status, &t->status))
			fail(NAME " and " NAME " report one deadlock differently", NAME_OF(t),
			     NAME_OF(one));
	}
	check_names(t);
	check_in_time(t);
}

static void check_expected(const struct task_plan *t)
{
	static const char *const names[] = {"no result", "success", "a deadlock"};
	const enum expected got = !t->ended		    ? EXPECT_PENDING
				  : is_deadlock(&t->status) ? EXPECT_DEADLOCK
							    : EXPECT_OK;
	if (got != t->expected)
		fail(NAME ": expected %s, got %s", NAME_OF(t), names[t->expected], names[got]);
	else if (got == EXPECT_DEADLOCK)
		check_deadlock(t);
}

/* At rest, ranks may wait only for a rank that waits for nothing, or that is gone. */
static void check_no_deadlock(uint32_t comm)
{
	for (uint32_t k = 0; k < comms[comm].nranks; k++) {
		bool waits = false;
		if (comms[comm].gone[k])
			return;
		for (uint32_t i = 0; i < ntasks; i++)
			waits |= tasks[i].comm == comm && tasks[i].rank == k && tasks[i].posted &&
				 !tasks[i].ended;
		if (!waits)
			return;
	}
	fail("all ranks of communicator %u wait forever", comm);
}

void check_rest(void)
{
	for (uint32_t i = 0; i < ntasks; i++) {
		const struct task_plan *t = &tasks[i];
		const bool lives = nodes[comms[t->comm].node_of[t->rank]].alive;
		if (is_exact(t->comm))
			check_expected(t);
		if (lives && t->posted && t->timeout_ns && !t->ended)
			fail(NAME " still waits after its deadline", NAME_OF(t));
	}
	for (uint32_t i = 0; i < ncomms; i++)
		if (!comms[i].ending)
			check_no_deadlock(i);
}

/* ---- At the end ---- */

/* Whether these tasks belong to one operation, unless a deadlock has separated some of them. */
static bool same_operation(const struct task_plan *t, const struct task_plan *u)
{
	if (t->comm != u->comm || t->nth != u->nth || t->rank == u->rank)
		return false;
	if (t->peer < 0)
		return u->peer < 0;
	return t->op != u->op && t->peer == (int32_t)u->rank && u->peer == (int32_t)t->rank;
}

static void check_agree(const struct task_plan *t)
{
	for (uint32_t i = 0; i < ntasks && !t->status.result; i++)
		if (same_operation(t, &tasks[i]) && (!tasks[i].ended || tasks[i].status.result))
			fail(NAME " succeeds, but " NAME " ends with %d", NAME_OF(t),
			     NAME_OF(&tasks[i]), tasks[i].status.result);
}

void check_end(void)
{
	for (uint32_t i = 0; i < ntasks; i++) {
		const struct task_plan *t = &tasks[i];
		const bool lives = nodes[comms[t->comm].node_of[t->rank]].alive;
		if (!lives || !t->posted)
			continue;
		if (!t->ended)
			fail(NAME " still waits after all communicators have ended", NAME_OF(t));
		else if (!profile.ends && !profile.leaves && !profile.dies &&
			 !comms[t->comm].broken)
			check_agree(t);
	}
}
