/* SPDX-License-Identifier: Apache-2.0
 *
 * The other nodes' daemons. One daemon runs on each node; all are started together by MPI, and find
 * each other through it. Then each keeps a TCP connection to each other one:
 *
 *   start.c    MPI, and what the nodes tell each other once
 *   link.c     the connections
 *   home.c     a communicator's home: the node that gathers its members; home_plan.c: their plans
 *   remote.c   what this node tells a home, and what others tell this node; remote_plan.c: of plans
 *   registrar.c the node that knows the NCCL communicators across nodes
 *
 * A communicator's home is a node that its id decides. Every JOIN goes there, also where all
 * members are on one node; when all are there, the home tells the members' nodes, and they start
 * the epoch. The end of an epoch is told by the node on which it has its cause, to all others.
 *
 * The home gathers the members' plans, too, and matches them. Plans are committed in rounds: each
 * ends with one verdict, which the home tells all members' nodes. What was sent for a round that is
 * over when it comes is not heard: its node has failed it, as the verdict said.
 *
 * Each node sends a beat to each other one, so that a node that stands still is seen. That ends
 * nothing: a connection's end, or a deadline, does.
 *
 * GPUs of several nodes need an NCCL communicator, of which each node has a part. One node, the
 * registrar, is the lowest that lives. Each member's node tells it when it is ready for an epoch;
 * when all are, the registrar says which NCCL communicator they use: one from the pool, or a new
 * one, with the id that rank 0's node has made. A node gives its part back whole or broken; once
 * broken, all parts are. So a part is never used with parts of another one's. When the registrar
 * dies, so do the communicators that it knew: their numbers tell whose they were.
 */
#ifndef CHANNEL_CLUSTER_H
#define CHANNEL_CLUSTER_H

#include <uv.h>

#include "mpi_api.h"
#include "ncclsvc_types.h"

#define CLUSTER_NODES_MAX  1024
#define CLUSTER_KEY_BYTES  32
#define CLUSTER_HOST_BYTES 64

struct cluster;
struct config;
struct link;
struct loop;
struct server;

/* What each node tells all others when they start. */
struct node_card {
	uint32_t magic;
	uint16_t port;
	uint16_t reserved;
	int32_t pid;
	uint32_t ranks; /* of the world, there */
	char address[CLUSTER_HOST_BYTES];
	char host[CLUSTER_HOST_BYTES];
	char version[NCCLSVC_NAME_BYTES];
	uint8_t key[CLUSTER_KEY_BYTES];	 /* node 0's counts */
	uint8_t world[NCCLSVC_ID_BYTES]; /* the same */
};

struct node {
	struct node_card card;
	struct link *link; /* NULL: gone, or this node itself */
	bool gone;
	uint64_t lost_ns;
	uint64_t heard_ns; /* when its last message came */
	bool left;	   /* it said that it would go */
};

/* What the layers above do. */
struct cluster_callbacks {
	/* A message came, from another node or from this one itself. */
	void (*message)(struct cluster *c, uint32_t from, unsigned kind, const void *body,
			size_t size);
	void (*node_lost)(struct cluster *c, uint32_t node);
	/* A new number, by which inspection knows a communicator. */
	uint64_t (*number)(struct cluster *c);
};

struct cluster {
	const struct cluster_callbacks *callbacks; /* NULL until the server is there, as the next
						      two */
	struct server *server;
	struct loop *deadlines;
	uv_loop_t *loop;
	void *module;
	const struct mpi_api *mpi;
	struct mpi_place place;
	uint32_t me, n;
	struct node *nodes; /* [n] */
	uint32_t connected;
	struct link *links; /* also of those that have not said who they are */
	uv_tcp_t listener;
	uv_timer_t timer; /* of the start's deadline, then of this node's beats */
	uint64_t beat_ns; /* the last */
	uv_async_t own;	  /* messages to this node itself */
	struct own_message *own_messages;
	unsigned handles; /* libuv's, still open */
	bool closing, late;
	struct gathering *gatherings; /* of which this node is the home */
	struct muster *musters;	      /* the registrar's, as the next two */
	struct joint *joints;
	uint64_t njoints; /* made so far */
	uint64_t spans;	  /* started so far */
	uint64_t plans;	  /* the same */
};

/* 1: this is one of several daemons, or was asked to be; 0: it is alone; -1 after a message was
 * logged: it is one of several that have no way to meet. */
int cluster_wanted(const struct config *config, char *const envp[]);
/* Meets the others, which takes as long as they need to start; NULL after a message was logged. */
struct cluster *cluster_create(uv_loop_t *loop, const struct config *config, char *const envp[]);
/* The server is there: what the others have said so far is handled. */
void cluster_attach(struct cluster *c, const struct cluster_callbacks *callbacks, struct server *s,
		    struct loop *deadlines);
/* Tells the others, and lets the connections go; the loop must run until cluster_closed. */
void cluster_close(struct cluster *c);
bool cluster_closed(const struct cluster *c);
/* After the engine's end: ends MPI. If others go on, which keeps MPI from ending, the process exits
 * with this code. */
void cluster_destroy(struct cluster *c, int code);
/* Puts the node's number where a path says %r. Returns 0, or -1 if it gets too long. */
int cluster_fill_path(const struct cluster *c, char *path, size_t size);

#endif
