/* SPDX-License-Identifier: Apache-2.0
 * Operations whose bytes travel with the votes: one message from each node to each other node. */
#include <string.h>

#include "internode.h"
#include "proto/names.h"
#include "proto/task.h"
#include "sched/base/in_place.h"
#include "sched/internode/node_match.h"

bool small_fits(const struct internode_comm *s, const struct svc_record *r, bool p2p)
{
	const uint64_t most = s->most;
	uint64_t share = 0, vectors = 1;
	if (svc_operation(r->op)->kind & SVC_OP_HAS_DATA)
		share = r->count * svc_type_size(r->type);
	if (!share)
		return true;
	if (share > INTERNODE_EAGER_BYTES)
		return false;
	if (svc_op_reduces(r->op) && schedule_uses_raw(s, r))
		vectors = most;
	if (!p2p && svc_op_sends_each(r->op))
		vectors *= most;
	if (!p2p && svc_op_receives_each(r->op))
		vectors *= most;
	return vectors * share <= INTERNODE_EAGER_BYTES;
}

/* The whole block as one segment. */
static struct segment whole(const struct schedule *p, uint32_t block)
{
	uint64_t units = p->unit ? p->share / p->unit : 0;
	return (struct segment){.block = block, .count = units, .bytes = p->share};
}

static void make(struct schedule *p, const struct internode_comm *s, struct task *const *tasks,
		 bool p2p)
{
	schedule_make(p, s, tasks, p2p ? 0 : -1, p2p ? 0 : -1);
	p->block_units = 0; /* AllReduce: no node has a slice */
}

/* The ranks of that node that send, or that receive. */
static uint32_t ranks_that(bool (*is_so)(unsigned op, int32_t root, uint32_t rank),
			   const struct schedule *p, uint32_t node_index)
{
	const struct internode_comm *s = p->internode;
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->counts[node_index]; i++)
		n += is_so(p->record.op, p->record.peer, s->ranks[s->first[node_index] + i]);
	return n;
}

/* The number of blocks that one sender, or the node's reduction, has for the ranks of that node.
 */
static uint32_t blocks_for(const struct schedule *p, uint32_t node_index)
{
	const uint32_t n = ranks_that(svc_op_receives, p, node_index);
	return svc_op_sends_each(p->record.op) ? n : n > 0;
}

/* The number of bytes from one node to another. */
static size_t bytes_between(const struct schedule *p, uint32_t from, uint32_t to)
{
	const size_t each = svc_op_reduces(p->record.op) ? schedule_contributions(p, from)
							 : ranks_that(svc_op_sends, p, from);
	return each * blocks_for(p, to) * p->share;
}

/* The rank of block i among those for the ranks of that node. */
static uint32_t block_for(const struct schedule *p, uint32_t node_index, uint32_t i)
{
	const struct internode_comm *s = p->internode;
	return svc_op_sends_each(p->record.op) ? s->ranks[s->first[node_index] + i] : 0;
}

static void pack_reduced(const struct schedule *p, uint32_t node_index, char *out)
{
	const uint32_t n = blocks_for(p, node_index);
	for (uint32_t i = 0; i < n; i++) {
		struct segment x = whole(p, block_for(p, node_index, i));
		schedule_contribute(p, &x, out);
		out += schedule_contributions(p, p->internode->me) * p->share;
	}
}

static void pack_moved(const struct schedule *p, uint32_t node_index, char *out)
{
	const struct internode_comm *s = p->internode;
	const struct svc_record *r = &p->record;
	const uint32_t *locals = internode_comm_locals(s), n = blocks_for(p, node_index);
	for (uint32_t k = 0; k < internode_comm_local_count(s); k++)
		for (uint32_t i = 0; svc_op_sends(r->op, r->peer, locals[k]) && i < n; i++) {
			const uint64_t at = block_for(p, node_index, i) * p->share;
			memcpy(out, p->tasks[locals[k]]->src + at, p->share);
			out += p->share;
		}
}

size_t small_pack(const struct internode_comm *s, struct task *const *tasks, uint32_t node_index,
		  bool p2p, char *out)
{
	struct schedule p;
	make(&p, s, tasks, p2p);
	if (!p.share)
		return 0;
	if (p2p) {
		if (p.record.op == NCCLSVC_SEND)
			memcpy(out, tasks[0]->src, p.share);
		return p.record.op == NCCLSVC_SEND ? p.share : 0;
	}
	if (svc_op_reduces(p.record.op))
		pack_reduced(&p, node_index, out);
	else
		pack_moved(&p, node_index, out);
	return bytes_between(&p, s->me, node_index);
}

/* Pairs within this node; either rank may work in place. */
static void exchange_locally(const struct schedule *p)
{
	const struct internode_comm *s = p->internode;
	const uint32_t n = internode_comm_local_count(s), *locals = internode_comm_locals(s);
	char a[INTERNODE_EAGER_BYTES], b[INTERNODE_EAGER_BYTES];
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = i; k < n; k++) {
			struct task *one = p->tasks[locals[i]], *other = p->tasks[locals[k]];
			memcpy(a, one->src + locals[k] * p->share, p->share);
			memcpy(b, other->src + locals[i] * p->share, p->share);
			memcpy(other->dst + locals[i] * p->share, a, p->share);
			memcpy(one->dst + locals[k] * p->share, b, p->share);
		}
	}
}

static void finish_reduced(const struct schedule *p, const char *const *parts)
{
	const struct internode_comm *s = p->internode;
	const char *at[s->nnodes];
	if (!svc_op_sends_each(p->record.op)) {
		struct segment x = whole(p, 0);
		char *targets[internode_comm_local_count(s)];
		if (schedule_targets(p, &x, targets))
			schedule_reduce_parts(p, &x, parts);
		return;
	}
	for (uint32_t i = 0; i < internode_comm_local_count(s); i++) {
		struct segment x = whole(p, internode_comm_locals(s)[i]);
		for (uint32_t node_index = 0; node_index < s->nnodes; node_index++)
			at[node_index] =
				node_index == s->me
					? NULL
					: parts[node_index] +
						  i * schedule_contributions(p, node_index) *
							  p->share;
		schedule_reduce_parts(p, &x, at);
	}
}

/* from: the bytes packed by that node. */
static void finish_moved(const struct schedule *p, uint32_t node_index, const char *from)
{
	const struct internode_comm *s = p->internode;
	const struct svc_record *r = &p->record;
	const uint32_t *ranks = s->ranks + s->first[node_index], *locals = internode_comm_locals(s);
	const bool mine = node_index == s->me, each = svc_op_sends_each(r->op);
	if (mine && each && svc_op_receives_each(r->op)) {
		exchange_locally(p);
		return;
	}
	for (uint32_t i = 0; i < s->counts[node_index]; i++) {
		if (!svc_op_sends(r->op, r->peer, ranks[i]))
			continue;
		const char *block = mine ? p->tasks[ranks[i]]->src : from;
		const uint64_t at = svc_op_receives_each(r->op) ? ranks[i] * p->share : 0;
		for (uint32_t k = 0; k < internode_comm_local_count(s); k++) {
			if (!svc_op_receives(r->op, r->peer, locals[k]))
				continue;
			const uint64_t of = !each ? 0 : mine ? locals[k] : k;
			memmove(p->tasks[locals[k]]->dst + at, block + of * p->share, p->share);
		}
		if (!mine) /* this node's own blocks are not packed */
			from += blocks_for(p, s->me) * p->share;
	}
}

bool small_finish(const struct internode_comm *s, struct task *const *tasks,
		  const struct node_match *j)
{
	const bool p2p = j->key.a >= 0;
	struct schedule p;
	make(&p, s, tasks, p2p);
	if (!p.share)
		return true;
	if (p2p) {
		if (!tasks[1])
			return true;
		if (j->voters[0].bytes < p.share)
			return false;
		memcpy(tasks[1]->dst, j->voters[0].payload, p.share);
		return true;
	}
	const char *parts[s->nnodes];
	for (uint32_t node_index = 0; node_index < s->nnodes; node_index++) {
		parts[node_index] = j->voters[node_index].payload;
		if (node_index != s->me &&
		    j->voters[node_index].bytes < bytes_between(&p, node_index, s->me))
			return false;
	}
	tasks_mark_in_place(tasks, s->comm->nranks);
	if (svc_op_reduces(p.record.op)) {
		finish_reduced(&p, parts);
		return true;
	}
	for (uint32_t node_index = 0; node_index < s->nnodes; node_index++)
		finish_moved(&p, node_index, parts[node_index]);
	return true;
}
