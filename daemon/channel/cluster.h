/* SPDX-License-Identifier: Apache-2.0
 *
 * The other nodes' daemons, and the connections to them.
 *
 *   nodes.c   the table of nodes. A node's number is its place there, and means nothing elsewhere:
 *             messages that name nodes are translated on their way (link.c).
 *   frames.c  one connection: frames, in TLS
 *   accept.c  incoming connections, until they identify themselves
 *   link.c    the connections. A daemon connects to another when it has something to say to it, and
 *             sends only over connections that it has opened.
 *   beats.c   keep-alives, and connections that are idle or late
 *   open.c    a standalone daemon, which connects to others by itself
 *   start.c   daemons that mpirun starts together: they find each other through MPI, are all
 *             connected from the start, and have the same numbers on all nodes
 *
 * Each node sends keep-alives to those that it is connected to, so that a stalled node is noticed.
 * A missing keep-alive by itself ends nothing; the end of a connection or a deadline does.
 */
#ifndef CHANNEL_CLUSTER_H
#define CHANNEL_CLUSTER_H

#include <uv.h>

#include "mpi_start.h"
#include "proto/ncclsvc_types.h"

#define CLUSTER_NODES_MAX  CARRIER_NODES
#define CLUSTER_KEY_BYTES  32
#define CLUSTER_HOST_BYTES 64
#define CLUSTER_NO_NODE	   UINT32_MAX

struct cluster;
struct config;
struct link;
struct tls_site;

struct node_info {
	uint32_t magic;
	uint16_t port;
	uint16_t reserved;
	int32_t pid;
	uint32_t ranks;	      /* of the world, on this node */
	uint64_t incarnation; /* random: a daemon that is started again is another one */
	char address[CLUSTER_HOST_BYTES];
	char host[CLUSTER_HOST_BYTES];
	char version[NCCLSVC_NAME_BYTES];
	/* Where mpirun starts the daemons: */
	uint8_t key[CLUSTER_KEY_BYTES];	 /* node 0's is used */
	uint8_t world[NCCLSVC_ID_BYTES]; /* likewise */
};

struct node {
	struct node_info info; /* without a connection, only the address and the port are known */
	char shown[CLUSTER_HOST_BYTES + 80]; /* for people */
	struct link *out;     /* opened by this node, which sends over it; NULL: none */
	struct link *in;      /* opened by the other node */
	bool connected;	      /* this node's carrier reaches it */
	bool carried;	      /* and vice versa: messages arrive in both directions */
	bool gone;	      /* the last connection was lost, and none is wanted yet */
	bool left;	      /* it announced that it exits */
	bool greeted;	      /* a HELLO has come since it was last lost */
	uint32_t attempts;    /* to connect, failed since its last HELLO */
	uint32_t asker;	      /* an account's number, or 0: see cluster_note_asker */
	uint32_t here, there; /* labels: see struct carrier */
	uint32_t protocol;    /* the highest version that both nodes speak: see link.h */
	uint32_t *numbers; /* [CLUSTER_NODES_MAX]: that node's numbers, in this node's; or NULL */
	uint8_t announced[CLUSTER_NODES_MAX / 8]; /* this node's numbers that it knows */
	uint64_t lost_ns;
	uint64_t last_seen_ns; /* when its last message arrived */
	uint64_t used_ns;      /* when this node last sent it anything but keep-alives */
};

/* Callbacks to the layers above. */
struct cluster_callbacks {
	/* A message came from another node. */
	void (*message)(void *owner, uint32_t from, unsigned kind, const void *body, size_t size);
	/* returns: its daemon, or only the connection, has ended: it may be back soon. */
	void (*node_lost)(void *owner, uint32_t node, bool returns);
	/* This node and its carrier can reach one more node. */
	void (*node_ready)(void *owner);
	/* Makes the carrier reach the node; cluster_carried follows, later. */
	void (*carry)(void *owner, uint32_t node, const void *address, size_t size, uint32_t here,
		      uint32_t there);
	/* Does any communicator have members there, or gather there? */
	bool (*needs)(void *owner, uint32_t node);
	/* Calls visit for each number of a node in a message. */
	void (*visit_nodes)(unsigned kind, void *body, size_t size,
			    void (*visit)(void *arg, uint32_t *node), void *arg);
};

struct cluster {
	const struct cluster_callbacks *callbacks; /* NULL until their owner exists */
	void *owner;
	uv_loop_t *loop;
	void *module;
	const struct carrier *carrier;
	const struct mpi_start *mpi; /* NULL: a standalone daemon, which mpirun did not start */
	struct mpi_place place;
	uint32_t me, n;
	uint32_t protocol_min, protocol_max; /* what this daemon speaks: see link.h */
	struct node *nodes; /* [n]; room for CLUSTER_NODES_MAX in a standalone daemon */
	struct tls_site *site;
	uint64_t sent;	    /* messages, without keep-alives */
	uint64_t strangers; /* connections that did not prove to be another daemon's */
	struct link *links; /* including those not yet identified */
	uv_tcp_t listener;
	uv_timer_t timer; /* for the start's deadline, then for this node's keep-alives */
	uint64_t beat_ns; /* the last keep-alive */
	uv_async_t kept;  /* a kept message or a lost connection is to be handled */
	struct kept_message *kept_messages;
	bool closing, late;
	bool unaccepted; /* no memory to accept a connection: to be tried again */
};

/* 1: this is one of several daemons, or is configured to be; 0: it is alone; -1, after logging: it
 * is one of several that cannot meet. */
int cluster_wanted(const struct config *config, char *const envp[]);
/* Must this daemon be alone, by its configuration or because a launcher has started only one? */
bool cluster_unwanted(const struct config *config, char *const envp[]);
/* Meets the other daemons, however long they take to start; NULL after logging an error. */
struct cluster *cluster_create(uv_loop_t *loop, const struct config *config, char *const envp[]);
/* Is the daemon configured to serve communicators with ranks on other nodes by itself? */
bool cluster_serves(const struct config *config);
/* Listens for other nodes' daemons; NULL after logging an error. */
struct cluster *cluster_open(uv_loop_t *loop, const struct config *config);
/* Reads the keys or certificates again, for connections from now on. Logs. */
void cluster_reload(struct cluster *c, const struct config *config);
/* From now on, messages from the other nodes are handled, including those kept so far. */
void cluster_attach(struct cluster *c, const struct cluster_callbacks *callbacks, void *owner);
/* Tells the others, and closes the connections; the loop must then run until it ends. */
void cluster_close(struct cluster *c);
/* Ends the carrier, after the scheduler's end. If other daemons continue, which would block MPI's
 * end, the process exits with this code. */
void cluster_destroy(struct cluster *c, int code);
/* Replaces %r in a path with the node's number. Returns 0, or -1 if the path gets too long. */
int cluster_fill_path(const struct cluster *c, char *path, size_t size);

/* ---- nodes.c ---- */

/* The node at that address, which gets a number if it has none; CLUSTER_NO_NODE: no room. */
uint32_t cluster_node_at(struct cluster *c, const char *address, uint16_t port);
/* Where the members of the communicator with that id gather; CLUSTER_NO_NODE: no room for it. */
uint32_t cluster_rendezvous(struct cluster *c, const uint8_t *id);
/* Do its members gather on that node, or did they until it was lost? Gives out no numbers. */
bool cluster_gathers(const struct cluster *c, uint32_t node, const uint8_t *id);
/* Do they gather on this node, or on one that has a number? */
bool cluster_knows(const struct cluster *c, const uint8_t *id);
/* The node where they gather, if it has a number but no connection; else CLUSTER_NO_NODE. */
uint32_t cluster_unreached(const struct cluster *c, const uint8_t *id);
/* Notes that the node where these members gather got its number for a message of this account that
 * expects no answer. */
void cluster_note_asker(struct cluster *c, const uint8_t *id, uint32_t account);
/* The number of such nodes of the account that have not been reached yet. */
uint32_t cluster_asked_for(const struct cluster *c, uint32_t account);
/* A new random id whose members gather on this node; NULL: a daemon without other nodes. Returns 0,
 * or -1 if no random numbers are available. */
int cluster_new_id(const struct cluster *c, uint8_t id[NCCLSVC_ID_BYTES]);
/* The members of that id are to gather on this node. */
void cluster_name_in(const struct cluster *c, uint8_t id[NCCLSVC_ID_BYTES]);
/* Do all nodes know each other from the start, by the same numbers? */
bool cluster_is_together(const struct cluster *c);
/* What is known of the node has changed: updates its name for people. */
void cluster_show(const struct cluster *c, struct node *n);
/* A lost node may be back: connects to it when there is something to send. */
void cluster_revive(struct cluster *c, uint32_t node);
/* Its IPv4 address, then 16 bits of its port; 0: it has none, or all nodes know its number. */
uint64_t cluster_ipv4(const struct cluster *c, uint32_t node);
/* All nodes' numbers are less. */
uint32_t cluster_room(const struct cluster *c);

/* ---- link.c ---- */

/* Can this node and its carrier reach that node? If not yet, connects to it. */
bool cluster_reaches(struct cluster *c, uint32_t node);
/* The answer to the callback `carry`, with its label. A connection may also fail later. */
void cluster_carried(struct cluster *c, uint32_t node, uint32_t here, bool failed);

#endif
