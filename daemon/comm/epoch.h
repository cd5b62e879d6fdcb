/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a communicator's epoch on this node, as a table: in which state, which cause leads to
 * which state. An epoch is all ranks together from the last JOIN to the first loss. The states'
 * numbers and names are NCCLSVC_EPOCH_STATES of ncclsvc_types.h, the causes' NCCLSVC_EPOCH_CAUSES.
 *
 * ARCHITECTURE.md draws it; "given up" and "lost" there are the groups of causes below. Who holds
 * the ranks decides between two arrows of one cause: enum members_here.
 *
 * RUNNING leads to DRAINING by "given up" if nobody is left, and to LEFT if members are left on
 * GPUs of other nodes alone. DRAINING leads to the state that fits those who hold ranks by then.
 */
#ifndef DAEMON_EPOCH_H
#define DAEMON_EPOCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"

/* The members on this node, as far as a transition depends on them: one of these bits is set at a
 * time. While an epoch runs, members that wait in JOIN for the next one count as HELD. */
enum members_here {
	MEMBERS_NONE = 1 << 0,	  /* no rank of this node is taken */
	MEMBERS_REMOTE = 1 << 1,  /* none is, and GPUs of other nodes go on */
	MEMBERS_HELD = 1 << 2,	  /* a member holds its rank, and does not wait in JOIN */
	MEMBERS_WAITING = 1 << 3, /* all members here wait in JOIN */
	MEMBERS_ALL = 1 << 4,	  /* all ranks of the communicator have joined */
	MEMBERS_CLOSED = 1 << 5,  /* the daemon ends */
};

#define EPOCH_CAUSE(cause) (UINT32_C(1) << NCCLSVC_CAUSE_##cause)
/* A member, or its JOIN, is not there any more. */
#define EPOCH_GIVEN_UP                                                                             \
	(EPOCH_CAUSE(LEFT) | EPOCH_CAUSE(MEMBER_DIED) | EPOCH_CAUSE(REFUSED) |                     \
	 EPOCH_CAUSE(DEADLINE) | EPOCH_CAUSE(START_FAILED) | EPOCH_CAUSE(NODE_LOST))
/* An epoch that runs cannot go on. */
#define EPOCH_LOSS                                                                                 \
	(EPOCH_CAUSE(MEMBER_DIED) | EPOCH_CAUSE(NODE_LOST) | EPOCH_CAUSE(GPU_LOST) |               \
	 EPOCH_CAUSE(ENDED_ELSEWHERE) | EPOCH_CAUSE(NODES_FAILED) | EPOCH_CAUSE(KERNEL_STUCK) |    \
	 EPOCH_CAUSE(GRAPH_FAILED) | EPOCH_CAUSE(ABORTED))

/* A row of the table. */
struct epoch_transition {
	ncclsvc_epoch_state from;
	uint32_t causes;  /* bits */
	uint32_t members; /* bits */
	ncclsvc_epoch_state to;
	const char *meaning;
};
extern const struct epoch_transition epoch_table[];
extern const size_t epoch_table_rows;

/* The row for this; NULL: the table has none. */
const struct epoch_transition *epoch_find(ncclsvc_epoch_state from, ncclsvc_epoch_cause cause,
					  enum members_here members);

struct epoch_step {
	ncclsvc_epoch_state to;
	ncclsvc_epoch_cause cause;
	uint64_t at_ns;
};

struct epoch_life {
	ncclsvc_epoch_state state;
	uint64_t since_ns;
	uint32_t nsteps; /* changes of the state so far */
	uint32_t faults; /* causes for which the table has no row */
	struct epoch_step steps[NCCLSVC_EPOCH_STEPS];
};

void epoch_begin(struct epoch_life *e, uint64_t now_ns);
/* Makes the transition. False: the table has none, which is counted, and the state is as before. */
bool epoch_step(struct epoch_life *e, ncclsvc_epoch_cause cause, enum members_here members,
		uint64_t now_ns);
/* The last changes of the state, the latest first. Returns how many there are. */
uint32_t epoch_last_steps(const struct epoch_life *e, struct epoch_step steps[NCCLSVC_EPOCH_STEPS]);

/* Members here have a part in it. */
static inline bool epoch_runs(const struct epoch_life *e)
{
	return e->state == NCCLSVC_EPOCH_RUNNING;
}

/* The scheduler has it, and was not told to end it. */
static inline bool epoch_lives(const struct epoch_life *e)
{
	return e->state == NCCLSVC_EPOCH_RUNNING || e->state == NCCLSVC_EPOCH_LEFT;
}

/* The scheduler has it: it runs its tasks, or ends them. */
static inline bool epoch_held(const struct epoch_life *e)
{
	return epoch_lives(e) || e->state == NCCLSVC_EPOCH_DRAINING;
}

#endif
