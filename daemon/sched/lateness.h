/* SPDX-License-Identifier: Apache-2.0
 * How long after the first member each member came to the communicator's collectives.
 *
 * A member comes to a collective when its task has its turn, not when it was submitted: a member
 * that is late once is not late again at all operations that were submitted behind. Times are those
 * that the scheduler's rounds have read. The scheduler writes, the supervisor reads at any time.
 *
 * Lateness is kept for the present half of a minute and the one before, so what is shown covers the
 * last 30 to 60 seconds. */
#ifndef SCHED_LATENESS_H
#define SCHED_LATENESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/timings.h"
#include "ncclsvc_types.h"

struct comm;
struct engine;
struct task;

/* One member in one half of a minute. */
struct lateness_half {
	_Atomic uint32_t number; /* of the half minute, since the clock's beginning */
	_Atomic uint32_t last;	 /* operations that waited for this member at the end */
	_Atomic uint32_t kinds;	 /* bits: 1 << ncclsvc_op */
	_Atomic uint32_t max_us;
	_Atomic uint64_t first_ns;  /* when it came to the first operation of these */
	_Atomic uint64_t latest_ns; /* and to the latest */
	struct {
		_Atomic uint32_t operations, sum_us;
	} bins[NCCLSVC_LATENESS_BINS];
};

struct member_lateness {
	struct lateness_half halves[2]; /* by the low bit of their numbers */
};

/* The number of the half minute. Numbers begin with 1: zeroed memory is of none. */
static inline uint32_t lateness_half_of(uint64_t now)
{
	return (uint32_t)(now / LATENESS_HALF_NS) + 1;
}
/* Are the sums of that half minute to be shown? */
static inline bool lateness_is_recent(uint32_t number, uint64_t now)
{
	return number && number + 1 >= lateness_half_of(now);
}

/* t has come to the communicator's current collective, as the last one that was counted. */
void lateness_count(struct engine *e, const struct task *t);
/* Fills in the numbers and times of the record. False: the member came to no collective. */
bool lateness_read(const struct member_lateness *l, uint64_t now, ncclsvc_lateness_info *i);

#endif
