/* SPDX-License-Identifier: Apache-2.0
 * Simulates operations on host memory of several nodes, in one thread and virtual time: which
 * orders of tasks are deadlocks, and which only look like one. The schedulers (schedulers.h) and
 * their transports are the daemon's own. detector.c includes deadlock.c, and can plant mistakes in
 * it. program.c replaces the trainers. expect.c computes from the programs alone how each task must
 * end; check.c compares. */
#ifndef DEADLOCKS_H
#define DEADLOCKS_H

#include "schedulers.h"

#define TASKS_MAX 2048

/* ---- detector.c ---- */

/* Mistakes planted in the deadlock detection. */
enum plant {
	PLANT_NONE,
	PLANT_OLD_ANSWER,
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

/* ---- program.c ---- */

enum expected { EXPECT_PENDING, EXPECT_OK, EXPECT_DEADLOCK };

struct task_plan {
	uint32_t comm, rank, group;
	uint8_t op;
	int32_t peer;	/* -1: a collective */
	uint64_t count; /* of floats */
	uint64_t timeout_ns;
	uint64_t late_ns; /* in schedule_post: posted so much later */
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
	uint32_t silent; /* 1 + the node whose messages do not arrive; 0: none */
};
extern struct profile profile;
extern struct task_plan tasks[TASKS_MAX]; /* sorted by communicator and rank, in order */
extern uint32_t ntasks;

/* Whether only the programs decide how tasks end. */
static inline bool profile_undisturbed(void)
{
	return !profile.deadlines && !profile.cancels && !profile.ends && !profile.leaves &&
	       !profile.dies && !profile.silent;
}

/* Sets up a schedule. */
void schedule_begin(uint64_t seed);
/* Ends everything, checks the end, and frees the memory. Returns false with `failure` set. */
bool schedule_end(void);
/* Posts all of one communicator's tasks at once, once its epoch has begun everywhere. */
void schedule_post(const struct comm_plan *comm, const struct task_plan *plans, uint32_t n);
/* Likewise, and runs until nothing happens any more. */
void schedule_play(const struct comm_plan *comm, const struct task_plan *plans, uint32_t n);

/* ---- scenarios.c ---- */

int scenarios_run(scenario_failed *say);

/* ---- expect.c ---- */

/* Fills in the expected result of all tasks. */
void expect_all(void);

/* ---- check.c ---- */

/* Whether the status reports a deadlock. */
bool is_deadlock(const ncclsvc_status *st);
void check_completed(const struct task_plan *t);
/* Checks the state at rest. */
void check_rest(void);
/* Checks the state after all communicators have ended. */
void check_end(void);

#endif
