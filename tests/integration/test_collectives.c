/* SPDX-License-Identifier: Apache-2.0
 * Every operation, type and reduction against the reference, in and out of place. */
#include <stdlib.h>

#include "operations.h"
#include "proto/names.h"
#include "proto/operation.h"

static const size_t counts[] = {0, 1, 7, 1023, 20011};
#define LARGEST 20011

static void everything(struct call *c)
{
	for (int op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_BARRIER; op++) {
		if (svc_op_is_p2p((unsigned)op))
			continue;
		c->op = (ncclsvc_op)op;
		for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++)
			for (int in_place = 0; in_place < 2; in_place++) {
				c->count = counts[k];
				c->in_place = in_place;
				every_type(c);
			}
	}
}

static void rank_of_everything(struct client *me)
{
	bool *plain = me->arg;
	struct call c = {.rank = me->rank, .nranks = me->nranks};
	size_t bytes = LARGEST * 8 * (size_t)me->nranks + GUARD;
	c.session = session_open(me->daemon);
	c.comm = comm_join(me, c.session);
	c.send = *plain ? malloc(bytes) : shared(c.session, bytes);
	c.recv = *plain ? malloc(bytes) : shared(c.session, bytes);
	CHECK(c.send && c.recv);
	everything(&c);
	if (*plain) {
		free(c.send);
		free(c.recv);
	}
	ncclsvc_close(c.session);
}

static void on_ranks(int nranks, bool plain)
{
	struct daemon d;
	struct client clients[8];
	time_limit(600);
	daemon_start(&d, NULL);
	clients_start(clients, nranks, &d, rank_of_everything, &plain);
	clients_end(clients, nranks);
	daemon_stop(&d);
}

#define ON_RANKS(n)                                                                                \
	static void all_operations_on_##n##_ranks(void **state)                                    \
	{                                                                                          \
		(void)state;                                                                       \
		on_ranks(n, false);                                                                \
	}
ON_RANKS(1)
ON_RANKS(2)
ON_RANKS(3)
ON_RANKS(4)
ON_RANKS(7)

static void all_operations_on_plain_pointers(void **state)
{
	(void)state;
	on_ranks(3, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(all_operations_on_1_ranks), TEST(all_operations_on_2_ranks),
		TEST(all_operations_on_3_ranks), TEST(all_operations_on_4_ranks),
		TEST(all_operations_on_7_ranks), TEST(all_operations_on_plain_pointers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
