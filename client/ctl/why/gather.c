/* SPDX-License-Identifier: Apache-2.0
 * What has waited for longer than the threshold, in groups that are one operation each. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define MS_NS UINT64_C(1000000)

static int order_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/* Equal: one operation that several ranks are at in the same way. */
static int order_operation(const ncclsvc_task_info *a, const ncclsvc_task_info *b)
{
	int order = order_u64(a->comm, b->comm);
	if (!order)
		order = (int)a->state - b->state;
	if (!order)
		order = (int)a->op - b->op;
	if (!order && op_is_p2p(a->op))
		order = order_u64(a->task, b->task);
	if (!order)
		order = order_u64(a->count, b->count);
	if (!order)
		order = (int)a->type - b->type;
	if (!order)
		order = order_u64(a->waits_count, b->waits_count);
	if (!order)
		order = memcmp(a->waits_for, b->waits_for,
			       task_waits_shown(a) * sizeof(a->waits_for[0]));
	if (!order)
		order = order_u64(a->ask_count, b->ask_count);
	return order ? order
		     : memcmp(a->ask_nodes, b->ask_nodes,
			      task_asks_shown(a) * sizeof(a->ask_nodes[0]));
}

static int by_operation(const void *pa, const void *pb)
{
	const ncclsvc_task_info *a = *(const ncclsvc_task_info *const *)pa;
	const ncclsvc_task_info *b = *(const ncclsvc_task_info *const *)pb;
	int order = order_operation(a, b);
	return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

static int by_age(const void *pa, const void *pb)
{
	const struct why_group *a = pa, *b = pb;
	int order = order_u64(b->age_ns, a->age_ns);
	if (!order && a->n && b->n)
		order = order_u64(a->tasks[0]->task, b->tasks[0]->task);
	return order;
}

const ncclsvc_task_info **why_held_up(const struct why *w, size_t *nheld, struct why_report *report)
{
	const ncclsvc_task_info **held = ctl_calloc(w->ntasks, sizeof(held[0]));
	*nheld = 0;
	for (size_t i = 0, n; i < w->ntasks;) {
		const ncclsvc_task_info *first = w->tasks[i];
		const ncclsvc_task_info **at = why_tasks(w, first->comm, first->rank, &n);
		for (size_t k = 0; k < n; k++) {
			if (at[k]->state_ns > report->oldest_ns)
				report->oldest_ns = at[k]->state_ns;
			if (at[k]->state_ns >= w->in->after_ns)
				held[(*nheld)++] = at[k];
		}
		while (i < w->ntasks && w->tasks[i]->comm == first->comm &&
		       w->tasks[i]->rank == first->rank)
			i++;
	}
	report->pending = w->ntasks;
	qsort(held, *nheld, sizeof(held[0]), by_operation);
	return held;
}

/* How long a communicator has lacked members. Where the daemon doesn't say: no longer than the
 * sessions that wait there have existed; after a failure, since then. */
static void join_age(const struct why *w, struct why_group *g)
{
	const ncclsvc_comm_info *c = g->comm;
	const ncclsvc_daemon_info *d = &w->s->daemon;
	bool broken = c->state == NCCLSVC_COMM_BROKEN;
	uint64_t oldest = 0;
	size_t n;
	const ncclsvc_member_info *m = why_members(w, c->comm, &n);
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_session_info *s = snapshot_session(w->s, m[i].session);
		if (m[i].state == NCCLSVC_MEMBER_JOINING && m[i].waiting_ns > g->age_ns)
			g->age_ns = m[i].waiting_ns;
		if (m[i].state == NCCLSVC_MEMBER_JOINING && s && s->age_ns > oldest)
			oldest = s->age_ns;
		broken |= m[i].state == NCCLSVC_MEMBER_BROKEN;
	}
	if (!g->age_ns && broken && d->last_failure.result == NCCLSVC_PEER_GONE &&
	    d->last_failure_comm == c->comm)
		g->age_ns = d->last_failure_age_ns;
	if (!g->age_ns && !broken)
		g->age_ns = oldest < c->age_ns ? oldest : c->age_ns;
	g->age_known = g->age_ns > 0;
}

/* The first request for which members of the communicator wait; 0: none do. */
static uint32_t first_request(const struct why *w, uint64_t comm, uint64_t *age_ns)
{
	size_t n;
	uint32_t request = NCCLSVC_REQUEST_NONE;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	*age_ns = 0;
	for (size_t i = 0; i < n; i++) {
		if (!request)
			request = m[i].request;
		if (m[i].request && m[i].request_ms * MS_NS > *age_ns)
			*age_ns = m[i].request_ms * MS_NS;
	}
	return request;
}

struct why_group *why_gather(const struct why *w, const ncclsvc_task_info **held, size_t nheld,
			     size_t *ngroups)
{
	struct why_group *groups = NULL;
	size_t n = 0, room = 0;
	for (size_t i = 0; i < nheld;) {
		struct why_group g = {.tasks = held + i, .age_known = true};
		for (; i < nheld && !order_operation(held[i], g.tasks[0]); i++, g.n++)
			if (held[i]->state_ns > g.age_ns)
				g.age_ns = held[i]->state_ns;
		g.comm = snapshot_comm(w->s, g.tasks[0]->comm);
		groups = ctl_grow(groups, n, &room, sizeof(*groups));
		groups[n++] = g;
	}
	for (size_t i = 0; i < w->s->ncomms; i++) {
		struct why_group g = {.comm = &w->s->comms[i]};
		if (g.comm->state != NCCLSVC_COMM_FORMING && g.comm->state != NCCLSVC_COMM_BROKEN)
			continue;
		join_age(w, &g);
		if (g.age_known && g.age_ns < w->in->after_ns)
			continue;
		groups = ctl_grow(groups, n, &room, sizeof(*groups));
		groups[n++] = g;
	}
	for (size_t i = 0; i < w->s->ncomms && why_goes_on(w); i++) {
		struct why_group g = {.comm = &w->s->comms[i], .age_known = true};
		g.request = first_request(w, g.comm->comm, &g.age_ns);
		if (!g.request || g.age_ns < w->in->after_ns)
			continue;
		groups = ctl_grow(groups, n, &room, sizeof(*groups));
		groups[n++] = g;
	}
	if (n)
		qsort(groups, n, sizeof(*groups), by_age);
	*ngroups = n;
	return groups;
}
