/* SPDX-License-Identifier: Apache-2.0
 * Contents of the messages between daemons (channel/link.h has their kinds). */
#ifndef COORD_MESSAGES_H
#define COORD_MESSAGES_H

#include "base/ending.h"
#include "channel/link.h"
#include "proto/ncclsvc_types.h"
#include "proto/svc_limits.h"
#include "proto/wire.h"

/* An epoch's name is a number of its rendezvous above all earlier ones; all above these bits is
 * random, and tells the names of two rendezvous apart. */
#define EPOCH_NUMBER_BITS 24

struct control_join {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank;
	int32_t pid;
	uint32_t uid, session;
	uint32_t cuda;
	uint32_t epoch; /* the last that this node knows of */
	uint32_t split;
	uint32_t fail_fast; /* SVC_JOIN_FAIL_FAST */
	int32_t device;
	uint32_t transport;  /* ncclsvc_transport, of GPUs' memory */
	uint32_t request_id; /* of the client's request */
	uint32_t admit;	     /* ncclsvc_admit, as the node's first JOIN said */
	uint32_t resume;     /* enum svc_resume_kind; 0: a new process */
	uint64_t done;	     /* as in svc_resume */
	uint32_t lineage;    /* likewise */
	uint32_t survives;   /* the session can continue an epoch */
	char label[NCCLSVC_NAME_BYTES];
};

enum withdrawal {
	WITHDRAW_CANCELLED, /* by its member, or the member no longer holds the rank */
	WITHDRAW_LATE,	    /* its deadline has passed */
	WITHDRAW_DIED,	    /* its member's process has ended while the JOIN waited */
};

/* Cancels the request with that request id. */
struct control_withdraw {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch; /* in which a SPLIT or plan was requested; 0: a JOIN, or a rank */
	uint32_t rank, session, request_id;
	uint32_t why; /* enum withdrawal */
	uint32_t reserved;
};

struct control_refuse {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t rank;
	uint32_t session, request_id; /* as in control_join; 0: the node sent no JOIN */
	int32_t result;
	int32_t pid;
	uint32_t subcomm; /* subcommunicator of a SPLIT that can no longer be joined */
	uint32_t nranks;  /* of that subcommunicator */
	uint32_t uid;	  /* and its owner */
	char text[SVC_TEXT_BYTES];
};

struct control_member {
	uint32_t node, session, request_id; /* of its JOIN */
	int32_t pid;
	int32_t device;
};

/* Names an epoch and its communicator, for nodes that may not know it yet. */
struct control_epoch {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t epoch, nranks;
};

struct control_start {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint64_t internode_id; /* its name */
	uint32_t epoch, nranks;
	int32_t lost; /* a member's node that may lack START, so the others forward it; -1: none */
	uint32_t lineage; /* as in svc_join_reply */
	struct control_member members[];
};

struct control_break {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result, rank, pid;
	int32_t node;	   /* that is gone, or does not answer; -1: none */
	uint32_t by;	   /* the node that has noticed it */
	uint32_t renewed;  /* a process joins while another member has left */
	uint32_t suspends; /* its members will continue it */
	uint32_t reserved;
	struct ending ending; /* the rank's */
	/* The failure behind this one; result 0: none. With MISMATCH: the difference. */
	ncclsvc_status first;
};

struct control_left {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, rank;
	int32_t pid;
	uint32_t plan; /* that the rank is done with; 0: it has left the epoch */
};

struct control_description {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, rank;
	uint64_t about;
	uint8_t text[SVC_DESCRIPTION_BYTES];
};

struct control_split {
	struct control_epoch of;
	uint32_t seq, rank, request_id;
	int32_t colour, key;
};

/* The subcommunicator that a rank of a split communicator joins. */
struct control_subcomm {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank; /* nranks 0: none */
};

/* The result of a request of all members. */
struct control_result {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, seq;	   /* counts the epoch's SPLITs, or its plans, from 0 */
	uint32_t asked;		   /* SVC_SPLIT or SVC_PLAN_COMMIT */
	int32_t result;		   /* 0: done; a plan is in force, numbered seq + 1 */
	uint64_t uid;		   /* of the plan */
	uint32_t count;		   /* subcommunicators of a successful SPLIT: one for each rank */
	char text[SVC_TEXT_BYTES]; /* why it failed */
	struct control_subcomm_of {
		uint32_t rank; /* in the communicator being split */
		uint32_t node; /* the member's node, which joins or refuses the subcommunicator */
		struct control_subcomm subcomm;
	} subcomms[];
};

/* GPUs are named by node and index. */
struct control_gpu {
	uint32_t node;
	int32_t device;
};

struct control_nccl_ready {
	uint8_t id[NCCLSVC_ID_BYTES]; /* of the communicator, also below */
	uint32_t epoch, nranks;
	int32_t result, rank; /* why it cannot begin, and the rank at fault (-1: none) */
	uint32_t again;	      /* it could before */
	uint32_t reserved;
	struct control_gpu gpus[]; /* by rank */
};

struct control_nccl_use {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result, rank; /* as in control_nccl_ready */
	uint32_t fresh;	      /* create it, with that id */
	uint64_t nccl_id;     /* number of NCCL's communicator, on all nodes */
	uint8_t unique[NCCLSVC_ID_BYTES];
};

struct control_nccl_free {
	uint64_t nccl_id;
	int32_t result;	    /* why it is broken; 0: it is intact */
	int32_t rank, node; /* at fault; -1: none */
	uint32_t reserved;
};

struct control_plan {
	struct control_epoch of;
	uint32_t seq;
	uint32_t rank, request_id, groups, tasks;
	uint32_t at, count; /* of this chunk */
	uint32_t cuda;	    /* on GPUs, a group starts when all groups connected to it can */
	struct svc_plan_task chunk[];
};

#define CONTROL_PLAN_CHUNK 4096 /* tasks */

_Static_assert(sizeof(struct control_result) +
			       SVC_HOST_RANKS_MAX * sizeof(struct control_subcomm_of) <=
		       CONTROL_BODY_MAX,
	       "every rank's subcommunicator fits");

#endif
