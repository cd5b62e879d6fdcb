/* SPDX-License-Identifier: Apache-2.0
 * The failures of a snapshot. Every node keeps its own records, so that one failure may have a
 * record on each. */
#ifndef CTL_FAILURE_RECORDS_H
#define CTL_FAILURE_RECORDS_H

#include "snapshot.h"

struct failure_record {
	const ncclsvc_failure_info *info;
	uint32_t node; /* whose record it is; 0 if only one node was asked */
};

struct failure {
	const struct failure_record *records; /* the culprit's own node first, if it has one */
	size_t n;
};

struct failures {
	struct failure_record *records;
	struct failure *list; /* oldest first, by the first record's clock */
	size_t n;
};

/* Records of several nodes are one failure's if they name the same culprit, operation, epoch and
 * communicator. Records without a culprit are failures of their own. */
void failures_gather(const struct snapshot *s, struct failures *f);
void failures_free(struct failures *f);

/* The consequences of a failure, from the records of all nodes. */
struct failure_effects {
	uint64_t pending; /* tasks */
	uint32_t comms;	  /* of the node that counted most */
	uint32_t ended;	  /* ranks that ended because of it */
	uint32_t n;	  /* how many of them are listed */
	int32_t ranks[NCCLSVC_FAILURE_RANKS], pids[NCCLSVC_FAILURE_RANKS];
};

void failure_effects(const struct failure *f, struct failure_effects *e);

#endif
