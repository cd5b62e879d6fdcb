/* SPDX-License-Identifier: Apache-2.0
 * All communicators, and what they use from the layers below. */
#ifndef COMM_COMMS_H
#define COMM_COMMS_H

#include "account/account.h"
#include "base/deadlines.h"
#include "base/loop.h"
#include "channel/cluster.h"
#include "communicator.h"
#include "coord/coord.h"
#include "crossover.h"
#include "failures/failures.h"
#include "gpu/gpu.h"
#include "memory/memory.h"
#include "sched/executor.h"
#include "session/sessions.h"

struct comms {
	struct loop *loop;
	const struct config *config;
	struct executor *executor;
	struct accounts *accounts;
	struct sessions *sessions;
	struct gpus *gpus;
	struct memory *memory;
	struct recorder *recorder; /* NULL: nothing is recorded */
	unsigned dumps;		   /* that are being written */
	struct coord coord;	   /* this node's part in decisions for all nodes */
	uv_async_t own;		   /* messages from this node to itself */
	struct own_message *own_messages;
	struct cluster *cluster;    /* connections to the other nodes; NULL: this node is alone */
	struct communicator *comms; /* by id */
	struct communicator **comm_by_slot; /* [SVC_COMMS_MAX] */
	uint32_t ncomms, free_slot;	    /* all slots below free_slot are taken */
	struct communicator *idle;	    /* may be forgotten, the oldest first */
	struct deadlines deadlines;	    /* of communicators; room for SVC_COMMS_MAX */
	struct deadlines joins;		    /* of members that wait in JOIN; room for all ranks */
	uint64_t last_comm, last_plan;
	struct plan *plans;
	struct crossover crossover; /* peer/limit.c: of this machine, as measured */
	struct deadlines looks;	    /* peer/watch.c: at the control blocks of communicators */
	struct deadlines unshares;  /* peer/shares.c: of REGION_DELs; room for all regions */
	struct failures failures;
	uint64_t gathered_ns; /* when what followed from failures is logged; 0: nothing has */
	ncclsvc_status last_failure; /* result 0: none yet */
	uint64_t last_failure_comm;
	struct communicator *world;
	uint32_t world_first; /* this node's first rank in the world */
};

#endif
