/* SPDX-License-Identifier: Apache-2.0
 * How tasks end, as their clients are told. */
#ifndef SCHED_STATUS_H
#define SCHED_STATUS_H

#include "member.h"

extern const ncclsvc_status complete_ok;
ncclsvc_status status_of(int result);
/* Names the ranks with their pids; -1: none. */
void order_name_ranks(const struct comm *c, ncclsvc_status *st, int32_t a, int32_t b);
/* Fills in PEER_GONE, because of this rank. */
ncclsvc_status order_gone_status(const struct comm *c, int32_t rank);
/* Does this task say that its member refuses the other members' operation? */
ncclsvc_status order_refused_status(const struct task *t);

#endif
