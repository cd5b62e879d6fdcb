/* SPDX-License-Identifier: Apache-2.0
 *
 * The other nodes' daemons. One daemon runs on each node. MPI starts all of them together, and they
 * find each other through MPI. Then each keeps a TCP connection to every other one:
 *
 *   start.c    MPI, and the first exchange between nodes
 *   link.c     the connections
 *
 * Each node sends keep-alives to all others, so that a stalled node is noticed. A missing
 * keep-alive by itself ends nothing; the end of a connection or a deadline does.
 */
#ifndef CHANNEL_CLUSTER_H
#define CHANNEL_CLUSTER_H

#include <uv.h>

#include "mpi_api.h"
#include "proto/ncclsvc_types.h"

#define CLUSTER_NODES_MAX  1024
#define CLUSTER_KEY_BYTES  32
#define CLUSTER_HOST_BYTES 64

struct cluster;
struct config;
struct link;

/* Sent by each node to all others at the start. */
struct node_info {
	uint32_t magic;
	uint16_t port;
	uint16_t reserved;
	int32_t pid;
	uint32_t ranks; /* of the world, on this node */
	char address[CLUSTER_HOST_BYTES];
	char host[CLUSTER_HOST_BYTES];
	char version[NCCLSVC_NAME_BYTES];
	uint8_t key[CLUSTER_KEY_BYTES];	 /* node 0's is used */
	uint8_t world[NCCLSVC_ID_BYTES]; /* likewise */
};

struct node {
	struct node_info info;
	struct link *link; /* NULL: the node is gone, or is this one */
	bool gone;
	uint64_t lost_ns;
	uint64_t last_seen_ns; /* when its last message arrived */
	bool left;	       /* it announced that it exits */
};

/* Callbacks to the layers above. */
struct cluster_callbacks {
	/* A message came from another node. */
	void (*message)(void *owner, uint32_t from, unsigned kind, const void *body, size_t size);
	void (*node_lost)(void *owner, uint32_t node);
};

struct cluster {
	const struct cluster_callbacks *callbacks; /* NULL until their owner exists */
	void *owner;
	uv_loop_t *loop;
	void *module;
	const struct mpi_api *mpi;
	struct mpi_place place;
	uint32_t me, n;
	struct node *nodes; /* [n] */
	uint32_t connected;
	uint64_t sent;	    /* messages, without keep-alives */
	struct link *links; /* including those not yet identified */
	uv_tcp_t listener;
	uv_timer_t timer; /* for the start's deadline, then for this node's keep-alives */
	uint64_t beat_ns; /* the last keep-alive */
	uv_async_t kept;  /* a kept message or a lost connection is to be handled */
	struct kept_message *kept_messages;
	bool closing, late;
};

/* 1: this is one of several daemons, or is configured to be; 0: it is alone; -1, after logging: it
 * is one of several that cannot meet. */
int cluster_wanted(const struct config *config, char *const envp[]);
/* Must this daemon be alone, by its configuration or because a launcher has started only one? */
bool cluster_unwanted(const struct config *config, char *const envp[]);
/* Meets the other daemons, however long they take to start; NULL after logging an error. */
struct cluster *cluster_create(uv_loop_t *loop, const struct config *config, char *const envp[]);
/* From now on, messages from the other nodes are handled, including those kept so far. */
void cluster_attach(struct cluster *c, const struct cluster_callbacks *callbacks, void *owner);
/* Tells the others, and closes the connections; the loop must then run until it ends. */
void cluster_close(struct cluster *c);
/* Ends MPI, after the scheduler's end. If other daemons continue, which would block MPI's end, the
 * process exits with this code. */
void cluster_destroy(struct cluster *c, int code);
/* Replaces %r in a path with the node's number. Returns 0, or -1 if the path gets too long. */
int cluster_fill_path(const struct cluster *c, char *path, size_t size);

#endif
