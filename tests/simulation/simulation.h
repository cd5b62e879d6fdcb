/* SPDX-License-Identifier: Apache-2.0
 *
 * Several nodes in one thread, in virtual time. On each node, the daemon's own communicators
 * (daemon/comm), coordinators (daemon/coord) and NCCL communicators (daemon/gpu/nccl_comm.c) run.
 * What lies below them is replaced: the clock and the loop (time.c, loop.c), the connections
 * between nodes (channel.c), sessions (trainers.c), the scheduler (scheduler.c) and workers with
 * NCCL (workers.c). A schedule is what one seed makes of all that (schedule.c); check.c says
 * whether what came of it is right.
 */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comms.h"
#include "comm/communicator.h"
#include "schedules.h"

#define NODES_MAX    6
#define GPUS_HERE    3
#define TRAINERS_MAX 5 /* of a node, at a time */
#define RANKS_MAX    6
#define IDS_MAX	     4

/* ---- channel.c ---- */

/* What the channel does wrong on purpose. */
enum plant {
	PLANT_NONE,
	PLANT_LOSE,
	PLANT_TWICE,
	PLANT_OVERTAKE,
	PLANT_JOIN_EPOCH,
	PLANT_START_EPOCH,
	PLANT_START_MEMBER,
	PLANT_RESULT,
	PLANT_UNIQUE_ID,
	PLANT_BREAK_RANK,
	PLANTS,
};

void channel_begin(void);
void channel_end(void);
/* A START of that communicator is on its way there. */
bool channel_brings_start(uint32_t node, const uint8_t *id);
void channel_lose(uint32_t node);

/* ---- node.c ---- */

struct scheduler {
	struct executor executor; /* first */
	uint32_t node;
	struct running *running; /* epochs that it has, by slot */
	struct pending_creation *creations;
};

struct node_state {
	bool alive;
	struct loop loop;
	uint64_t timer; /* which of the loop's timers counts */
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
extern struct config config;
extern bool nodes_ended; /* what happens while they are freed does not count */

void nodes_begin(uint32_t n);
void nodes_end(void);
/* Runs those that wait: of what they work on, nothing is left but that itself. */
void jobs_end(void);
uint32_t node_of(const struct comms *s);
/* Loses it. The others hear of that later, each at its own time. */
void node_lose(uint32_t node);
void trace(int node, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- scheduler.c ---- */

void scheduler_begin(struct scheduler *x, uint32_t node);
void scheduler_end(struct scheduler *x);
/* An epoch across nodes fails in the scheduler, if one runs. */
void scheduler_fail_one(struct scheduler *x);

/* ---- workers.c ---- */

void workers_begin(void);
void workers_end(void);
void worker_start(struct gpu *g);
void worker_lose(struct gpu *g);
/* With its node: whatever it was asked fails. */
void worker_end(struct gpu *g);
/* It is its turn. */
void worker_launch_init(struct gpu *g, uint64_t number);

/* ---- trainers.c ---- */

enum asking { ASK_JOIN = 1, ASK_SPLIT, ASK_PLAN, ASK_LEAVE, ASK_DROP, ASK_CANCEL };

struct request {
	struct request *prev, *next;
	enum asking kind;
	uint32_t serial, handle;
	uint8_t id[NCCLSVC_ID_BYTES]; /* of the communicator */
	uint32_t nranks, rank, epoch;
	bool cuda;
	int32_t colour, key;
	uint64_t since, deadline; /* 0: none */
};

/* What a trainer believes of a communicator. */
struct belief {
	bool held, broken, cuda;
	uint32_t plan; /* handle; 0: none */
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank, epoch;
};

#define HANDLES_MAX 32

struct trainer {
	struct client client;
	uint32_t node, place;
	bool dying;
	bool fail_fast; /* its JOINs are SVC_JOIN_FAIL_FAST */
	uint32_t last_serial;
	struct request *requests;
	struct belief beliefs[HANDLES_MAX]; /* by handle */
};

/* The communicators that trainers make by themselves. */
struct wanted {
	uint8_t id[NCCLSVC_ID_BYTES];
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
/* Its JOIN. */
void trainer_cancel(struct trainer *t, const struct request *r);
void trainer_leave(struct trainer *t, uint32_t handle);
void trainer_split(struct trainer *t, uint32_t handle, int32_t colour, int32_t key,
		   uint64_t timeout);
void trainer_commit(struct trainer *t, uint32_t handle, bool wrong, uint64_t timeout);
void trainer_drop(struct trainer *t, uint32_t handle);
struct request *trainer_request(const struct trainer *t, enum asking kind, const uint8_t *id,
				uint32_t rank);
/* Whoever holds that rank, or waits for it; NULL: nobody. *b: NULL if it only waits. */
struct trainer *holder_of(const uint8_t *id, uint32_t rank, struct belief **b);
/* By its pid; NULL: it is gone. */
struct trainer *trainer_of_pid(int32_t pid);
/* It has a part in that epoch, as far as it knows. */
bool trainer_is_in(const struct trainer *t, const uint8_t *id, uint32_t epoch, uint32_t rank);

/* ---- check.c ---- */

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check_begin(void);
void check_end(void);
void check_start(uint32_t node, const struct command *c);
void check_joined(const struct trainer *t, const struct request *r, const struct svc_join_reply *j);
void check_part(const struct trainer *t, const struct request *r, const struct svc_join_reply *j);
void check_event(const struct trainer *t, const struct belief *b, const struct svc_event_comm *e);
void check_error(const struct trainer *t, const struct request *r, int result, const char *text);
void check_plan(uint32_t node, const struct communicator *m, const struct plan *p);
void check_creation(uint32_t node, const struct creation *k);
/* At rest: who still waits, and may? */
void check_rest(void);
/* Everybody has gone, and everything that is kept for a while has been forgotten. */
void check_empty(void);

/* ---- schedule.c ---- */

struct profile {
	uint64_t delay; /* between nodes, at most */
	uint64_t keep;	/* seconds */
};
extern struct profile profile;

/* All trainers end. */
void everybody_goes(void);
/* All but nodes_begin; and the end of all. */
void schedule_begin(uint64_t seed);
void schedule_end(void);

/* ---- scenarios.c ---- */

int scenarios_run(scenario_failed *say);

#endif
