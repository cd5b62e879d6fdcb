/* SPDX-License-Identifier: Apache-2.0
 * Commands from the supervisor to a scheduler (scheduler.h). */
#ifndef SCHED_COMMAND_H
#define SCHED_COMMAND_H

#include "proto/ring.h"

struct comm_lateness;
struct member_pending;
struct member_progress;
struct recorder_ring;
struct plan;
struct session_counts;
struct worker_queue;

enum command_kind {
	COMMAND_SESSION_ADD = 1,
	COMMAND_SESSION_RING,	 /* the session attached: ring, doorbell and completion fds */
	COMMAND_SESSION_RESUMES, /* it survives this daemon: SVC_RESUME_SESSION */
	COMMAND_SESSION_DEL,	 /* -> EVENT_SESSION_GONE when it is no longer in use */
	COMMAND_REGION_ADD,
	COMMAND_REGION_DEL, /* -> EVENT_REGION_GONE, or _BUSY */
	COMMAND_EPOCH_START,
	COMMAND_EPOCH_END, /* fails pending tasks; -> EVENT_EPOCH_GONE */
	COMMAND_MEMBER_LEFT,
	COMMAND_TASK,	/* one record that came by socket */
	COMMAND_CANCEL, /* -> EVENT_CANCELLED */
	COMMAND_QUIET,	/* takes no more tasks of sessions that survive; -> EVENT_QUIET */
	COMMAND_DRAIN,	/* then: -> EVENT_DRAINED when no task is pending */
	COMMAND_PING,	/* -> EVENT_PONG */
	COMMAND_STOP,
	COMMAND_DEVICE_ADD,    /* a GPU's queue, permanent */
	COMMAND_EPOCH_RELEASE, /* after EPOCH_END: running tasks no longer wait for input */
	COMMAND_PLAN_ADD,      /* -> EVENT_PLAN_GONE, before EVENT_EPOCH_GONE */
	COMMAND_PLAN_DROP,     /* of one member; -> EVENT_PLAN_DROPPED */
	COMMAND_EPOCH_NAMED,   /* all have joined; then EPOCH_START, or this with id 0 */
	COMMAND_NODE_CARRY,    /* the carrier is to reach another node */
	COMMAND_NODE_LOST,     /* another node's daemon is gone */
	COMMAND_EPOCH_BROKEN,  /* after EPOCH_END: tasks still on GPUs will be aborted */
	COMMAND_EPOCH_DEAD,    /* ... and have been aborted now */
	COMMAND_MAKE,	       /* workers were told of a communicator: schedules its creation */
	COMMAND_MAKE_NOT,      /* cancels that, if its turn has not come */
	COMMAND_NCCL_GIVE,     /* a communicator without NCCL communicator has one now */
	COMMAND_NCCL_TAKE,     /* takes it away if no task needs it; -> EVENT_NCCL_TAKEN */
	COMMAND_STAGING,       /* memory for staging device memory: permanent, before any epoch */
	COMMAND_CAPTURED_GROUP_DEL,
	COMMAND_DEVICE_WORKER, /* a GPU with staged memory has a worker, or has lost it */
	COMMAND_HELD,	       /* a client's SVC_RESUME about held tasks */
};

#define STAGING_SLOT_BYTES (4 << 20) /* copied at a time, the same on all nodes */

#define EPOCH_ELSEWHERE UINT32_MAX

/* As comm_slot: the epoch has no NCCL communicator until COMMAND_NCCL_GIVE. */
#define EPOCH_WITHOUT_NCCL UINT32_MAX

enum transport_kind {
	TRANSPORT_HOST,
	TRANSPORT_INTERNODE, /* host memory of several nodes */
	TRANSPORT_STAGED,    /* GPUs without NCCL */
	TRANSPORT_NCCL,
	TRANSPORTS,
};

struct epoch_member {
	uint32_t session; /* slot; EPOCH_ELSEWHERE: on another node, or gone */
	uint32_t handle;  /* the session's handle for the communicator in records */
	int32_t device;	  /* -1: host */
	int32_t pid;
	uint32_t node;
	uint64_t address; /* of the node, as in a status; 0: unknown, or not across nodes */
	struct recorder_ring *recording; /* until EVENT_SESSION_GONE; NULL: none */
	uint32_t join;			 /* its number for that */
};

/* An NCCL communicator that workers create when its turn comes in the order of launches, since the
 * workers wait for each other in creations, too. */
struct creation {
	struct creation *prev, *next;
	uint64_t number;  /* higher than any before */
	uint64_t nccl_id; /* 0: all of it is on this node; otherwise the same on all `nnodes` */
	uint32_t nnodes, leader, comm_slot, nparts; /* leader: the node whose sequencer orders it */
	struct {
		uint32_t device, generation; /* of its worker */
	} parts[];
};

struct command {
	enum command_kind kind;
	uint32_t session; /* slot */
	union {
		struct {
			uint32_t id;
			int32_t pid;
			uint32_t uid;
			int fd; /* borrowed until EVENT_SESSION_GONE, like counts */
			struct session_counts *counts;
			uint32_t tenant; /* the account's number */
		} session_add;
		struct {
			struct svc_ring *ring; /* borrowed, like the fds */
			uint32_t entries;
			int doorbell, completion;
		} ring;
		struct {
			uint32_t region;
			void *base; /* borrowed until EVENT_REGION_GONE or EVENT_SESSION_GONE */
			uint64_t bytes;
			uint32_t request_id; /* of the request; the event returns it */
			int32_t device; /* -1: host; else base is in its worker's address space */
			uint32_t fault; /* number of fault_watch, of host memory */
			bool absent;	/* the GPU's worker has not imported it: base is 0 */
			bool again;	/* only if COMMAND_REGION_DEL has not removed it */
			uint64_t file_bytes; /* of the whole memfd */
		} region;
		struct {
			uint32_t comm; /* slot */
			uint32_t nranks;
			uint32_t epoch;
			uint64_t uid;
			struct epoch_member *members;	  /* [nranks]; freed by the scheduler */
			struct member_progress *progress; /* [nranks]; until EVENT_EPOCH_GONE */
			struct member_pending *pending;	  /* likewise; NULL: nobody reads it */
			struct comm_lateness *lateness;	  /* likewise */
			enum transport_kind transport;
			uint32_t lineage;      /* as in svc_join_reply */
			uint32_t comm_slot;    /* of the workers, or EPOCH_WITHOUT_NCCL */
			bool shared_gpu;       /* two members use one GPU, which NCCL refuses */
			uint64_t internode_id; /* 0: all members are on this node */
		} epoch_start;
		struct {
			uint32_t comm, epoch;
			uint32_t comm_slot; /* given */
		} nccl;
		struct {
			uint32_t comm;	       /* slot; UINT32_MAX: it begins only on other nodes */
			uint64_t internode_id; /* 0: it does not begin here */
		} epoch_named;
		struct {
			uint32_t device;
			struct worker_queue *queue; /* borrowed permanently, like the doorbell */
			int doorbell;
		} device;
		struct {
			uint32_t device,
				generation; /* 0: there is none, and it does nothing more */
		} worker;
		struct {
			char *base;
			uint32_t pinned, slots; /* of the slots, the first `pinned` are pinned */
		} staging;
		struct {
			uint32_t comm;
			ncclsvc_status status; /* of the pending tasks */
			ncclsvc_status later;  /* of tasks submitted afterwards */
		} epoch_end;
		struct {
			uint32_t comm;
			int32_t rank;
		} left;
		struct {
			uint32_t comm;		    /* slot */
			struct plan *plan;	    /* borrowed until EVENT_PLAN_GONE */
			int32_t rank;		    /* of the member that drops it */
			uint32_t number;	    /* of the plan, with other nodes; otherwise 0 */
			uint32_t asker, request_id; /* as in cancel; 0: no session */
		} plan;
		struct creation *creation; /* freed by the scheduler */
		uint64_t creation_number;
		struct {
			uint32_t node, here, there; /* see struct carrier */
			uint8_t *address;	    /* the carrier's; freed by the scheduler */
			size_t bytes;
		} carry;
		struct {
			uint32_t node;
		} node;
		struct {
			uint32_t request_id;
			struct svc_record record;
		} task;
		struct svc_captured_group_del captured_group;
		struct svc_resume held;
		struct {
			enum svc_cancel_kind kind; /* a task or a communicator */
			uint64_t id; /* unique id of the task; slot of the communicator */
			uint32_t asker,
				request_id; /* session id of the asker; the event returns both */
			uint32_t uid;	    /* of the asker */
			uint32_t tenant; /* 0, or the asker may cancel only this tenant's tasks */
			bool any_user;	 /* it may cancel every user's tasks */
			int32_t pid;
			uint32_t kernels; /* operations ended elsewhere, which are added to the
					     count */
		} cancel;
	};
};

#endif
