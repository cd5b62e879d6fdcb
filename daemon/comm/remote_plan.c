/* SPDX-License-Identifier: Apache-2.0
 * Plans of communicators with other nodes: what this node tells, and what it hears. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "comms.h"
#include "coord/plan.h"
#include "remote.h"

bool remote_plan(struct communicator *m, uint32_t rank, uint32_t serial)
{
	struct comms *s = m->comms;
	const struct plan_member *pm = &m->forming->members[rank];
	const uint32_t node = m->coordinator;
	struct control_plan *p =
		node != s->coord.me && link_is_full(s->cluster, node)
			? NULL
			: calloc(1, sizeof(*p) + CONTROL_PLAN_PIECE * sizeof(p->piece[0]));
	if (!p)
		return false;
	remote_fill_epoch(&p->of, m);
	p->cuda = m->cuda;
	p->round = m->plan_round;
	p->rank = rank;
	p->serial = serial;
	p->groups = pm->ngroups;
	p->tasks = pm->ntasks;
	do {
		const uint32_t left = p->tasks - p->at;
		p->count = left < CONTROL_PLAN_PIECE ? left : CONTROL_PLAN_PIECE;
		memcpy(p->piece, pm->tasks + p->at, p->count * sizeof(p->piece[0]));
		remote_send(s, node, CONTROL_PLAN, p, sizeof(*p) + p->count * sizeof(p->piece[0]));
		p->at += p->count;
	} while (p->at < p->tasks);
	free(p);
	return true;
}

static void tell_coordinator(struct communicator *m, enum control_kind kind, uint32_t rank,
			     uint32_t round)
{
	struct comms *s = m->comms;
	struct control_plan_member one = {.epoch = m->epoch, .rank = rank, .round = round};
	memcpy(one.id, m->id, sizeof(one.id));
	remote_send(s, m->coordinator, kind, &one, sizeof(one));
}

void remote_plan_left(struct communicator *m, uint32_t rank, uint32_t number)
{
	tell_coordinator(m, CONTROL_PLAN_LEFT, rank, number);
}

/* ---- What others tell ---- */

static struct communicator *find(struct comms *s, const uint8_t *id, uint32_t epoch)
{
	struct communicator *m = remote_find(s, id);
	return m && m->epoch == epoch && epoch_runs(&m->life) ? m : NULL;
}

void remote_plan_handle(struct comms *s, enum control_kind kind, const void *body)
{
	const struct control_plan_result *v = body;
	const struct control_plan_member *one = body;
	struct communicator *m =
		kind == CONTROL_PLAN_GONE ? find(s, one->id, one->epoch) : find(s, v->id, v->epoch);
	if (!m)
		return;
	if (kind == CONTROL_PLAN_RESULT)
		plan_result(m, v);
	else if (one->rank < m->nranks)
		plan_left_elsewhere(m, one->rank, one->round);
}
