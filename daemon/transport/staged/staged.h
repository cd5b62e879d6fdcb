/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks of GPUs without NCCL (transport = mpi): their memory is staged through pinned host memory.
 * They match as tasks of the host do, inputs included; a copy never waits on the GPU. Then:
 *
 *   staged.c       an operation is cut into chunks of its count; some are under way at once, each
 *                  through three stages: copied in, moved or reduced on the host, copied out
 *   copy.c  which blocks of a chunk lie where, and the launches that copy them
 *   slots.c the memory
 *
 * A chunk has a slot of staging memory for each member of this node that gives it something. If all
 * members are here, the others' workers copy out of that slot, and the host only reduces. Else
 * every member has a slot, that shadows of the tasks name as their memory, and the shadows go the
 * way of the host's tasks between nodes. All nodes cut alike, for the records agree.
 *
 * Slots are held for what ends by itself, except while other nodes are waited for. So that nodes
 * which give their last slots to different operations do not wait for each other for ever, the
 * first chunk of an operation between nodes gets ordinary memory if there is none that is pinned.
 *
 * When an epoch ends, what is being copied ends its copying; nothing else begins. A worker that is
 * gone copies nothing any more.
 */
#ifndef TRANSPORT_STAGED_H
#define TRANSPORT_STAGED_H

#include "sched/internode/internode_comm.h"
#include "sched/state.h"
#include "sched/transport.h"

extern const struct transport staged_transport;

enum chunk_stage { CHUNK_IN, CHUNK_MOVE, CHUNK_OUT, CHUNK_OVER };

struct chunk {
	struct part in; /* first: of the transport that moves or reduces it */
	struct staged *op;
	struct chunk *prev, *next;
	uint64_t part; /* from 1 */
	uint64_t lo, count;
	enum chunk_stage stage;
	bool begun;	      /* this stage: its copies are launched, or its work is under way */
	bool moving;	      /* in.over follows */
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
	bool given_up;	/* and its parts between nodes know */
	int result;	/* why no more chunks begin; 0: they do */
	uint64_t size;	/* of an element */
	uint64_t step;	/* elements in a chunk */
	uint64_t taken; /* elements that have a chunk */
	uint64_t parts;
	uint32_t under_way;
	struct chunk *chunks;
	uint32_t ntasks;
	struct task *tasks[]; /* by rank, NULL elsewhere; of a pair, the Send and the Recv */
};

/* Memory that workers copy to and from. */
struct slots {
	char *base;
	uint32_t *pinned, *more; /* stacks of those that are free; more: ordinary memory */
	uint32_t npinned, nmore, all_pinned;
};

struct staging {
	struct slots slots;
	struct staged *ops; /* under way, in the order in which they began */
};

static inline struct staging *staging_of(const struct engine *e)
{
	return e->transport_state[TRANSPORT_STAGED];
}

/* ---- copy.c ---- */

/* How many elements make a chunk. */
uint64_t staged_step(const struct staged *op);
/* Has this task something to give, and so a slot? */
bool copy_needs_slot(const struct staged *op, uint32_t task);
/* Launches what this stage copies; false: a queue is full. */
bool copy_launch(struct engine *e, struct chunk *k);
/* Is all of that over? */
bool copy_landed(const struct engine *e, const struct chunk *k);
/* What the host is to run on the slots. */
void copy_make_shadows(struct chunk *k);

/* ---- slots.c ---- */

void slots_add(struct engine *e, const struct command *c);
/* n slots; ordinary memory too, if any is true. False: there are not so many. */
bool slots_take(struct engine *e, uint32_t n, bool any, char **out);
void slots_give(struct engine *e, char *slot);
void slots_free(struct engine *e);

#endif
