/* SPDX-License-Identifier: Apache-2.0 */
#include "slices.h"

#include <stdlib.h>
#include <string.h>

#include "ncclsvc_types.h"

static int compare(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int compare_comms(const struct slice_op *a, const struct slice_op *b)
{
	return a->comm == b->comm ? 0 : memcmp(a->comm, b->comm, NCCLSVC_ID_BYTES);
}

/* Operations of one kind are adjacent, in group order. */
static int by_kind(const void *x, const void *y)
{
	const struct slice_op *a = x, *b = y;
	int c = compare_comms(a, b);
	c = c ? c : compare(a->rank, b->rank);
	c = c ? c : compare(a->message, b->message);
	if (!c && a->message) {
		c = compare(a->sends, b->sends);
		c = c ? c : compare(a->peer, b->peer);
	}
	return c ? c : compare(a->at, b->at);
}

static bool are_of_a_kind(const struct slice_op *a, const struct slice_op *b)
{
	return !compare_comms(a, b) && a->rank == b->rank && a->message == b->message &&
	       (!a->message || (a->sends == b->sends && a->peer == b->peer));
}

static int32_t sender(const struct slice_op *o)
{
	return o->sends ? o->rank : o->peer;
}

static int32_t distance(const struct slice_op *o)
{
	const int32_t d = o->sends ? o->peer - o->rank : o->rank - o->peer;
	return d < 0 ? d + o->nranks : d;
}

/* 0: of the same collective or message. */
static int by_turn(const struct slice_op *a, const struct slice_op *b)
{
	int c = compare(a->turn, b->turn);
	c = c ? c : compare_comms(a, b);
	c = c ? c : compare(a->message, b->message);
	if (!c && a->message) {
		c = compare(distance(a), distance(b));
		c = c ? c : compare(sender(a), sender(b));
	}
	return c;
}

static int by_order(const void *x, const void *y)
{
	const struct slice_op *a = x, *b = y;
	const int c = by_turn(a, b);
	return c ? c : compare(a->at, b->at);
}

void slices_order(struct slice_op *ops, uint32_t n)
{
	qsort(ops, n, sizeof(*ops), by_kind);
	for (uint32_t i = 0; i < n; i++)
		ops[i].turn = i && are_of_a_kind(&ops[i - 1], &ops[i]) ? ops[i - 1].turn + 1 : 0;
	qsort(ops, n, sizeof(*ops), by_order);
}

uint32_t slices_cut(const struct slice_op *ops, uint32_t n, uint32_t most)
{
	if (n <= most)
		return n;
	uint32_t k = most;
	while (k && !by_turn(&ops[k - 1], &ops[k]))
		k--;
	return k ? k : most;
}
