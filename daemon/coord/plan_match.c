/* SPDX-License-Identifier: Apache-2.0
 *
 * Matching the members' plans. The k-th Send from a to b matches the k-th Recv at b from a, counted
 * in plan order. Then a dry run: a group starts when its member's previous group has ended, and
 * ends when all its tasks have matched. Groups that the dry run cannot end would never end.
 *
 * In total, including the explanation of a refusal, this takes PLAN_MATCH_STEPS steps per task,
 * group and rank: no loop visits all tasks for each rank, or all ranks for each task. */
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/names.h"
#include "proto/task.h"

__attribute__((format(printf, 3, 4))) static int refuse(char *text, int result, const char *format,
							...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(text, PLAN_TEXT, format, args);
	va_end(args);
	return result;
}

/* calloc of zero bytes may return NULL. */
static void *array(size_t n, size_t size)
{
	return calloc(n ? n : 1, size);
}

/* ---- Pairs ---- */

/* A task, numbered within the whole communicator. */
struct end {
	uint32_t rank, task; /* task: index in its member's list */
	uint32_t from, to;
	struct end *other;
};

struct matching {
	const struct plan *plan;
	struct end *ends; /* all members' tasks, member by member */
	size_t *base;	  /* [nranks + 1]: index of each member's first task */
	struct end **sends, **recvs;
	size_t nsends, nrecvs;
	uint64_t steps;
};

static const struct svc_plan_task *task_of(const struct matching *m, const struct end *e)
{
	return &m->plan->members[e->rank].tasks[e->task];
}

static const char *quoted(const struct matching *m, const struct end *e,
			  char text[SVC_QUOTED_BYTES])
{
	return svc_label_quote(task_of(m, e)->label, text);
}

static uint32_t sender(const struct end *e)
{
	return e->from;
}

static uint32_t receiver(const struct end *e)
{
	return e->to;
}

/* A stable counting sort, from one array into another. at: scratch of [nranks + 1]. */
static void sort_by(struct matching *m, uint32_t (*key)(const struct end *),
		    struct end *const *from, struct end **to, size_t n, size_t *at)
{
	const uint32_t nranks = m->plan->nranks;
	memset(at, 0, (nranks + (size_t)1) * sizeof(*at));
	for (size_t i = 0; i < n; i++)
		at[key(from[i]) + 1]++;
	for (uint32_t k = 0; k < nranks; k++)
		at[k + 1] += at[k];
	for (size_t i = 0; i < n; i++)
		to[at[key(from[i])]++] = from[i];
	m->steps += n + nranks;
}

/* Sorts by sender, then by receiver, then by the order of the member's plan, which is the order of
 * the input. False: out of memory. */
static bool sort(struct matching *m, struct end **list, size_t n)
{
	struct end **other = array(n, sizeof(*other));
	size_t *at = array((size_t)m->plan->nranks + 1, sizeof(*at));
	if (other && at) {
		sort_by(m, receiver, list, other, n, at);
		sort_by(m, sender, other, list, n, at);
	}
	const bool sorted = other && at;
	free(other);
	free(at);
	return sorted;
}

static bool gather(struct matching *m)
{
	size_t n = 0;
	const struct plan *p = m->plan;
	m->base = array((size_t)p->nranks + 1, sizeof(*m->base));
	if (!m->base)
		return false;
	for (uint32_t k = 0; k < p->nranks; k++)
		m->base[k + 1] = n += p->members[k].ntasks;
	m->ends = array(n, sizeof(*m->ends));
	m->sends = array(n, sizeof(struct end *));
	m->recvs = array(n, sizeof(struct end *));
	if (!m->ends || !m->sends || !m->recvs)
		return false;
	for (uint32_t k = 0; k < p->nranks; k++)
		for (uint32_t i = 0; i < p->members[k].ntasks; i++) {
			const struct svc_plan_task *t = &p->members[k].tasks[i];
			struct end *e = &m->ends[m->base[k] + i];
			bool sends = t->op == NCCLSVC_SEND;
			*e = (struct end){k, i, sends ? k : (uint32_t)t->peer,
					  sends ? (uint32_t)t->peer : k, NULL};
			if (sends)
				m->sends[m->nsends++] = e;
			else
				m->recvs[m->nrecvs++] = e;
		}
	m->steps += n + p->nranks;
	return sort(m, m->sends, m->nsends) && sort(m, m->recvs, m->nrecvs);
}

/* Its index among the tasks of this kind between the two ranks, from 0. */
static unsigned ordinal(struct end *const *list, size_t i)
{
	unsigned n = 0;
	while (i-- > 0 && list[i]->from == list[i + 1]->from && list[i]->to == list[i + 1]->to)
		n++;
	return n;
}

static int unmatched(const struct matching *m, struct end *const *list, size_t i, bool sends,
		     char *text)
{
	const struct end *e = list[i];
	char label[SVC_QUOTED_BYTES];
	return refuse(
		text, NCCLSVC_MISMATCH,
		"the plans do not match: rank %u's %s%s %s rank %u (the %s no. %u between the "
		"two, in its group %u) has no %s in the plan of rank %u",
		e->rank, sends ? "Send" : "Recv", quoted(m, e, label), sends ? "to" : "from",
		sends ? e->to : e->from, sends ? "Send" : "Recv", ordinal(list, i) + 1,
		task_of(m, e)->group, sends ? "Recv" : "Send", sends ? e->to : e->from);
}

/* ---- Lists of tensors ---- */

#define LIST_TEXT 80

static const char *list_text(const struct svc_plan_task *t, char text[LIST_TEXT])
{
	if (!t->agreement)
		return "no list of tensors";
	snprintf(text, LIST_TEXT, "a list %s, tag %lld",
		 svc_plan_is_ahead(t) ? "with its shapes ahead" : "of static shapes",
		 (long long)t->tag);
	return text;
}

static int check_lists(const struct matching *m, const struct end *s, const struct end *r,
		       char *text)
{
	char one[LIST_TEXT], other[LIST_TEXT], sent[SVC_QUOTED_BYTES], received[SVC_QUOTED_BYTES];
	const struct svc_plan_task *a = task_of(m, s), *b = task_of(m, r);
	const bool alike = !a->agreement == !b->agreement && a->tag == b->tag &&
			   svc_plan_is_ahead(a) == svc_plan_is_ahead(b);
	if (alike && a->agreement == b->agreement)
		return 0;
	if (alike)
		return refuse(text, NCCLSVC_MISMATCH,
			      "the plans do not match: the lists of rank %u's Send%s to rank %u in "
			      "its group %u, and of the Recv%s in rank %u's group %u, differ in %s",
			      s->from, quoted(m, s, sent), s->to, a->group, quoted(m, r, received),
			      s->to, b->group,
			      svc_plan_is_ahead(a) ? "the number or types of their tensors"
						   : "types or shapes of their tensors");
	/* The difference comes first, since long labels may cut off the end of the sentence. */
	return refuse(text, NCCLSVC_MISMATCH,
		      "the plans do not match: %s is sent, %s received: rank %u's Send%s to rank "
		      "%u in its group %u, the Recv%s in rank %u's group %u",
		      list_text(a, one), list_text(b, other), s->from, quoted(m, s, sent), s->to,
		      a->group, quoted(m, r, received), s->to, b->group);
}

static int check_sizes(const struct matching *m, const struct end *s, const struct end *r,
		       char *text)
{
	const struct svc_plan_task *a = task_of(m, s), *b = task_of(m, r);
	if (a->count == SVC_PLAN_ANY || b->count == SVC_PLAN_ANY)
		return 0;
	if (a->count == b->count && a->type == b->type)
		return 0;
	char sent[SVC_QUOTED_BYTES], received[SVC_QUOTED_BYTES];
	return refuse(text, NCCLSVC_MISMATCH,
		      "the plans do not match: rank %u's Send%s to rank %u in its group %u has "
		      "%llu %s, but the Recv%s in rank %u's group %u has %llu %s",
		      s->from, quoted(m, s, sent), s->to, a->group, (unsigned long long)a->count,
		      svc_type_name(a->type), quoted(m, r, received), s->to, b->group,
		      (unsigned long long)b->count, svc_type_name(b->type));
}

static int pair_up(struct matching *m, char *text)
{
	for (size_t i = 0; i < m->nsends || i < m->nrecvs; i++) {
		m->steps++;
		struct end *s = i < m->nsends ? m->sends[i] : NULL;
		struct end *r = i < m->nrecvs ? m->recvs[i] : NULL;
		bool same = s && r && s->from == r->from && s->to == r->to;
		/* Of two that differ, the first in order has no counterpart. */
		if (!same && s &&
		    (!r || s->from < r->from || (s->from == r->from && s->to < r->to)))
			return unmatched(m, m->sends, i, true, text);
		if (!same)
			return unmatched(m, m->recvs, i, false, text);
		int error = check_lists(m, s, r, text);
		if (!error)
			error = check_sizes(m, s, r, text);
		if (error)
			return error;
		s->other = r;
		r->other = s;
	}
	return 0;
}

/* ---- The dry run ---- */

/* A group of a member. Groups that can only begin together form one unit, and `unit` leads to its
 * first group. On GPUs, these are groups with a task in common; on the host, groups that share a
 * list whose shapes are sent ahead, since all shapes of a group must be known before it begins. */
struct node {
	uint32_t rank, group;
	uint32_t unit;	  /* index of another node in the union-find, or its own */
	uint32_t absent;  /* of the unit's first: groups that their members have not reached */
	uint32_t waiting; /* unmatched tasks */
	uint32_t next;	  /* in the same unit, circular */
	bool started;	  /* its member has reached it */
	bool begun, over;
};

struct dry_run {
	struct matching *m;
	struct node *nodes; /* all members' groups, member by member */
	size_t *base;	    /* [nranks + 1] */
	uint32_t *at;	    /* [nranks]: each member's current group */
	uint32_t *stack;    /* nodes to start */
	size_t nstack;
	/* For the explanation of a stuck plan: */
	const struct end **waits;      /* [nranks]: the task that blocks its group; or NULL */
	const struct end **unit_waits; /* by a unit's first node: the same for one of its groups */
};

static uint32_t node_of(const struct dry_run *d, const struct end *e)
{
	return (uint32_t)d->base[e->rank] + task_of(d->m, e)->group;
}

static uint32_t unit_of(struct dry_run *d, uint32_t i)
{
	while (d->nodes[i].unit != i) {
		d->nodes[i].unit = d->nodes[d->nodes[i].unit].unit;
		i = d->nodes[i].unit;
		d->m->steps++;
	}
	return i;
}

/* Before any member has reached a group, so `absent` is the size. */
static void join_units(struct dry_run *d, uint32_t a, uint32_t b)
{
	a = unit_of(d, a);
	b = unit_of(d, b);
	if (a == b)
		return;
	if (d->nodes[a].absent < d->nodes[b].absent) {
		const uint32_t smaller = a;
		a = b;
		b = smaller;
	}
	d->nodes[b].unit = a;
	d->nodes[a].absent += d->nodes[b].absent;
	/* Merges two circles. */
	uint32_t next = d->nodes[a].next;
	d->nodes[a].next = d->nodes[b].next;
	d->nodes[b].next = next;
}

static bool prepare(struct dry_run *d)
{
	const struct plan *p = d->m->plan;
	size_t n = 0;
	d->base = array((size_t)p->nranks + 1, sizeof(*d->base));
	d->at = array(p->nranks, sizeof(*d->at));
	if (!d->base || !d->at)
		return false;
	for (uint32_t k = 0; k < p->nranks; k++)
		d->base[k + 1] = n += p->members[k].ngroups;
	d->nodes = array(n, sizeof(*d->nodes));
	d->stack = array(n, sizeof(*d->stack));
	if (!d->nodes || !d->stack)
		return false;
	for (uint32_t k = 0; k < p->nranks; k++)
		for (uint32_t g = 0; g < p->members[k].ngroups; g++) {
			uint32_t i = (uint32_t)d->base[k] + g;
			d->nodes[i] = (struct node){.rank = k,
						    .group = g,
						    .unit = i,
						    .absent = 1,
						    .waiting = p->members[k].missing[g],
						    .next = i};
		}
	d->m->steps += n + p->nranks + d->m->nsends;
	for (size_t i = 0; i < d->m->nsends; i++)
		if (p->whole_groups || svc_plan_is_ahead(task_of(d->m, d->m->sends[i])))
			join_units(d, node_of(d, d->m->sends[i]),
				   node_of(d, d->m->sends[i]->other));
	return true;
}

/* Starts the member's next group. */
static void go_on(struct dry_run *d, uint32_t rank)
{
	if (d->at[rank] < d->m->plan->members[rank].ngroups)
		d->stack[d->nstack++] = (uint32_t)d->base[rank] + d->at[rank];
}

static void end_node(struct dry_run *d, uint32_t i)
{
	d->nodes[i].over = true;
	d->at[d->nodes[i].rank]++;
	go_on(d, d->nodes[i].rank);
}

/* A task ends when both sides have begun. */
static void begin_node(struct dry_run *d, uint32_t i)
{
	struct node *node = &d->nodes[i];
	const struct plan_member *pm = &d->m->plan->members[node->rank];
	node->begun = true;
	if (!node->waiting) {
		end_node(d, i);
		return;
	}
	for (uint32_t t = pm->first[node->group]; t < pm->first[node->group + 1]; t++) {
		const struct end *e = &d->m->ends[d->m->base[node->rank] + t];
		uint32_t other = node_of(d, e->other);
		d->m->steps++;
		/* If both sides are in one group, the pair is visited twice. */
		if (!d->nodes[other].begun || (other == i && e->other < e))
			continue;
		bool ends_here = --node->waiting == 0;
		if (--d->nodes[other].waiting == 0)
			end_node(d, other);
		if (other != i && ends_here)
			end_node(d, i);
	}
}

/* Its member has reached it. When this holds for its whole unit, the unit begins. */
static void reach_node(struct dry_run *d, uint32_t i)
{
	uint32_t unit = unit_of(d, i), k = unit;
	d->nodes[i].started = true;
	if (--d->nodes[unit].absent)
		return;
	do {
		begin_node(d, k);
		k = d->nodes[k].next;
	} while (k != unit);
}

/* ---- Why it is stuck ---- */

static bool is_stuck(const struct dry_run *d, uint32_t rank)
{
	return d->at[rank] < d->m->plan->members[rank].ngroups;
}

/* The first task of the rank's group whose counterpart's group has not begun; if the rank's own
 * group has not begun either: whose member has not reached that group. NULL: none; another group of
 * its unit is blocked. */
static const struct end *waits_at(const struct dry_run *d, uint32_t rank)
{
	const struct plan_member *pm = &d->m->plan->members[rank];
	const uint32_t group = d->at[rank];
	const bool begun = d->nodes[d->base[rank] + group].begun;
	for (uint32_t t = pm->first[group]; t < pm->first[group + 1]; t++) {
		const struct end *e = &d->m->ends[d->m->base[rank] + t];
		const struct node *other = &d->nodes[node_of(d, e->other)];
		d->m->steps++;
		if (begun ? !other->begun : !other->started)
			return e;
	}
	return NULL;
}

/* Visits each stuck rank once; its unit remembers an answer for all. */
static bool find_waits(struct dry_run *d)
{
	const uint32_t nranks = d->m->plan->nranks;
	d->waits = array(nranks, sizeof(*d->waits));
	d->unit_waits = array(d->base[nranks], sizeof(*d->unit_waits));
	if (!d->waits || !d->unit_waits)
		return false;
	for (uint32_t k = 0; k < nranks; k++) {
		d->m->steps++;
		if (!is_stuck(d, k))
			continue;
		const uint32_t unit = unit_of(d, (uint32_t)d->base[k] + d->at[k]);
		d->waits[k] = waits_at(d, k);
		if (!d->unit_waits[unit])
			d->unit_waits[unit] = d->waits[k];
	}
	return true;
}

/* The task that blocks the rank's group: its own, or one of another group in its unit. */
static const struct end *waits_through(struct dry_run *d, uint32_t rank)
{
	d->m->steps++;
	return d->waits[rank] ? d->waits[rank]
			      : d->unit_waits[unit_of(d, (uint32_t)d->base[rank] + d->at[rank])];
}

static int stuck(struct dry_run *d, uint32_t rank, char *text)
{
	const struct plan *p = d->m->plan;
	const struct end *e = NULL;
	if (!find_waits(d))
		return NCCLSVC_NO_MEMORY;
	/* After this many steps it has gone round at least once. */
	for (uint32_t i = 0; i < p->nranks; i++)
		rank = waits_through(d, rank)->other->rank;
	size_t at = (size_t)snprintf(text, PLAN_TEXT, "the plan can never be carried out: ");
	uint32_t begin = rank;
	for (int i = 0; i < 3; i++) {
		e = waits_through(d, rank);
		if (at >= PLAN_TEXT)
			break;
		at += (size_t)snprintf(text + at, PLAN_TEXT - at,
				       "%srank %u in its group %u waits for rank %u's group %u",
				       i ? ", " : "", e->rank, d->at[e->rank], e->other->rank,
				       task_of(d->m, e->other)->group);
		rank = e->other->rank;
		if (rank == begin)
			break;
	}
	if (rank != begin && at < PLAN_TEXT)
		snprintf(text + at, PLAN_TEXT - at, ", and so on in a circle");
	return NCCLSVC_MISMATCH;
}

static int run_dry(struct dry_run *d, char *text)
{
	const struct plan *p = d->m->plan;
	for (uint32_t k = 0; k < p->nranks; k++)
		go_on(d, k);
	while (d->nstack)
		reach_node(d, d->stack[--d->nstack]);
	for (uint32_t k = 0; k < p->nranks; k++)
		if (is_stuck(d, k))
			return stuck(d, k, text);
	return 0;
}

uint64_t plan_match_steps(const struct plan *p)
{
	uint64_t size = p->nranks;
	for (uint32_t k = 0; k < p->nranks; k++)
		size += (uint64_t)p->members[k].ngroups + p->members[k].ntasks;
	return size * PLAN_MATCH_STEPS;
}

int plan_match(const struct plan *p, char text[PLAN_TEXT], uint64_t *steps)
{
	struct matching m = {.plan = p};
	struct dry_run d = {.m = &m};
	int result = gather(&m) ? pair_up(&m, text) : NCCLSVC_NO_MEMORY;
	if (!result)
		result = prepare(&d) ? run_dry(&d, text) : NCCLSVC_NO_MEMORY;
	if (result == NCCLSVC_NO_MEMORY)
		snprintf(text, PLAN_TEXT, "no memory to match the plans");
	*steps = m.steps;
	free(m.base);
	free(m.ends);
	free(m.sends);
	free(m.recvs);
	free(d.nodes);
	free(d.base);
	free(d.at);
	free(d.stack);
	free(d.waits);
	free(d.unit_waits);
	return result;
}
