/* SPDX-License-Identifier: Apache-2.0
 * What nodes say of one operation, and what comes of it. */
#ifndef COORD_VERDICT_H
#define COORD_VERDICT_H

#include "operation.h"

enum said { SAID_NOTHING, SAID_READY, SAID_FAILED };

/* One node's. */
struct verdict {
	enum said said;
	int32_t rank;	/* of READY: the lowest of its members */
	uint32_t count; /* and how many they are */
	struct svc_record record;
	struct failed_note *failed; /* of FAILED; owned by whoever keeps the verdict */
};

/* What comes of the verdicts that were added to it. It begins as zero. */
struct outcome {
	bool failed;
	ncclsvc_status status;	/* of the first that failed, and everybody that any has missed */
	struct mismatch posted; /* what members have posted, as far as it is known */
};

/* In the order of the nodes' places. */
void outcome_add(struct outcome *o, const struct verdict *v);

#endif
