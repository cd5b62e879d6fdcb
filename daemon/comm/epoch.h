/* SPDX-License-Identifier: Apache-2.0
 *
 * The life cycle of a communicator's epoch on this node, as a table of transitions: from each
 * state, each cause leads to a next state. An epoch lasts from the last rank's JOIN to the first
 * loss of a rank. The states' numbers and names are NCCLSVC_EPOCH_STATES of ncclsvc_types.h, the
 * causes' NCCLSVC_EPOCH_CAUSES.
 *
 * ARCHITECTURE.md draws it; "given up" and "lost" there are the groups of causes below. Where one
 * cause has two arrows, the holders of the ranks decide: enum members_here.
 *
 * "Given up" leads from RUNNING to DRAINING if no member is left, and to LEFT if the only members
 * left are on GPUs of other nodes. DRAINING leads to the state that matches the holders of the
 * ranks by then.
 */
#ifndef DAEMON_EPOCH_H
#define DAEMON_EPOCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ncclsvc_types.h"

/* The members on this node, as far as transitions depend on them. Exactly one of these bits is set
 * at a time. While an epoch runs, members that wait in JOIN for the next one count as HELD. */
enum members_here {
	MEMBERS_NONE = 1 << 0,	  /* no rank of this node is taken */
	MEMBERS_REMOTE = 1 << 1,  /* none is, but GPUs of other nodes continue */
	MEMBERS_HELD = 1 << 2,	  /* a member holds its rank and does not wait in JOIN */
	MEMBERS_WAITING = 1 << 3, /* all members here wait in JOIN */
	MEMBERS_ALL = 1 << 4,	  /* all ranks of the communicator have joined */
	MEMBERS_CLOSED = 1 << 5,  /* the daemon is exiting */
};

#define EPOCH_CAUSE(cause) (UINT32_C(1) << NCCLSVC_CAUSE_##cause)
/* A member, or its JOIN, is gone. */
#define EPOCH_GIVEN_UP                                                                             \
	(EPOCH_CAUSE(LEFT) | EPOCH_CAUSE(MEMBER_DIED) | EPOCH_CAUSE(REFUSED) |                     \
	 EPOCH_CAUSE(DEADLINE) | EPOCH_CAUSE(START_FAILED) | EPOCH_CAUSE(NODE_LOST))
/* A running epoch cannot continue. */
#define EPOCH_LOSS                                                                                 \
	(EPOCH_CAUSE(MEMBER_DIED) | EPOCH_CAUSE(NODE_LOST) | EPOCH_CAUSE(GPU_LOST) |               \
	 EPOCH_CAUSE(ENDED_ELSEWHERE) | EPOCH_CAUSE(NODES_FAILED) | EPOCH_CAUSE(KERNEL_STUCK) |    \
	 EPOCH_CAUSE(GRAPH_FAILED) | EPOCH_CAUSE(ABORTED) | EPOCH_CAUSE(SUSPENDED))

/* A row of the table. */
struct epoch_transition {
	ncclsvc_epoch_state from;
	uint32_t causes;  /* bitmap */
	uint32_t members; /* bitmap */
	ncclsvc_epoch_state to;
	const char *meaning;
};
extern const struct epoch_transition epoch_table[];
extern const size_t epoch_table_rows;

/* Returns the row for these; NULL: the table has none. */
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
	uint32_t nsteps; /* state changes so far */
	uint32_t faults; /* causes without a row in the table */
	struct epoch_step steps[NCCLSVC_EPOCH_STEPS];
};

void epoch_begin(struct epoch_life *e, uint64_t now_ns);
/* Makes the transition. False: the table has none; this is counted, and the state does not change.
 */
bool epoch_step(struct epoch_life *e, ncclsvc_epoch_cause cause, enum members_here members,
		uint64_t now_ns);
/* Returns the number of recent state changes, and fills them in, latest first. */
uint32_t epoch_last_steps(const struct epoch_life *e, struct epoch_step steps[NCCLSVC_EPOCH_STEPS]);

/* Local members take part in it. */
static inline bool epoch_runs(const struct epoch_life *e)
{
	return e->state == NCCLSVC_EPOCH_RUNNING;
}

/* The scheduler has it and was not told to end it. */
static inline bool epoch_lives(const struct epoch_life *e)
{
	return e->state == NCCLSVC_EPOCH_RUNNING || e->state == NCCLSVC_EPOCH_LEFT;
}

/* The scheduler has it, and runs or ends its tasks. */
static inline bool epoch_held(const struct epoch_life *e)
{
	return epoch_lives(e) || e->state == NCCLSVC_EPOCH_DRAINING;
}

#endif
