/* SPDX-License-Identifier: Apache-2.0
 * What the messages between daemons say (their kinds are in channel/link.h). */
#ifndef COORD_MESSAGES_H
#define COORD_MESSAGES_H

#include "channel/link.h"
#include "ncclsvc_types.h"
#include "session/ending.h"
#include "svc_limits.h"
#include "wire.h"

#define EPOCH_GIVER_SHIFT 48

struct control_join {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank;
	int32_t pid;
	uint32_t uid, session;
	uint32_t cuda;
	uint32_t epoch; /* the last that this node knows of */
	uint32_t split;
	uint32_t fail_fast; /* SVC_JOIN_FAIL_FAST */
	uint32_t runs;	    /* it is in that epoch already: where members gathered was lost */
	int32_t device;
	uint32_t transport; /* ncclsvc_transport, of GPUs' memory */
	uint32_t serial;    /* of the client's request */
	/* 1 + the number of a lost node: this node has told the new rendezvous of all its members
	 * in epochs that run. It goes to all nodes, and there is nothing else in it. */
	uint32_t registered;
	char label[NCCLSVC_NAME_BYTES];
};

enum withdrawal {
	WITHDRAW_CANCELLED, /* by its member, or it holds the rank no longer */
	WITHDRAW_LATE,	    /* its time is up */
	WITHDRAW_DIED,	    /* its member's process has ended while the JOIN waited */
};

/* Takes back the request with that serial. */
struct control_withdraw {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch; /* in which a SPLIT or a plan is asked for; 0: a JOIN, or a rank */
	uint32_t rank, session, serial;
	uint32_t why; /* enum withdrawal */
	uint32_t reserved;
};

struct control_refuse {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t rank;
	uint32_t session, serial; /* as in control_join; 0: its node has not sent that */
	int32_t result;
	int32_t pid;
	uint32_t part;	 /* of a SPLIT: nobody can join it any more */
	uint32_t nranks; /* of that */
	uint32_t uid;	 /* and whose it is */
	char text[SVC_TEXT_BYTES];
};

struct control_member {
	uint32_t node, session, serial; /* of its JOIN */
	int32_t pid;
	int32_t device;
};

/* Which epoch of which communicator: enough for who has not heard of it yet. */
struct control_epoch {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t epoch, nranks;
};

struct control_start {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint64_t internode_id; /* its name: 1 + the rendezvous << EPOCH_GIVER_SHIFT, and a number
			  above all before */
	uint32_t epoch, nranks;
	struct control_member members[];
};

struct control_break {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result, rank, pid;
	int32_t node;	      /* that is gone, or does not answer; -1: none */
	uint32_t renewed;     /* somebody joins beside one that has left */
	struct ending ending; /* the rank's */
};

struct control_left {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, rank;
	int32_t pid;
	uint32_t
		plan; /* the number of the plan that it is through with; 0: it has left the epoch */
};

struct control_split {
	struct control_epoch of;
	uint32_t round, rank, serial;
	int32_t colour, key;
};

/* A rank of the communicator that is split: what it joins. */
struct control_part {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank; /* nranks 0: nothing */
};

/* The result of a request of all members; rounds count these requests. */
struct control_result {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, round; /* from 0 */
	uint32_t asked;	       /* SVC_SPLIT or SVC_PLAN_COMMIT */
	int32_t result; /* 0: it is done; a plan is in force, with the round plus 1 as number */
	uint64_t uid;	/* of the plan */
	uint32_t count; /* parts of a SPLIT that is done: one for each rank */
	char text[SVC_TEXT_BYTES]; /* why it has failed */
	struct control_part_of {
		uint32_t rank; /* in the communicator that is split */
		uint32_t node; /* that the member asked from: it joins the part, or refuses it */
		struct control_part part;
	} parts[];
};

/* GPUs are named by node and index. */
struct control_gpu {
	uint32_t node;
	int32_t device;
};

struct control_nccl_ready {
	uint8_t id[NCCLSVC_ID_BYTES]; /* the communicator's, as in what follows */
	uint32_t epoch, nranks;
	int32_t result, rank; /* why it cannot begin, and because of whom (-1: nobody) */
	uint32_t again;	      /* it could before */
	uint32_t reserved;
	struct control_gpu gpus[]; /* by rank */
};

struct control_nccl_use {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result, rank; /* as in control_nccl_ready */
	uint32_t fresh;	      /* it is to be made, with that id */
	uint64_t serial;      /* NCCL's communicator, on all nodes */
	uint8_t unique[NCCLSVC_ID_BYTES];
};

struct control_nccl_free {
	uint64_t serial;
	int32_t result;	    /* why it is broken; 0: it is whole */
	int32_t rank, node; /* whose fault that is; -1: nobody's */
	uint32_t reserved;
};

struct control_plan {
	struct control_epoch of;
	uint32_t round;
	uint32_t rank, serial, groups, tasks;
	uint32_t at, count; /* of this chunk */
	uint32_t cuda;	    /* of GPUs, a group starts when all that hangs together with it can */
	struct svc_plan_task chunk[];
};

#define CONTROL_PLAN_CHUNK 4096 /* tasks */

/* A client's LIST, for the node that it names. */
struct control_list {
	uint32_t slot, number; /* the client's, and of its request: the answer repeats them */
	uint32_t what;
	uint32_t uid;	/* the client's user: he is shown what he would be shown there */
	uint32_t admin; /* 1: the client administers */
	uint32_t reserved;
	uint64_t from;
};

struct control_listed {
	uint32_t slot, number;
	int32_t result; /* 0: struct svc_list_reply and its records follow */
	uint32_t reserved;
};

_Static_assert(sizeof(struct control_result) +
			       SVC_HOST_RANKS_MAX * sizeof(struct control_part_of) <=
		       CONTROL_BODY_MAX,
	       "every rank's part fits");

#endif
