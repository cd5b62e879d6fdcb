/* SPDX-License-Identifier: Apache-2.0
 * Matching of members' tasks. */
#ifndef SCHED_MATCH_H
#define SCHED_MATCH_H

#include "coord/mismatch.h"
#include "sched/base/state.h"

/* The records of these tasks, by rank; NULL: the member has not posted one. */
void order_collect_records(const struct comm *c, struct task *const *tasks, struct mismatch *m);
/* As mismatch_status, with pids. */
bool order_mismatch_status(const struct comm *c, const struct mismatch *m, ncclsvc_status *st);
void order_post_collective(struct engine *e, struct task *t);
void order_post_p2p(struct engine *e, struct task *t);
/* A posted task runs; its transport owns it. */
void order_set_running(struct task *t);
void order_match_pair(struct engine *e, struct task *t, struct task *u);
/* Ends the current collective on every member that has posted it. */
void order_end_collective(struct engine *e, struct comm *c, const ncclsvc_status *how);

#endif
