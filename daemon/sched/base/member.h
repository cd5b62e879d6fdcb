/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks, the members in whose queues they wait, and the members' communicators.
 *
 * A task that failed before its turn stays in its member's queue as a tombstone: its client knows
 * of the failure, but the other members' tasks must still match it and fail with the same status,
 * so that the queues stay aligned.
 */
#ifndef SCHED_MEMBER_H
#define SCHED_MEMBER_H

#include "base/deadlines.h"
#include "base/reported.h"
#include "sched/api/scheduler.h"

struct comm_lateness;
struct scheduler;
struct node_match;
struct set_match;
struct plan;
struct sched_session;
struct internode_comm;
struct pending;
struct recorder_ring;
struct transport;
struct user;

enum task_stage {
	IN_GROUP, /* in an unfinished task group */
	IN_PLAN,  /* in a planned group that is not whole, or behind such a group */
	IN_QUEUE, /* behind its member's head */
	AT_HEAD,  /* its turn has come; waits for input or for an earlier collective of its group */
	POSTED,	  /* offered to the other members */
	RUNNING,
};

struct task {
	/* Fields up to `uid` start at zero; the others are set before they are read. */
	struct comm *comm;
	struct deadline deadline;
	uint64_t matched_ns; /* 0: when it was started */
	uint64_t started_ns;
	uint32_t group; /* 0: none */
	uint8_t stage;	/* enum task_stage */
	bool by_socket, waits_input, tombstone;
	bool simple;	/* from a ring, in host memory, a Send or Recv without a second half */
	bool published; /* inspection shows it, and its deadline counts */
	bool decided;	/* a tombstone whose status is that of its collective on every member */
	uint8_t shown;	/* the state that inspection shows */
	uint8_t pending_kind;	 /* 0: in no list of pending.c */
	bool requested;		 /* from the sequencer, which launches it, or says how it fails */
	bool in_flight;		 /* launched on a GPU */
	bool captured;		 /* started by a captured group */
	struct set_match *match; /* of a set: RUNNING, but not launched yet */
	struct node_match *node_match; /* RUNNING, but waits for other nodes */
	/* A posted Send or Recv, in its member's offers; prev_offer is NULL if it is in none. */
	struct task *prev_offer, *next_offer;
	struct task *next_in_group; /* circular, if they are launched as one; NULL: alone */
	uint64_t visit;
	uint64_t uid;
	struct task *prev, *next; /* in a member's queue, an open group, or the free list */
	struct sched_session *session;
	struct member *member;
	char *src, *dst;
	uint64_t submitted_ns;
	uint64_t seq;
	uint32_t slot; /* in the task table, once published */
	uint32_t request_id;
	int32_t rank;
	struct svc_record record;
	struct task *prev_input, *next_input;	  /* while it waits for its timeline */
	struct task *prev_pending, *next_pending; /* of its kind: pending.c */
	struct task *prev_in_group;
	struct task *next_published; /* in the same bucket of the scheduler's hash */
	uint64_t nth;		     /* for a collective in a queue: see decision.c */
	struct task *next_decided;
	ncclsvc_status end; /* of a tombstone */
	uint64_t slot_seq;  /* of a launched task */
};

#define OFFERS 16 /* a power of two; ranks of most communicators of one node share none */

struct member {
	struct comm *comm;
	struct task *queue;
	uint32_t head_tasks; /* tasks at the queue's head whose turn it is */
	uint32_t posted, running, inputs;
	bool blocked; /* its turn, all posted, nothing runs: only other members can unblock it */
	bool gone;
	bool elsewhere; /* on another node */
	bool ready;	/* in its user's list */
	struct member *next_ready;
	struct task *collective; /* the posted collective */
	uint64_t nth;		 /* for the next collective that enters its queue */
	/* The head's first collective and first Send or Recv that are not posted; or NULL. */
	struct task *unposted[2];
	struct member_progress *progress;
	struct recorder_ring *recording; /* of its session's operations; NULL: none */
	uint32_t join;			 /* what it is called there */
	uint64_t submitted, completed;
	struct sched_session *session; /* NULL: gone, or on another node */
	struct user *user;	       /* the session's */
	uint32_t handle;
	int32_t pid;
	uint64_t address;	/* as in struct epoch_member */
	int32_t device;		/* -1: host */
	struct task *in_flight; /* in launch order */
	uint32_t n_in_flight;
	bool full;	     /* no more launches until half of these have completed */
	uint64_t slot_seq;   /* of the last launch */
	uint64_t done;	     /* completed tasks of its slot, at the last look */
	uint32_t generation; /* of its GPU's worker, if that only copies */
	uint32_t plan_left;  /* with other nodes: the member has left all plans up to this number */
	/* Posted Sends and Recvs without a match, in queue order: by operation and the low bits of
	 * the peer's rank. */
	struct task *offers[2][OFFERS];
};

struct comm {
	uint32_t slot, nranks, epoch;
	uint32_t here;			  /* members on this node */
	struct internode_comm *internode; /* NULL: all members are on this node */
	bool internode_comm_failed;	  /* the supervisor was asked to end the epoch */
	const struct transport *transport;
	bool launched; /* in its transport's list, which frees it at the end */
	bool broken;   /* operations running on GPUs were aborted: their end is no success */
	bool dead;     /* no operation of it runs on GPUs any more */
	bool looked;   /* its members' `done` counts as soon as ... */
	uint64_t commands_due; /* ... this many commands have run */
	bool released;	       /* its streams no longer wait for GPUs */
	uint64_t moved_ns;     /* on GPUs: when one of its tasks, or the epoch, last ended */
	uint64_t held;	       /* the round of launch_sets in which its tasks must wait */
	struct task *link_first, *link_last; /* while set_link links a group */
	uint32_t comm_slot;		     /* EPOCH_WITHOUT_NCCL: it cannot launch now */
	bool nccl_wanted;		     /* then the supervisor was asked for one */
	bool shared_gpu;		     /* two members use one GPU: it never gets one */
	struct comm *prev_launched, *next_launched;
	uint64_t uid;
	struct member *members;
	struct task *
		*collective; /* [nranks]: the current collective's tasks, NULL if not posted yet */
	uint32_t collective_here;
	/* When a member came to it, or to an earlier one: the first of any node, and the latest of
	 * this node that was late. */
	uint64_t first_ns, latest_ns;
	bool poisoned; /* there is a tombstone among them; all will end with its status */
	ncclsvc_status poison;
	uint64_t collectives;	       /* finished */
	struct pending *pending_tasks; /* [nranks]: pending.c; NULL: nobody reads it */
	uint32_t decisions;	       /* tombstones of collectives in queues: decision.c */
	bool misnumbered;	       /* such collectives no longer have the right nth */
	uint32_t captured_timelines;   /* timelines with captured groups for it */
	uint32_t blocked, gone;
	int32_t gone_rank; /* one of the members that are gone */
	struct plan *plan; /* NULL: none */
	uint32_t pending;  /* tasks alive, and members that are ready */
	uint32_t running;
	bool ended;
	bool ending;			    /* the other nodes were told, and may need a moment */
	uint32_t cleared;		    /* members whose tasks have ended with the epoch */
	ncclsvc_status end;		    /* its tasks' status since then */
	ncclsvc_status later;		    /* and that of tasks submitted since then */
	struct reported failures, refusals; /* what the supervisor was told of late */
	struct comm_lateness *lateness;	    /* NULL: nobody looks */
};

#endif
