/* SPDX-License-Identifier: Apache-2.0 */
#include "waits.h"

#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "text.h"

/* Pending tasks, in the order of their ranks' queues. */
struct queues {
	const struct snapshot *s;
	ncclsvc_task_info **tasks;
	size_t n;
};

static int order_rank(const ncclsvc_task_info *t, uint64_t comm, int32_t rank)
{
	if (t->comm != comm)
		return t->comm < comm ? -1 : 1;
	return (t->rank > rank) - (t->rank < rank);
}

static int by_queue(const void *pa, const void *pb)
{
	const ncclsvc_task_info *a = *(const ncclsvc_task_info *const *)pa;
	const ncclsvc_task_info *b = *(const ncclsvc_task_info *const *)pb;
	const int order = order_rank(a, b->comm, b->rank);
	return order ? order : (a->seq > b->seq) - (a->seq < b->seq);
}

static size_t first_of(const struct queues *q, uint64_t comm, int32_t rank)
{
	size_t low = 0, high = q->n;
	while (low < high) {
		const size_t middle = low + (high - low) / 2;
		if (order_rank(q->tasks[middle], comm, rank) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Is the rank at what the task waits for? Then the task waits for that no longer, or for the same
 * others as the rank does. */
static bool is_at(const struct queues *q, const ncclsvc_task_info *t, int32_t rank)
{
	const bool p2p = op_is_p2p(t->op);
	const size_t first = first_of(q, t->comm, rank);
	for (size_t i = first; i < q->n && !order_rank(q->tasks[i], t->comm, rank); i++) {
		const ncclsvc_task_info *u = q->tasks[i];
		if (i > first && u->state == NCCLSVC_QUEUED)
			break;
		if (p2p ? op_is_p2p(u->op) && u->op != t->op && u->peer == t->rank
			: !op_is_p2p(u->op) && u->state == NCCLSVC_WAITING_PEERS)
			return true;
	}
	return false;
}

static int by_number(const void *pa, const void *pb)
{
	const int32_t *a = pa, *b = pb;
	return (*a > *b) - (*a < *b);
}

static void add_rank(ncclsvc_task_info *t, int32_t rank)
{
	const uint32_t shown = task_waits_shown(t);
	if (shown < NCCLSVC_MISSING_SHOWN && t->waits_count == shown) {
		t->waits_for[shown] = rank;
		qsort(t->waits_for, shown + 1, sizeof(t->waits_for[0]), by_number);
	}
	t->waits_count++;
}

static bool has_answered(const struct snapshot *s, uint32_t node)
{
	const struct snapshot_answer *a = snapshot_answer(s, node);
	return a && a->result == NCCLSVC_OK;
}

static bool asks(const ncclsvc_task_info *t, uint32_t node)
{
	if (t->ask_count > NCCLSVC_MISSING_SHOWN)
		return true;
	for (uint32_t i = 0; i < task_asks_shown(t); i++)
		if (t->ask_nodes[i] == node)
			return true;
	return false;
}

/* Where the member is: `me` if the asked daemon has it. */
static uint32_t place(const ncclsvc_member_info *m, uint32_t me)
{
	return m->elsewhere ? m->elsewhere - 1 : me;
}

/* Where the task is. */
static uint32_t task_place(const ncclsvc_task_info *t, uint32_t me)
{
	const uint32_t node = ids_node(t->task);
	return node ? node - 1 : me;
}

/* The ranks of nodes that have answered, and the nodes that have not. */
static void resolve(const struct queues *q, uint32_t me, ncclsvc_task_info *t)
{
	size_t n;
	const ncclsvc_member_info *m = snapshot_members(q->s, t->comm, &n);
	const ncclsvc_task_info was = *t;
	t->ask_count = 0;
	for (uint32_t i = 0; i < task_asks_shown(&was); i++)
		if (!has_answered(q->s, was.ask_nodes[i]))
			t->ask_nodes[t->ask_count++] = was.ask_nodes[i];
	for (size_t i = 0; i < n; i++) {
		const uint32_t node = place(&m[i], me);
		if (node == task_place(t, me) || (op_is_p2p(t->op) && m[i].rank != t->peer))
			continue;
		if (asks(&was, node) && has_answered(q->s, node) && !is_at(q, t, m[i].rank))
			add_rank(t, m[i].rank);
	}
}

static bool is_same(const ncclsvc_task_info *a, const ncclsvc_task_info *b)
{
	return a->comm == b->comm && a->op == b->op && !op_is_p2p(a->op) &&
	       ids_node(a->task) == ids_node(b->task) && a->waits_count == b->waits_count &&
	       a->ask_count == b->ask_count &&
	       !memcmp(a->waits_for, b->waits_for, sizeof(a->waits_for)) &&
	       !memcmp(a->ask_nodes, b->ask_nodes, sizeof(a->ask_nodes));
}

void waits_resolve(struct snapshot *s)
{
	struct queues q = {.s = s, .tasks = ctl_calloc(s->ntasks, sizeof(*q.tasks))};
	ncclsvc_task_info last = {0}, *resolved = NULL; /* ranks of one node wait for the same */
	uint32_t me = UINT32_MAX;
	for (size_t i = 0; i < s->nnodes; i++)
		if (s->nodes[i].state == NCCLSVC_NODE_SELF)
			me = s->nodes[i].node;
	for (size_t i = 0; i < s->ntasks; i++)
		if (task_is_pending(&s->tasks[i]))
			q.tasks[q.n++] = &s->tasks[i];
	if (q.n > 1)
		qsort(q.tasks, q.n, sizeof(*q.tasks), by_queue);
	for (size_t i = 0; i < q.n; i++) {
		ncclsvc_task_info *t = q.tasks[i];
		if (!t->ask_count)
			continue;
		if (resolved && is_same(&last, t)) {
			memcpy(t->waits_for, resolved->waits_for, sizeof(t->waits_for));
			memcpy(t->ask_nodes, resolved->ask_nodes, sizeof(t->ask_nodes));
			t->waits_count = resolved->waits_count;
			t->ask_count = resolved->ask_count;
			continue;
		}
		last = *t;
		resolve(&q, me, t);
		resolved = t;
	}
	free(q.tasks);
}
