/* SPDX-License-Identifier: Apache-2.0
 * The nodes' votes on one operation, and the outcome. */
#ifndef COORD_VOTE_H
#define COORD_VOTE_H

#include "node_operation.h"

/* A node whose members' records differ votes FAILED with all of their records, and waits for the
 * others' votes, as if it were READY: only all records tell which rank is the odd one out. */
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
	/* Of the first that failed, and everybody that any has missed. A MISMATCH of records yields
	 * to any other reason: as that ended the wait, some records are not known. */
	ncclsvc_status status;
	struct mismatch posted; /* what members have posted, as far as it is known */
};

/* In the order of the nodes' places. */
void outcome_add(struct outcome *o, const struct vote *v);

#endif
