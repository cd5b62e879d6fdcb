/* SPDX-License-Identifier: Apache-2.0
 * What the members ask for in one collective, where that differs, and who is the odd one out. */
#ifndef COORD_MISMATCH_H
#define COORD_MISMATCH_H

#include "task.h"

#define MISMATCH_KINDS 8 /* further ones are left out */

/* Nodes send it to each other as it is. */
struct mismatch {
	uint32_t nkinds, reserved;
	struct {
		struct svc_record record;
		int32_t rank;	/* the lowest that asks for it */
		uint32_t count; /* ranks that do */
	} kinds[MISMATCH_KINDS];
};

/* So many ranks, of which this is the lowest, ask for that. */
void mismatch_add(struct mismatch *m, const struct svc_record *record, int32_t rank,
		  uint32_t count);
/* False: all agree. Else the status: a is of the majority, b is not. If all nranks are there and b
 * is the only one who differs, b is the one `missing` rank. */
bool mismatch_status(const struct mismatch *m, uint32_t nranks, ncclsvc_status *st);
/* Is that the status of a collective whose records differ? Not that of a deadlock, of a refusal, or
 * of a plan. */
bool mismatch_is_cause(const ncclsvc_status *st);

#endif
