/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of each chunk of an operation. An operation is split into blocks (a rank's share, a
 * node's slice), and each block into chunks. All nodes number the chunks alike.
 *
 * Reductions: each node sends the owner of the chunk one vector, the reduction of its ranks'
 * vectors; or, if that would round twice, each rank's vector. The owner reduces these in the order
 * of nodes (of ranks, if it has all of them), so the results have the same bits on all ranks and in
 * every run.
 */
#include <string.h>

#include "internode.h"
#include "proto/names.h"
#include "proto/task.h"
#include "reduce/reduce.h"

#define CHUNK_BYTES	  (256 * 1024)
#define CHUNK_SCRATCH_MAX (2 * 1024 * 1024) /* for contributions, at the owner */
#define UNITS_ALIGNED	  64

/* Summing in the type itself and dividing at the end is an exact average. */
static bool average_by_sum(unsigned type)
{
	return type == NCCLSVC_FLOAT32 || type == NCCLSVC_FLOAT64 || type == NCCLSVC_INT64 ||
	       type == NCCLSVC_UINT64;
}

bool schedule_uses_raw(const struct internode_comm *s, const struct svc_record *r)
{
	bool halves = r->type == NCCLSVC_FLOAT16 || r->type == NCCLSVC_BFLOAT16;
	bool picks = r->redop == NCCLSVC_MIN || r->redop == NCCLSVC_MAX;
	if (s->most == 1 || (halves && !picks))
		return true;
	return r->redop == NCCLSVC_AVG && !average_by_sum(r->type);
}

uint32_t schedule_contributions(const struct schedule *p, uint32_t node_index)
{
	return p->raw ? p->internode->counts[node_index] : 1;
}

static void cut_into_chunks(struct schedule *p)
{
	uint64_t bytes = CHUNK_BYTES, all = 0;
	if (svc_op_reduces(p->record.op)) {
		for (uint32_t k = 0; k < p->internode->nnodes; k++)
			all += schedule_contributions(p, k);
		if (all * bytes > CHUNK_SCRATCH_MAX)
			bytes = CHUNK_SCRATCH_MAX / all;
		if (bytes < 4096)
			bytes = 4096;
	}
	uint64_t units = (bytes / p->unit + UNITS_ALIGNED - 1) / UNITS_ALIGNED * UNITS_ALIGNED;
	p->chunk_units = units;
	p->chunks = (p->block_units + units - 1) / units * p->blocks;
}

/* All want the same result: each node reduces a slice of it. */
static bool is_sliced(const struct svc_record *r)
{
	return svc_op_reduces(r->op) && !svc_op_has_root(r->op) && !svc_op_sends_each(r->op);
}

void schedule_make(struct schedule *p, const struct internode_comm *s, struct task *const *tasks,
		   int32_t a, int32_t b)
{
	const uint32_t nranks = s->comm->nranks;
	*p = (struct schedule){.internode = s, .tasks = tasks, .a = a, .b = b, .p2p = a >= 0};
	if (p->p2p)
		p->record = tasks[0] ? tasks[0]->record : tasks[1]->record;
	else
		p->record = tasks[internode_comm_locals(s)[0]]->record;
	const struct svc_record *r = &p->record;
	const size_t element = svc_type_size(r->type);
	const bool sends_each = svc_op_sends_each(r->op),
		   receives_each = svc_op_receives_each(r->op);
	p->share = svc_operation(r->op)->kind & SVC_OP_HAS_DATA ? r->count * element : 0;
	p->unit = svc_op_reduces(r->op) ? element : 1;
	p->blocks = 1;
	p->block_units = svc_op_reduces(r->op) ? r->count : p->share;
	if (sends_each && receives_each) {
		p->blocks = nranks * (nranks + 1) / 2;
	} else if (sends_each || receives_each) {
		p->blocks = nranks;
	} else if (is_sliced(r)) {
		p->blocks = s->nnodes;
		p->block_units = (r->count + s->nnodes - 1) / s->nnodes;
		p->block_units =
			(p->block_units + UNITS_ALIGNED - 1) / UNITS_ALIGNED * UNITS_ALIGNED;
	}
	p->raw = !p->p2p && svc_op_reduces(r->op) && schedule_uses_raw(s, r);
	cut_into_chunks(p);
}

/* Pairs (a <= b) in the order (0,0) (0,1) (1,1) (0,2) ... */
void schedule_pair(uint32_t pair, uint32_t *a, uint32_t *b)
{
	uint32_t high = 0;
	for (uint32_t bit = UINT32_C(1) << 15; bit; bit /= 2) {
		uint64_t n = high + bit;
		if (n * (n + 1) / 2 <= pair)
			high += bit;
	}
	*b = high;
	*a = pair - (uint32_t)((uint64_t)high * (high + 1) / 2);
}

/* Is a block for one rank only, and for which? Not for AllToAll. */
static bool one_receives(const struct schedule *p, uint32_t block, uint32_t *rank)
{
	const struct svc_record *r = &p->record;
	if (svc_op_sends_each(r->op))
		*rank = block;
	else if (svc_op_root_receives(r->op))
		*rank = (uint32_t)r->peer;
	else
		return false;
	return true;
}

/* The last nodes' slices may be shorter, or empty. */
static uint64_t slice_units(const struct schedule *p, uint32_t block)
{
	const uint64_t before = block * p->block_units, count = p->record.count;
	if (before >= count)
		return 0;
	return count - before < p->block_units ? count - before : p->block_units;
}

static void find_owner(const struct schedule *p, struct segment *x)
{
	const struct internode_comm *s = p->internode;
	uint32_t a, b, to;
	x->reduces = svc_op_reduces(p->record.op);
	if (svc_op_sends_each(p->record.op) && svc_op_receives_each(p->record.op)) {
		schedule_pair(x->block, &a, &b);
		x->exchanges = true;
		x->owner = s->node_of[a];
		x->to = s->node_of[b];
		return;
	}
	x->spreads = !one_receives(p, x->block, &to);
	if (!x->spreads)
		x->to = s->node_of[to];
	if (is_sliced(&p->record))
		x->owner = x->block;
	else
		x->owner = x->reduces ? x->to : s->node_of[schedule_sender(p, x)];
}

bool schedule_segment(const struct schedule *p, uint64_t chunk, struct segment *x)
{
	const uint32_t block = (uint32_t)(chunk % p->blocks);
	uint64_t units = p->block_units;
	*x = (struct segment){.block = block, .lo = chunk / p->blocks * p->chunk_units};
	if (p->p2p) {
		x->owner = p->internode->node_of[p->a];
		x->to = p->internode->node_of[p->b];
	} else {
		find_owner(p, x);
		if (is_sliced(&p->record))
			units = slice_units(p, block);
	}
	if (x->lo >= units)
		return false;
	x->count = units - x->lo < p->chunk_units ? units - x->lo : p->chunk_units;
	x->bytes = x->count * p->unit;
	return true;
}

bool schedule_involved(const struct schedule *p, const struct segment *x)
{
	return x->reduces || x->spreads || x->owner == p->internode->me ||
	       x->to == p->internode->me;
}

uint32_t schedule_sender(const struct schedule *p, const struct segment *x)
{
	const struct svc_record *r = &p->record;
	return svc_op_sends(r->op, r->peer, x->block) ? x->block : (uint32_t)r->peer;
}

const char *schedule_source(const struct schedule *p, const struct segment *x, uint32_t rank)
{
	uint64_t at = x->lo * p->unit;
	if (p->p2p)
		return p->tasks[0]->src + at;
	if (is_sliced(&p->record))
		at += x->block * p->block_units * p->unit;
	else if (svc_op_sends_each(p->record.op))
		at += x->block * p->share;
	return p->tasks[rank]->src + at;
}

uint32_t schedule_targets(const struct schedule *p, const struct segment *x, char **out)
{
	const struct internode_comm *s = p->internode;
	uint64_t at = x->lo * p->unit;
	uint32_t only;
	if (p->p2p) {
		if (!p->tasks[1])
			return 0;
		out[0] = p->tasks[1]->dst + at;
		return 1;
	}
	if (is_sliced(&p->record))
		at += x->block * p->block_units * p->unit;
	else if (svc_op_receives_each(p->record.op))
		at += x->block * p->share;
	if (one_receives(p, x->block, &only)) {
		if (!p->tasks[only])
			return 0;
		out[0] = p->tasks[only]->dst + at;
		return 1;
	}
	for (uint32_t i = 0; i < internode_comm_local_count(s); i++)
		out[i] = p->tasks[internode_comm_locals(s)[i]]->dst + at;
	return internode_comm_local_count(s);
}

/* ---- Reducing ---- */

static unsigned partial_redop(const struct svc_record *r)
{
	return r->redop == NCCLSVC_AVG ? NCCLSVC_SUM : r->redop;
}

void schedule_contribute(const struct schedule *p, const struct segment *x, char *out)
{
	const struct internode_comm *s = p->internode;
	const uint32_t n = internode_comm_local_count(s), *locals = internode_comm_locals(s);
	const void *src[n];
	void *dst[1] = {out};
	for (uint32_t i = 0; i < n; i++)
		src[i] = schedule_source(p, x, locals[i]);
	if (!p->raw) {
		reduce_block(p->record.type, partial_redop(&p->record), src, n, dst, 1, x->count,
			     false);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		memcpy(out + i * x->bytes, src[i], x->bytes);
}

#define DIVIDE(ctype)                                                                              \
	for (uint64_t i = 0; i < n; i++) {                                                         \
		ctype v; /* buffers may be unaligned */                                            \
		memcpy(&v, data + i * sizeof(v), sizeof(v));                                       \
		v /= (ctype)by;                                                                    \
		memcpy(data + i * sizeof(v), &v, sizeof(v));                                       \
	}                                                                                          \
	break

static void divide(unsigned type, char *data, uint64_t n, uint32_t by)
{
	switch (type) {
	case NCCLSVC_FLOAT32:
		DIVIDE(float);
	case NCCLSVC_FLOAT64:
		DIVIDE(double);
	case NCCLSVC_INT64:
		DIVIDE(int64_t);
	case NCCLSVC_UINT64:
		DIVIDE(uint64_t);
	}
}

/* parts[node_index]: that node's contribution; this node's is in its ranks' own memory. */
void schedule_reduce_parts(const struct schedule *p, const struct segment *x,
			   const char *const *parts)
{
	const struct internode_comm *s = p->internode;
	const uint32_t nranks = s->comm->nranks;
	const void *src[nranks];
	char *targets[internode_comm_local_count(s)];
	uint32_t n = 0, ntargets = schedule_targets(p, x, targets);
	for (uint32_t node_index = 0; node_index < s->nnodes; node_index++) {
		const uint32_t *ranks = s->ranks + s->first[node_index];
		bool mine = node_index == s->me, each = p->raw || mine;
		for (uint32_t i = 0; i < (each ? s->counts[node_index] : 1); i++) {
			const char *at = mine ? schedule_source(p, x, ranks[i])
					      : parts[node_index] + i * x->bytes;
			/* In the order of ranks, if all of them are here. */
			src[p->raw ? ranks[i] : n] = at;
			n++;
		}
	}
	reduce_block(p->record.type, p->raw ? p->record.redop : partial_redop(&p->record), src, n,
		     (void *const *)targets, ntargets, x->count, false);
	if (!p->raw && p->record.redop == NCCLSVC_AVG)
		for (uint32_t i = 0; i < ntargets; i++)
			divide(p->record.type, targets[i], x->count, nranks);
}

void schedule_reduce(const struct schedule *p, const struct segment *x, const char *others)
{
	const struct internode_comm *s = p->internode;
	const char *parts[s->nnodes];
	for (uint32_t node_index = 0; node_index < s->nnodes; node_index++) {
		parts[node_index] = others;
		if (node_index != s->me)
			others += schedule_contributions(p, node_index) * x->bytes;
	}
	schedule_reduce_parts(p, x, parts);
}
