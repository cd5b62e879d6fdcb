/* SPDX-License-Identifier: Apache-2.0
 * Several daemons: operations across nodes, with checked results. */
#include <stdlib.h>
#include <string.h>

#include "node_daemons.h"
#include "operations.h"
#include "proto/names.h"
#include "proto/operation.h"

/* ---- Every operation ---- */

static const size_t counts[] = {0, 1, 7, 1023, 40011};
#define LARGEST 40011

static void everything(struct call *c)
{
	for (int op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_BARRIER; op++) {
		if (svc_op_is_p2p((unsigned)op))
			continue;
		c->op = (ncclsvc_op)op;
		for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
			for (int in_place = 0; in_place < 2; in_place++) {
				static const ncclsvc_type types[] = {NCCLSVC_FLOAT32, NCCLSVC_INT8,
								     NCCLSVC_FLOAT16,
								     NCCLSVC_INT64};
				c->count = counts[k];
				c->in_place = in_place;
				/* All types for small counts. */
				if (counts[k] < 1000) {
					every_type(c);
					continue;
				}
				c->type = types[((size_t)op + k) % 4];
				c->size = svc_type_size(c->type);
				c->redop = (op + in_place) % 2 ? NCCLSVC_SUM : NCCLSVC_AVG;
				c->root = (op + in_place) % c->nranks;
				run_call(c);
			}
		}
	}
}

static void rank_of_everything(struct client *me)
{
	struct call c = {.rank = me->rank, .nranks = me->nranks};
	size_t bytes = LARGEST * 8 * (size_t)me->nranks + GUARD;
	c.session = session_open(me->daemon);
	c.comm = comm_join(me, c.session);
	c.send = shared(c.session, bytes);
	c.recv = shared(c.session, bytes);
	everything(&c);
	ncclsvc_close(c.session);
}

static void on_nodes(int nodes, int nranks, enum layout layout)
{
	struct cluster c;
	struct client clients[8];
	time_limit(300);
	cluster_start(&c, nodes, NULL);
	cluster_clients(clients, nranks, &c, layout, rank_of_everything, NULL);
	clients_end_within(clients, nranks, 240000);
	cluster_stop(&c);
}

static void all_operations_on_two_nodes(void **state)
{
	(void)state;
	on_nodes(2, 2, IN_BLOCKS);
	on_nodes(2, 5, IN_BLOCKS);
}

static void all_operations_on_three_nodes(void **state)
{
	(void)state;
	on_nodes(3, 4, IN_TURN);
}

static void all_operations_on_four_nodes(void **state)
{
	(void)state;
	on_nodes(4, 6, IN_TURN);
}

/* ---- Random interleavings ---- */

struct dice {
	uint64_t state;
};

/* Gives the same numbers on every rank. */
static uint32_t roll(struct dice *d, uint32_t n)
{
	d->state = d->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(d->state >> 33) % n;
}

#define BUFFERS	    12
#define ROOM	    ((size_t)300000) /* elements */
#define BURST_CALLS 10

static int32_t value_of(int rank, int step, size_t i)
{
	return rank * 1000003 + step * 7919 + (int32_t)(i % 1000);
}

struct wanted {
	int32_t *at;
	size_t count;
	int from, step; /* from -1: the sum over all ranks */
};

static void check_wanted(const struct wanted *w, int nranks)
{
	for (size_t i = 0; i < w->count; i++) {
		int32_t want = 0;
		for (int k = 0; w->from < 0 && k < nranks; k++)
			want += value_of(k, w->step, i);
		if (w->from >= 0)
			want = value_of(w->from, w->step, i);
		CHECK_EQ(w->at[i], want);
	}
}

/* Submits many tasks without waiting: collectives on two communicators, and exchanges in groups,
 * some of many chunks. Then waits for all. */
static void burst(struct client *me, struct dice *d, ncclsvc_session *s, ncclsvc_comm *comms[2],
		  int32_t **in, int32_t **out, int step)
{
	struct wanted wanted[BUFFERS];
	int n = me->nranks, used = 0;
	for (int i = 0; i < BURST_CALLS; i++, step++) {
		size_t count = roll(d, 3) ? roll(d, 900) : roll(d, (uint32_t)ROOM);
		ncclsvc_comm *comm = comms[roll(d, 2)];
		int kind = (int)roll(d, 4), shift = 1 + (int)roll(d, (uint32_t)n - 1);
		int peer = (int)roll(d, (uint32_t)n);
		int32_t *from = in[used], *to = out[used];
		for (size_t k = 0; k < count; k++)
			from[k] = value_of(me->rank, step, k);
		wanted[used] = (struct wanted){to, count, -1, step};
		if (kind == 0) {
			CHECK_OK(ncclsvc_all_reduce(from, to, count, NCCLSVC_INT32, NCCLSVC_SUM,
						    comm, NULL));
		} else if (kind == 1) {
			CHECK_OK(ncclsvc_broadcast(from, to, count, NCCLSVC_INT32, peer, comm,
						   NULL));
			wanted[used].from = peer;
		} else {
			CHECK_OK(ncclsvc_group_begin(s));
			CHECK_OK(ncclsvc_send(from, count, NCCLSVC_INT32, (me->rank + shift) % n,
					      comm, NULL));
			CHECK_OK(ncclsvc_recv(to, count, NCCLSVC_INT32, (me->rank + n - shift) % n,
					      comm, NULL));
			/* Sometimes with a collective in the same group. */
			if (kind == 3)
				CHECK_OK(ncclsvc_barrier(comm, NULL));
			CHECK_OK(ncclsvc_group_end(s));
			wanted[used].from = (me->rank + n - shift) % n;
		}
		used++;
	}
	CHECK_OK(ncclsvc_wait_all(s, WAIT_MS));
	for (int i = 0; i < used; i++)
		check_wanted(&wanted[i], n);
}

static void rank_of_bursts(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comms[2] = {comm_join(me, s)};
	struct dice d = {.state = 20261121};
	int32_t *in[BUFFERS], *out[BUFFERS];
	CHECK_OK(ncclsvc_comm_split(comms[0], 0, me->rank, WAIT_MS, &comms[1]));
	for (int i = 0; i < BUFFERS; i++) {
		in[i] = shared(s, ROOM * 4);
		out[i] = shared(s, ROOM * 4);
	}
	for (int round = 0; round < (sanitized() ? 4 : 12); round++)
		burst(me, &d, s, comms, in, out, round * BURST_CALLS);
	/* A rank that leaves early would fail the others' exchanges. */
	check_usable(s, comms[0]);
	ncclsvc_close(s);
}

static void random_interleavings_across_nodes(void **state)
{
	struct cluster c;
	struct client clients[6];
	(void)state;
	time_limit(200);
	for (int nodes = 2; nodes <= 4; nodes++) {
		cluster_start(&c, nodes, NULL);
		cluster_clients(clients, 2 + nodes, &c, IN_TURN, rank_of_bursts, NULL);
		clients_end_within(clients, 2 + nodes, 100000);
		cluster_stop(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(all_operations_on_two_nodes),
		TEST(all_operations_on_three_nodes),
		TEST(all_operations_on_four_nodes),
		TEST(random_interleavings_across_nodes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
