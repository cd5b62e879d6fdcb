/* SPDX-License-Identifier: Apache-2.0
 * Instead of daemon/base/clock.c and loop.c: deadlines in virtual time. */
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/loop.h"
#include "simulation.h"

/* Instead of the system's: a seed decides on ids, too. */
ssize_t getrandom(void *to, size_t size, unsigned flags)
{
	uint8_t *bytes = to;
	(void)flags;
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)below(256);
	return (ssize_t)size;
}

uint64_t clock_now(void)
{
	return now_ns;
}

struct timer {
	struct node_state *node;
	uint64_t number;
};

static void on_timer(void *arg)
{
	const struct timer t = *(struct timer *)arg;
	struct loop *l = &t.node->loop;
	if (t.node->timer != t.number)
		return;
	l->next_deadline_ns = 0;
	const uint64_t next_ns = l->expire(l->arg, now_ns);
	if (next_ns)
		loop_deadline(l, next_ns);
}

void loop_deadline(struct loop *l, uint64_t at_ns)
{
	struct node_state *node = l->arg;
	if (l->closing || (l->next_deadline_ns && l->next_deadline_ns <= at_ns))
		return;
	l->next_deadline_ns = at_ns;
	struct timer *t = malloc(sizeof(*t));
	if (!t)
		abort();
	*t = (struct timer){node, ++node->timer};
	/* To the millisecond, and never at once, as libuv's. */
	at(at_ns > now_ns ? now_ns + (at_ns - now_ns + MS - 1) / MS * MS : now_ns + 1000,
	   (int)(node - nodes), on_timer, t);
}
