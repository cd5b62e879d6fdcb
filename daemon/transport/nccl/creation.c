/* SPDX-License-Identifier: Apache-2.0
 *
 * Creation of NCCL communicators by workers. Workers wait for each other in it, each in its only
 * thread, as they do when NCCL connects two of them for their first Send and Recv. Two workers that
 * did two such operations in different orders would deadlock. So all of them go through the
 * workers' queues, which are filled here; with other nodes, in the sequencer's order. */
#include <stdlib.h>
#include <utlist.h>

#include "abi/worker_queue.h"
#include "nccl.h"
#include "sched/internode/sequence.h"
#include "transport/device/device.h"

/* All workers or none. */
static bool launch(struct engine *e, const struct creation *k)
{
	for (uint32_t i = 0; i < k->nparts; i++)
		if (!device_room(&e->devices[k->parts[i].device], 1))
			return false;
	for (uint32_t i = 0; i < k->nparts; i++)
		*device_next_slot(&e->devices[k->parts[i].device]) =
			(struct launch){.op = LAUNCH_INIT,
					.slot = k->comm_slot,
					.value = k->number,
					.generation = k->parts[i].generation};
	device_ring(e);
	return true;
}

void creation_add(struct engine *e, struct creation *k)
{
	if (k->serial) {
		sequence_request_creation(e, k, launch);
		return;
	}
	DL_APPEND(nccl_of(e)->creations, k);
	e->polled |= 1u << TRANSPORT_NCCL;
}

static void forget(struct engine *e, struct creation *k)
{
	DL_DELETE(nccl_of(e)->creations, k);
	free(k);
}

void creation_poll(struct engine *e)
{
	struct creation *k, *next;
	DL_FOREACH_SAFE (nccl_of(e)->creations, k, next)
		if (launch(e, k)) /* otherwise a queue is full, but not for long */
			forget(e, k);
}

void creation_cancel(struct engine *e, uint64_t number)
{
	struct creation *k;
	sequence_cancel_creation(e, number);
	DL_SEARCH_SCALAR(nccl_of(e)->creations, k, number, number);
	if (k)
		forget(e, k);
}

void creation_finish(struct engine *e)
{
	while (nccl_of(e)->creations)
		forget(e, nccl_of(e)->creations);
}
