/* SPDX-License-Identifier: Apache-2.0
 * The members' differing records of one collective, and the rank that is the odd one out. */
#ifndef COORD_MISMATCH_H
#define COORD_MISMATCH_H

#include "task.h"

/* With three kinds of records no rank is the only odd one, so further kinds are left out. */
#define MISMATCH_KINDS 3

/* Nodes send this struct to each other unchanged. */
struct mismatch {
	uint32_t nkinds, reserved;
	struct {
		struct svc_record record;
		int32_t rank;	/* the lowest that posted it */
		uint32_t count; /* number of ranks that did */
	} kinds[MISMATCH_KINDS];
};

/* Adds a record posted by this many ranks, of which this is the lowest. */
void mismatch_add(struct mismatch *m, const struct svc_record *record, int32_t rank,
		  uint32_t count);
/* False: all agree. Otherwise fills the status: a is in the majority, b is not. If all nranks are
 * present and only b differs, b is the single `missing` rank. */
bool mismatch_status(const struct mismatch *m, uint32_t nranks, ncclsvc_status *st);

#endif
