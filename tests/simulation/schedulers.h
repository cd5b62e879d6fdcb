/* SPDX-License-Identifier: Apache-2.0
 * The daemon's own schedulers (daemon/sched) of several nodes, in one thread and virtual time.
 * schedulers.c replaces the clock, the scheduler's thread and its loop; mpi.c replaces MPI. The
 * simulations in deadlocks and launches provide the trainers' programs, the transport and the
 * checks. */
#ifndef SCHEDULERS_H
#define SCHEDULERS_H

#include "channel/carrier.h"
#include "sched/base/state.h"
#include "sched/internode/internode_comm.h"
#include "schedules.h"

#ifndef NODES_MAX /* meson.build sets both for wider ones */
#define NODES_MAX 5
#define RANKS_MAX 10
#endif
#define COMMS_MAX    6
#define SESSIONS_MAX (COMMS_MAX * RANKS_MAX)

/* ---- schedulers.c ---- */

struct comm_plan {
	uint64_t id;
	uint32_t nranks, node_of[RANKS_MAX], session_of[RANKS_MAX];
	bool ending, gone[RANKS_MAX];
	bool broken; /* a deadlock was found */
};

struct node {
	bool alive, lost[NODES_MAX];
	struct scheduler *scheduler;
	bool begun[COMMS_MAX], gone[COMMS_MAX]; /* the epoch has begun, and is over */
	bool turn;				/* the node is in node_turn */
	bool ends; /* it was lost, and is being freed: statuses are dropped */
};

extern struct comm_plan comms[COMMS_MAX];
extern uint32_t ncomms, nnodes;
extern struct node nodes[NODES_MAX];
extern uint32_t node_now;     /* the node whose turn it is */
extern uint64_t begin_ns;     /* of the schedule */
extern bool failures_ignored; /* the schedule has failed, or is over */

void *make(size_t size);
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace(uint32_t node, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Like at, with an array of two numbers as f's argument. */
void at_number(uint64_t time, void (*f)(void *arg), uint32_t number, uint32_t other);

void schedulers_begin(uint64_t seed);
/* Creates the schedulers and sessions; every communicator uses this transport of the table. */
void nodes_begin(const struct transport *const *table, enum transport_kind kind);
/* Begins the communicator's epoch on all of its nodes, between these times. */
void comm_begin(uint32_t comm, uint64_t from, uint64_t until);
bool comm_spans(uint32_t comm, uint32_t node);
/* Ends the communicator's epoch on all nodes soon. */
void program_end_comm(uint32_t comm);
/* Loses the node; the others learn of it later. */
void node_lose(uint32_t node);
/* The two lose each other; the other nodes still reach both. */
void node_cut(uint32_t a, uint32_t b);
void node_command(uint32_t node, const struct command *c);
/* Does everything that the node can do now. */
void node_turn(uint32_t node);
/* Gives the node a turn in each interval, until that time. */
void node_look(uint32_t node, uint64_t interval, uint64_t until);
/* The queued task with that request id, or NULL. */
struct task *node_task(uint32_t node, uint32_t comm, uint32_t rank, uint32_t request_id);
void node_cancel(uint32_t node, enum svc_cancel_kind kind, uint64_t id);
void run_until(uint64_t time);
/* Ends all communicators, calls check until the end, and frees the memory. Returns false with
 * `failure` set. */
bool schedulers_end(uint64_t end_ns, void (*check)(void));
/* The memory that the session's tasks send, or that gets their results. */
float *session_memory(uint32_t session, bool result);
struct svc_record node_record(uint8_t op, int32_t peer, uint32_t comm, uint64_t floats,
			      uint64_t timeout_ns);

/* ---- mpi.c ---- */

extern const struct carrier mpi_simulated; /* for the node node_now */
extern uint64_t mpi_delay_ns;		   /* maximum delay of messages */

void mpi_begin(void);
void mpi_end(void);
void mpi_lose(uint32_t node);
void mpi_cut(uint32_t a, uint32_t b);
/* Delays all messages from one node to another by this much. */
void mpi_delay(uint32_t from, uint32_t to, uint64_t by);

/* ---- Defined by each simulation ---- */

/* The session's task has ended. */
void program_completed(uint32_t session, uint32_t request_id, const ncclsvc_status *st);
/* The supervisor gets an event. */
void program_event(uint32_t node, const struct event *event);
/* Called after each round of the scheduler. */
void program_round(struct scheduler *sched);
/* May change the message, which follows the header, and when it arrives. Returns false if the
 * message is lost. */
bool program_message(struct internode_header *h, void *body, uint64_t *when);

#endif
