/* SPDX-License-Identifier: Apache-2.0
 * The nodes' votes on one operation, and the outcome. */
#ifndef COORD_VOTE_H
#define COORD_VOTE_H

#include "operation.h"

enum vote_kind { VOTE_NONE, VOTE_READY, VOTE_FAILED };

/* One node's vote. */
struct vote {
	enum vote_kind kind;
	int32_t rank;	/* for READY: the lowest of its members */
	uint32_t count; /* and their number */
	struct svc_record record;
	struct failed_note *failed; /* for FAILED; owned by the keeper of the vote */
};

/* The outcome of the votes added so far. Starts zeroed. */
struct outcome {
	bool failed;
	ncclsvc_status
		status; /* of the first node that failed, with all ranks that any node misses */
	struct mismatch posted; /* the members' records, as far as known */
};

/* In the order of the nodes' places. */
void outcome_add(struct outcome *o, const struct vote *v);

#endif
