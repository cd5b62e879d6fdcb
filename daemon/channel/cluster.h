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
#ifndef CLUSTER_CLUSTER_H
#define CLUSTER_CLUSTER_H

#include <limits.h>
#include <uthash.h>
#include <uv.h>

#include "mpi_api.h"
#include "ncclsvc_types.h"
#include "svc_limits.h"
#include "wire.h"

#define CLUSTER_NODES_MAX  1024
#define CLUSTER_KEY_BYTES  32
#define CLUSTER_HOST_BYTES 64

struct client;
struct communicator;
struct config;
struct link;
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

struct cluster {
	struct server *server; /* NULL until it is there */
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

/* ---- Messages ---- */

enum control_kind {
	CONTROL_HELLO = 1,    /* first, from both sides: struct control_hello */
	CONTROL_BYE,	      /* the daemon ends in good order */
	CONTROL_BEAT,	      /* -> all: this node is alive */
	CONTROL_JOIN,	      /* -> home */
	CONTROL_UNJOIN,	      /* -> home: it died, left, or its time is up */
	CONTROL_REFUSE,	      /* home -> node: a JOIN's error */
	CONTROL_REFUSED,      /* -> home: a JOIN's error of the node itself */
	CONTROL_START,	      /* home -> members' nodes */
	CONTROL_BREAK,	      /* -> members' nodes and home: the epoch is over */
	CONTROL_LEFT,	      /* -> the same: one member has left, the epoch goes on */
	CONTROL_SPLIT,	      /* -> home */
	CONTROL_SPLIT_LATE,   /* -> home: this SPLIT's time is up */
	CONTROL_SPLIT_FAILED, /* home -> members' nodes */
	CONTROL_PARTS,	      /* home -> members' nodes: who joins what now */
	CONTROL_NCCL_READY,   /* -> registrar: an epoch may begin here, or cannot */
	CONTROL_NCCL_ID,      /* registrar -> rank 0's node: make an id; and the answer */
	CONTROL_NCCL_USE,     /* registrar -> members' nodes: this communicator, or none */
	CONTROL_NCCL_FREE,    /* -> registrar: a part is used no more, or broken */
	CONTROL_NCCL_DROP,    /* registrar -> nodes: all parts go */
	CONTROL_PLAN,	      /* -> home: a member's, in pieces */
	CONTROL_PLAN_LATE,    /* -> home: its time is up */
	CONTROL_PLAN_VERDICT, /* home -> members' nodes: it is in force, or not */
	CONTROL_PLAN_LEFT,    /* -> home: a member is through with it */
	CONTROL_PLAN_GONE,    /* home -> members' nodes: that one is; it comes behind the verdict */
	CONTROL_END,
};

struct control_header {
	uint32_t length; /* of what follows */
	uint16_t kind;
	uint16_t reserved;
};

struct control_hello {
	uint32_t magic;
	uint32_t node;
	uint8_t key[CLUSTER_KEY_BYTES];
};

struct control_join {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank;
	int32_t pid;
	uint32_t uid, session;
	uint32_t cuda;
	uint32_t epoch; /* the last that this node knows of */
	uint32_t world, split;
	int32_t device;
	uint32_t transport; /* ncclsvc_transport, of GPUs' memory */
	uint32_t serial;    /* of the client's request */
	char label[NCCLSVC_NAME_BYTES];
};

enum unjoin { UNJOIN_GONE = 1, UNJOIN_LATE };

struct control_unjoin {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t rank, session;
	uint32_t why; /* enum unjoin */
	uint32_t reserved;
};

struct control_refuse {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t rank, session;
	int32_t result;
	int32_t pid;
	uint32_t serial; /* as in control_join */
	char text[SVC_TEXT_BYTES];
};

struct control_member {
	uint32_t node, session;
	int32_t pid;
	int32_t device;
};

struct control_start {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint64_t span;
	uint32_t epoch, nranks;
	struct control_member members[];
};

struct control_break {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result, rank, pid;
	int32_t node; /* that is gone, or does not answer; -1: none */
	uint32_t reserved;
};

struct control_split {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, rank;
	int32_t colour, key;
};

struct control_split_failed {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result;
	char text[SVC_TEXT_BYTES];
};

/* A rank of the communicator that is split: what it joins. */
struct control_part {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t nranks, rank; /* nranks 0: nothing */
};

struct control_parts {
	uint8_t id[NCCLSVC_ID_BYTES]; /* of the communicator that is split */
	uint32_t epoch, count;
	struct control_part_of {
		uint32_t rank; /* in the communicator that is split */
		uint32_t reserved;
		struct control_part part;
	} parts[];
};

/* Of the registrar, nodes talk about GPUs by node and index. */
struct control_gpu {
	uint32_t node;
	int32_t device;
};

struct control_nccl_ready {
	uint8_t id[NCCLSVC_ID_BYTES]; /* the communicator's, as in what follows */
	uint32_t epoch, nranks;
	int32_t result, rank; /* why it cannot begin, and because of whom (-1: nobody) */
	uint32_t again;	      /* it could before */
	uint32_t reserved;
	struct control_gpu gpus[]; /* by rank */
};

struct control_nccl_id {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result;
	uint8_t unique[NCCLSVC_ID_BYTES]; /* NCCL's */
};

struct control_nccl_use {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
	int32_t result, rank; /* as in control_nccl_ready */
	uint32_t fresh;	      /* it is to be made, with that id */
	uint64_t serial;      /* NCCL's communicator, on all nodes */
	uint8_t unique[NCCLSVC_ID_BYTES];
};

struct control_nccl_free {
	uint64_t serial;
	int32_t result, rank; /* why it is broken, and whose; 0: it is whole */
};

struct control_nccl_drop {
	uint64_t serial;
	int32_t result, rank, node; /* 0: nobody has used it for long */
	uint32_t reserved;
};

struct control_plan {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, round;
	uint32_t rank, groups, tasks;
	uint32_t at, count; /* of this piece */
	uint32_t reserved;
	struct svc_plan_task piece[];
};

#define CONTROL_PLAN_PIECE 4096 /* tasks */

/* Of LATE, LEFT and GONE. */
struct control_plan_member {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, rank;
	uint32_t round; /* of LEFT and GONE: the plan's number */
};

struct control_plan_verdict {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, round; /* from 0 */
	int32_t result;	       /* 0: the plan is in force, and its number is the round's plus 1 */
	uint32_t reserved;
	uint64_t uid;
	char text[SVC_TEXT_BYTES];
};

/* The longest body. */
#define CONTROL_BODY_MAX (SVC_HOST_RANKS_MAX * 160)
_Static_assert(sizeof(struct control_parts) + SVC_HOST_RANKS_MAX * sizeof(struct control_part_of) <=
		       CONTROL_BODY_MAX,
	       "every rank's part fits");

/* ---- start.c ---- */

/* 1: this is one of several daemons, or was asked to be; 0: it is alone; -1 after a message was
 * logged: it is one of several that have no way to meet. */
int cluster_wanted(const struct config *config, char *const envp[]);
/* Meets the others, which takes as long as they need to start; NULL after a message was logged. */
struct cluster *cluster_create(uv_loop_t *loop, const struct config *config, char *const envp[]);
/* The server is there: what the others have said so far is handled. */
void cluster_attach(struct cluster *c, struct server *s);
/* Tells the others, and lets the connections go; the loop must run until cluster_closed. */
void cluster_close(struct cluster *c);
bool cluster_closed(const struct cluster *c);
/* After the engine's end: ends MPI. If others go on, which keeps MPI from ending, the process exits
 * with this code. */
void cluster_destroy(struct cluster *c, int code);
/* Puts the node's number where a path says %r. Returns 0, or -1 if it gets too long. */
int cluster_fill_path(const struct cluster *c, char *path, size_t size);

/* ---- link.c ---- */

/* Returns 0, or -1 after a message was logged. */
int link_listen(struct cluster *c, const char *address);
/* Connects to all others, and waits for those that connect to this one. */
int link_all(struct cluster *c);
/* To this node too: then it is handled soon, not at once. */
void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size);
/* Handles what came before there was a server, or from this node itself. */
void link_handle_kept(struct cluster *c);
void link_close_all(struct cluster *c);
/* Sends beats from now on. */
void link_start_beats(struct cluster *c);
/* What it has not taken yet is so much that large things should wait. */
bool link_is_full(const struct cluster *c, uint32_t node);

/* ---- home.c ---- */

uint32_t home_of(const struct cluster *c, const uint8_t *id);
void home_join(struct cluster *c, uint32_t from, const struct control_join *m);
void home_refused(struct cluster *c, const struct control_refuse *m);
void home_unjoin(struct cluster *c, uint32_t from, const struct control_unjoin *m);
void home_broken(struct cluster *c, uint32_t from, const struct control_break *m);
void home_left(struct cluster *c, uint32_t from, const struct control_break *m);
void home_split(struct cluster *c, uint32_t from, const struct control_split *m);
void home_split_late(struct cluster *c, uint32_t from, const struct control_split *m);
void home_node_lost(struct cluster *c, uint32_t node);
void home_plan(struct cluster *c, uint32_t from, const struct control_plan *m);
void home_plan_late(struct cluster *c, const struct control_plan_member *m);
void home_plan_left(struct cluster *c, uint32_t from, const struct control_plan_member *m);
void home_expire(struct cluster *c, uint64_t now);
void home_free(struct cluster *c);

/* ---- remote.c ---- */

/* A message came, of the right length at least. */
void remote_handle(struct cluster *c, uint32_t from, enum control_kind kind, const void *body,
		   size_t size);
void remote_node_lost(struct cluster *c, uint32_t node);
/* This node's part of that communicator; NULL: it has none. */
struct communicator *remote_find(struct cluster *c, const uint8_t *id);
/* To the home, and to the nodes of the epoch: what a member of this node does. */
void remote_join(struct communicator *m, uint32_t rank);
/* m->refused was, by this node. */
void remote_refused(struct communicator *m, int result);
void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, bool late);
/* The epoch is over because of this rank (-1: none), or of that node (-1: none). */
void remote_break(struct communicator *m, int result, int32_t rank, int32_t node);
void remote_left(struct communicator *m, int32_t rank);
void remote_split(struct communicator *m, uint32_t rank, bool late);
/* The epoch that m->start asks for cannot begin here, because of this rank (-1: none). all: or else
 * only its home is told. */
void remote_not_begun(struct communicator *m, int result, int32_t rank, bool all);
/* To the registrar: it can begin, or (a result) not. again: it could before. */
void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again);
void remote_nccl_free(struct cluster *c, uint64_t serial, int result, int32_t rank);

/* ---- remote_plan.c ---- */

/* This rank's plan, which m->forming has. False: its home does not take so much now, or there is no
 * memory. */
bool remote_plan(struct communicator *m, uint32_t rank);
void remote_plan_late(struct communicator *m, uint32_t rank);
/* It is through with the plan of that number. */
void remote_plan_left(struct communicator *m, uint32_t rank, uint32_t number);
/* Of CONTROL_PLAN and what follows it: has the body the length that it should have? */
bool remote_plan_fits(enum control_kind kind, const void *body, size_t size);
void remote_plan_handle(struct cluster *c, uint32_t from, enum control_kind kind, const void *body);

/* ---- registrar.c ---- */

uint32_t registrar_of(const struct cluster *c);
/* Which node gave this number? */
uint32_t registrar_that_made(uint64_t serial);
void registrar_ready(struct cluster *c, uint32_t from, const struct control_nccl_ready *m);
void registrar_id(struct cluster *c, uint32_t from, const struct control_nccl_id *m);
void registrar_free(struct cluster *c, uint32_t from, const struct control_nccl_free *m);
void registrar_node_lost(struct cluster *c, uint32_t node);
/* Lets go what was idle for too long; returns the next deadline, 0 for none. */
uint64_t registrar_expire(struct cluster *c, uint64_t now);
void registrar_free_all(struct cluster *c);

#endif
