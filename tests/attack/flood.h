/* SPDX-License-Identifier: Apache-2.0
 * Many sessions that send requests continuously. */
#ifndef ATTACK_FLOOD_H
#define ATTACK_FLOOD_H

#include "attack.h"
#include "conn.h"

/* Opens up to n sessions in conns[0..); returns how many the daemon accepted. */
unsigned open_many(struct attacker *a, struct conn *conns, unsigned n);

/* Every session keeps `depth` requests of this kind in flight, and reopens if it is ended. A LIST
 * continues with the next chunk. With depth 0 the sessions read no answers, and send as long as the
 * socket accepts it. Does not return. */
void flood(struct attacker *a, struct conn *conns, unsigned n, unsigned depth, unsigned opcode,
	   const void *body, size_t length) __attribute__((noreturn));

/* Queues n tasks that wait for a peer, from as many sessions as needed. Returns how many the daemon
 * has taken. The sessions stay open. */
uint64_t queue_tasks(struct attacker *a, uint64_t n, uint64_t timeout_ns);

/* Joins communicators of `ranks` that nobody else joins, until n or until the daemon refuses. */
unsigned join_unmet(struct attacker *a, struct conn *c, unsigned n, int ranks, uint64_t timeout_ns);

#endif
