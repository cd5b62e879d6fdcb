/* SPDX-License-Identifier: Apache-2.0
 * Task groups. */
#ifndef CLIENT_COMM_GROUP_H
#define CLIENT_COMM_GROUP_H

#include "core/thread.h"

/* Adds an operation to the thread's open group, or records the group's first refusal. */
ncclsvc_result group_add(struct thread_state *t, const struct op *op);
/* Room for the group's next operation, not counted yet. NULL: there is none, and the error says
 * why. */
struct op *group_room(struct thread_state *t, ncclsvc_result *why);
void group_refuse(struct thread_state *t, ncclsvc_result why);

#endif
