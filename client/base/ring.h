/* SPDX-License-Identifier: Apache-2.0
 * The session memory, as connection.c maps it. */
#ifndef CLIENT_BASE_RING_H
#define CLIENT_BASE_RING_H

#include <stdbool.h>

#include "connection.h"
#include "proto/spin.h"

#define SLICE_NS UINT64_C(100000000) /* longest sleep without a look at the socket */

/* The stores before it are seen before the loads after it. Not atomic_thread_fence, which
 * ThreadSanitizer does not know. */
static inline void full_fence(void)
{
	__sync_synchronize();
}

/* True if task number n of the ring has ended. *bad: the slot holds what it cannot hold. */
bool ring_ended(const struct connection *c, uint64_t n, bool *bad);
void ring_publish(const struct connection *c, uint64_t n, const struct svc_record *record);
/* After publishing: wakes the daemon if it sleeps. */
void ring_doorbell(const struct connection *c);
/* Sleeps until number n may have ended, at most a slice. First polls as `spin` says, which learns
 * from it; NULL: does not poll. False: a whole slice or the deadline passed. */
bool ring_sleep(const struct connection *c, uint64_t n, struct spin *spin, uint64_t deadline);
/* Wakes this process's sleepers. */
void ring_wake(const struct connection *c);

#endif
