/* SPDX-License-Identifier: Apache-2.0
 * Plans of communicators with other nodes: what this node tells the home, and what it hears. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "coord/home.h"
#include "coord/plan.h"
#include "remote.h"
#include "server/server_state.h"

bool remote_plan(struct communicator *m, uint32_t rank)
{
	struct cluster *c = m->server->cluster;
	const struct plan_member *pm = &m->forming->members[rank];
	const uint32_t home = home_of(c, m->id);
	struct control_plan *p =
		link_is_full(c, home)
			? NULL
			: calloc(1, sizeof(*p) + CONTROL_PLAN_PIECE * sizeof(p->piece[0]));
	if (!p)
		return false;
	memcpy(p->id, m->id, sizeof(p->id));
	p->epoch = m->epoch;
	p->round = m->plan_round;
	p->rank = rank;
	p->groups = pm->ngroups;
	p->tasks = pm->ntasks;
	do {
		const uint32_t left = p->tasks - p->at;
		p->count = left < CONTROL_PLAN_PIECE ? left : CONTROL_PLAN_PIECE;
		memcpy(p->piece, pm->tasks + p->at, p->count * sizeof(p->piece[0]));
		link_send(c, home, CONTROL_PLAN, p, sizeof(*p) + p->count * sizeof(p->piece[0]));
		p->at += p->count;
	} while (p->at < p->tasks);
	free(p);
	return true;
}

static void tell_home(struct communicator *m, enum control_kind kind, uint32_t rank, uint32_t round)
{
	struct cluster *c = m->server->cluster;
	struct control_plan_member one = {.epoch = m->epoch, .rank = rank, .round = round};
	memcpy(one.id, m->id, sizeof(one.id));
	link_send(c, home_of(c, m->id), kind, &one, sizeof(one));
}

void remote_plan_late(struct communicator *m, uint32_t rank)
{
	tell_home(m, CONTROL_PLAN_LATE, rank, m->plan_round);
}

void remote_plan_left(struct communicator *m, uint32_t rank, uint32_t number)
{
	tell_home(m, CONTROL_PLAN_LEFT, rank, number);
}

/* ---- What others tell ---- */

bool remote_plan_fits(enum control_kind kind, const void *body, size_t size)
{
	const struct control_plan *p = body;
	const struct control_plan_verdict *v = body;
	if (kind == CONTROL_PLAN_VERDICT)
		return size == sizeof(*v) && memchr(v->text, '\0', sizeof(v->text));
	if (kind != CONTROL_PLAN)
		return size == sizeof(struct control_plan_member);
	return size >= sizeof(*p) && p->groups <= SVC_PLAN_TASKS && p->tasks <= SVC_PLAN_TASKS &&
	       p->at <= p->tasks && p->count <= CONTROL_PLAN_PIECE &&
	       size == sizeof(*p) + p->count * sizeof(p->piece[0]);
}

static struct communicator *find(struct cluster *c, const uint8_t *id, uint32_t epoch)
{
	struct communicator *m = remote_find(c, id);
	return m && m->epoch == epoch && epoch_runs(&m->life) ? m : NULL;
}

void remote_plan_handle(struct cluster *c, uint32_t from, enum control_kind kind, const void *body)
{
	const struct control_plan_verdict *v = body;
	const struct control_plan_member *one = body;
	struct communicator *m;
	switch (kind) {
	case CONTROL_PLAN:
		home_plan(c, from, body);
		break;
	case CONTROL_PLAN_LATE:
		home_plan_late(c, one);
		break;
	case CONTROL_PLAN_LEFT:
		home_plan_left(c, from, one);
		break;
	case CONTROL_PLAN_GONE:
		m = find(c, one->id, one->epoch);
		if (m && one->rank < m->nranks)
			plan_left_elsewhere(m, one->rank, one->round);
		break;
	default:
		m = find(c, v->id, v->epoch);
		if (m)
			plan_verdict(m, v);
	}
}
