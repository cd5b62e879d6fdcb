/* SPDX-License-Identifier: Apache-2.0 */
#include "merge.h"

#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "text.h"
#include "waits.h"

/* The node that lists come from, and what their numbers become. */
struct origin {
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

/* Appends the node's list; then x is each of its records, whose numbers the caller replaces. */
#define FOR_APPENDED(x, s, o, list, count)                                                         \
	for (typeof((s)->list) x = ((s)->list = append((s)->list, &(s)->count, (o)->far->list,     \
						       (o)->far->count, sizeof(*(s)->list)),       \
				   (s)->list + ((s)->count - (o)->far->count)),                    \
			       x##_end = (s)->list + (s)->count;                                   \
	     x < x##_end; x++)

/* ---- Sessions ---- */

/* 0: none, or one that began or ended between two lists. */
static uint32_t session_of(const struct origin *o, uint32_t session)
{
	const ncclsvc_session_info *i = session ? snapshot_session(o->far, session) : NULL;
	return i ? ids_far_session(o->first_session + (size_t)(i - o->far->sessions)) : 0;
}

static void add_sessions(struct snapshot *s, struct origin *o)
{
	o->first_session = (uint32_t)s->nsession_names;
	s->session_names = ctl_extend(s->session_names, s->nsession_names, o->far->nsessions,
				      sizeof(*s->session_names));
	FOR_APPENDED (x, s, o, sessions, nsessions) {
		const uint32_t place = (uint32_t)s->nsession_names++;
		s->session_names[place] = (struct snapshot_session_name){o->node, x->session};
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

static void add_comms(struct snapshot *s, struct origin *o)
{
	const size_t known = s->ncomms, n = o->far->ncomms;
	s->comms = ctl_extend(s->comms, s->ncomms, n, sizeof(*s->comms));
	ncclsvc_comm_info *to = s->comms + s->ncomms;
	s->ncomms += n;
	ncclsvc_comm_info **index = ctl_calloc(known, sizeof(*index));
	for (size_t i = 0; i < known; i++)
		index[i] = &s->comms[i];
	if (known > 1)
		qsort(index, known, sizeof(*index), by_cluster_comm);
	o->comms = ctl_calloc(n, sizeof(*o->comms));
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_comm_info *c = &o->far->comms[i], *const *same = NULL;
		if (c->cluster_comm && known)
			same = bsearch(&c, index, known, sizeof(*index), by_cluster_comm);
		if (same && is_same_comm(*same, c)) {
			o->comms[i] = (*same)->comm;
			join_comm((ncclsvc_comm_info *)*same, c, o->node);
			s->ncomms--;
			continue;
		}
		*to = *c;
		o->comms[i] = to->comm = ids_far(o->node, c->comm);
		to++;
	}
	free(index);
}

static uint64_t comm_of(const struct origin *o, uint64_t comm)
{
	const ncclsvc_comm_info *c = snapshot_comm(o->far, comm);
	return c ? o->comms[c - o->far->comms] : ids_far(o->node, comm);
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

static void add_members(struct snapshot *s, const struct origin *o)
{
	FOR_APPENDED (m, s, o, members, nmembers) {
		m->comm = comm_of(o, m->comm);
		m->session = session_of(o, m->session);
		if (!m->elsewhere && m->pid)
			m->elsewhere = o->node + 1;
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

static void add_tasks(struct snapshot *s, const struct origin *o)
{
	FOR_APPENDED (x, s, o, tasks, ntasks) {
		x->task = ids_far(o->node, x->task);
		x->comm = comm_of(o, x->comm);
		x->session = session_of(o, x->session);
	}
}

static void add_plans(struct snapshot *s, const struct origin *o)
{
	FOR_APPENDED (x, s, o, plans, nplans) {
		x->plan = ids_far(o->node, x->plan);
		x->comm = comm_of(o, x->comm);
		x->session = session_of(o, x->session);
	}
	FOR_APPENDED (x, s, o, plan_tasks, nplan_tasks)
		x->plan = ids_far(o->node, x->plan);
}

static void add_devices(struct snapshot *s, const struct origin *o)
{
	FOR_APPENDED (x, s, o, devices, ndevices)
		x->device = ids_device(o->node, x->device);
}

/* Failures that an earlier daemon recorded have no communicator. */
static void add_failures(struct snapshot *s, const struct origin *o)
{
	FOR_APPENDED (x, s, o, failures, nfailures) {
		x->failure = ids_far(o->node, x->failure);
		x->cause = x->cause ? ids_far(o->node, x->cause) : 0;
		x->comm = x->comm ? comm_of(o, x->comm) : 0;
	}
}

static void add_lateness(struct snapshot *s, const struct origin *o)
{
	FOR_APPENDED (x, s, o, lateness, nlateness) {
		x->comm = comm_of(o, x->comm);
		x->session = session_of(o, x->session);
	}
}

void merge_nodes(struct snapshot *s, struct snapshot *far)
{
	for (size_t i = 0; i < s->nnodes; i++) {
		struct origin o = {.far = &far[i], .node = s->nodes[i].node};
		add_sessions(s, &o);
		add_comms(s, &o);
		add_members(s, &o);
		add_tasks(s, &o);
		add_plans(s, &o);
		add_devices(s, &o);
		add_failures(s, &o);
		add_lateness(s, &o);
		free(o.comms);
	}
	choose_members(s);
	waits_resolve(s);
}
