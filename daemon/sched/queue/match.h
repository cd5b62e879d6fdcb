/* SPDX-License-Identifier: Apache-2.0
 * Matching of members' tasks. */
#ifndef SCHED_MATCH_H
#define SCHED_MATCH_H

#include "coord/mismatch.h"
#include "sched/base/state.h"

/* The records of these tasks, by rank; NULL: the member has not posted one. */
void match_collect_records(const struct comm *c, struct task *const *tasks, struct mismatch *m);
/* As mismatch_status, with pids. */
bool match_mismatch_status(const struct comm *c, const struct mismatch *m, ncclsvc_status *st);
void match_post_collective(struct scheduler *sched, struct task *t);
void match_post_p2p(struct scheduler *sched, struct task *t);
/* Ends the current collective on every member that has posted it. */
void match_end_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *how);

#endif
