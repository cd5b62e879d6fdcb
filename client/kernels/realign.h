/* SPDX-License-Identifier: Apache-2.0
 * Vectors at any address: the threads of a warp load and store aligned ones. An aligned vector
 * holds the end of one thread's vector and the beginning of the next thread's. */
#ifndef KERNELS_REALIGN_H
#define KERNELS_REALIGN_H

#include "elements.h"

/* The 16 bytes from `at` on, 1 to 15, of two vectors. */
DEVICE void vector_between(const uint64_t *low, const uint64_t *high, uint32_t at, uint64_t *v)
{
	const bool upper = at & 8;
	const uint32_t bits = at % 8 * 8;
	const uint64_t a = upper ? low[1] : low[0], b = upper ? high[0] : low[1];
	const uint64_t c = upper ? high[1] : high[0];
	v[0] = bits ? a >> bits | b << (64 - bits) : a;
	v[1] = bits ? b >> bits | c << (64 - bits) : b;
}

/* Stores the first n bytes. */
DEVICE void vector_begin_store(uint64_t to, const uint64_t *v, uint32_t n)
{
	bytes_store(to, v[0], n < 8 ? n : 8);
	if (n > 8)
		bytes_store(to + 8, v[1], n - 8);
}

/* v: the aligned vector that has this thread's first bytes, which are `by` bytes behind its
 * beginning; then the thread's vector. next_vector: for the warp's last thread, the aligned vector
 * after that. */
DEVICE void vector_realign(uint32_t by, uint64_t *v, uint64_t *next_vector)
{
	const uint64_t next[2] = {of_next_thread(v[0]), of_next_thread(v[1])};
	const bool last = thread() % WARP == WARP - 1;
	next_vector[0] = last ? next_vector[0] : next[0];
	next_vector[1] = last ? next_vector[1] : next[1];
	if (by)
		vector_between(v, next_vector, by, v);
}

DEVICE void misaligned_store(uint64_t to, const uint64_t *v)
{
	const uint32_t by = to & 15;
	const uint64_t none[2] = {0, 0};
	const uint64_t previous[2] = {of_previous_thread(v[0]), of_previous_thread(v[1])};
	uint64_t x[2] = {v[0], v[1]};
	if (by)
		vector_between(previous, v, 16 - by, x);
	if (!by || thread() % WARP)
		vector_store(to - by, x);
	else
		vector_begin_store(to, v, 16 - by);
	if (by && thread() % WARP == WARP - 1) {
		vector_between(v, none, 16 - by, x);
		vector_begin_store(to - by + 16, x, by);
	}
}

#endif
