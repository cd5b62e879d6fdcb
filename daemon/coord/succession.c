/* SPDX-License-Identifier: Apache-2.0
 * Succession of a lost sequencer; sequencer.h explains it. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "sequencer_state.h"

/* Without memory, waiting nodes keep waiting, and NODE_ANSWER_NS ends the epoch. */
void succession_keep_failure(struct sequencer *q, const struct operation_id *id,
			     const struct failed_note *note)
{
	struct failure *f = q->active ? NULL : malloc(sizeof(*f));
	if (!f)
		return;
	f->id = *id;
	f->note = *note;
	LL_PREPEND(q->failures, f);
}

static int by_number(const void *a, const void *b)
{
	const struct grant *one = a, *other = b;
	return one->number < other->number ? -1 : one->number > other->number;
}

/* Adds all requests of that operation that are not in the list yet. */
static void add_requests(struct sequencer *q, struct request **all, const struct operation *o)
{
	for (uint32_t i = 0; o && i < o->nvoters; i++) {
		struct request *r = o->voters[i].request;
		if (!r || r->visit == q->visit)
			continue;
		r->visit = q->visit;
		LL_APPEND(*all, r);
	}
}

/* Some nodes were told to launch these operations, others were not. All must launch them, with
 * everything connected to the operations on nodes without a grant. Returns how many grants have the
 * first one's number. */
static size_t grant_again(struct sequencer *q, const struct grant *g, size_t n)
{
	struct request *all = NULL;
	size_t k = 0;
	q->visit++;
	for (; k < n && g[k].number == g->number; k++)
		add_requests(q, &all, sequencer_find(q, g[k].internode_id, &g[k].key));
	for (const struct request *r = all; r; r = r->next)
		for (uint32_t i = 0; i < r->n; i++)
			add_requests(
				q, &all,
				sequencer_find(q, r->entries[i].internode_id, &r->entries[i].key));
	sequencer_launch_all(q, all, g->number);
	return k;
}

/* Repeats failures for nodes that still wait for the failed operations. */
static void fail_again(struct sequencer *q)
{
	struct failure *f, *next;
	LL_FOREACH_SAFE (q->failures, f, next) {
		struct operation *o = sequencer_find(q, f->id.internode_id, &f->id.key);
		if (o)
			sequencer_fail(q, o, &f->note);
		free(f);
	}
	q->failures = NULL;
}

/* Ends one operation that may be launched neither alone nor as part of a set. False: there is none.
 */
static bool fail_one(struct sequencer *q)
{
	struct operation *o, *next;
	HASH_ITER (hh, q->operations, o, next)
		if (o->votes == o->nvoters && sequencer_must_fail(o))
			return sequencer_conclude(q, o);
	return false;
}

/* Ends or launches one operation on which all have voted. False: there is none. */
static bool finish_one(struct sequencer *q)
{
	struct operation *o, *next;
	if (fail_one(q))
		return true;
	HASH_ITER (hh, q->operations, o, next) {
		if (o->votes < o->nvoters)
			continue;
		if (o->voters[0].request && sequencer_try_launch(q, o->voters[0].request))
			return true;
		if (o->withdrawn && sequencer_conclude(q, o))
			return true;
	}
	return false;
}

static void go_on(struct sequencer *q)
{
	struct operation *o, *next;
	struct closing *c, *after;
	q->active = true;
	for (uint32_t node = 0; node < q->nodes; node++)
		if (!q->at[node].lost)
			q->ops->goes_on(q->arg, node);
	while (finish_one(q))
		;
	HASH_ITER (hh, q->operations, o, next)
		if (o->withdrawn)
			sequencer_ask_all(q, o);
	DL_FOREACH_SAFE (q->closings, c, after)
		sequencer_try_close(q, c);
}

void succession_try(struct sequencer *q)
{
	if (!q->succeeds || q->active)
		return;
	for (uint32_t node = 0; node < q->nodes; node++)
		if (!q->at[node].lost && !q->at[node].reported)
			return;
	if (q->nreported)
		qsort(q->reported, q->nreported, sizeof(q->reported[0]), by_number);
	for (size_t i = 0; i < q->nreported;)
		i += grant_again(q, &q->reported[i], q->nreported - i);
	fail_again(q);
	q->grants = q->nreported ? q->reported[q->nreported - 1].number : 0;
	free(q->reported);
	q->reported = NULL;
	q->nreported = 0;
	go_on(q);
}

void sequencer_report(struct sequencer *q, uint32_t node, const struct grant *grants, uint32_t n,
		      bool more)
{
	struct grant *all = realloc(q->reported, (q->nreported + n + 1) * sizeof(*all));
	if (!all)
		return; /* it never succeeds, and the nodes end their epochs */
	q->reported = all;
	if (n)
		memcpy(all + q->nreported, grants, n * sizeof(*all));
	q->nreported += n;
	q->at[node].reported |= !more;
	succession_try(q);
}

void succession_free(struct sequencer *q)
{
	while (q->failures) {
		struct failure *f = q->failures;
		q->failures = f->next;
		free(f);
	}
	free(q->reported);
}
