/* SPDX-License-Identifier: Apache-2.0
 * How long after the first member each member came to the communicator's collectives.
 *
 * A member comes to a collective when its task has its turn, not when it submits it: after one
 * delay, the operations that it has submitted meanwhile are not late as well. Times are those that
 * the scheduler's rounds have read. The scheduler writes, the supervisor reads at any time.
 *
 * Lateness is kept for the present half of a minute and the one before, so what is shown covers the
 * last 30 to 60 seconds. Only late members write; struct member_progress has the number of
 * collectives. */
#ifndef DAEMON_LATENESS_H
#define DAEMON_LATENESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/timings.h"
#include "proto/ncclsvc_types.h"

/* ns: whoever comes less than that after the first member is not late. */
#define LATENESS_UNIT UINT64_C(1000)

/* One member in one half of a minute. */
struct lateness_half {
	_Atomic uint32_t number; /* of the half minute in which the member was late; 0: none */
	_Atomic uint32_t last;	 /* collectives to which it came after all others */
	_Atomic uint32_t max_us;
	struct {
		_Atomic uint32_t collectives, sum_us;
	} bins[NCCLSVC_LATENESS_BINS - 1]; /* without the first, of those who are not late */
};

struct member_lateness {
	struct lateness_half halves[2]; /* by the low bit of their numbers */
};

/* All members in one half of a minute: the first time that one of them was late, and the latest. */
struct comm_half {
	_Atomic uint32_t number; /* of the half minute; 0: none */
	_Atomic uint32_t kinds;	 /* bits: 1 << ncclsvc_op of those to which a member was late */
	_Atomic uint64_t first_ns, latest_ns;
	_Atomic uint64_t first, latest; /* collectives that were finished before */
};

struct comm_lateness {
	struct comm_half halves[2];
	struct member_lateness members[]; /* [nranks] */
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

/* NULL: no memory. */
struct comm_lateness *lateness_create(uint32_t nranks);
/* A member comes late to a collective. */
struct late_arrival {
	uint64_t late_ns;
	uint64_t collectives; /* of the communicator that were finished before */
	uint32_t rank;
	uint8_t op;
	bool last; /* all other members, of all nodes, came before */
};
void lateness_add(struct comm_lateness *l, uint64_t now, const struct late_arrival *a);
/* Fills in the numbers and times of the rank's record. came: to how many collectives the rank has
 * come. False: no rank was late. */
bool lateness_read(const struct comm_lateness *l, uint32_t rank, uint64_t came, uint64_t now,
		   ncclsvc_lateness_info *i);

#endif
