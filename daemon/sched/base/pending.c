/* SPDX-License-Identifier: Apache-2.0 */
#include "pending.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/nofail.h"
#include "proto/operation.h"

/* One member's tasks of each kind, in the order in which they became that kind. */
struct pending {
	struct member_pending *shared;
	struct task *tasks[PENDING_KINDS];
};

void pending_begin(struct comm *c, struct member_pending *shared)
{
	if (!shared)
		return;
	c->pending_tasks =
		nofail_calloc(c->nranks, sizeof(*c->pending_tasks), "an epoch's members");
	for (uint32_t k = 0; k < c->nranks; k++)
		c->pending_tasks[k].shared = &shared[k];
}

void pending_end(struct comm *c)
{
	free(c->pending_tasks);
}

static uint32_t kind_of(const struct task *t, uint32_t state)
{
	const struct svc_record *r = &t->record;
	const uint32_t base = r->graph ? PENDING_IN_GRAPH : PENDING_IN_NO_GRAPH;
	if (!svc_op_is_p2p(r->op))
		return base + (state == NCCLSVC_WAITING_PEERS ? PENDING_COLLECTIVE_WAITS
			       : state == NCCLSVC_LAUNCHED    ? PENDING_COLLECTIVE_LAUNCHED
							      : PENDING_COLLECTIVE_QUEUED);
	if (state != NCCLSVC_WAITING_PEERS)
		return 0;
	const uint32_t peer = (uint32_t)r->peer;
	return base + PENDING_MESSAGE_WAITS +
	       (r->op == NCCLSVC_SEND ? PEER_DIR_TO(peer) : PEER_DIR_FROM(peer));
}

static void share(const struct pending *p, uint32_t kind)
{
	const struct task *first = p->tasks[kind];
	atomic_store_explicit(&p->shared->first[kind], first ? first->slot + 1 : 0,
			      memory_order_release);
}

static void change(struct task *t, uint32_t kind)
{
	struct pending *p = &t->comm->pending_tasks[t->rank];
	const uint32_t before = t->pending_kind;
	if (before == kind)
		return;
	t->pending_kind = (uint8_t)kind;
	if (before) {
		DL_DELETE2(p->tasks[before], t, prev_pending, next_pending);
		share(p, before);
	}
	if (kind) {
		DL_APPEND2(p->tasks[kind], t, prev_pending, next_pending);
		share(p, kind);
	}
}

void pending_show(struct task *t, uint32_t state)
{
	if (t->comm->pending_tasks)
		change(t, kind_of(t, state));
}

void pending_hide(struct task *t)
{
	if (t->pending_kind)
		change(t, 0);
}
