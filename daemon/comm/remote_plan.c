/* SPDX-License-Identifier: Apache-2.0
 * Plans of communicators with other nodes: messages to and from this node. */
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
			: calloc(1, sizeof(*p) + CONTROL_PLAN_CHUNK * sizeof(p->chunk[0]));
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
		p->count = left < CONTROL_PLAN_CHUNK ? left : CONTROL_PLAN_CHUNK;
		memcpy(p->chunk, pm->tasks + p->at, p->count * sizeof(p->chunk[0]));
		remote_send(s, node, CONTROL_PLAN, p, sizeof(*p) + p->count * sizeof(p->chunk[0]));
		p->at += p->count;
	} while (p->at < p->tasks);
	free(p);
	return true;
}
