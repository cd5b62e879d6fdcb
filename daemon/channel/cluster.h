/* SPDX-License-Identifier: Apache-2.0
 *
 * The other nodes' daemons. One daemon runs on each node; all are started together by MPI, and find
 * each other through it. Then each keeps a TCP connection to each other one:
 *
 *   start.c    MPI, and what the nodes tell each other once
 *   link.c     the connections
 *
 * Each node sends a beat to each other one, so that a node that stands still is seen. That ends
 * nothing: a connection's end, or a deadline, does.
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

/* What each node tells all others when they start. */
struct node_info {
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
	struct node_info info;
	struct link *link; /* NULL: gone, or this node itself */
	bool gone;
	uint64_t lost_ns;
	uint64_t heard_ns; /* when its last message came */
	bool left;	   /* it said that it would go */
};

/* What the layers above do. */
struct cluster_callbacks {
	/* A message came from another node. */
	void (*message)(void *owner, uint32_t from, unsigned kind, const void *body, size_t size);
	void (*node_lost)(void *owner, uint32_t node);
};

struct cluster {
	const struct cluster_callbacks *callbacks; /* NULL until their owner is there */
	void *owner;
	uv_loop_t *loop;
	void *module;
	const struct mpi_api *mpi;
	struct mpi_place place;
	uint32_t me, n;
	struct node *nodes; /* [n] */
	uint32_t connected;
	uint64_t sent;	    /* messages, but for signs of life */
	struct link *links; /* also of those that have not said who they are */
	uv_tcp_t listener;
	uv_timer_t timer; /* of the start's deadline, then of this node's beats */
	uint64_t beat_ns; /* the last */
	uv_async_t kept;  /* there is a message of those, or a connection to be lost */
	struct kept_message *kept_messages;
	unsigned handles; /* libuv's, still open */
	bool closing, late;
};

/* 1: this is one of several daemons, or was asked to be; 0: it is alone; -1 after a message was
 * logged: it is one of several that have no way to meet. */
int cluster_wanted(const struct config *config, char *const envp[]);
/* This daemon is to be alone: it was configured so, or a launcher has started it alone. */
bool cluster_unwanted(const struct config *config, char *const envp[]);
/* Meets the others, which takes as long as they need to start; NULL after a message was logged. */
struct cluster *cluster_create(uv_loop_t *loop, const struct config *config, char *const envp[]);
/* What the others have said so far is handled, and what they say from now on. */
void cluster_attach(struct cluster *c, const struct cluster_callbacks *callbacks, void *owner);
/* Tells the others, and lets the connections go; the loop must run until cluster_closed. */
void cluster_close(struct cluster *c);
bool cluster_closed(const struct cluster *c);
/* After the engine's end: ends MPI. If others go on, which keeps MPI from ending, the process exits
 * with this code. */
void cluster_destroy(struct cluster *c, int code);
/* Puts the node's number where a path says %r. Returns 0, or -1 if it gets too long. */
int cluster_fill_path(const struct cluster *c, char *path, size_t size);

#endif
