/* SPDX-License-Identifier: Apache-2.0
 * The memory of a communicator's epoch. */
#include "epoch_memory.h"

#include <stdlib.h>

#include "nodes.h"
#include "pending.h"
#include "supervisor.h"

void comm_free(struct scheduler *sched, struct comm *c)
{
	nodes_comm_free(sched, c);
	pending_end(c);
	free(c->members);
	free(c->collective);
	free(c);
}

void comm_gone(struct scheduler *sched, struct comm *c)
{
	supervisor_event(sched, &(struct event){.kind = EVENT_EPOCH_GONE, .epoch = {c->slot}});
	sched->comms[c->slot] = NULL;
	comm_free(sched, c);
}
