/* SPDX-License-Identifier: Apache-2.0
 *
 * Creation of NCCL communicators by workers. Workers wait for each other in it, each in its only
 * thread, as they do when NCCL connects two of them for their first Send and Recv. Two workers that
 * did two such operations in different orders would deadlock. So all of them go through the
 * workers' queues, which are filled here; with other nodes, in the sequencer's order. */
#include <stdlib.h>
#include <utlist.h>

#include "nccl.h"
#include "proto/abi/worker_queue.h"
#include "sched/internode/sequence.h"
#include "transport/device/device.h"

/* All workers or none. */
static bool launch(struct scheduler *sched, const struct creation *k)
{
	for (uint32_t i = 0; i < k->nparts; i++)
		if (!device_room(&sched->devices[k->parts[i].device], 1))
			return false;
	for (uint32_t i = 0; i < k->nparts; i++)
		*device_next_slot(&sched->devices[k->parts[i].device]) =
			(struct launch){.op = LAUNCH_INIT,
					.slot = k->comm_slot,
					.value = k->number,
					.generation = k->parts[i].generation};
	device_ring(sched);
	return true;
}

void creation_add(struct scheduler *sched, struct creation *k)
{
	if (k->nccl_id) {
		sequence_request_creation(sched, k, launch);
		return;
	}
	DL_APPEND(nccl_of(sched)->creations, k);
	sched->polled |= 1u << TRANSPORT_NCCL;
}

static void forget(struct scheduler *sched, struct creation *k)
{
	DL_DELETE(nccl_of(sched)->creations, k);
	free(k);
}

void creation_poll(struct scheduler *sched)
{
	struct creation *k, *next;
	DL_FOREACH_SAFE (nccl_of(sched)->creations, k, next)
		if (launch(sched, k)) /* otherwise a queue is full, but not for long */
			forget(sched, k);
}

void creation_cancel(struct scheduler *sched, uint64_t number)
{
	struct creation *k;
	sequence_cancel_creation(sched, number);
	DL_SEARCH_SCALAR(nccl_of(sched)->creations, k, number, number);
	if (k)
		forget(sched, k);
}

void creation_finish(struct scheduler *sched)
{
	while (nccl_of(sched)->creations)
		forget(sched, nccl_of(sched)->creations);
}
