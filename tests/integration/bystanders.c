/* SPDX-License-Identifier: Apache-2.0 */
#include "bystanders.h"

#include <poll.h>
#include <stdbool.h>

#define LARGE 200000

static bool told_to_stop(const struct client *me)
{
	struct pollfd p = {.fd = me->link, .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}

static void reduces_all_the_time(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, LARGE * sizeof(*v));
	uint64_t rounds = 0;
	for (int32_t stop = 0; !stop; rounds++) {
		size_t n = rounds % 10 ? 100 : LARGE;
		ncclsvc_task task;
		/* Both stop in the same round, because they reduce this flag. */
		v[0] = told_to_stop(me);
		for (size_t i = 1; i < n; i++)
			v[i] = (int32_t)(i + rounds) + me->rank;
		CHECK_OK(ncclsvc_all_reduce(v, v, n, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
		stop = v[0];
		for (size_t i = 1; i < n; i++)
			CHECK_EQ(v[i], 2 * (int32_t)(i + rounds) + 1);
		if (rounds == 2)
			say(me, rounds);
	}
	say(me, rounds);
	ncclsvc_close(s);
}

void bystanders_start(struct bystanders *b, const struct daemon *d)
{
	clients_start(b->clients, 2, d, reduces_all_the_time, NULL);
	hear_all(b->clients, 2, 2);
}

void bystanders_end(struct bystanders *b)
{
	say(&b->clients[0], 1); /* the other stops with it, and may already have exited */
	CHECK(hear(&b->clients[0]) > 3);
	CHECK(hear(&b->clients[1]) > 3);
	clients_end(b->clients, 2);
}
