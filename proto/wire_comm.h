/* SPDX-License-Identifier: Apache-2.0
 * Messages about communicators (wire.h tells what holds of all): members, reductions, plans, the
 * world. */
#ifndef PROTO_WIRE_COMM_H
#define PROTO_WIRE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

#define SVC_DEVICE_HOST (-1)

/* device: SVC_DEVICE_HOST, or a number of SVC_LIST_DEVICES: then the communicator is NCCL's, its
 * members' devices differ, and its tasks move memory of these devices only. All members are of one
 * kind. As ncclCommInitRank: the reply comes when all nranks have joined. With SVC_JOIN_WORLD, id
 * and nranks are zero, and rank -1 asks for any free rank. A member of a broken communicator
 * rejoins it with the same message; its old handle stays valid and is returned again. With
 * SVC_JOIN_FAIL_FAST, the JOIN ends with PEER_GONE when the process of another rank that waits
 * ends; else it waits on, for the process that takes the rank. */
enum svc_join_flags { SVC_JOIN_WORLD = 1, SVC_JOIN_FAIL_FAST = 2 /* from version 2 */ };

/* An id that is made of the name of a job can be guessed, so it has this at byte SVC_JOB_AT, and
 * only the user that it names may join. What is derived of it (id_derive) keeps these bytes. */
#define SVC_JOB_AT  8
#define SVC_JOB_TAG UINT64_C(0x6a6f62206f662075)
#define SVC_JOB_OWN UINT32_MAX /* as user: the client's own, which the daemon fills in */

struct svc_job {
	uint64_t tag;
	uint32_t user;
	uint32_t reserved;
};

struct svc_join {
	uint8_t id[NCCLSVC_ID_BYTES];
	int32_t nranks, rank;
	int32_t device;
	uint32_t flags;
	uint64_t timeout_ns; /* 0: none */
	/* How CUDA uses the device in this process, for inspection; zeros with SVC_DEVICE_HOST. */
	uint64_t mps_server; /* as struct mps has it; 0 unless mps is NCCLSVC_MPS_ACTIVE */
	uint16_t mps;	     /* ncclsvc_mps */
	/* Bits: devices of the daemon whose memory this process cannot map, for example because it
	 * has no device node of theirs. Their communicators have no kernels. From version 2. */
	uint16_t out_of_reach;
	/* 0, or a lent region of the member's GPU, zeroed and of PEER_STAGING bytes at least
	 * (abi/peer.h). If all members have one, their kernels may use it. From version 2. */
	uint32_t staging;
};

struct svc_join_reply {
	uint64_t comm_uid; /* as inspection shows it */
	uint32_t comm;	   /* handle in this session; 0: SPLIT with a negative colour */
	uint32_t epoch;
	int32_t nranks, rank;
	uint8_t id[NCCLSVC_ID_BYTES];
	/* From version 2: */
	/* Operations of so many bytes at most (svc_task_bytes) run in the members' kernels, all
	 * others on NCCL. 0: all run there. Else STAGING hands out the staging memory. */
	uint32_t peer_bytes;
	uint32_t reserved;
};

/* The staging memory of a rank, as a handle of CUDA's VMM; or (rank -1) the pages of all members:
 * one memfd, with a struct peer_page each PEER_PAGE bytes. While the epoch runs. From version 2. */
struct svc_staging {
	uint32_t comm;
	int32_t rank;
};

/* Takes back a JOIN of this session that has not been answered: the rank is free at once, and the
 * JOIN is answered with CANCELLED. NOT_FOUND: no JOIN with this serial waits. From version 2. */
struct svc_join_cancel {
	uint32_t serial;
	uint32_t reserved;
};

struct svc_leave {
	uint32_t comm;
	uint32_t reserved;
};

/* Ends the epoch for all members, as the end of this session would; it keeps its rank, and may JOIN
 * again. An epoch that is over already stays as it is. From version 2. */
struct svc_abort {
	uint32_t comm;
	uint32_t epoch;
};

struct svc_split {
	uint32_t comm;
	int32_t colour; /* negative: takes part, joins nothing */
	int32_t key;
	uint32_t staging;    /* as in JOIN, of the part's member */
	uint64_t timeout_ns; /* 0: none */
	/* From version 2: */
	uint16_t out_of_reach; /* as in JOIN */
	uint16_t reserved[3];
};

/* Makes a reduction of a communicator of GPUs: sums of what each rank has multiplied by its scalar,
 * as ncclRedOpCreatePreMulSum. It is this member's until its epoch ends; all members of a task name
 * one of theirs, of whatever number. */
#define SVC_REDOP_MADE	16 /* the first number of those */
#define SVC_REDOPS_MADE 48 /* of one member */

struct svc_redop_add {
	uint32_t comm;
	uint8_t type;
	uint8_t reserved[3];
	uint8_t scalar[8]; /* an element of that type, then zeros */
};

struct svc_redop_reply {
	uint32_t redop;
	uint32_t reserved;
};

/* Tasks that name it have ended, or will fail. */
struct svc_redop_del {
	uint32_t comm;
	uint32_t redop;
};

/* Commits one member's plan for the present epoch: one fd, a memfd sealed against shrinking, which
 * holds `tasks` entries, those of one group together and groups in order. The reply comes when all
 * members have committed, and their plans fit each other. Tasks of the plan then carry
 * SVC_TASK_PLAN, and are held until their group is whole. */
#define SVC_PLAN_ANY UINT64_MAX

struct svc_plan_task {
	uint32_t group; /* from 0; a group without tasks is allowed */
	uint8_t op;	/* NCCLSVC_SEND or NCCLSVC_RECV */
	uint8_t type;	/* 0 if count is SVC_PLAN_ANY */
	uint16_t reserved;
	int32_t peer;
	uint32_t reserved2;
	uint64_t count; /* elements; SVC_PLAN_ANY: whatever is submitted */
	/* From version 2: */
	char label[NCCLSVC_LABEL_BYTES]; /* its user's name for it, as svc_label_ok has it */
	/* Not 0: a list of tensors, and what both sides must have in common. Its count is that of
	 * the bytes, or SVC_PLAN_ANY: then its shapes are sent ahead. */
	uint64_t agreement;
	int64_t tag; /* of a list */
};

/* Bytes of an entry in the file of a session that speaks this version. */
size_t svc_plan_task_size(unsigned version);

struct svc_plan_commit {
	uint32_t comm;
	uint32_t epoch;
	uint32_t groups, tasks;
	uint64_t timeout_ns; /* for the other members; 0: none */
	uint64_t reserved;
};

struct svc_plan_reply {
	uint64_t uid;  /* as inspection shows it */
	uint32_t plan; /* handle in this session */
	uint32_t comm; /* the request's */
};

/* The member runs no more of the plan: what is held of it, or waits for it, is cancelled. */
struct svc_plan_drop {
	uint32_t comm;
	uint32_t plan;
};

/* Asks what the world communicator is like, before joining it. */
struct svc_world {
	uint64_t reserved;
};

struct svc_world_reply {
	int32_t ranks;			    /* in all */
	int32_t local_ranks;		    /* of a full node; the last one may have fewer */
	int32_t node, nodes;		    /* this one, and how many */
	int32_t data, horizontal, pipeline; /* as configured; data 0: what the others leave */
	uint32_t reserved;
	uint64_t reserved2[4];
};

/* The communicator's epoch is over (result says why, rank and pid who): rejoin it. */
struct svc_event_comm {
	uint32_t comm;
	uint32_t epoch; /* the one that ended */
	int32_t reason; /* ncclsvc_result */
	int32_t rank, pid;
	uint32_t reserved;
	/* From version 2: */
	ncclsvc_status status; /* as pending tasks have it; without number and times */
};

#endif
