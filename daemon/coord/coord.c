/* SPDX-License-Identifier: Apache-2.0
 * Validates messages and dispatches them to the state machines. */
#include "coord.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator.h"
#include "nccl_pool.h"
#include "rendezvous.h"

void coord_init(struct coord *c, const struct coord_ops *ops, void *arg, uint32_t me, uint32_t n)
{
	*c = (struct coord){.ops = ops, .arg = arg, .me = me, .n = n};
}

void coord_lost_text(const struct coord *c, uint32_t node, const char *label,
		     char text[SVC_TEXT_BYTES])
{
	if (node == CLUSTER_NO_NODE)
		snprintf(text, SVC_TEXT_BYTES,
			 "communicator %s gathers on another node, but this daemon has no room for "
			 "more than %d nodes",
			 label, CLUSTER_NODES_MAX);
	else
		snprintf(text, SVC_TEXT_BYTES,
			 "node %u (%s), where the members of communicator %s gather, is lost: join "
			 "again when its daemon is back, or with a new id",
			 node, coord_host(c, node), label);
}

void coord_free(struct coord *c)
{
	rendezvous_free(c);
	coordinator_free(c);
	nccl_pool_free(c);
}

void coord_node_lost(struct coord *c, uint32_t node)
{
	rendezvous_node_lost(c, node);
	coordinator_node_lost(c, node);
	nccl_pool_node_lost(c, node);
}

uint64_t coord_expire(struct coord *c)
{
	uint64_t next = rendezvous_expire(c);
	next = earlier(next, coordinator_expire(c));
	return earlier(next, nccl_pool_expire(c));
}

/* ---- Valid messages ---- */

static bool is_text(const char *text, size_t size)
{
	return memchr(text, '\0', size) != NULL;
}

static bool join_fits(const struct control_join *m)
{
	return m->nranks >= 1 && m->nranks <= SVC_HOST_RANKS_MAX && m->rank < m->nranks;
}

static bool refusal_fits(const struct control_refuse *m)
{
	return is_text(m->text, sizeof(m->text)) &&
	       (!m->subcomm || (m->nranks >= 1 && m->nranks <= SVC_HOST_RANKS_MAX));
}

static bool start_fits(const struct coord *c, const struct control_start *m, size_t size)
{
	if (!m->nranks || m->nranks > SVC_HOST_RANKS_MAX ||
	    size != sizeof(*m) + m->nranks * sizeof(m->members[0]))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].node >= c->n)
			return false;
	return true;
}

static bool result_fits(const struct coord *c, const struct control_result *m, size_t size)
{
	if (!is_text(m->text, sizeof(m->text)) || m->count > SVC_HOST_RANKS_MAX ||
	    size != sizeof(*m) + m->count * sizeof(m->subcomms[0]))
		return false;
	for (uint32_t k = 0; k < m->count; k++) {
		const struct control_subcomm *p = &m->subcomms[k].subcomm;
		if (p->nranks > SVC_HOST_RANKS_MAX || (p->nranks && p->rank >= p->nranks) ||
		    m->subcomms[k].node >= c->n)
			return false;
	}
	return true;
}

static bool ready_fits(const struct coord *c, const struct control_nccl_ready *m, size_t size)
{
	if (!m->nranks || m->nranks > SVC_HOST_RANKS_MAX || m->rank >= (int32_t)m->nranks ||
	    size != sizeof(*m) + m->nranks * sizeof(m->gpus[0]))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->gpus[k].node >= c->n)
			return false;
	return true;
}

static bool epoch_fits(const struct control_epoch *m, uint32_t rank)
{
	return m->nranks <= SVC_HOST_RANKS_MAX && rank < m->nranks;
}

static bool split_fits(const struct control_split *m)
{
	return epoch_fits(&m->of, m->rank);
}

static bool plan_fits(const struct control_plan *m, size_t size)
{
	return epoch_fits(&m->of, m->rank) && m->groups <= SVC_PLAN_TASKS &&
	       m->tasks <= SVC_PLAN_TASKS && m->at <= m->tasks && m->count <= CONTROL_PLAN_CHUNK &&
	       size == sizeof(*m) + m->count * sizeof(m->chunk[0]);
}

bool coord_fits(const struct coord *c, enum control_kind kind, const void *body, size_t size)
{
	static const size_t sizes[CONTROL_END] = {
		[CONTROL_JOIN] = sizeof(struct control_join),
		[CONTROL_BEAT] = sizeof(struct control_beat),
		[CONTROL_WITHDRAW] = sizeof(struct control_withdraw),
		[CONTROL_REFUSE] = sizeof(struct control_refuse),
		[CONTROL_START] = sizeof(struct control_start),
		[CONTROL_BREAK] = sizeof(struct control_break),
		[CONTROL_LEFT] = sizeof(struct control_left),
		[CONTROL_DESCRIPTION] = sizeof(struct control_description),
		[CONTROL_SPLIT] = sizeof(struct control_split),
		[CONTROL_NCCL_READY] = sizeof(struct control_nccl_ready),
		[CONTROL_NCCL_USE] = sizeof(struct control_nccl_use),
		[CONTROL_NCCL_FREE] = sizeof(struct control_nccl_free),
		[CONTROL_PLAN] = sizeof(struct control_plan),
		[CONTROL_RESULT] = sizeof(struct control_result),
	};
	if (kind >= CONTROL_END || size < sizes[kind])
		return false;
	switch (kind) {
	case CONTROL_JOIN:
		return join_fits(body);
	case CONTROL_REFUSE:
		return refusal_fits(body);
	case CONTROL_START:
		return start_fits(c, body, size);
	case CONTROL_SPLIT:
		return split_fits(body);
	case CONTROL_RESULT:
		return result_fits(c, body, size);
	case CONTROL_NCCL_READY:
		return ready_fits(c, body, size);
	case CONTROL_PLAN:
		return plan_fits(body, size);
	default:
		return size == sizes[kind];
	}
}

/* ---- Dispatch to the state machines ---- */

void coord_handle_early(struct coord *c, uint32_t from, enum control_kind kind, const void *body)
{
	if (kind == CONTROL_BREAK)
		rendezvous_broken(c, from, body);
	else if (kind == CONTROL_LEFT)
		rendezvous_left(c, from, body);
}

void coord_handle_started(struct coord *c, enum control_kind kind, const void *body)
{
	if (kind == CONTROL_BREAK) {
		coordinator_broken(c, body);
		nccl_pool_broken(c, body);
	} else if (kind == CONTROL_LEFT)
		coordinator_left(c, body);
}

bool coord_has_started(const struct coord *c, const uint8_t *id, uint32_t epoch)
{
	return coordinator_has_started(c, id, epoch);
}

bool coord_handle(struct coord *c, uint32_t from, enum control_kind kind, const void *body)
{
	switch (kind) {
	case CONTROL_JOIN:
		rendezvous_join(c, from, body);
		return true;
	case CONTROL_WITHDRAW:
		rendezvous_withdrawn(c, from, body);
		coordinator_withdrawn(c, body);
		return true;
	case CONTROL_REFUSE: /* members' nodes get it, too, like the next three */
		rendezvous_refused(c, from, body);
		return false;
	case CONTROL_START:
		coordinator_start(c, body);
		return false;
	case CONTROL_BREAK:
	case CONTROL_LEFT:
		coord_handle_early(c, from, kind, body);
		coord_handle_started(c, kind, body);
		return false;
	case CONTROL_SPLIT:
		split_take(c, from, body);
		return true;
	case CONTROL_NCCL_READY:
		nccl_pool_ready(c, from, body);
		return true;
	case CONTROL_NCCL_FREE:
		return nccl_pool_give(c, from, body);
	case CONTROL_PLAN:
		plans_take(c, from, body);
		return true;
	default:
		return false;
	}
}
