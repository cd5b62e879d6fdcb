/* SPDX-License-Identifier: Apache-2.0
 * The session memory that connection.c maps. */
#ifndef CLIENT_BASE_SESSION_MEMORY_H
#define CLIENT_BASE_SESSION_MEMORY_H

#include <stdbool.h>

#include "connection.h"
#include "proto/spin.h"

#define SLICE_NS UINT64_C(100000000) /* longest sleep without checking the socket */

/* True if task number n of the ring has ended. Sets *bad if the slot's content is impossible. */
bool ring_ended(const struct connection *c, uint64_t n, bool *bad);
void ring_publish(const struct connection *c, uint64_t n, const struct svc_record *record);
/* The daemon and its workers have ended: numbers count from 1 again. */
void ring_restart(const struct connection *c);
/* Call after publishing: wakes the daemon if it sleeps. */
void ring_doorbell(const struct connection *c);
/* Sleeps until number n may have ended, for one slice at most. Polls first as `spin` says, and
 * updates it; NULL: no polling. Returns false after a whole slice, or when the deadline has passed.
 */
bool ring_sleep(const struct connection *c, uint64_t n, struct spin *spin, uint64_t deadline);
/* Wakes this process's sleeping threads. */
void ring_wake(const struct connection *c);

#endif
