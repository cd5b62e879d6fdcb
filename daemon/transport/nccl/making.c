/* SPDX-License-Identifier: Apache-2.0
 *
 * When workers make an NCCL communicator. They wait for each other then, each in its one thread; as
 * they do when NCCL connects two of them for their first Send and Recv, or registers a window. Two
 * workers that did two such things in different orders would wait for ever. So all go through the
 * workers' queues, which are filled here; and with other nodes, in the sequencer's order. */
#include <stdlib.h>
#include <utlist.h>

#include "abi/worker_queue.h"
#include "nccl.h"
#include "sched/internode/sequence.h"
#include "transport/device/device.h"

/* All workers or none. */
static bool launch(struct engine *e, const struct making *k)
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

void making_add(struct engine *e, struct making *k)
{
	if (k->serial) {
		sequence_request_making(e, k, launch);
		return;
	}
	DL_APPEND(nccl_of(e)->makings, k);
	e->polled |= 1u << TRANSPORT_NCCL;
}

static void forget(struct engine *e, struct making *k)
{
	DL_DELETE(nccl_of(e)->makings, k);
	free(k);
}

void making_poll(struct engine *e)
{
	struct making *k, *next;
	DL_FOREACH_SAFE (nccl_of(e)->makings, k, next)
		if (launch(e, k)) /* else a queue is full; not for long */
			forget(e, k);
}

void making_cancel(struct engine *e, uint64_t number)
{
	struct making *k;
	sequence_cancel_making(e, number);
	DL_SEARCH_SCALAR(nccl_of(e)->makings, k, number, number);
	if (k)
		forget(e, k);
}

void making_finish(struct engine *e)
{
	while (nccl_of(e)->makings)
		forget(e, nccl_of(e)->makings);
}
