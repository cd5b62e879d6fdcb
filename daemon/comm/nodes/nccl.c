/* SPDX-License-Identifier: Apache-2.0
 * NCCL communicators across nodes: answers of the pool (coord/nccl_pool.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/comms.h"
#include "comm/remote.h"
#include "coord/nccl_pool.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"
#include "node_reports.h"
#include "proto/names.h"

/* The number of nodes with members of the epoch. */
static uint32_t nodes_of(const struct communicator *m)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < m->nranks; k++) {
		uint32_t i = 0;
		while (m->start->members[i].node != m->start->members[k].node)
			i++;
		n += i == k; /* its first rank */
	}
	return n;
}

static struct communicator *find_comm(struct comms *s, const uint8_t *id, uint32_t epoch)
{
	struct communicator *m;
	HASH_FIND(hh, s->comms, id, NCCLSVC_ID_BYTES, m);
	return m && m->start && m->start->epoch == epoch ? m : NULL;
}

static struct nccl_comm *find_part(struct comms *s, uint64_t nccl_id)
{
	struct nccl_comm *p;
	DL_FOREACH (s->gpus->nccl_comms, p)
		if (p->nccl_id == nccl_id)
			return p;
	return NULL;
}

static int32_t a_rank_here(const struct communicator *m)
{
	uint32_t k = 0;
	while (!comm_is_member_here(m, k))
		k++;
	return (int32_t)k;
}

static void lost_before(struct communicator *m, uint32_t owner, uint64_t nccl_id)
{
	struct comms *s = m->comms;
	nccl_comm_give_back(s->gpus, owner, nccl_id, NCCLSVC_WORKER_LOST, a_rank_here(m));
	comm_fail_joins(s, m, NCCLSVC_WORKER_LOST, -1,
			"a worker was lost before the epoch began: join again");
}

static void use_pooled(struct communicator *m, uint32_t owner, uint64_t nccl_id)
{
	struct nccl_comm *p = find_part(m->comms, nccl_id);
	const struct nccl_comm_want w = comm_want(m);
	if (!p || p->user || !nccl_comm_fits(p, &w)) {
		lost_before(m, owner, nccl_id);
		return;
	}
	nccl_comm_take(p, &w);
	comm_nccl_ready(m, NCCLSVC_OK, NULL);
}

static void use_fresh(struct communicator *m, uint32_t owner, const struct control_nccl_use *u)
{
	struct comms *s = m->comms;
	struct nccl_comm_want w = comm_want(m);
	w.nnodes = nodes_of(m);
	struct nccl_comm *p = nccl_comm_make(s->gpus, &w, u->nccl_id, owner);
	if (!p) { /* the JOINs have been answered */
		nccl_comm_give_back(s->gpus, owner, u->nccl_id, NCCLSVC_LIMIT, -1);
		return;
	}
	memcpy(p->id, u->unique, sizeof(p->id));
	nccl_comm_init(p);
}

void nodes_use(struct comms *s, uint32_t owner, const struct control_nccl_use *u)
{
	struct communicator *m = find_comm(s, u->id, u->epoch);
	char text[SVC_TEXT_BYTES];
	/* If the epoch was given up meanwhile, a new NCCL communicator will lack this node's part.
	 */
	if (!m || m->barrier != BARRIER_READY) {
		if (u->nccl_id)
			nccl_comm_give_back(s->gpus, owner, u->nccl_id,
					    u->fresh ? NCCLSVC_CANCELLED : NCCLSVC_OK, -1);
		return;
	}
	m->barrier = BARRIER_OVER;
	if (u->result) {
		snprintf(text, sizeof(text),
			 "the epoch could not begin on another node (%s%s): join again",
			 svc_result_name(u->result),
			 u->result == NCCLSVC_PEER_GONE ? ", a member or its node is gone" : "");
		if (u->result == NCCLSVC_PEER_GONE && comm_can_wait(m) && u->rank >= 0 &&
		    (uint32_t)u->rank < m->nranks &&
		    !coord_is_gone(&s->coord, m->start->members[u->rank].node))
			comm_join_again(m, -1, false);
		else
			comm_not_begun(m, NCCLSVC_CAUSE_START_FAILED, u->result, text);
	} else if (u->fresh) {
		use_fresh(m, owner, u);
	} else {
		use_pooled(m, owner, u->nccl_id);
	}
}

struct wanted_id {
	uint8_t id[NCCLSVC_ID_BYTES]; /* of the communicator */
	uint32_t epoch;
};

static void on_id(struct gpu *g, void *arg, const struct worker_message *answer)
{
	static const uint8_t none[NCCLSVC_ID_BYTES];
	struct wanted_id *w = arg;
	nccl_pool_id(g->gpus->coord, w->id, w->epoch, answer ? answer->result : NCCLSVC_WORKER_LOST,
		     answer ? answer->comm.id : none);
	free(w);
}

void nodes_make_id(struct comms *s, const uint8_t *id, uint32_t epoch, int32_t device)
{
	static const uint8_t none[NCCLSVC_ID_BYTES];
	struct gpu *g = gpu_find(s->gpus, device);
	struct wanted_id *w = g ? malloc(sizeof(*w)) : NULL;
	if (!w) {
		nccl_pool_id(&s->coord, id, epoch, g ? NCCLSVC_NO_MEMORY : NCCLSVC_NOT_FOUND, none);
		return;
	}
	memcpy(w->id, id, sizeof(w->id));
	w->epoch = epoch;
	gpu_ask(g, &(struct worker_message){.kind = WORKER_UNIQUE_ID}, -1, on_id, w,
		gpu_patience_ns(s->gpus));
}

/* ---- Ending ---- */

/* The part is useless without the others. */
static void drop(struct nccl_comm *p, int result, int32_t rank, int32_t node, const char *why)
{
	struct communicator *m = p->user;
	p->reported = true;
	if (p->aborting || (p->bad && !p->waiting))
		return; /* it is being aborted already */
	if (p->waiting) {
		nccl_comm_fail(p, result, why);
		return;
	}
	if (m && epoch_held(&m->life)) {
		const bool tell = epoch_lives(&m->life) && m->coordinator == m->comms->coord.me;
		comm_break_for(m, NCCLSVC_CAUSE_ENDED_ELSEWHERE, result, rank, node);
		if (tell)
			remote_break(m, result, rank, node);
	} else if (m) {
		nccl_comm_detach(p);
	}
	nccl_comm_abort(p, why);
	if (m && !epoch_held(&m->life) && m->start)
		comm_fail_joins(m->comms, m, result, -1, why);
}

void nodes_drop(struct comms *s, const struct control_nccl_free *d)
{
	struct nccl_comm *p = find_part(s, d->nccl_id);
	char why[SVC_TEXT_BYTES];
	if (!p)
		return;
	if (!d->result) {
		if (!p->user && p->ready && !p->aborting)
			nccl_comm_destroy(p);
		return;
	}
	snprintf(why, sizeof(why), "another node's part of it was lost (%s)",
		 svc_result_name(d->result));
	drop(p, d->result, d->rank, d->node, why);
}

void nodes_pool_lost(struct comms *s, uint32_t node)
{
	struct nccl_comm *p, *tmp;
	DL_FOREACH_SAFE (s->gpus->nccl_comms, p, tmp)
		if (p->nccl_id && p->owner == node)
			drop(p, NCCLSVC_PEER_GONE, -1, (int32_t)node,
			     "the node of its first GPU is gone");
}
