/* SPDX-License-Identifier: Apache-2.0
 * Findings: whom and what they name, and how they come into the report. */
#ifndef CTL_WHY_FINDING_H
#define CTL_WHY_FINDING_H

#include "internal.h"

/* A fault that several ranks which an operation waits for share. */
struct why_fault {
	struct why_finding f;
	struct why_path shown[WHY_SHOWN]; /* of the first culprits */
	size_t nshown, more;		  /* more: ranks that were not examined */
};

/* A finding of the group that names nobody yet. */
struct why_finding why_finding_of(const struct why_group *g, enum why_cause cause);
void why_finding_free(struct why_finding *f);

/* The rank is a culprit. */
void why_blame(const struct why *w, struct why_finding *f, uint64_t comm, int32_t rank,
	       enum why_cause cause);
/* Adds to the finding, each once, the nodes that the task asks, or this one. */
void why_name_nodes(struct why_finding *f, const ncclsvc_task_info *t);
void why_name_node(struct why_finding *f, uint32_t node);
/* The worker of the member's GPU is the finding's cause. */
void why_name_worker(const struct why *w, struct why_finding *f, const ncclsvc_member_info *m);

bool why_same_process(const struct why_culprit *a, const struct why_culprit *b);
/* Takes the finding over, with out as the start of its text; or adds it to an older one that has
 * the same culprits. */
void why_report(struct why *w, struct why_report *report, struct why_finding *f, struct text *out);

#endif
