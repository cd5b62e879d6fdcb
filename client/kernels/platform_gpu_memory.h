/* SPDX-License-Identifier: Apache-2.0
 * Part of platform_gpu.h: loads, stores and fences. */
#ifndef KERNELS_PLATFORM_GPU_MEMORY_H
#define KERNELS_PLATFORM_GPU_MEMORY_H

/* LL lines: both halves in one access. */
DEVICE void ll_store_halves(uint64_t to, uint64_t a, uint64_t b)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b)
		     : "memory");
}

DEVICE void ll_load_halves(uint64_t from, uint64_t *a, uint64_t *b)
{
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
		     : "=l"(*a), "=l"(*b)
		     : "l"(from)
		     : "memory");
}

/* The same with acquire: later loads see what the sender stored before the line. */
DEVICE void ll_acquire_halves(uint64_t from, uint64_t *a, uint64_t *b)
{
	asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
		     : "=l"(*a), "=l"(*b)
		     : "l"(from)
		     : "memory");
}

/* Words that other processors also write, in global memory on either side of a bus. */
DEVICE uint32_t load32(const peer_atomic32 *from)
{
	uint32_t v;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
	return v;
}

DEVICE uint64_t load64(const peer_atomic64 *from)
{
	uint64_t v;
	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
	return v;
}

DEVICE void store32(peer_atomic32 *to, uint32_t v)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

DEVICE void store64(peer_atomic64 *to, uint64_t v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}

/* Counters: everything stored before the release is visible to loads after the acquire. */
DEVICE uint64_t acquire64(const peer_atomic64 *from)
{
	uint64_t v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
	return v;
}

DEVICE void release64(peer_atomic64 *to, uint64_t v)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}

/* 16 bytes of a buffer or of staging memory, not kept in the multiprocessor's cache, as each is
 * used once. The compiler keeps these in order, so several loads are issued before the first value
 * is needed. */
DEVICE void vector_load(uint64_t from, uint64_t *v)
{
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
		     : "=l"(v[0]), "=l"(v[1])
		     : "l"(from)
		     : "memory");
}

DEVICE void vector_store(uint64_t to, const uint64_t *v)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(v[0]), "l"(v[1])
		     : "memory");
}

/* Adds to a word that only this GPU uses, and returns the previous value. */
DEVICE uint32_t add32(peer_atomic32 *to, uint32_t v)
{
	uint32_t old;
	asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
		     : "=r"(old)
		     : "l"(to), "r"(v)
		     : "memory");
	return old;
}

/* Counts up to n, then starts again; returns the new count. Stores made before a thread counted are
 * visible to loads after this call. */
DEVICE uint32_t count_around(peer_atomic32 *count, uint32_t n)
{
	uint32_t old;
	asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
		     : "=r"(old)
		     : "l"(count), "r"(n - 1)
		     : "memory");
	return old < n - 1 ? old + 1 : 0;
}

/* Orders stores, by this thread or by others that it has synchronized with, before a store that
 * announces them: to the block, or to all processors. Also orders reading that word before later
 * loads. */
DEVICE void fence_block(void)
{
	asm volatile("fence.acq_rel.cta;" ::: "memory");
}

DEVICE void fence_system(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* The first words of this rank's state. */
DEVICE void state_load(const struct peer_state *s, uint32_t *a, uint32_t *b, uint32_t *c,
		       uint32_t *d)
{
	asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(*a), "=r"(*b), "=r"(*c), "=r"(*d)
		     : "l"(s)
		     : "memory");
}

#endif
