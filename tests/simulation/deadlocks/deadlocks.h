/* SPDX-License-Identifier: Apache-2.0
 * Simulates operations on host memory of several nodes, in one thread and virtual time: which
 * orders of tasks are deadlocks, and which only look like one. The schedulers (daemon/sched, and
 * the transports below them) are the daemon's own. detector.c includes deadlock.c, and can plant
 * mistakes in it. The clock, the scheduler's thread and its loop (node.c), MPI (channel.c) and the
 * trainers (program.c) are replaced. expect.c computes from the programs alone how each task must
 * end; check.c compares. */
#ifndef DEADLOCKS_H
#define DEADLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/mpi_api.h"
#include "sched/base/state.h"
#include "schedules.h"

#define NODES_MAX 4
#define COMMS_MAX 2
#define RANKS_MAX 6
#define TASKS_MAX 2048

/* ---- detector.c ---- */

/* Mistakes planted in the deadlock detection. */
enum plant {
	PLANT_NONE,
	PLANT_OLD_ROUND,
	PLANT_NO_NUMBER,
	PLANT_NO_QUESTION,
	PLANT_ONE_NODE_LESS,
	PLANT_NOT_WITHDRAWN,
	PLANT_ANSWER_TWICE,
	PLANT_STATUS,
	PLANT_LOSE_REPORT,
	PLANT_LOSE_ANSWER,
	PLANTS,
};

/* Called after each round of the scheduler. */
void detector_round(struct scheduler *sched);

/* ---- program.c ---- */

struct comm_plan {
	uint64_t id;
	uint32_t nranks, node_of[RANKS_MAX];
	bool ending, gone[RANKS_MAX];
	bool broken; /* a deadlock was found */
};

enum expected { EXPECT_PENDING, EXPECT_OK, EXPECT_DEADLOCK };

struct task_plan {
	uint32_t comm, rank, group;
	uint8_t op;
	int32_t peer;	/* -1: a collective */
	uint64_t count; /* of floats */
	uint64_t timeout_ns;
	bool posted, ended;
	uint64_t posted_ns, ended_ns;
	ncclsvc_status status;
	/* expect.c: */
	enum expected expected;
	uint32_t deadlock; /* number among the communicator's deadlocks, from 0 */
	bool first;	   /* the first task that its rank waits in at the deadlock */
	/* Number among its rank's tasks with the same op and peer, however they ended. */
	uint32_t nth;
};

struct profile {
	uint64_t delay; /* maximum delay of messages */
	bool strays;	/* programs omit or swap tasks */
	bool deadlines, cancels, ends, leaves, dies;
};
extern struct profile profile;
extern struct comm_plan comms[COMMS_MAX];
extern uint32_t ncomms, nnodes;
extern struct task_plan tasks[TASKS_MAX]; /* sorted by communicator and rank, in order */
extern uint32_t ntasks;

/* Whether only the programs decide how tasks end. */
static inline bool profile_undisturbed(void)
{
	return !profile.deadlines && !profile.cancels && !profile.ends && !profile.leaves &&
	       !profile.dies;
}

void *make(size_t size);
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace(uint32_t node, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the communicator's epoch on all nodes soon. */
void program_end_comm(uint32_t comm);
/* Called when the session's task has ended. */
void program_told(uint32_t session, uint32_t serial, const ncclsvc_status *st);

/* Sets up a schedule. */
void schedule_begin(uint64_t seed);
/* Ends everything, checks the end, and frees the memory. Returns false with `failure` set. */
bool schedule_end(void);
/* Posts all of one communicator's tasks at once; runs until nothing happens any more. */
void schedule_play(const struct comm_plan *comm, const struct task_plan *plans, uint32_t n);

/* ---- scenarios.c ---- */

int scenarios_run(scenario_failed *say);

/* ---- channel.c ---- */

extern const struct mpi_api channel_api; /* for the node node_now */

void channel_begin(void);
void channel_end(void);
void channel_lose(uint32_t node);
/* Delays all messages from one node to another by this much. */
void channel_delay(uint32_t from, uint32_t to, uint64_t by);

/* ---- node.c ---- */

struct node {
	bool alive, lost[NODES_MAX];
	struct scheduler *scheduler;
	bool gone[COMMS_MAX]; /* the epoch is over on this node */
	bool turn;	      /* the node is in node_turn */
	bool ends;	      /* it was lost, and is being freed: statuses are dropped */
};
extern struct node nodes[NODES_MAX];
extern uint32_t node_now; /* the node whose turn it is */

void nodes_begin(void);
void nodes_end(void);
void node_command(uint32_t node, const struct command *c);
/* Does everything that the node can do now. */
void node_turn(uint32_t node);
void node_comm_begin(uint32_t node, uint32_t comm);
struct svc_record node_record(const struct task_plan *t);

/* ---- expect.c ---- */

/* Fills in the expected result of all tasks. */
void expect_all(void);

/* ---- check.c ---- */

extern bool failures_ignored; /* the schedule has failed, or is over */
/* Whether the status reports a deadlock. */
bool is_deadlock(const ncclsvc_status *st);
void check_told(const struct task_plan *t);
/* Checks the state at rest. */
void check_rest(void);
/* Checks the state after all communicators have ended. */
void check_end(void);

#endif
