/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UNIT_PEER_BEAT_H
#define UNIT_PEER_BEAT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "proto/abi/peer_abi.h"

/* Joins a thread, and increments the heartbeats of n control blocks meanwhile, as the daemon does:
 * a kernel that sees none for PEER_HEARTBEAT_NS gives up, and on a busy machine it may wait that
 * long for another rank. Given: the first heartbeat, and the bytes from each to the next. */
static inline void join_with_heartbeats(pthread_t thread, peer_atomic32 *first, size_t stride,
					unsigned n)
{
	struct timespec until;
	do {
		for (unsigned i = 0; i < n; i++)
			atomic_fetch_add_explicit(
				(peer_atomic32 *)(void *)((char *)first + i * stride), 1,
				memory_order_release);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
	} while (pthread_timedjoin_np(thread, NULL, &until));
}

/* The kernel of this control block is aborted as a peer's has found its buffer (a function for
 * ncclsvc_peer_reach), and the peer takes a while to go on. */
static struct peer_control *stopped_control __attribute__((unused));

static inline uint64_t reach_late(uint64_t at)
{
	atomic_store_explicit(&stopped_control->abort, 1, memory_order_release);
	usleep(30000);
	return at;
}

#endif
