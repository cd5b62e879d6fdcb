/* SPDX-License-Identifier: Apache-2.0
 * All communicators, and what they need of the layers below. */
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
	struct coord coord; /* what this node decides for all */
	uv_async_t own;	    /* messages to this node itself */
	struct own_message *own_messages;
	struct cluster *cluster;    /* the connections to the others; NULL: this node is alone */
	struct communicator *comms; /* by id */
	struct communicator **comm_by_slot; /* [SVC_COMMS_MAX] */
	uint32_t ncomms, free_slot;	    /* no slot below that is free */
	struct communicator *idle;  /* that may be forgotten, the first that became so before */
	struct deadlines deadlines; /* of communicators; room for SVC_COMMS_MAX */
	struct deadlines joins;	    /* of members that wait in JOIN; room for all ranks */
	uint64_t last_comm, last_plan;
	struct plan *plans;
	struct crossover crossover; /* peer/limit.c: of this machine, as measured */
	struct deadlines looks;	    /* peer/watch.c: at the pages of communicators */
	struct failures failures;
	uv_timer_t followed;	     /* tells the log what has followed from failures */
	ncclsvc_status last_failure; /* result 0: none yet */
	uint64_t last_failure_comm;
	struct communicator *world;
	uint32_t world_first; /* this node's first rank in the world */
};

#endif
