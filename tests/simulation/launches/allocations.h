/* SPDX-License-Identifier: Apache-2.0
 * allocations.c's interface; it cannot include the scheduler's headers. */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include <stdint.h>

#define ALLOCATIONS_NODES 5

/* Number of allocations that the node's sequencer holds, besides itself. */
extern int64_t sequencer_held[ALLOCATIONS_NODES];
extern uint32_t node_now;

#endif
