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
#include "failures/failures.h"
#include "gpu/gpu.h"
#include "memory/memory.h"
#include "proto/crossover.h"
#include "sched/api/scheduler.h"
#include "session/sessions.h"

/* Callbacks from this folder's lower files into nodes/; remote_start registers them. */
struct comm_callbacks {
	/* remote.c: handles a message from this node to itself. */
	void (*own_message)(struct comms *s, uint32_t from, enum control_kind kind,
			    const void *body, size_t size);
	/* unexpected.c: the epoch or plan of a kept message has begun. */
	void (*begun)(struct comms *s, uint32_t from, enum control_kind kind, const void *body);
	/* state.c: a defect of the daemon, so the epoch must end. */
	void (*not_in_table)(struct communicator *m, ncclsvc_epoch_cause cause);
};

struct comms {
	struct loop *loop;
	const struct comm_callbacks *callbacks;
	const struct config *config;
	struct scheduler *scheduler;
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
	struct deadlines unshares;  /* peer/share_log.c: of REGION_DELs; room for all regions */
	struct failures failures;
	uint64_t gathered_ns; /* when what followed from failures is logged; 0: nothing has */
	ncclsvc_status last_failure; /* result 0: none yet */
	uint64_t last_failure_comm;
	struct communicator *world;
	uint32_t world_first; /* this node's first rank in the world */
};

#endif
