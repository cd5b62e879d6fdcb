/* SPDX-License-Identifier: Apache-2.0
 * The members' differing records of one collective, and the rank that is the odd one out. */
#ifndef COORD_MISMATCH_H
#define COORD_MISMATCH_H

#include "proto/task.h"

#define MISMATCH_KINDS 8 /* further ones are left out */

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
/* Is that the status of a collective whose records differ? Not that of a deadlock, of a refusal, or
 * of a plan. */
bool mismatch_is_cause(const ncclsvc_status *st);

#endif
