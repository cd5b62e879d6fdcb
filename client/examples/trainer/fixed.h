/* SPDX-License-Identifier: Apache-2.0
 * Integer sums have the same bits in any order. So everything that ranks add up is an integer: a
 * number in multiples of 2^-32. NCCL may then use any algorithm, and the matrices and the batch may
 * be divided among any number of ranks. */
#ifndef TRAINER_FIXED_H
#define TRAINER_FIXED_H

#include <stdint.h>

#define FIXED_ONE   4294967296.0 /* 2^32 */
#define FIXED_LIMIT 32768.0f	 /* numbers are clamped to this: 2^16 of them can be added */

static inline int64_t fixed(float x)
{
	x = x < FIXED_LIMIT ? x : FIXED_LIMIT; /* also replaces NaN */
	x = x > -FIXED_LIMIT ? x : -FIXED_LIMIT;
	return (int64_t)(x * (float)FIXED_ONE);
}

static inline double unfixed(int64_t n)
{
	return (double)n / FIXED_ONE;
}

#endif
