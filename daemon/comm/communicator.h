/* SPDX-License-Identifier: Apache-2.0
 * A communicator: its members and its current epoch. */
#ifndef COMM_COMMUNICATOR_H
#define COMM_COMMUNICATOR_H

#include "base/deadlines.h"
#include "base/hash.h"
#include "base/reported.h"
#include "coord/messages.h"
#include "coord/missing.h"
#include "epoch.h"
#include "session/session.h"

struct comm_lateness;
struct member_pending;
struct member_progress;
struct unexpected_message;
struct nccl_comm;
struct peer_epoch;
struct plan;
struct comms;

struct member {
	uint32_t state;		  /* ncclsvc_member_state */
	struct session *session;  /* NULL: absent or dead */
	uint32_t handle;	  /* in session->memberships */
	uint32_t request_id;	  /* of the JOIN that waits */
	struct deadline deadline; /* of that; in comms->joins if there is one */
	uint64_t since_ns;	  /* when it sent JOIN */
	int32_t pid;		  /* the last holder's */
	struct ending ending;	  /* how its part in the last epoch ended, if it ended that epoch */
	int32_t device;
	int staging_fd;	 /* from its JOIN; -1: none */
	int controls_fd; /* of the epoch that its JOIN continues; -1: none */
	uint64_t staging_bytes;
	uint8_t blocks;	  /* the most that it wants its kernels to have; 0: no limit */
	int32_t node;	  /* of the epoch's member, if on another node; otherwise -1 */
	uint64_t address; /* of its node, as in value_b of a status; 0: unknown, or not across nodes
			   */
	int32_t far_pid;
	uint64_t redops;  /* bitmap: may exist in its worker, which was not told to free them */
	bool fresh;	  /* this JOIN created the handle, which goes if the JOIN fails */
	bool overdue;	  /* the rendezvous was asked which ranks are missing */
	uint8_t resume;	  /* enum svc_resume_kind of its JOIN; 0: it is a new one */
	uint32_t lineage; /* with SVC_RESUME_COMM: which it continues */
	uint64_t done;	  /* likewise (proto/group/done.h) */
	bool suspended;	  /* its last epoch was, and it has not joined again yet */
	bool asleep;	  /* it uses no GPU memory of the communicator (SVC_SLEEP) */
	bool fail_fast;	  /* its JOIN has SVC_JOIN_FAIL_FAST */
	bool late;	  /* its JOIN's deadline has passed in this attempt to join */
};

struct split_request {
	bool here;
	int32_t colour, key;
	uint32_t staging; /* region */
	uint8_t blocks;	  /* as in struct member */
	uint32_t request_id;
	uint64_t deadline_ns, since_ns;
	bool overdue; /* it was asked who is missing */
	char label[NCCLSVC_NAME_BYTES];
};

enum barrier_state { BARRIER_NONE, BARRIER_READY, BARRIER_OVER };

/* A plan that waits for the other members' plans. */
struct commit {
	bool here;
	bool overdue; /* the coordinator was asked which ranks are missing */
	uint32_t request_id;
	uint32_t handle; /* of a plan that continues; 0: it gets a new one */
	uint64_t deadline_ns, since_ns;
};

struct communicator {
	struct comms *comms;
	uint32_t slot;
	uint64_t uid;
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	bool named;		     /* the label is its users' */
	char job[NCCLSVC_JOB_BYTES]; /* of the member that joined first of those here; empty:
					unknown */
	bool world;
	bool cuda;	       /* its members' devices are GPUs */
	bool out_of_reach;     /* a member cannot map another's memory, so no kernels */
	uint32_t lineage;      /* of the running or the last epoch (svc_join_reply) */
	unsigned reply_opcode; /* what its members wait for: JOIN or SPLIT */
	/* While an epoch runs or is about to begin; NULL in an epoch of one node that uses only
	 * kernels. */
	struct nccl_comm *nccl_comm;
	bool nccl_wanted;		/* an operation of the running epoch waits for it */
	bool nccl_asked;		/* the scheduler was asked whether it is unused */
	struct redop_call *redop_calls; /* that wait for it */
	struct account *account; /* of the owner; also its members', unless it admits others */
	ncclsvc_admit admit;	 /* as the first JOIN said */
	uint32_t nranks, epoch;
	uint64_t failure; /* the last, since the epoch began: failures/; 0: none */
	uint64_t failure_ns;
	struct descriptions *descriptions; /* describe.c; NULL: nobody has said anything */
	struct epoch_life life;
	struct member *members; /* [nranks] */
	uint32_t joining, occupied;
	struct refusal refused; /* the last one in this attempt to join */
	/* The last operation that was refused in this epoch (pid 0: none), and the number of
	 * operations that its rank had submitted before. */
	struct refusal refused_task;
	uint64_t refused_seq;
	/* How the epoch ended, if no task failed with it; result 0: it has not ended, or tasks
	 * have. */
	ncclsvc_status ended_in_order;
	bool suspended; /* until the scheduler holds its tasks; then the members are told, ... */
	bool quiet;	/* ... unless this daemon is about to end, too */
	ncclsvc_status suspended_why;
	struct reported refusals; /* what the library refused, and was reported of late */
	uint64_t dumped_ns;	  /* when its operations were last written to a file; 0: never */
	bool late_reported;	  /* this attempt's timeout was reported */
	bool shared_gpu_logged;	  /* that two ranks share a GPU */
	struct peer_epoch
		*peer; /* while an epoch runs whose members have staging memory; otherwise NULL */
	struct member_progress *progress; /* of the running epoch */
	struct comm_lateness *lateness;	  /* likewise */
	struct member_pending *pending;	  /* likewise, if it began with `peer`; otherwise NULL */
	struct split_request *split;	  /* [nranks]; NULL: none in progress */
	struct plan *plan;		  /* in force, and lent to the scheduler; NULL: none */
	struct plan *forming;		  /* NULL: none */
	struct commit *commits;		  /* [nranks]; NULL: none waits */
	uint32_t committing;
	uint32_t split_seq, plan_seq; /* SPLITs and plans that have ended in this epoch */
	bool split_lost, plan_lost; /* the attempt was given up here, and its result has not come */
	uint64_t since_ns;
	uint64_t watched_ns; /* the wait that began then was asked about; 0: none was */
	uint64_t idle_ns;    /* when the last local member left */
	struct communicator *prev_idle, *next_idle; /* while it is in comms->idle */
	struct deadline deadline; /* the earliest of its waits, except members' JOINs */
	uint32_t coordinator; /* of the epoch: rank 0's node; for a part of a SPLIT: of the SPLIT
				 before */
	uint32_t remote;      /* members of the epoch on other nodes */
	struct control_start *starts[2]; /* storage for the next two */
	struct control_start *start; /* all have joined; NULL: not yet, or the epoch has begun */
	struct control_start *begun; /* of the running or the last epoch; NULL: none */
	enum barrier_state barrier;  /* for GPUs across nodes: what the NCCL pool knows of start */
	bool start_is_over;	     /* the epoch must end as soon as it has begun */
	struct control_break start_break;      /* because of this */
	struct unexpected_message *unexpected; /* for an epoch that has not begun here */
	UT_hash_handle hh;		       /* by id */
};

#endif
