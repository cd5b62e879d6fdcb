/* SPDX-License-Identifier: Apache-2.0
 * Communicator slots: an NCCL communicator of this GPU's rank, and the stream that its tasks run
 * on. */
#ifndef WORKER_COMM_SLOT_H
#define WORKER_COMM_SLOT_H

#include "abi/worker_queue.h"
#include "gpu_api.h"
#include "worker_protocol.h"
#include <stdbool.h>
#include <stdint.h>

struct launch;
struct worker;

#define SLOT_WRITES 16 /* tasks whose end may be told together */

/* A reduction that the member has made. */
struct made_redop {
	bool made;
	int32_t type;
	ncclRedOp_t op;
};

struct comm_slot {
	ncclComm_t comm; /* NULL: free, or it is being aborted */
	CUstream stream;
	int32_t nranks, rank;
	uint64_t enqueued;	      /* seq of the last launch */
	uint64_t completed, moved_ns; /* as seen last; and when it last was more, or all */
	uint64_t waits_seq;	      /* the last task that waits on the GPU for its input */
	bool failed;
	bool copied;   /* for AllToAll in place, since the stream was last idle */
	bool draining; /* aborted, or soon; what its stream still holds has to end first */
	struct slot_ending *ending; /* NCCL is at it; NULL: not yet, or it is over */
	uint64_t abort_key;
	struct made_redop redops[SVC_REDOPS_MADE];
	/* Writes that the stream still lacks: done counters, then progress. */
	uint64_t due; /* seq; 0: nothing */
	unsigned ntimelines, ntasks;
	struct {
		int operation; /* CU_STREAM_MEM_OP_WRITE_VALUE_64, or _32 */
		CUdeviceptr address;
		uint64_t value;
	} done[SLOT_WRITES];
};

/* A communicator that is to be made on a slot. */
struct comm_slot_init {
	uint64_t number; /* the supervisor's last; 0: none yet */
	bool waits;	 /* for its LAUNCH_INIT */
	struct worker_message message;
};

/* comm_slot.c */
/* Its LAUNCH_INIT makes it, and then it is answered; or at once, if it was cancelled before. */
void comm_slot_init_asked(struct worker *w, const struct worker_message *m);
void comm_slot_init_cancel(struct worker *w, const struct worker_message *m);
/* A LAUNCH_INIT's turn. False: the supervisor's message is still to come. */
bool comm_slot_init_run(struct worker *w, const struct launch *l);
void comm_slot_failed(struct worker *w, uint32_t slot, const char *what, ncclResult_t result);
/* Nothing that was launched on it is in flight. */
bool comm_slot_idle(const struct worker *w, uint32_t slot);

/* ending.c */
/* True: answered later, by comm_slot_drain. */
bool comm_slot_abort(struct worker *w, const struct worker_message *m);
/* In good order. */
void comm_slot_destroy(struct worker *w, uint32_t slot);
/* The slot is free at once; NCCL ends its communicator apart. */
void comm_slot_end_apart(struct worker *w, uint32_t slot, bool abort);
/* From time to time: those. */
void endings_watch(struct worker *w);
/* The same of a slot that is aborted. Answers that once the stream has ended. */
void comm_slot_drain(struct worker *w, uint32_t slot);

/* redop.c */
void redop_add(struct worker *w, struct worker_message *m);
/* One of the slot's, or all. */
void redop_del(struct worker *w, const struct worker_message *m);
/* NCCL's number for what a task names; false: there is no such reduction. */
bool redop_find(const struct comm_slot *l, unsigned redop, int type, ncclRedOp_t *op);

#endif
