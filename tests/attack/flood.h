/* SPDX-License-Identifier: Apache-2.0
 * Many sessions that ask without pause. */
#ifndef ATTACK_FLOOD_H
#define ATTACK_FLOOD_H

#include "attack.h"
#include "conn.h"

/* Opens up to n sessions; returns how many the daemon let in, in conns[0..). */
unsigned open_many(struct attacker *a, struct conn *conns, unsigned n);

/* Every session keeps `depth` requests of this kind under way, and opens again if it is ended. A
 * LIST goes on with the next chunk. With depth 0 the sessions read no answer and ask as long as the
 * socket takes it. Does not return. */
void flood(struct attacker *a, struct conn *conns, unsigned n, unsigned depth, unsigned opcode,
	   const void *body, size_t length) __attribute__((noreturn));

/* Queues n tasks that wait for a peer, by as many sessions as that takes. Returns how many the
 * daemon has taken. The sessions stay open. */
uint64_t queue_tasks(struct attacker *a, uint64_t n, uint64_t timeout_ns);

/* Communicators of `ranks` that nobody else joins, until n or until the daemon refuses. */
unsigned join_unmet(struct attacker *a, struct conn *c, unsigned n, int ranks, uint64_t timeout_ns);

#endif
