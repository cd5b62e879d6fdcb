/* SPDX-License-Identifier: Apache-2.0
 * The memory of a communicator's epoch. */
#ifndef SCHED_EPOCH_MEMORY_H
#define SCHED_EPOCH_MEMORY_H

#include "state.h"

/* The epoch is over, and nothing uses it any more: tells the supervisor, and frees it. */
void comm_gone(struct scheduler *sched, struct comm *c);
/* Frees it alone, as the scheduler ends. */
void comm_free(struct scheduler *sched, struct comm *c);

#endif
