/* SPDX-License-Identifier: Apache-2.0
 * The memory of a communicator's epoch. */
#include "comm.h"

#include <stdlib.h>

#include "nodes.h"
#include "pending.h"
#include "supervisor.h"

void comm_free(struct engine *e, struct comm *c)
{
	nodes_comm_free(e, c);
	pending_end(c);
	free(c->members);
	free(c->collective);
	free(c);
}

void order_free_comm(struct engine *e, struct comm *c)
{
	engine_event(e, &(struct event){.kind = EVENT_EPOCH_GONE, .epoch = {c->slot}});
	e->comms[c->slot] = NULL;
	comm_free(e, c);
}
