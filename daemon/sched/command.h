/* SPDX-License-Identifier: Apache-2.0
 * What the supervisor asks of an executor (executor.h). */
#ifndef SCHED_COMMAND_H
#define SCHED_COMMAND_H

#include "ring.h"

struct comm_lateness;
struct member_pending;
struct member_progress;
struct plan;
struct session_counts;
struct worker_queue;

enum command_kind {
	COMMAND_SESSION_ADD = 1,
	COMMAND_SESSION_RING, /* the session attached: ring, doorbell and completion fds */
	COMMAND_SESSION_DEL,  /* -> EVENT_SESSION_GONE once nothing of it is in use */
	COMMAND_REGION_ADD,
	COMMAND_REGION_DEL, /* -> EVENT_REGION_GONE, or _BUSY */
	COMMAND_EPOCH_START,
	COMMAND_EPOCH_END, /* fails what is pending; -> EVENT_EPOCH_GONE */
	COMMAND_MEMBER_LEFT,
	COMMAND_TASK,	/* one record that came by socket */
	COMMAND_CANCEL, /* -> EVENT_CANCELLED */
	COMMAND_DRAIN,	/* -> EVENT_DRAINED once nothing is pending */
	COMMAND_PING,	/* -> EVENT_PONG */
	COMMAND_STOP,
	COMMAND_DEVICE_ADD,    /* a GPU's queue: for good */
	COMMAND_EPOCH_RELEASE, /* after EPOCH_END: what still runs on GPUs waits for input no more
				*/
	COMMAND_PLAN_ADD,      /* -> EVENT_PLAN_GONE, at the latest before EVENT_EPOCH_GONE */
	COMMAND_PLAN_DROP,     /* of one member; -> EVENT_PLAN_DROPPED */
	COMMAND_EPOCH_NAMED, /* all have joined: EPOCH_START follows, or this with internode_id 0 */
	COMMAND_NODE_LOST,   /* another node's daemon is gone */
	COMMAND_EPOCH_BROKEN, /* after EPOCH_END: what still runs on GPUs is about to be broken off:
			       * what is over from now on has failed */
	COMMAND_EPOCH_DEAD,   /* ... and now it was */
	COMMAND_MAKE,	      /* workers are told of a communicator: it is to be their turn */
	COMMAND_MAKE_NOT,     /* if it was not yet */
	COMMAND_STAGING, /* memory that device memory is staged through: for good, before any epoch
			  */
	COMMAND_TRIGGER_DEL,
	COMMAND_DEVICE_WORKER, /* a GPU whose memory is staged has a worker, or has lost it */
};

#define STAGING_SLOT_BYTES (4 << 20) /* the same on all nodes: how much is copied at once */

#define EPOCH_ELSEWHERE UINT32_MAX

enum transport_kind {
	TRANSPORT_HOST,
	TRANSPORT_INTERNODE, /* host memory, of several nodes */
	TRANSPORT_STAGED,    /* GPUs without NCCL */
	TRANSPORT_NCCL,
	TRANSPORTS,
};

struct epoch_member {
	uint32_t session; /* slot; EPOCH_ELSEWHERE: on another node, or gone */
	uint32_t handle;  /* what the session's records call the communicator */
	int32_t device;	  /* -1: host */
	int32_t pid;
	uint32_t node;
};

/* An NCCL communicator that workers are to make, when its turn has come in the order of
 * what they launch: there, too, they wait for each other. */
struct creation {
	struct creation *prev, *next;
	uint64_t number; /* more than any before */
	uint64_t serial; /* 0: all of it is on this node; else the same on all `nnodes` */
	uint32_t nnodes, comm_slot, nparts;
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
			int fd; /* borrowed until EVENT_SESSION_GONE, as counts */
			struct session_counts *counts;
		} session_add;
		struct {
			struct svc_ring *ring; /* borrowed, as the fds */
			uint32_t entries;
			int doorbell, completion;
		} ring;
		struct {
			uint32_t region;
			void *base; /* borrowed until EVENT_REGION_GONE or EVENT_SESSION_GONE */
			uint64_t bytes;
			uint32_t serial;     /* of the request, returned by the event */
			int32_t device;	     /* -1: host; else base is the GPU's worker's */
			uint32_t fault;	     /* number of fault_watch, of host memory */
			uint64_t file_bytes; /* of the whole memfd */
		} region;
		struct {
			uint32_t comm; /* slot */
			uint32_t nranks;
			uint32_t epoch;
			uint64_t uid;
			struct epoch_member *members;	  /* [nranks]; the executor frees it */
			struct member_progress *progress; /* [nranks]; until EVENT_EPOCH_GONE */
			struct member_pending *pending;	  /* the same; NULL: nobody reads it */
			struct comm_lateness *lateness;	  /* the same */
			enum transport_kind transport;
			uint32_t comm_slot;    /* of every member's worker */
			uint64_t internode_id; /* 0: all members are on this node */
		} epoch_start;
		struct {
			uint32_t comm; /* slot; UINT32_MAX: it begins on other nodes alone */
			uint64_t internode_id; /* 0: it does not begin here */
		} epoch_named;
		struct {
			uint32_t device;
			struct worker_queue *queue; /* borrowed for good, as the doorbell */
			int doorbell;
		} device;
		struct {
			uint32_t device,
				generation; /* 0: there is none, and it does nothing more */
		} worker;
		struct {
			char *base;
			uint32_t pinned, slots; /* the first of them are pinned */
		} staging;
		struct {
			uint32_t comm;
			ncclsvc_status status; /* what the pending tasks are told */
		} epoch_end;
		struct {
			uint32_t comm;
			int32_t rank;
		} left;
		struct {
			uint32_t comm;		/* slot */
			struct plan *plan;	/* borrowed until EVENT_PLAN_GONE */
			int32_t rank;		/* of who drops it */
			uint32_t number;	/* the plan's, with other nodes; else 0 */
			uint32_t asker, serial; /* as in cancel; 0: nobody here */
		} plan;
		struct creation *creation; /* the executor frees it */
		uint64_t creation_number;
		struct {
			uint32_t node;
		} node;
		struct {
			uint32_t serial;
			struct svc_record record;
		} task;
		struct svc_trigger_del trigger;
		struct {
			enum svc_cancel_kind kind; /* a task or a communicator */
			uint64_t id; /* unique id of the task; slot of the communicator */
			uint32_t asker,
				serial; /* session id of who asked: the event returns them */
			uint32_t uid;	/* of the asker */
			bool any_user;	/* it may cancel everybody's */
			int32_t pid;
			uint32_t kernels; /* operations that are ended elsewhere, and count */
		} cancel;
	};
};

#endif
