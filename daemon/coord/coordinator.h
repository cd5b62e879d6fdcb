/* SPDX-License-Identifier: Apache-2.0
 * What a communicator's epoch has one coordinator for, the node of rank 0: SPLIT and plans.
 * Coord's own header. */
#ifndef COORD_COORDINATOR_H
#define COORD_COORDINATOR_H

#include "base/hash.h"
#include "coord.h"
#include "missing.h"

struct planning;

/* A member has left the epoch, or this node knows of a later one. */
#define STALE_TEXT "the communicator lacks members, or its epoch is over: rejoin it first"

struct asked_split {
	bool here;
	uint32_t node, serial;
	int32_t colour, key;
};

/* Of one epoch, from its START, or from what other nodes ask before that has come, to its end. */
struct coordinator {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t epoch, nranks;
	bool started;	/* START has come. If it never does, the epoch was over before */
	uint32_t nleft; /* members that have: nothing that needs all can be any more */
	bool nodes[CLUSTER_NODES_MAX]; /* those with members, as far as they are known */
	struct asked_split *asked;     /* [nranks]; NULL: no SPLIT is under way */
	uint32_t splitting;
	uint32_t split_round;	   /* of this epoch: SPLITs that are done, or failed */
	struct planning *planning; /* NULL: none under way */
	uint32_t plan_round;	   /* the same of plans */
	uint64_t since_ns;
	struct coordinator *prev_unstarted, *next_unstarted; /* until it has started */
	UT_hash_handle hh;				     /* by id */
};

/* ---- coordinator.c ---- */

/* The one for that request of that node, made if need be. NULL: its epoch is over, or there are
 * too many. */
struct coordinator *coordinator_for(struct coord *c, uint32_t from, const struct control_epoch *m);
/* NULL: there is none. */
struct coordinator *coordinator_find(const struct coord *c, const uint8_t *id, uint32_t epoch);
/* To all nodes with members. Before START any node may be one: those that are none ignore it. */
void coordinator_tell(struct coord *c, const struct coordinator *r, const struct control_result *m);
/* The request of that round has failed. */
struct control_result coordinator_result(const uint8_t *id, uint32_t epoch, uint32_t asked,
					 uint32_t round, int result, const char *text);
/* Says so to one node: this one knows of a later epoch, or has too many. */
void coordinator_refuse(struct coord *c, uint32_t to, const struct control_epoch *of,
			uint32_t asked, uint32_t round);
void coordinator_start(struct coord *c, const struct control_start *m);
void coordinator_broken(struct coord *c, const struct control_break *m);
void coordinator_left(struct coord *c, const struct control_left *m);
/* The time of a request is up. */
void coordinator_withdrawn(struct coord *c, const struct control_withdraw *m);
void coordinator_node_lost(struct coord *c, uint32_t node);
uint64_t coordinator_expire(struct coord *c);
void coordinator_free(struct coord *c);

/* ---- split.c ---- */

void split_take(struct coord *c, uint32_t from, const struct control_split *m);
/* If that is its request: it fails for all. */
void split_withdrawn(struct coord *c, struct coordinator *r, const struct control_withdraw *m);
/* What is under way cannot be: the members' nodes are told. */
void split_fail(struct coord *c, struct coordinator *r, int result, const char *text);
/* The same, and they know why. */
void split_forget(struct coordinator *r);

/* ---- plans.c ---- */

void plans_take(struct coord *c, uint32_t from, const struct control_plan *m);
/* As split_withdrawn. */
void plans_withdrawn(struct coord *c, struct coordinator *r, const struct control_withdraw *m);
/* As split_fail and split_forget. */
void plans_fail(struct coord *c, struct coordinator *r, int result, const char *text);
void plans_forget(struct coordinator *r);

#endif
