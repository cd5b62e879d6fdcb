/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's side of the GPUs' worker queues: transports write launches, and ring the doorbell
 * once for all of them. */
#ifndef TRANSPORT_DEVICE_H
#define TRANSPORT_DEVICE_H

#include "sched/base/state.h"

struct launch;

/* A GPU has a worker's queue, permanently. Each transport that uses the queue reports it. */
void device_add(struct scheduler *sched, uint32_t device, struct worker_queue *queue, int doorbell);
/* Is there room for this many more launches? */
bool device_room(const struct device *d, uint32_t wanted);
/* Returns the next launch of a device's queue, which must have room; its worker sees the launch
 * after device_ring. */
struct launch *device_next_slot(struct device *d);
/* Makes the launches written to the queues visible to the workers. */
void device_ring(struct scheduler *sched);

#endif
