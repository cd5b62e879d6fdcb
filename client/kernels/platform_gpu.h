/* SPDX-License-Identifier: Apache-2.0
 * platform.h for GPUs, in code that both nvcc and clang accept without CUDA's headers. */
#ifndef KERNELS_PLATFORM_GPU_H
#define KERNELS_PLATFORM_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/abi/peer_abi.h"

#define KERNEL		 extern "C" __attribute__((global)) void
/* After KERNEL: the maximum number of threads of a block, which limits their registers. */
#define THREADS_MOST(n)	 __attribute__((launch_bounds(n)))
#define DEVICE		 static __attribute__((device)) inline __attribute__((always_inline))
#define COLD		 static __attribute__((device)) __attribute__((noinline)) /* seldom called */
#define SHARED		 static __attribute__((shared))
#define MOVER_IS_MONITOR 0 /* may a thread that moves data also be the monitor? */

#define REGISTER(function, name)                                                                   \
	DEVICE uint32_t function(void)                                                             \
	{                                                                                          \
		uint32_t v;                                                                        \
		asm volatile("mov.u32 %0, %%" name ";" : "=r"(v));                                 \
		return v;                                                                          \
	}

REGISTER(thread, "tid.x")
REGISTER(threads, "ntid.x")
REGISTER(block, "ctaid.x")
REGISTER(blocks, "nctaid.x")

DEVICE void block_sync(void)
{
	asm volatile("bar.sync 0;" ::: "memory");
}
DEVICE void warp_sync(void)
{
	asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}
#define WARP	 32u
/* Before a loop: ROLLED keeps it a loop, because unrolled it would be too much code; UNROLLED
 * unrolls all of it. */
#define ROLLED	 _Pragma("unroll 1")
#define UNROLLED _Pragma("unroll")

/* Whether it is true for all threads of the warp. They wait for each other here. */
DEVICE bool warp_all(bool so)
{
	uint32_t all;
	asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.all.pred q, p, "
		     "0xffffffff; selp.u32 %0, 1, 0, q; }"
		     : "=r"(all)
		     : "r"((uint32_t)so)
		     : "memory");
	return all;
}

/* The value of the warp's previous or next thread. */
#define NEIGHBOUR(name, direction, bound)                                                          \
	DEVICE uint32_t name##32(uint32_t v)                                                       \
	{                                                                                          \
		asm volatile("shfl.sync." direction ".b32 %0, %0, 1, " bound ", 0xffffffff;"       \
			     : "+r"(v));                                                           \
		return v;                                                                          \
	}                                                                                          \
	DEVICE uint64_t name(uint64_t v)                                                           \
	{                                                                                          \
		return name##32((uint32_t)v) | (uint64_t)name##32((uint32_t)(v >> 32)) << 32;      \
	}
NEIGHBOUR(of_previous_thread, "up", "0")
NEIGHBOUR(of_next_thread, "down", "31")

/* The same for the block's first n threads; n is a multiple of the warp size. */
DEVICE bool threads_all(uint32_t n, bool so)
{
	uint32_t all;
	asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, 1, %2, p; "
		     "selp.u32 %0, 1, 0, q; }"
		     : "=r"(all)
		     : "r"((uint32_t)so), "r"(n)
		     : "memory");
	return all;
}

/* Pause while polling for something that is not there yet. */
DEVICE void rest(void)
{
}

DEVICE uint64_t clock_ns(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* For words of the block. */
DEVICE void add_shared(volatile uint32_t *to)
{
	asm volatile("red.relaxed.cta.add.u32 [%0], 1;" ::"l"(to) : "memory");
}

DEVICE float half_float(uint16_t h)
{
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}

DEVICE uint16_t float_half(float f)
{
	uint16_t h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define CONVERTS_BF16
DEVICE uint16_t convert_bf16(float f)
{
	uint16_t b;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f));
	return b;
}
#endif

/* Where this process accesses a peer's memory. */
DEVICE uint64_t peer_address(uint64_t at)
{
	return at;
}

#include "platform_gpu_memory.h"

#endif
