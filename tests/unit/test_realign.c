/* SPDX-License-Identifier: Apache-2.0
 * Vectors at any address (client/kernels/realign.h) in a warp of 32 threads, which the CPU
 * reference does not have. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- The platform: a CPU thread for each thread of the warp ---- */

#define KERNELS_PLATFORM_H
#define DEVICE static inline
#define COLD   static
#define ROLLED
#define UNROLLED
#define WARP 32u

static _Thread_local uint32_t lane;
static pthread_barrier_t all_lanes;
static uint64_t exchanged[WARP];

DEVICE uint32_t thread(void)
{
	return lane;
}

static uint64_t of_thread(uint64_t v, uint32_t which)
{
	exchanged[lane] = v;
	pthread_barrier_wait(&all_lanes);
	const uint64_t taken = exchanged[which];
	pthread_barrier_wait(&all_lanes);
	return taken;
}

DEVICE uint64_t of_previous_thread(uint64_t v)
{
	return of_thread(v, lane ? lane - 1 : 0);
}

DEVICE uint64_t of_next_thread(uint64_t v)
{
	return of_thread(v, lane < WARP - 1 ? lane + 1 : lane);
}

static bool is_aligned_to_vectors(uint64_t at)
{
	return !(at % 16);
}

DEVICE void vector_load(uint64_t from, uint64_t *v)
{
	assert_true(is_aligned_to_vectors(from));
	memcpy(v, (const void *)from, 16);
}

DEVICE void vector_store(uint64_t to, const uint64_t *v)
{
	assert_true(is_aligned_to_vectors(to));
	memcpy((void *)to, v, 16);
}

#include "kernels/realign.h"

/* ---- A warp that copies its vectors ---- */

#define BYTES (WARP * 16)
#define ROOM  (BYTES + 48)
#define GUARD 0xee

static _Alignas(16) uint8_t src[ROOM], dst[ROOM];
static uint64_t from, to;

static void *copy(void *arg)
{
	uint64_t v[2], next[2] = {0};
	lane = (uint32_t)(uintptr_t)arg;
	for (unsigned i = 0; i < 256; i++) {
		const uint64_t at = from + i / 16, here = at + lane * 16;
		const uint32_t by = at % 16;
		vector_load(here - by, v);
		if (by && lane == WARP - 1)
			vector_load(here - by + 16, next);
		vector_realign(by, v, next);
		if (!lane)
			memset(dst, GUARD, sizeof(dst));
		pthread_barrier_wait(&all_lanes);
		misaligned_store(to + i % 16 + lane * 16, v);
		pthread_barrier_wait(&all_lanes);
		if (lane)
			continue;
		for (unsigned k = 0; k < ROOM; k++) {
			const unsigned n = k - 16 - i % 16;
			const uint8_t due = n < BYTES ? src[16 + i / 16 + n] : GUARD;
			if (dst[k] != due)
				fail_msg("from %u to %u: byte %d is %u, due %u", i / 16, i % 16,
					 (int)n, dst[k], due);
		}
	}
	return NULL;
}

static void every_alignment(void **unused)
{
	pthread_t threads[WARP];
	(void)unused;
	for (unsigned i = 0; i < ROOM; i++)
		src[i] = (uint8_t)(i * 7 + i / 16 + 1);
	from = (uintptr_t)src + 16;
	to = (uintptr_t)dst + 16;
	assert_int_equal(pthread_barrier_init(&all_lanes, NULL, WARP), 0);
	for (uintptr_t i = 0; i < WARP; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, copy, (void *)i), 0);
	for (unsigned i = 0; i < WARP; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	pthread_barrier_destroy(&all_lanes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_alignment)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
