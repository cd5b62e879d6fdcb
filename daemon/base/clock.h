/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's clock, and its deadlines: nanoseconds of CLOCK_MONOTONIC. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now(void);

/* The earlier of two deadlines; 0 means none. */
static inline uint64_t earlier(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

#endif
