/* SPDX-License-Identifier: Apache-2.0
 *
 * What one node decides for all: state machines that know neither sockets nor clocks nor clients.
 * Messages come in, from any node, and go out through coord_ops; nothing else happens. So a test
 * runs as many nodes as it likes, in one thread, and loses, delays and reorders what it likes.
 *
 * - rendezvous.c: where the members of a communicator gather: JOIN. The id decides which node it
 *   is, so all find it. When that is lost, all ask the next one again, and tell it of the epochs
 *   that run.
 * - takeover.c: JOINs that come to the next one before it knows of those epochs.
 * - coordinator.c: of an epoch: rank 0's node, which START names.
 * - split.c: SPLIT: which member is in which part.
 * - plans.c: the members' plans: gathered, matched (plan_match.c), in force or not.
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
struct kept_join;
struct loop_job;
struct lost_node;
struct rendezvous;
struct shared_comm;

/* Filled in by whoever runs it. Called from within the functions below, in the same thread. */
struct coord_ops {
	/* To that node, perhaps this one. The message is copied, and handled later: never from
	 * within this call. Order holds between two nodes. */
	void (*send)(void *arg, uint32_t node, enum control_kind kind, const void *body,
		     size_t size);
	/* Its daemon has ended: nothing comes from it any more. */
	bool (*gone)(void *arg, uint32_t node);
	/* Its host's name, for people. */
	const char *(*host)(void *arg, uint32_t node);
	uint64_t (*now_ns)(void *arg);
	/* coord_expire is to be called by then. */
	void (*deadline)(void *arg, uint64_t at_ns);
	/* Returns 0, or -1: there is nothing random to be had. */
	int (*random_id)(void *arg, uint8_t id[NCCLSVC_ID_BYTES]);
	/* Has this node make an id of NCCL's, by its GPU; nccl_pool_id follows, perhaps at once. */
	void (*make_nccl_id)(void *arg, const uint8_t *id, uint32_t epoch, int32_t device);
	/* Has it run and done: at once, or later (base/loop.h). */
	void (*run_job)(void *arg, struct loop_job *job, uint64_t steps);
	/* What inspection calls a communicator of which this node has no member. */
	uint64_t (*new_uid)(void *arg);
};

struct coord {
	const struct coord_ops *ops;
	void *arg; /* the functions' */
	uint32_t me, n;
	uint64_t keep_ns; /* what nobody uses is forgotten after that */
	/* The machines': */
	struct rendezvous *rendezvous; /* of communicators whose JOINs come here */
	struct rendezvous *idle;       /* those that nobody holds, the oldest first */
	struct idle_user *idle_users;  /* whose they are */
	struct lost_node *lost;
	struct kept_join *kept_joins;	  /* until all nodes have told of the epochs that run */
	struct coordinator *coordinators; /* of epochs whose rank 0 is here */
	struct coordinator *unstarted;	  /* those whose START has not come, the oldest first */
	struct barrier *barriers;
	struct shared_comm *shared;
	uint64_t nshared, internode_comms, plans; /* made so far */
};

void coord_init(struct coord *c, const struct coord_ops *ops, void *arg, uint32_t me, uint32_t n);
void coord_free(struct coord *c);
/* Has a message of that kind the length, and what its length depends on, that it should have? Also
 * of those that coord_handle does not take. */
bool coord_fits(const struct coord *c, enum control_kind kind, const void *body, size_t size);
/* A message that fits came. False: it is for the members' nodes, or for them as well. */
bool coord_handle(struct coord *c, uint32_t from, enum control_kind kind, const void *body);
/* The same in two parts, of BREAK or LEFT that has overtaken its epoch's START, which another node
 * sends: at once, and after START. */
void coord_handle_early(struct coord *c, uint32_t from, enum control_kind kind, const void *body);
void coord_handle_started(struct coord *c, enum control_kind kind, const void *body);
void coord_node_lost(struct coord *c, uint32_t node);
/* Forgets what is idle; returns when to call next, 0: whenever something happens. */
uint64_t coord_expire(struct coord *c);

/* For ops->random_id. */
int coord_random_id(uint8_t id[NCCLSVC_ID_BYTES]);

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

static inline uint64_t coord_now(const struct coord *c)
{
	return c->ops->now_ns(c->arg);
}

#endif
