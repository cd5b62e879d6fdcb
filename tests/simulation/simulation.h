/* SPDX-License-Identifier: Apache-2.0
 *
 * Several nodes in one thread, in virtual time. On each node, the daemon's own communicators
 * (daemon/comm), coordinators (daemon/coord) and NCCL communicators (daemon/gpu/nccl_comm.c) run.
 * Everything below them is replaced: the clock and the loop (time.c, loop.c), the connections
 * between nodes (channel.c), sessions (trainers.c), the scheduler (scheduler.c) and workers with
 * NCCL (workers.c). A seed determines one schedule (schedule.c), and check.c checks its results.
 */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comms.h"
#include "comm/communicator.h"
#include "schedules.h"

#ifndef NODES_MAX /* meson.build sets both for simulation_wide and simulation_growth */
#define NODES_MAX 6
#define RANKS_MAX 6
#endif
#define GPUS_HERE    3
#define TRAINERS_MAX 5 /* per node, at the same time */
#define IDS_MAX	     4

/* ---- channel.c ---- */

/* Mistakes that the channel makes on purpose. */
enum plant {
	PLANT_NONE,
	PLANT_LOSE,
	PLANT_TWICE,
	PLANT_OVERTAKE,
	PLANT_UNTOLD_LOSS,
	PLANT_START_EPOCH,
	PLANT_START_MEMBER,
	PLANT_RESULT,
	PLANT_UNIQUE_ID,
	PLANT_BREAK_RANK,
	PLANTS,
};

/* Messages since it was cleared, by node. */
struct traffic {
	uint32_t sent, received;
	uint64_t bytes; /* of both */
};
extern struct traffic traffic[NODES_MAX];

void channel_begin(void);
void channel_end(void);
/* Returns whether a START or REFUSE of that communicator is in flight to the node. */
bool channel_brings_answer(uint32_t node, const uint8_t *id);
void channel_lose(uint32_t node);

/* ---- links.c: standalone daemons ---- */

void links_begin(void);
/* The number of the connection over which a message goes, opened if there is none; 0: it is lost.
 */
uint32_t links_carry(uint32_t node, uint32_t other);
/* A message comes over that connection; false: it is lost. */
bool links_bring(uint32_t node, uint32_t other, uint32_t number);
void links_lose(uint32_t node);
/* The restarted node has no connection. */
void links_restart(uint32_t node);
/* The two cannot reach each other for that time. */
void links_cut(uint32_t a, uint32_t b, uint64_t duration);
/* Has the node, or any, lost another one or been lost, be it for a while? */
bool links_lost(uint32_t node);
bool links_lost_any(void);

/* ---- node.c ---- */

struct scheduler {
	uint32_t node;
	struct running *running; /* the node's epochs, by slot */
	struct pending_creation *creations;
};

struct node_state {
	bool alive;
	struct loop loop;
	uint64_t timer; /* number of the loop's current timer; older ones do not count */
	struct accounts accounts;
	struct sessions sessions;
	struct gpus gpus;
	struct gpu gpu[GPUS_HERE];
	struct memory memory;
	struct cluster cluster;
	struct comms comms;
	struct scheduler scheduler;
	struct trainer *trainers[TRAINERS_MAX]; /* NULL: none */
};

extern struct node_state nodes[NODES_MAX];
extern uint32_t nnodes;
extern bool standalone; /* the daemons; otherwise mpirun started them together */
extern struct config config;
extern bool nodes_ended; /* set while nodes are freed: failures no longer count */

void nodes_begin(uint32_t n);
void nodes_end(void);
/* Runs the waiting jobs. Only the objects that they work on still exist. */
void jobs_end(void);
uint32_t node_of(const struct comms *s);
/* Loses the node. Each other node learns of the loss later, at its own time. */
void node_lose(uint32_t node);
/* Restarts a lost standalone daemon. */
void node_restart(uint32_t node);
uint64_t node_incarnation(uint32_t node);
void trace(int node, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- scheduler.c ---- */

void scheduler_begin(struct scheduler *x, uint32_t node);
void scheduler_end(struct scheduler *x);
/* May fail one of the running epochs that span nodes. */
void scheduler_fail_one(struct scheduler *x);

/* ---- workers.c ---- */

void workers_begin(void);
void workers_end(void);
void worker_start(struct gpu *g);
void worker_lose(struct gpu *g);
/* Ends the worker along with its node: its pending calls fail. */
void worker_end(struct gpu *g);
/* Starts the init with that number, whose turn it is. */
void worker_launch_init(struct gpu *g, uint64_t number);

/* ---- trainers.c ---- */

enum asking { ASK_JOIN = 1, ASK_SPLIT, ASK_PLAN, ASK_LEAVE, ASK_DROP, ASK_CANCEL };

struct request {
	struct request *prev, *next;
	enum asking kind;
	uint32_t request_id, handle;
	uint8_t id[NCCLSVC_ID_BYTES]; /* of the communicator */
	uint32_t nranks, rank, epoch;
	bool cuda;
	int32_t colour, key;
	uint64_t since, deadline; /* 0: none */
};

/* A trainer's view of one communicator. */
struct belief {
	bool held, broken, cuda;
	uint32_t plan; /* handle; 0: none */
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank, epoch;
};

#define HANDLES_MAX 128

struct trainer {
	struct session session;
	uint32_t node, place;
	bool dying;
	bool fail_fast; /* its JOINs carry SVC_JOIN_FAIL_FAST */
	uint32_t last_request_id;
	struct request *requests;
	struct belief beliefs[HANDLES_MAX]; /* by handle */
};

/* The communicators that trainers create themselves. */
struct wanted {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t gathers; /* the node that the id names */
	uint32_t nranks;
	bool cuda;
	uint32_t home_node[RANKS_MAX], home_place[RANKS_MAX];
};
extern struct wanted wanted[IDS_MAX];
extern uint32_t nwanted;

void trainers_begin(void);
void trainers_end(void);
struct trainer *trainer_start(uint32_t node, uint32_t place);
void trainer_die(struct trainer *t);
void trainer_join(struct trainer *t, const uint8_t *id, uint32_t nranks, uint32_t rank, bool cuda,
		  uint64_t timeout);
/* Cancels the JOIN r. */
void trainer_cancel(struct trainer *t, const struct request *r);
void trainer_leave(struct trainer *t, uint32_t handle);
void trainer_split(struct trainer *t, uint32_t handle, int32_t colour, int32_t key,
		   uint64_t timeout);
void trainer_commit(struct trainer *t, uint32_t handle, bool wrong, uint64_t timeout);
void trainer_drop(struct trainer *t, uint32_t handle);
struct request *trainer_request(const struct trainer *t, enum asking kind, const uint8_t *id,
				uint32_t rank);
/* Returns the trainer that holds the rank or waits for it, or NULL. Sets *b to NULL if the
 * trainer only waits. */
struct trainer *holder_of(const uint8_t *id, uint32_t rank, struct belief **b);
/* Returns the trainer with that pid; NULL: it is gone. */
struct trainer *trainer_of_pid(int32_t pid);
/* Returns whether the trainer believes that it is a member of that epoch. */
bool trainer_is_in(const struct trainer *t, const uint8_t *id, uint32_t epoch, uint32_t rank);

/* ---- check.c ---- */

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check_begin(void);
void check_end(void);
void check_start(uint32_t node, const struct command *c);
/* The node knows nothing of earlier epochs. */
void check_restarted(uint32_t node);
void check_joined(const struct trainer *t, const struct request *r, const struct svc_join_reply *j);
void check_part(const struct trainer *t, const struct request *r, const struct svc_join_reply *j);
void check_event(const struct trainer *t, const struct belief *b, const struct svc_event_comm *e);
void check_error(const struct trainer *t, const struct request *r, int result, const char *text);
void check_plan(uint32_t node, const struct communicator *m, const struct plan *p);
void check_creation(uint32_t node, const struct creation *k);
/* Checks, at rest, that each pending request still has a reason to wait. */
void check_rest(void);
/* Checks that nothing is left after all trainers have gone and all retained state has expired. */
void check_empty(void);

/* ---- schedule.c ---- */

struct profile {
	uint64_t delay; /* maximum delay between nodes */
	uint64_t keep;	/* seconds */
};
extern struct profile profile;

/* Ends all trainers. */
void everybody_goes(void);
/* schedule_begin sets up everything except the nodes (see nodes_begin); schedule_end tears
 * everything down. */
void schedule_begin(uint64_t seed);
void schedule_end(void);

/* ---- scenarios.c ---- */

int scenarios_run(scenario_failed *say);

#endif
