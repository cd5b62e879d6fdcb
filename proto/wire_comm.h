/* SPDX-License-Identifier: Apache-2.0
 * Messages about communicators; wire.h describes what all messages have in common. */
#ifndef PROTO_WIRE_COMM_H
#define PROTO_WIRE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

#define SVC_DEVICE_HOST (-1)

/* device: SVC_DEVICE_HOST, or a number of SVC_LIST_DEVICES: then the communicator uses NCCL, its
 * members' devices differ, and its tasks move only memory of these devices. All members are of one
 * kind. Like ncclCommInitRank, the reply comes when all nranks have joined. With SVC_JOIN_WORLD, id
 * and nranks are zero, and rank -1 asks for any free rank. A member of a broken communicator
 * rejoins it with the same message; its old handle stays valid. With SVC_JOIN_FAIL_FAST, the JOIN
 * ends with PEER_GONE when another waiting rank's process ends; otherwise it waits for the next.
 * SVC_JOIN_ADMIT_USER, SVC_JOIN_ADMIT_ANY: as in ncclsvc_admit; with neither, the tenant. */
enum svc_join_flags {
	SVC_JOIN_WORLD = 1,
	SVC_JOIN_FAIL_FAST = 2,
	SVC_JOIN_ADMIT_USER = 4,
	SVC_JOIN_ADMIT_ANY = 8,
};

/* An id made from a job's name can be guessed. So it has this marker at byte SVC_JOB_AT, and only
 * the user that it names may join. */
#define SVC_JOB_AT  8
#define SVC_JOB_TAG UINT64_C(0x6a6f62206f662075)
#define SVC_JOB_OWN UINT32_MAX /* as user: the client's own uid, which the daemon fills in */

struct svc_job {
	uint64_t tag;
	uint32_t user;
	uint32_t reserved;
};

/* An id that a daemon has made says, from byte SVC_RENDEZVOUS_AT on, where the members gather. The
 * other bytes are random: whoever knows the id may join. */
#define SVC_RENDEZVOUS_AT  32
#define SVC_RENDEZVOUS_TAG UINT64_C(0x676e69766e646e65)

struct svc_rendezvous {
	uint64_t tag;
	uint64_t incarnation; /* of the daemon that has made the id */
	uint8_t address[16];  /* IPv6, or IPv4 mapped to it */
	uint16_t port;
	uint16_t reserved[3];
};

/* Asks for a new id whose members gather on this node. */
struct svc_id {
	uint64_t reserved;
};

struct svc_id_reply {
	uint8_t id[NCCLSVC_ID_BYTES];
};

struct svc_join {
	uint8_t id[NCCLSVC_ID_BYTES];
	int32_t nranks, rank;
	int32_t device;
	uint16_t flags;
	uint8_t blocks; /* the most of a kernel; 0: any. The members' minimum counts */
	uint8_t reserved;
	uint64_t timeout_ns; /* 0: none */
	/* How CUDA uses the device in this process, for inspection; zeros with SVC_DEVICE_HOST. */
	uint64_t mps_server; /* as in struct mps; 0 unless mps is NCCLSVC_MPS_ACTIVE */
	uint16_t mps;	     /* ncclsvc_mps */
	/* Bitmap of the daemon's devices whose memory this process cannot map, for example because
	 * it lacks their device nodes. Their communicators have no kernels. */
	uint16_t out_of_reach;
	/* 0, or a region of the member's GPU, from cuMemCreate, zeroed and at least PEER_STAGING
	 * bytes long (abi/peer_abi.h). If all members have one, their kernels may use it. What it
	 * has beyond that is for copy engines. */
	uint32_t staging;
	char label[NCCLSVC_NAME_BYTES]; /* the user's name (svc_label_ok) */
};

struct svc_join_reply {
	uint64_t comm_uid; /* as inspection shows it */
	uint32_t comm;	   /* handle in this session; 0: SPLIT with a negative colour */
	uint32_t epoch;
	int32_t nranks, rank;
	uint8_t id[NCCLSVC_ID_BYTES];
	/* Operations of up to this many bytes (svc_task_bytes) run in the members' kernels, others
	 * on NCCL. If not 0, STAGING returns the staging memory. */
	uint32_t peer_bytes;
	uint32_t lineage;		/* wire_resume.h */
	char label[NCCLSVC_NAME_BYTES]; /* as inspection shows it */
	int64_t first_here;		/* the lowest rank on the member's node */
};

/* Returns the staging memory of a rank, as a CUDA VMM handle; or (rank -1) the control blocks of
 * all members: one memfd, with a struct peer_control every PEER_CONTROL_BYTES bytes. While the
 * epoch runs. */
struct svc_staging {
	uint32_t comm;
	int32_t rank;
};

/* Cancels an unanswered JOIN of this session: the rank is free at once, and the JOIN is answered
 * with CANCELLED. NOT_FOUND: no JOIN with this request id is waiting. */
struct svc_join_cancel {
	uint32_t request_id;
	uint32_t reserved;
};

struct svc_leave {
	uint32_t comm;
	uint32_t reserved;
};

/* Ends the epoch for all members, as the end of this session would, but the session keeps its rank,
 * and may JOIN again. Has no effect on an epoch that has ended already. */
struct svc_abort {
	uint32_t comm;
	uint32_t epoch;
};

struct svc_split {
	uint32_t comm;
	int32_t colour; /* negative: takes part, but joins nothing */
	int32_t key;
	uint32_t staging;      /* as in JOIN, for the member of the part */
	uint64_t timeout_ns;   /* 0: none */
	uint16_t out_of_reach; /* this and blocks: as in JOIN */
	uint8_t blocks;
	uint8_t reserved_byte;
	uint16_t reserved[2];
	char label[NCCLSVC_NAME_BYTES]; /* as in JOIN, of the part */
};

/* Creates a reduction for a communicator of GPUs: a sum in which each rank's data is multiplied by
 * its scalar, as ncclRedOpCreatePreMulSum. It belongs to this member until the epoch ends; each
 * member of a task names one of its own, of any number. */
#define SVC_REDOP_MADE	16 /* the first number of created reductions */
#define SVC_REDOPS_MADE 48 /* per member */

struct svc_redop_add {
	uint32_t comm;
	uint8_t type;
	uint8_t reserved[3];
	uint8_t scalar[8]; /* an element of that type, followed by zeros */
};

struct svc_redop_reply {
	uint32_t redop;
	uint32_t reserved;
};

/* Deletes a reduction. Tasks that use it have ended, or will fail. */
struct svc_redop_del {
	uint32_t comm;
	uint32_t redop;
};

/* Commits one member's plan for the current epoch: one fd, a memfd sealed against shrinking, with
 * `tasks` entries, sorted by group. The reply comes when all members have committed and their plans
 * match. Tasks of the plan then carry SVC_TASK_PLAN, and are held until their group is whole. */
#define SVC_PLAN_ANY UINT64_MAX

struct svc_plan_task {
	uint32_t group; /* from 0; a group without tasks is allowed */
	uint8_t op;	/* NCCLSVC_SEND or NCCLSVC_RECV */
	uint8_t type;	/* 0 if count is SVC_PLAN_ANY */
	uint16_t done;	/* 1: it has run in this iteration; only after SVC_RESUME_PLAN */
	int32_t peer;
	uint32_t reserved2;
	uint64_t count;			 /* elements; SVC_PLAN_ANY: any count */
	char label[NCCLSVC_LABEL_BYTES]; /* the user's name for it, valid according to svc_label_ok
					  */
	/* Not 0: a list of tensors, and the word that both sides must agree on. Its count is in
	 * bytes, or SVC_PLAN_ANY: then its shapes are sent ahead. */
	uint64_t agreement;
	int64_t tag; /* of a list */
};

struct svc_plan_commit {
	uint32_t comm;
	uint32_t epoch;
	uint32_t groups, tasks;
	uint64_t timeout_ns; /* for the other members; 0: none */
	uint64_t reserved;
};

/* The epoch has ended (result says why; rank and pid name the culprit): rejoin the communicator. */
struct svc_event_comm {
	uint32_t comm;
	uint32_t epoch; /* the one that ended */
	int32_t reason; /* ncclsvc_result */
	int32_t rank, pid;
	uint32_t suspended;    /* 1: its members are to continue it (SVC_RESUME_COMM) */
	ncclsvc_status status; /* as for pending tasks; without number and times */
};

#endif
