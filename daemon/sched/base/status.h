/* SPDX-License-Identifier: Apache-2.0
 * The statuses that clients get for their tasks. */
#ifndef SCHED_STATUS_H
#define SCHED_STATUS_H

#include "member.h"

extern const ncclsvc_status status_ok;
ncclsvc_status status_of(int result);
/* Names the ranks with their pids; -1: none. */
void status_name_ranks(const struct comm *c, ncclsvc_status *st, int32_t a, int32_t b);
/* Fills in PEER_GONE, because of this rank. */
ncclsvc_status status_gone(const struct comm *c, int32_t rank);
/* Does this task say that its member refuses the other members' operation? */
ncclsvc_status status_refused(const struct task *t);

#endif
