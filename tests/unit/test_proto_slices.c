/* SPDX-License-Identifier: Apache-2.0
 * Large groups in slices: ranks that cut the same group at different places never wait for each
 * other forever. Each rank runs its slices one after the other; within one, a message is sent when
 * both sides run it and the earlier ones of its peer and direction are done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "proto/group/slices.h"
#include "proto/ncclsvc_types.h"

#define RANKS	 5
#define COMMS	 2
#define MESSAGES 12 /* per peer and direction, at most */
#define SUMS	 3  /* per communicator */
#define OPS	 (COMMS * (2 * RANKS * MESSAGES + SUMS))

static unsigned char ids[COMMS][NCCLSVC_ID_BYTES];
/* Contents of a group on both sides: messages per peer and direction, sums per communicator. */
static unsigned messages[COMMS][RANKS][RANKS], sums[COMMS];

struct group {
	struct slice_op ops[OPS];
	bool over[OPS];
	uint32_t n, most; /* of a slice */
	uint32_t begin, end;
	int nth[OPS]; /* among its peer and direction's, or among the sums */
};
static struct group groups[RANKS];

/* In the second communicator, the ranks are reversed. */
static int rank_in(int comm, int process)
{
	return comm ? RANKS - 1 - process : process;
}

static int comm_of(const struct slice_op *o)
{
	return o->comm == ids[1];
}

static void add(struct group *g, int comm, int process, int peer, int kind)
{
	g->ops[g->n] = (struct slice_op){
		.comm = ids[comm],
		.nranks = RANKS,
		.rank = rank_in(comm, process),
		.peer = peer,
		.message = kind != 2,
		.sends = kind == 0,
		.at = g->n,
	};
	g->n++;
}

/* The operations of a process, kind by kind, or alternating. */
static void make_group(struct group *g, int process)
{
	unsigned left[COMMS][RANKS][3] = {0};
	unsigned any = 0;
	g->n = 0;
	for (int c = 0; c < COMMS; c++) {
		for (int p = 0; p < RANKS; p++) {
			left[c][p][0] = messages[c][rank_in(c, process)][p];
			left[c][p][1] = messages[c][p][rank_in(c, process)];
			any += left[c][p][0] + left[c][p][1];
		}
		any += left[c][0][2] = sums[c];
	}
	while (any) {
		const int c = rand() % COMMS, p = rand() % RANKS, kind = rand() % 3;
		unsigned *of = &left[c][kind == 2 ? 0 : p][kind];
		const unsigned run = rand() % 3 ? 1 : *of;
		for (unsigned i = 0; *of && i < run; i++, --*of, any--)
			add(g, c, process, p, kind);
	}
}

static bool are_alike(const struct slice_op *a, const struct slice_op *b)
{
	return a->comm == b->comm && a->message == b->message &&
	       (!a->message || (a->sends == b->sends && a->peer == b->peer));
}

/* The order in the group is also that of each kind. */
static void number(struct group *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		int nth = 0;
		for (uint32_t k = 0; k < i; k++) {
			if (!are_alike(&g->ops[k], &g->ops[i]))
				continue;
			assert_true(g->ops[k].at < g->ops[i].at);
			nth++;
		}
		g->nth[i] = nth;
		assert_int_equal(g->ops[i].turn, nth);
		g->over[i] = false;
	}
}

static void next_slice(struct group *g)
{
	g->begin = g->end;
	g->end += slices_cut(g->ops + g->begin, g->n - g->begin, g->most);
	assert_true(g->end == g->n || g->end > g->begin);
}

/* The matching operation of another process, if its slice runs; else -1. */
static int other_side(const struct group *g, const struct slice_op *o, int nth, int process)
{
	for (uint32_t i = g->begin; i < g->end; i++) {
		const struct slice_op *u = &g->ops[i];
		if (g->over[i] || u->comm != o->comm || u->message != o->message ||
		    g->nth[i] != nth)
			continue;
		if (!o->message || (u->sends != o->sends && u->peer == o->rank &&
				    rank_in(comm_of(o), process) == o->peer))
			return (int)i;
	}
	return -1;
}

/* Ends every operation that can end; false: none could. */
static bool step(struct group *g, uint32_t i)
{
	int found[RANKS];
	bool any = false, all = true;
	const struct slice_op *o = &g->ops[i];
	for (int p = 0; p < RANKS; p++) {
		found[p] = other_side(&groups[p], o, g->nth[i], p);
		any = any || found[p] >= 0;
		all = all && found[p] >= 0;
	}
	if (o->message ? !any : !all)
		return false;
	for (int p = 0; p < RANKS; p++)
		if (found[p] >= 0)
			groups[p].over[found[p]] = true;
	g->over[i] = true;
	return true;
}

static bool slice_over(const struct group *g)
{
	for (uint32_t i = g->begin; i < g->end; i++)
		if (!g->over[i])
			return false;
	return true;
}

static void run(void)
{
	for (bool moved = true; moved;) {
		moved = false;
		for (int p = 0; p < RANKS; p++) {
			struct group *g = &groups[p];
			for (uint32_t i = g->begin; i < g->end; i++)
				moved |= !g->over[i] && step(g, i);
			if (g->end < g->n && slice_over(g)) {
				next_slice(g);
				moved = true;
			}
		}
	}
}

static void any_cut_goes_through(void **state)
{
	(void)state;
	ids[1][NCCLSVC_ID_BYTES - 1] = 1;
	srand(1);
	for (int round = 0; round < 60; round++) {
		for (int c = 0; c < COMMS; c++) {
			sums[c] = (unsigned)rand() % (SUMS + 1);
			for (int a = 0; a < RANKS; a++)
				for (int b = 0; b < RANKS; b++)
					messages[c][a][b] = (unsigned)rand() % (MESSAGES + 1);
		}
		for (int p = 0; p < RANKS; p++) {
			struct group *g = &groups[p];
			make_group(g, p);
			slices_order(g->ops, g->n);
			number(g);
			g->most = 2 + (unsigned)rand() % 20;
			g->begin = g->end = 0;
			next_slice(g);
		}
		run();
		for (int p = 0; p < RANKS; p++)
			assert_true(groups[p].end == groups[p].n && slice_over(&groups[p]));
	}
}

/* All operations of one process for several ranks of a message or collective are in one slice. */
static void both_sides_are_not_cut(void **state)
{
	struct slice_op ops[8];
	(void)state;
	for (int i = 0; i < 8; i++)
		ops[i] = (struct slice_op){.comm = ids[0],
					   .nranks = 2,
					   .rank = i % 2,
					   .peer = 1 - i % 2,
					   .message = true,
					   .sends = i % 2 == 0,
					   .at = (uint32_t)i};
	slices_order(ops, 8);
	assert_int_equal(slices_cut(ops, 8, 3), 2);
	assert_int_equal(slices_cut(ops, 8, 4), 4);
	assert_int_equal(slices_cut(ops, 8, 8), 8);
	assert_int_equal(slices_cut(ops, 8, 1), 1); /* there is no other way */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_cut_goes_through),
		cmocka_unit_test(both_sides_are_not_cut),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
