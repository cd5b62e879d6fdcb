/* SPDX-License-Identifier: Apache-2.0
 * The queues of the GPUs' workers, as the engine fills them: transports write launches, and ring
 * once for all of them. */
#ifndef TRANSPORT_DEVICE_H
#define TRANSPORT_DEVICE_H

#include "sched/state.h"

struct launch;

/* A GPU has a worker's queue, for good. Each transport that uses it says so. */
void device_add(struct engine *e, uint32_t device, struct worker_queue *queue, int doorbell);
/* Is there room for as many more launches? */
bool device_room(const struct device *d, uint32_t wanted);
/* The next launch of a device's queue, in which there is room; its worker sees it after
 * device_ring. */
struct launch *device_next_slot(struct device *d);
/* The workers see what has been written into their queues. */
void device_ring(struct engine *e);

#endif
