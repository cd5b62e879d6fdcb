/* SPDX-License-Identifier: Apache-2.0
 * Simulates launches on GPUs of several nodes, in one thread and virtual time. The schedulers
 * (schedulers.h) and sequencers are the daemon's own. transport.c replaces NCCL's transport: it
 * records launches and completes them later. Random programs of several processes on each node
 * (program.c) run over channels that delay messages. check.c decides whether the result is
 * correct. */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include "allocations.h"
#include "coord/sequencer.h"
#include "schedulers.h"

_Static_assert(ALLOCATIONS_NODES == NODES_MAX, "one counter for each node");

#define PROCESSES 2 /* per node */
#define TASKS_MAX 2048

/* ---- Planted mistakes ---- */

enum plant {
	PLANT_NONE,
	PLANT_LOSE_LAUNCH,
	PLANT_LOSE_FAILED,
	PLANT_LOSE_ASK,
	PLANT_LOSE_CLOSED,
	PLANT_LOSE_WITHDRAW,
	PLANT_LOSE_LEAVE,
	PLANT_LOSE_PREPARE,
	PLANT_LOSE_PROPOSE,
	PLANT_PROPOSE_EARLY,
	PLANT_OTHER_TIME,
	PLANT_STATUS,
	PLANT_MISSING,
	PLANT_NO_GROUP,
	PLANT_LATE_WITHDRAW,
	PLANTS,
};

/* ---- program.c ---- */

struct task_plan {
	uint32_t node, comm, rank, session, group;
	bool pair;
	struct svc_record record;
	bool posted, cancelled, launched, told;
	bool has_key; /* its operation has this key: */
	struct operation_key key;
	uint64_t posted_ns, told_ns;
	ncclsvc_status status;
};

struct profile {
	bool strays;		 /* processes omit, swap or change tasks */
	bool deadlines, cancels; /* tasks have deadlines, or are cancelled */
	bool leaves, dies, cuts; /* a communicator, a node, a connection */
	bool regular;		 /* none of all these */
};
extern struct profile profile;
extern struct task_plan tasks[TASKS_MAX];
extern uint32_t ntasks;

/* Has any of its nodes lost its leader? The leader's last messages may have reached only some. */
bool comm_is_lost(uint32_t comm);

/* ---- transport.c ---- */

extern const struct transport *const launch_transports[TRANSPORTS];

/* ---- check.c ---- */

void check_begin(void);
/* The node's members have posted the operation, as far as it has keys for their tasks. */
void check_posted(struct scheduler *sched, struct internode_comm *s,
		  const struct operation_key *key);
/* The node itself fails the operation. */
void check_voted_failed(struct scheduler *sched, struct internode_comm *s,
			const struct operation_key *key, const ncclsvc_status *st);
/* The sequencer fails the operation. */
void check_failed(struct scheduler *sched, struct internode_comm *s,
		  const struct operation_key *key, const struct failed_note *note);
void check_launched(uint32_t node, struct task *const *launched, uint32_t n);
/* Checks the state at rest. */
void check_rest(void);
/* Checks the state after all communicators have ended. */
void check_end(void);

#endif
