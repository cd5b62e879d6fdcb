/* SPDX-License-Identifier: Apache-2.0
 * Of failures with the same result, only the first in LOG_WINDOW_NS is reported. */
#ifndef BASE_REPORTED_H
#define BASE_REPORTED_H

#include <stdbool.h>
#include <stdint.h>

#include "timings.h"

struct reported {
	uint64_t since;	  /* when the first of these was reported */
	uint32_t results; /* a bitmap */
};

/* Whether it is the first, and is to be reported now. */
static inline bool reported_first(struct reported *r, uint64_t now, int result)
{
	const uint32_t bit = UINT32_C(1) << (-result & 31);
	if (now - r->since >= LOG_WINDOW_NS)
		*r = (struct reported){.since = now};
	const bool first = !(r->results & bit);
	r->results |= bit;
	return first;
}

#endif
