/* SPDX-License-Identifier: Apache-2.0
 *
 * Decisions that one node makes for all: state machines without sockets, clocks or clients.
 * Messages come in from any node and go out through coord_ops, with no other effects. So a test can
 * run any number of nodes in one thread, and lose, delay and reorder messages.
 *
 * - rendezvous.c: where the members of a communicator gather (JOIN). The id names the node. When it
 *   is lost, running epochs go on, but nobody can join any more.
 * - coordinator.c: an epoch's coordinator, on rank 0's node, which START names.
 * - split.c: SPLIT, which assigns members to subcommunicators.
 * - plans.c: gathers the members' plans, matches them (plan_match.c), and puts them in force.
 * - nccl_pool.c: NCCL communicators across nodes.
 */
#ifndef COORD_COORD_H
#define COORD_COORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "messages.h"

struct barrier;
struct coordinator;
struct idle_user;
struct loop_job;
struct rendezvous;
struct shared_comm;

/* Filled in by the owner. Called from within the functions below, in the same thread. */
struct coord_ops {
	/* Sends to a node, perhaps this one. The message is copied and handled later, never from
	 * within this call. Messages between two nodes stay in order. */
	void (*send)(void *arg, uint32_t node, enum control_kind kind, const void *body,
		     size_t size);
	/* The node where the members of the communicator with that id gather. */
	uint32_t (*rendezvous)(void *arg, const uint8_t *id);
	/* Has its daemon ended, so that no more messages come from it? */
	bool (*gone)(void *arg, uint32_t node);
	/* Its host name, for people. */
	const char *(*host)(void *arg, uint32_t node);
	uint64_t (*now_ns)(void *arg);
	/* Schedules a call of coord_expire by that time. */
	void (*deadline)(void *arg, uint64_t at_ns);
	/* Returns 0, or -1 if no random numbers are available. */
	int (*random_id)(void *arg, uint8_t id[NCCLSVC_ID_BYTES]);
	/* Makes this node create an NCCL id on a GPU; nccl_pool_id follows, perhaps at once. */
	void (*make_nccl_id)(void *arg, const uint8_t *id, uint32_t epoch, int32_t device);
	/* Runs the job and calls done, at once or later (base/loop.h). */
	void (*run_job)(void *arg, struct loop_job *job, uint64_t steps);
	/* The name in inspection of a communicator that has no member on this node. */
	uint64_t (*new_uid)(void *arg);
};

struct coord {
	const struct coord_ops *ops;
	void *arg; /* argument of the functions */
	uint32_t me, n;
	bool together;	     /* mpirun has started the daemons: all of them lose a node together */
	uint64_t keep_ns;    /* how long unused state is kept */
	uint64_t release_ns; /* likewise, unused NCCL communicators, if less; 0: as keep_ns */
	/* State of the state machines: */
	struct rendezvous *rendezvous;	  /* of communicators whose JOINs come to this node */
	struct rendezvous *idle;	  /* those without members, the oldest first */
	struct idle_user *idle_users;	  /* the owners of these */
	struct coordinator *coordinators; /* of epochs whose rank 0 is on this node */
	struct coordinator *unstarted;	  /* those whose START has not come, the oldest first */
	struct barrier *barriers;
	struct shared_comm *shared;
	uint64_t plans; /* created so far */
	uint64_t names; /* last name given to an epoch or NCCL communicator; unique across nodes */
};

void coord_init(struct coord *c, const struct coord_ops *ops, void *arg, uint32_t me, uint32_t n);
void coord_free(struct coord *c);
/* Does a message of that kind have the right length, including the fields that determine it? Also
 * covers kinds that coord_handle does not take. */
bool coord_fits(const struct coord *c, enum control_kind kind, const void *body, size_t size);
/* Handles a valid message. False: the members' nodes must handle it, too, or alone. */
bool coord_handle(struct coord *c, uint32_t from, enum control_kind kind, const void *body);
/* Handles a BREAK or LEFT that has overtaken the START of its epoch, which another node sends, in
 * two parts: at once, and after START. */
void coord_handle_early(struct coord *c, uint32_t from, enum control_kind kind, const void *body);
void coord_handle_started(struct coord *c, enum control_kind kind, const void *body);
/* Has START come? It is remembered as long as the epoch lasts, even if no member here is left. */
bool coord_has_started(const struct coord *c, const uint8_t *id, uint32_t epoch);
void coord_node_lost(struct coord *c, uint32_t node);
/* Forgets idle state; returns when to call again, 0: at the next event. */
uint64_t coord_expire(struct coord *c);

/* Why nobody can join a communicator whose rendezvous is lost. */
void coord_lost_text(const struct coord *c, uint32_t node, const char *label,
		     char text[SVC_TEXT_BYTES]);

static inline void coord_send(struct coord *c, uint32_t node, enum control_kind kind,
			      const void *body, size_t size)
{
	c->ops->send(c->arg, node, kind, body, size);
}

static inline bool coord_is_gone(const struct coord *c, uint32_t node)
{
	return c->ops->gone(c->arg, node);
}

static inline const char *coord_host(const struct coord *c, uint32_t node)
{
	return c->ops->host(c->arg, node);
}

static inline uint32_t coord_rendezvous(const struct coord *c, const uint8_t *id)
{
	return c->ops->rendezvous(c->arg, id);
}

static inline uint64_t coord_now(const struct coord *c)
{
	return c->ops->now_ns(c->arg);
}

#endif
