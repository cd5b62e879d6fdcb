/* SPDX-License-Identifier: Apache-2.0
 * Several daemons: operations across nodes, with checked results. */
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "operations.h"
#include "proto/names.h"

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
				static const ncclsvc_type types[] = {
					NCCLSVC_FLOAT32, NCCLSVC_INT8, NCCLSVC_FLOAT16,
					NCCLSVC_INT64};
				c->count = counts[k];
				c->in_place = in_place;
				/* All of them where they are quick. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(all_operations_on_two_nodes),
		TEST(all_operations_on_three_nodes),
		TEST(all_operations_on_four_nodes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
