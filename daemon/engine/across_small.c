/* SPDX-License-Identifier: Apache-2.0
 * Operations whose bytes travel with the verdicts: one message from each node to each other. */
#include <string.h>

#include "names.h"
#include "span.h"
#include "task.h"

bool small_fits(const struct span *s, const struct svc_record *r, bool p2p)
{
	const uint64_t most = s->most;
	uint64_t share = r->op == NCCLSVC_BARRIER ? 0 : r->count * svc_type_size(r->type),
		 vectors = 1;
	if (!share)
		return true;
	if (share > SPAN_EAGER_BYTES)
		return false;
	if (svc_op_reduces(r->op))
		vectors = course_uses_raw(s, r) ? most : 1;
	if (!p2p &&
	    (r->op == NCCLSVC_REDUCE_SCATTER || r->op == NCCLSVC_ALL_GATHER ||
	     r->op == NCCLSVC_GATHER || r->op == NCCLSVC_SCATTER || r->op == NCCLSVC_ALL_TO_ALL))
		vectors *= most;
	if (r->op == NCCLSVC_ALL_TO_ALL)
		vectors *= most;
	return vectors * share <= SPAN_EAGER_BYTES;
}

/* The whole block as one stretch. */
static struct stretch whole(const struct course *p, uint32_t block)
{
	uint64_t units = p->unit ? p->share / p->unit : 0;
	return (struct stretch){.block = block, .count = units, .bytes = p->share};
}

static void make(struct course *p, const struct span *s, struct task *const *tasks, bool p2p)
{
	course_make(p, s, tasks, p2p ? 0 : -1, p2p ? 0 : -1);
	p->block_units = 0; /* AllReduce: nobody has a slice */
}

size_t small_pack(const struct span *s, struct task *const *tasks, uint32_t place, bool p2p,
		  char *out)
{
	struct course p;
	size_t n = 0;
	make(&p, s, tasks, p2p);
	const struct svc_record *r = &p.record;
	const uint32_t *locals = span_locals(s), nlocal = span_local_count(s);
	const uint32_t *theirs = s->ranks + s->first[place], ntheirs = s->counts[place];
	const bool at_root = svc_op_has_root(r->op) && s->node_of[r->peer] == s->me;
	const bool to_root = svc_op_has_root(r->op) && s->node_of[r->peer] == place;
	if (!p.share)
		return 0;
	if (p2p) {
		if (r->op == NCCLSVC_SEND)
			memcpy(out, tasks[0]->src, p.share);
		return r->op == NCCLSVC_SEND ? p.share : 0;
	}
	struct stretch x = whole(&p, 0);
	switch (r->op) {
	case NCCLSVC_REDUCE:
		if (!to_root)
			return 0;
		__attribute__((fallthrough));
	case NCCLSVC_ALL_REDUCE:
		course_contribute(&p, &x, out);
		return course_contributions(&p, s->me) * p.share;
	case NCCLSVC_REDUCE_SCATTER:
		for (uint32_t k = 0; k < ntheirs; k++) {
			x = whole(&p, theirs[k]);
			course_contribute(&p, &x, out + n);
			n += course_contributions(&p, s->me) * p.share;
		}
		return n;
	case NCCLSVC_BROADCAST:
		if (!at_root)
			return 0;
		memcpy(out, tasks[r->peer]->src, p.share);
		return p.share;
	case NCCLSVC_GATHER:
		if (!to_root)
			return 0;
		__attribute__((fallthrough));
	case NCCLSVC_ALL_GATHER:
		for (uint32_t i = 0; i < nlocal; i++, n += p.share)
			memcpy(out + n, tasks[locals[i]]->src, p.share);
		return n;
	case NCCLSVC_SCATTER:
		for (uint32_t k = 0; at_root && k < ntheirs; k++, n += p.share)
			memcpy(out + n, tasks[r->peer]->src + theirs[k] * p.share, p.share);
		return n;
	case NCCLSVC_ALL_TO_ALL:
		for (uint32_t i = 0; i < nlocal; i++)
			for (uint32_t k = 0; k < ntheirs; k++, n += p.share)
				memcpy(out + n, tasks[locals[i]]->src + theirs[k] * p.share,
				       p.share);
		return n;
	}
	return 0;
}

/* How many bytes the node at that place must have sent to this one. */
static size_t expected(const struct course *p, uint32_t place)
{
	const struct span *s = p->span;
	const struct svc_record *r = &p->record;
	const uint32_t nlocal = span_local_count(s);
	const bool at_root = svc_op_has_root(r->op) && s->node_of[r->peer] == s->me;
	const bool from_root = svc_op_has_root(r->op) && s->node_of[r->peer] == place;
	switch (r->op) {
	case NCCLSVC_REDUCE:
		return at_root ? course_contributions(p, place) * p->share : 0;
	case NCCLSVC_ALL_REDUCE:
		return course_contributions(p, place) * p->share;
	case NCCLSVC_REDUCE_SCATTER:
		return nlocal * course_contributions(p, place) * p->share;
	case NCCLSVC_BROADCAST:
		return from_root ? p->share : 0;
	case NCCLSVC_GATHER:
		return at_root ? s->counts[place] * p->share : 0;
	case NCCLSVC_ALL_GATHER:
		return s->counts[place] * p->share;
	case NCCLSVC_SCATTER:
		return from_root ? nlocal * p->share : 0;
	case NCCLSVC_ALL_TO_ALL:
		return nlocal * s->counts[place] * p->share;
	}
	return 0;
}

/* What one rank gave, to all ranks here, at `at`. */
static void to_all(const struct course *p, const char *from, uint64_t at)
{
	const struct span *s = p->span;
	for (uint32_t i = 0; i < span_local_count(s); i++)
		memmove(p->tasks[span_locals(s)[i]]->dst + at, from, p->share);
}

/* Pairs within this node: either of the two may work in place. */
static void exchange_locally(const struct course *p)
{
	const struct span *s = p->span;
	const uint32_t n = span_local_count(s), *locals = span_locals(s);
	char a[SPAN_EAGER_BYTES], b[SPAN_EAGER_BYTES];
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

static void finish_reduced(const struct course *p, const char *const *parts)
{
	const struct span *s = p->span;
	const char *at[s->nnodes];
	if (p->record.op != NCCLSVC_REDUCE_SCATTER) {
		struct stretch x = whole(p, 0);
		char *targets[span_local_count(s)];
		if (course_targets(p, &x, targets))
			course_reduce_parts(p, &x, parts);
		return;
	}
	for (uint32_t i = 0; i < span_local_count(s); i++) {
		struct stretch x = whole(p, span_locals(s)[i]);
		for (uint32_t place = 0; place < s->nnodes; place++)
			at[place] = place == s->me
					    ? NULL
					    : parts[place] +
						      i * course_contributions(p, place) * p->share;
		course_reduce_parts(p, &x, at);
	}
}

static void finish_moved(const struct course *p, uint32_t place, const char *from)
{
	const struct span *s = p->span;
	const struct svc_record *r = &p->record;
	const uint32_t *ranks = s->ranks + s->first[place], n = s->counts[place];
	const uint32_t *locals = span_locals(s), nlocal = span_local_count(s);
	const bool mine = place == s->me;
	switch (r->op) {
	case NCCLSVC_BROADCAST:
		if (s->node_of[r->peer] == place)
			to_all(p, mine ? p->tasks[r->peer]->src : from, 0);
		break;
	case NCCLSVC_ALL_GATHER:
		for (uint32_t i = 0; i < n; i++)
			to_all(p, mine ? p->tasks[ranks[i]]->src : from + i * p->share,
			       ranks[i] * p->share);
		break;
	case NCCLSVC_GATHER:
		for (uint32_t i = 0; s->node_of[r->peer] == s->me && i < n; i++)
			memmove(p->tasks[r->peer]->dst + ranks[i] * p->share,
				mine ? p->tasks[ranks[i]]->src : from + i * p->share, p->share);
		break;
	case NCCLSVC_SCATTER:
		for (uint32_t i = 0; s->node_of[r->peer] == place && i < nlocal; i++)
			memmove(p->tasks[locals[i]]->dst,
				mine ? p->tasks[r->peer]->src + locals[i] * p->share
				     : from + i * p->share,
				p->share);
		break;
	case NCCLSVC_ALL_TO_ALL:
		if (mine) {
			exchange_locally(p);
			break;
		}
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < nlocal; k++)
				memcpy(p->tasks[locals[k]]->dst + ranks[i] * p->share,
				       from + (i * nlocal + k) * p->share, p->share);
		break;
	}
}

bool small_finish(const struct span *s, struct task *const *tasks, const struct junction *j)
{
	const bool p2p = j->key.a >= 0;
	struct course p;
	make(&p, s, tasks, p2p);
	if (!p.share)
		return true;
	if (p2p) {
		if (!tasks[1])
			return true;
		if (j->verdicts[0].bytes < p.share)
			return false;
		memcpy(tasks[1]->dst, j->verdicts[0].payload, p.share);
		return true;
	}
	const char *parts[s->nnodes];
	for (uint32_t place = 0; place < s->nnodes; place++) {
		parts[place] = j->verdicts[place].payload;
		if (place != s->me && j->verdicts[place].bytes < expected(&p, place))
			return false;
	}
	if (svc_op_reduces(p.record.op)) {
		finish_reduced(&p, parts);
		return true;
	}
	for (uint32_t place = 0; place < s->nnodes; place++)
		finish_moved(&p, place, parts[place]);
	return true;
}
