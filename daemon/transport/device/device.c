/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's side of the GPUs' worker queues. */
#include "device.h"

#include <unistd.h>

#include "proto/abi/worker_queue.h"

void device_add(struct scheduler *sched, uint32_t device, struct worker_queue *queue, int doorbell)
{
	if (sched->devices[device].queue == queue)
		return;
	sched->devices[device] = (struct device){.queue = queue, .doorbell = doorbell};
	sched->devices[device].head = atomic_load(&queue->head);
}

bool device_room(const struct device *d, uint32_t wanted)
{
	uint64_t used = d->head - atomic_load_explicit(&d->queue->tail, memory_order_acquire);
	return wanted <= WORKER_LAUNCHES - used;
}

struct launch *device_next_slot(struct device *d)
{
	return &d->queue->launches[d->head++ & (WORKER_LAUNCHES - 1)];
}

void device_ring(struct scheduler *sched)
{
	const uint64_t one = 1;
	uint32_t rung = 0; /* bitmap */
	/* If the daemon is killed between two of these stores, an operation is launched on some
	 * ranks only. So nothing else comes between them. */
	for (uint32_t i = 0; i < SCHEDULER_DEVICES; i++) {
		struct device *d = &sched->devices[i];
		if (!d->queue ||
		    atomic_load_explicit(&d->queue->head, memory_order_relaxed) == d->head)
			continue;
		atomic_store_explicit(&d->queue->head, d->head, memory_order_release);
		rung |= 1u << i;
	}
	atomic_thread_fence(memory_order_seq_cst);
	for (; rung; rung &= rung - 1) {
		const struct device *d = &sched->devices[__builtin_ctz(rung)];
		if (!atomic_load(&d->queue->asleep))
			continue;
		ssize_t n = write(d->doorbell, &one, sizeof(one));
		(void)n; /* it fails only when the counter is full, and then it is readable */
	}
}
