/* SPDX-License-Identifier: Apache-2.0
 * platform.h for the CPU reference: one CPU thread does a block's work. */
#ifndef KERNELS_PLATFORM_CPU_REF_H
#define KERNELS_PLATFORM_CPU_REF_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "cpu_ref.h"
#include "proto/abi/peer_abi.h"

#define KERNEL void
#define THREADS_MOST(n)
#define DEVICE static inline
#define COLD   static __attribute__((noinline))
#define SHARED
#define MOVER_IS_MONITOR 1 /* may a thread that moves data also be the monitor? */
#define WARP		 1u
#define ROLLED
#define UNROLLED

DEVICE bool warp_all(bool so)
{
	return so;
}

DEVICE uint64_t of_previous_thread(uint64_t v)
{
	return v;
}
DEVICE uint64_t of_next_thread(uint64_t v)
{
	return v;
}

DEVICE bool threads_all(uint32_t n, bool so)
{
	(void)n;
	return so;
}

DEVICE uint32_t thread(void)
{
	return 0;
}
DEVICE uint32_t threads(void)
{
	return 1;
}
DEVICE uint32_t block(void)
{
	return ncclsvc_peer_block.number;
}
DEVICE uint32_t blocks(void)
{
	return ncclsvc_peer_block.of;
}
DEVICE void block_sync(void)
{
}
DEVICE void warp_sync(void)
{
}

DEVICE void rest(void)
{
	if (ncclsvc_peer_rest)
		ncclsvc_peer_rest();
	sched_yield();
}

DEVICE uint64_t peer_address(uint64_t at)
{
	return ncclsvc_peer_reach ? ncclsvc_peer_reach(at) : at;
}

DEVICE uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

DEVICE void ll_store_halves(uint64_t to, uint64_t a, uint64_t b)
{
	atomic_store_explicit((peer_atomic64 *)to, a, memory_order_release);
	atomic_store_explicit((peer_atomic64 *)to + 1, b, memory_order_release);
}

DEVICE void ll_load_halves(uint64_t from, uint64_t *a, uint64_t *b)
{
	*a = atomic_load_explicit((const peer_atomic64 *)from, memory_order_acquire);
	*b = atomic_load_explicit((const peer_atomic64 *)from + 1, memory_order_acquire);
}

DEVICE void ll_acquire_halves(uint64_t from, uint64_t *a, uint64_t *b)
{
	ll_load_halves(from, a, b);
}

DEVICE uint32_t load32(const peer_atomic32 *from)
{
	return atomic_load_explicit(from, memory_order_acquire);
}

DEVICE uint64_t load64(const peer_atomic64 *from)
{
	return atomic_load_explicit(from, memory_order_acquire);
}

DEVICE void store32(peer_atomic32 *to, uint32_t v)
{
	atomic_store_explicit(to, v, memory_order_release);
}

DEVICE void store64(peer_atomic64 *to, uint64_t v)
{
	atomic_store_explicit(to, v, memory_order_release);
}

DEVICE uint64_t acquire64(const peer_atomic64 *from)
{
	return atomic_load_explicit(from, memory_order_acquire);
}

DEVICE void release64(peer_atomic64 *to, uint64_t v)
{
	atomic_store_explicit(to, v, memory_order_release);
}

DEVICE void vector_load(uint64_t from, uint64_t *v)
{
	memcpy(v, (const void *)from, 16);
}

DEVICE void vector_store(uint64_t to, const uint64_t *v)
{
	memcpy((void *)to, v, 16);
}

DEVICE uint32_t add32(peer_atomic32 *to, uint32_t v)
{
	return atomic_fetch_add_explicit(to, v, memory_order_acq_rel);
}

DEVICE uint32_t count_around(peer_atomic32 *count, uint32_t n)
{
	uint32_t old = atomic_load_explicit(count, memory_order_relaxed), next;
	do
		next = old < n - 1 ? old + 1 : 0;
	while (!atomic_compare_exchange_weak_explicit(count, &old, next, memory_order_acq_rel,
						      memory_order_relaxed));
	return next;
}

/* All words here are loaded and stored in order. */
DEVICE void fence_block(void)
{
}
DEVICE void fence_system(void)
{
}

DEVICE void state_load(const struct peer_state *s, uint32_t *a, uint32_t *b, uint32_t *c,
		       uint32_t *d)
{
	*a = load32(&s->launch_seq);
	*b = load32(&s->dead);
	*c = load32(&s->blocks);
	*d = load32(&s->arrived);
}

DEVICE void add_shared(volatile uint32_t *to)
{
	*to += 1;
}

#include "platform_cpu_ref_half.h"

#endif
