/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks on GPUs without NCCL (transport = mpi), whose memory is staged through pinned host memory.
 * They match like tasks on the host, including their inputs; a copy never waits on the GPU. Then:
 *
 *   staged.c       an operation is cut into chunks of its count; several are in progress at once,
 * each through three stages: copied in, moved or reduced on the host, copied out copy.c  which
 * blocks of a chunk lie where, and the launches that copy them slots.c the memory
 *
 * A chunk has a slot of staging memory for each local member that contributes data. If all members
 * are local, the others' workers copy from that slot, and the host only reduces. Otherwise every
 * member has a slot. Shadows of the tasks have these slots as their memory, and are handled like
 * the host's tasks between nodes. Since the records agree, all nodes use the same chunks.
 *
 * Work that holds slots ends by itself, unless it waits for other nodes. Two nodes that gave their
 * last slots to different operations could deadlock. So the first chunk of an operation between
 * nodes gets ordinary memory if no pinned memory is free.
 *
 * When an epoch ends, running copies finish, and nothing else starts. A worker that is gone no
 * longer copies.
 */
#ifndef TRANSPORT_STAGED_H
#define TRANSPORT_STAGED_H

#include "sched/api/transport.h"
#include "sched/base/state.h"
#include "sched/internode/internode_comm.h"

extern const struct transport staged_transport;

enum chunk_stage { CHUNK_IN, CHUNK_MOVE, CHUNK_OUT, CHUNK_OVER };

struct chunk {
	struct subop in; /* must come first; for the transport that moves or reduces it */
	struct staged *op;
	struct chunk *prev, *next;
	uint64_t subop; /* from 1 */
	uint64_t lo, count;
	enum chunk_stage stage;
	bool begun;  /* this stage has begun: its copies are launched, or its work is running */
	bool moving; /* in.done follows */
	uint64_t *awaited;    /* [op->ntasks]: seq of the last copy; 0: none */
	char **slots;	      /* [op->ntasks]; NULL: none */
	struct task *shadows; /* [op->ntasks] */
};

struct staged {
	struct comm *comm;
	struct operation_key key; /* between nodes */
	struct staged *prev, *next;
	struct svc_record record;
	bool pair;	/* a Send and its Recv */
	bool across;	/* other nodes have members of it, too */
	bool aborted;	/* it ends with its epoch */
	bool given_up;	/* and its subops between nodes know */
	int result;	/* why no more chunks begin; 0: they do */
	uint64_t size;	/* of an element */
	uint64_t step;	/* elements in a chunk */
	uint64_t taken; /* elements assigned to chunks so far */
	uint64_t subops;
	uint32_t under_way;
	struct chunk *chunks;
	uint32_t ntasks;
	struct task *tasks[]; /* by rank, NULL for other nodes' ranks; for a pair, the Send and the
				 Recv */
};

/* Memory that workers copy to and from. */
struct slots {
	char *base;
	uint32_t *pinned, *more; /* stacks of free slots; more: ordinary memory */
	uint32_t npinned, nmore, all_pinned;
};

struct staging {
	struct slots slots;
	struct staged *ops; /* in progress, in start order */
};

static inline struct staging *staging_of(const struct scheduler *sched)
{
	return sched->transport_state[TRANSPORT_STAGED];
}

/* ---- copy.c ---- */

/* Number of elements in a chunk. */
uint64_t staged_step(const struct staged *op);
/* Does this task send data, and so need a slot? */
bool copy_needs_slot(const struct staged *op, uint32_t task);
/* Launches the copies of this stage; false: a queue is full. */
bool copy_launch(struct scheduler *sched, struct chunk *k);
/* Are all of these copies done? */
bool copy_landed(const struct scheduler *sched, const struct chunk *k);
/* The work for the host on the slots. */
void copy_make_shadows(struct chunk *k);

/* ---- slots.c ---- */

void slots_add(struct scheduler *sched, const struct command *c);
/* Takes n slots; ordinary memory, too, if any is true. False: there are not enough. */
bool slots_take(struct scheduler *sched, uint32_t n, bool any, char **out);
void slots_give(struct scheduler *sched, char *slot);
void slots_free(struct scheduler *sched);

#endif
