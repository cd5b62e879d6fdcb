/* SPDX-License-Identifier: Apache-2.0 */
#include "merge.h"

#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "text.h"
#include "waits.h"

/* One node's part, and what its numbers become. */
struct part {
	struct snapshot *far;
	uint32_t node;
	uint32_t first_session; /* the place of its first session in session_names */
	uint64_t *comms;	/* of far->comms, in their order */
};

/* The list with n more records at its end. */
static void *append(void *list, size_t *count, const void *more, size_t n, size_t size)
{
	list = ctl_extend(list, *count, n, size);
	if (n)
		memcpy((char *)list + *count * size, more, n * size);
	*count += n;
	return list;
}

/* Appends the part's list, whose numbers the caller replaces. Returns the index of its first
 * record. */
#define APPEND(s, p, list, count)                                                                  \
	((s)->list = append((s)->list, &(s)->count, (p)->far->list, (p)->far->count,               \
			    sizeof(*(s)->list)),                                                   \
	 (s)->count - (p)->far->count)

/* ---- Sessions ---- */

/* 0: none, or one that began or ended between two lists. */
static uint32_t session_of(const struct part *p, uint32_t session)
{
	const ncclsvc_session_info *i = session ? snapshot_session(p->far, session) : NULL;
	return i ? ids_far_session(p->first_session + (size_t)(i - p->far->sessions)) : 0;
}

static void add_sessions(struct snapshot *s, struct part *p)
{
	const size_t first = APPEND(s, p, sessions, nsessions);
	p->first_session = (uint32_t)s->nsession_names;
	s->session_names = ctl_extend(s->session_names, s->nsession_names, p->far->nsessions,
				      sizeof(*s->session_names));
	for (size_t i = first; i < s->nsessions; i++) {
		ncclsvc_session_info *x = &s->sessions[i];
		const uint32_t place = (uint32_t)s->nsession_names++;
		s->session_names[place] = (struct snapshot_session_name){p->node, x->session};
		x->session = ids_far_session(place);
	}
}

/* ---- Communicators ---- */

static int by_cluster_comm(const void *pa, const void *pb)
{
	const ncclsvc_comm_info *a = *(const ncclsvc_comm_info *const *)pa;
	const ncclsvc_comm_info *b = *(const ncclsvc_comm_info *const *)pb;
	return (a->cluster_comm > b->cluster_comm) - (a->cluster_comm < b->cluster_comm);
}

static void take_refusal(ncclsvc_comm_info *into, const ncclsvc_comm_info *c)
{
	into->refused_rank = c->refused_rank;
	into->refused_pid = c->refused_pid;
	memcpy(into->refused, c->refused, sizeof(into->refused));
}

/* Prefers the entry of the node where the members gather, or else of a node that has members. */
static void join_comm(ncclsvc_comm_info *into, const ncclsvc_comm_info *c, uint32_t node)
{
	const bool gathers = into->ask_node == node + 1 && !c->ask_node;
	into->pending += c->pending;
	if (c->state == NCCLSVC_COMM_READY && c->refused[0]) /* only its node knows */
		take_refusal(into, c);
	if (!gathers && (into->state != NCCLSVC_COMM_IDLE || c->state == NCCLSVC_COMM_IDLE))
		return;
	into->state = c->state;
	into->joined = c->joined;
	into->ask_node = c->ask_node;
	take_refusal(into, c);
}

static bool is_same_comm(const ncclsvc_comm_info *a, const ncclsvc_comm_info *b)
{
	return a->nranks == b->nranks && a->uid == b->uid;
}

static void add_comms(struct snapshot *s, struct part *p)
{
	const size_t known = s->ncomms, n = p->far->ncomms;
	s->comms = ctl_extend(s->comms, s->ncomms, n, sizeof(*s->comms));
	ncclsvc_comm_info *to = s->comms + s->ncomms;
	s->ncomms += n;
	ncclsvc_comm_info **index = ctl_calloc(known, sizeof(*index));
	for (size_t i = 0; i < known; i++)
		index[i] = &s->comms[i];
	if (known > 1)
		qsort(index, known, sizeof(*index), by_cluster_comm);
	p->comms = ctl_calloc(n, sizeof(*p->comms));
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_comm_info *c = &p->far->comms[i], *const *same = NULL;
		if (c->cluster_comm && known)
			same = bsearch(&c, index, known, sizeof(*index), by_cluster_comm);
		if (same && is_same_comm(*same, c)) {
			p->comms[i] = (*same)->comm;
			join_comm((ncclsvc_comm_info *)*same, c, p->node);
			s->ncomms--;
			continue;
		}
		*to = *c;
		p->comms[i] = to->comm = ids_far(p->node, c->comm);
		to++;
	}
	free(index);
}

static uint64_t comm_of(const struct part *p, uint64_t comm)
{
	const ncclsvc_comm_info *c = snapshot_comm(p->far, comm);
	return c ? p->comms[c - p->far->comms] : ids_far(p->node, comm);
}

/* ---- Members ---- */

/* How good a node's entry for a rank is. The best entry is kept. */
static int worth(const struct snapshot *s, const ncclsvc_member_info *m)
{
	const bool own = snapshot_knows(s, m) && m->session;
	switch (m->state) {
	case NCCLSVC_MEMBER_JOINED:
	case NCCLSVC_MEMBER_JOINING:
	case NCCLSVC_MEMBER_BROKEN:
		return own ? 5 : m->state == NCCLSVC_MEMBER_BROKEN ? 2 : 4;
	case NCCLSVC_MEMBER_DEAD:
		return 3;
	case NCCLSVC_MEMBER_ABSENT:
		return 1;
	}
	return 0;
}

static void add_members(struct snapshot *s, const struct part *p)
{
	for (size_t i = APPEND(s, p, members, nmembers); i < s->nmembers; i++) {
		ncclsvc_member_info *m = &s->members[i];
		m->comm = comm_of(p, m->comm);
		m->session = session_of(p, m->session);
		if (!m->elsewhere && m->pid)
			m->elsewhere = p->node + 1;
	}
}

struct ranked_member {
	int worth;
	ncclsvc_member_info m;
};

static int by_rank_and_worth(const void *pa, const void *pb)
{
	const struct ranked_member *a = pa, *b = pb;
	if (a->m.comm != b->m.comm)
		return a->m.comm < b->m.comm ? -1 : 1;
	if (a->m.rank != b->m.rank)
		return a->m.rank < b->m.rank ? -1 : 1;
	return b->worth - a->worth;
}

static void choose_members(struct snapshot *s)
{
	const size_t n = s->nmembers;
	struct ranked_member *all = ctl_calloc(n, sizeof(*all));
	for (size_t i = 0; i < n; i++)
		all[i] = (struct ranked_member){worth(s, &s->members[i]), s->members[i]};
	if (n > 1)
		qsort(all, n, sizeof(*all), by_rank_and_worth);
	s->nmembers = 0;
	for (size_t i = 0; i < n; i++)
		if (!i || all[i].m.comm != all[i - 1].m.comm || all[i].m.rank != all[i - 1].m.rank)
			s->members[s->nmembers++] = all[i].m;
	free(all);
}

/* ---- The rest ---- */

static void add_tasks(struct snapshot *s, const struct part *p)
{
	for (size_t i = APPEND(s, p, tasks, ntasks); i < s->ntasks; i++) {
		ncclsvc_task_info *x = &s->tasks[i];
		x->task = ids_far(p->node, x->task);
		x->comm = comm_of(p, x->comm);
		x->session = session_of(p, x->session);
	}
}

static void add_plans(struct snapshot *s, const struct part *p)
{
	for (size_t i = APPEND(s, p, plans, nplans); i < s->nplans; i++) {
		ncclsvc_plan_info *x = &s->plans[i];
		x->plan = ids_far(p->node, x->plan);
		x->comm = comm_of(p, x->comm);
		x->session = session_of(p, x->session);
	}
	for (size_t i = APPEND(s, p, plan_tasks, nplan_tasks); i < s->nplan_tasks; i++)
		s->plan_tasks[i].plan = ids_far(p->node, s->plan_tasks[i].plan);
}

static void add_devices(struct snapshot *s, const struct part *p)
{
	for (size_t i = APPEND(s, p, devices, ndevices); i < s->ndevices; i++)
		s->devices[i].device = ids_device(p->node, s->devices[i].device);
}

/* Failures that an earlier daemon recorded have no communicator. */
static void add_failures(struct snapshot *s, const struct part *p)
{
	for (size_t i = APPEND(s, p, failures, nfailures); i < s->nfailures; i++) {
		ncclsvc_failure_info *x = &s->failures[i];
		x->failure = ids_far(p->node, x->failure);
		x->cause = x->cause ? ids_far(p->node, x->cause) : 0;
		x->comm = x->comm ? comm_of(p, x->comm) : 0;
	}
}

static void add_lateness(struct snapshot *s, const struct part *p)
{
	for (size_t i = APPEND(s, p, lateness, nlateness); i < s->nlateness; i++) {
		ncclsvc_lateness_info *x = &s->lateness[i];
		x->comm = comm_of(p, x->comm);
		x->session = session_of(p, x->session);
	}
}

void merge_nodes(struct snapshot *s, struct snapshot *far)
{
	for (size_t i = 0; i < s->nnodes; i++) {
		struct part p = {.far = &far[i], .node = s->nodes[i].node};
		add_sessions(s, &p);
		add_comms(s, &p);
		add_members(s, &p);
		add_tasks(s, &p);
		add_plans(s, &p);
		add_devices(s, &p);
		add_failures(s, &p);
		add_lateness(s, &p);
		free(p.comms);
	}
	choose_members(s);
	waits_resolve(s);
}
