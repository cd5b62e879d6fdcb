/* SPDX-License-Identifier: Apache-2.0
 * platform.h for the CPU reference: one CPU thread does a block's work. */
#ifndef KERNELS_PLATFORM_CPU_REF_H
#define KERNELS_PLATFORM_CPU_REF_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "cpu_ref.h"
#include "proto/abi/peer.h"

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
	__atomic_store_n((uint64_t *)to, a, __ATOMIC_RELEASE);
	__atomic_store_n((uint64_t *)to + 1, b, __ATOMIC_RELEASE);
}

DEVICE void ll_load_halves(uint64_t from, uint64_t *a, uint64_t *b)
{
	*a = __atomic_load_n((uint64_t *)from, __ATOMIC_ACQUIRE);
	*b = __atomic_load_n((uint64_t *)from + 1, __ATOMIC_ACQUIRE);
}

DEVICE uint32_t load32(const uint32_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

DEVICE uint64_t load64(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

DEVICE void store32(uint32_t *to, uint32_t v)
{
	__atomic_store_n(to, v, __ATOMIC_RELEASE);
}

DEVICE void store64(uint64_t *to, uint64_t v)
{
	__atomic_store_n(to, v, __ATOMIC_RELEASE);
}

DEVICE uint64_t acquire64(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

DEVICE void release64(uint64_t *to, uint64_t v)
{
	__atomic_store_n(to, v, __ATOMIC_RELEASE);
}

DEVICE void vector_load(uint64_t from, uint64_t *v)
{
	memcpy(v, (const void *)from, 16);
}

DEVICE void vector_store(uint64_t to, const uint64_t *v)
{
	memcpy((void *)to, v, 16);
}

DEVICE uint32_t add32(uint32_t *to, uint32_t v)
{
	return __atomic_fetch_add(to, v, __ATOMIC_ACQ_REL);
}

DEVICE uint32_t count_around(uint32_t *count, uint32_t n)
{
	uint32_t old = __atomic_load_n(count, __ATOMIC_RELAXED), next;
	do
		next = old < n - 1 ? old + 1 : 0;
	while (!__atomic_compare_exchange_n(count, &old, next, true, __ATOMIC_ACQ_REL,
					    __ATOMIC_RELAXED));
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
