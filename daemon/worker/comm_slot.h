/* SPDX-License-Identifier: Apache-2.0
 * Communicator slots: an NCCL communicator of this GPU's rank, and the stream that its tasks run
 * on. */
#ifndef WORKER_COMM_SLOT_H
#define WORKER_COMM_SLOT_H

#include "gpu_api.h"
#include "proto/abi/worker_queue.h"
#include "proto/worker_protocol.h"
#include <stdbool.h>
#include <stdint.h>

struct launch;
struct worker;

#define SLOT_WRITES 16 /* tasks whose ends may be reported together */

/* A reduction that the member has created. */
struct made_redop {
	bool made;
	int32_t type;
	ncclRedOp_t op;
};

struct comm_slot {
	ncclComm_t comm; /* NULL: free, or being aborted */
	CUstream stream;
	int32_t nranks, rank;
	uint64_t enqueued;	      /* seq of the last launch */
	uint64_t completed, moved_ns; /* at the last look; and when it last rose or was complete */
	uint64_t waits_seq;	      /* the last task whose input the GPU waits for */
	bool failed;
	bool copied;   /* for in-place AllToAll, since the stream was last idle */
	bool draining; /* aborted, or about to be; first, the stream must finish its work */
	struct slot_ending *ending; /* NCCL is ending it; NULL: not yet, or it is done */
	uint64_t abort_key;
	struct made_redop redops[SVC_REDOPS_MADE];
	/* Writes that the stream has yet to do: done counters, then progress. */
	uint64_t due; /* seq; 0: none */
	unsigned ntimelines, ntasks;
	struct {
		int operation; /* CU_STREAM_MEM_OP_WRITE_VALUE_64, or _32 */
		CUdeviceptr address;
		uint64_t value;
	} done[SLOT_WRITES];
};

/* A communicator to be created on a slot. */
struct comm_slot_init {
	uint64_t number; /* the supervisor's last one; 0: none yet */
	bool waits;	 /* for its LAUNCH_INIT */
	struct worker_message message;
};

/* comm_slot.c */
/* Answers when its LAUNCH_INIT has created it, or at once if it was cancelled before. */
void comm_slot_init_asked(struct worker *w, const struct worker_message *m);
void comm_slot_init_cancel(struct worker *w, const struct worker_message *m);
/* The turn of a LAUNCH_INIT has come. False: the supervisor's message has not. */
bool comm_slot_init_run(struct worker *w, const struct launch *l);
void comm_slot_failed(struct worker *w, uint32_t slot, const char *what, ncclResult_t result);
/* None of its launches is in flight any more. */
bool comm_slot_idle(const struct worker *w, uint32_t slot);

/* ending.c */
/* True: answered later, by comm_slot_drain. */
bool comm_slot_abort(struct worker *w, const struct worker_message *m);
/* Destroys it in good order. */
void comm_slot_destroy(struct worker *w, uint32_t slot);
/* Frees the slot at once; NCCL ends its communicator separately. */
void comm_slot_end_apart(struct worker *w, uint32_t slot, bool abort);
/* Checks those communicators; call it periodically. */
void endings_watch(struct worker *w);
/* Likewise for an aborted slot. Answers the abort once the stream has ended. */
void comm_slot_drain(struct worker *w, uint32_t slot);

/* redop.c */
void redop_add(struct worker *w, struct worker_message *m);
/* Frees one of the slot's reductions, or all. */
void redop_del(struct worker *w, const struct worker_message *m);
/* NCCL's number for a task's reduction; false: there is no such reduction. */
bool redop_find(const struct comm_slot *l, unsigned redop, int type, ncclRedOp_t *op);

#endif
