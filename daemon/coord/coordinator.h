/* SPDX-License-Identifier: Apache-2.0
 * The coordinator of a communicator's epoch, on rank 0's node, for SPLIT and plans. Private to
 * coord. */
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
	uint32_t node, request_id;
	int32_t colour, key;
};

/* Exists for one epoch, from its START, or from an earlier request of another node, to its end. */
struct coordinator {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t epoch, nranks;
	bool started;	/* START has come. If it never comes, the epoch ended before it */
	uint32_t nleft; /* members that have left; if any has, requests of all members fail */
	bool nodes[CLUSTER_NODES_MAX]; /* nodes with members, as far as known */
	struct asked_split *asked;     /* [nranks]; NULL: no SPLIT in progress */
	uint32_t splitting;
	uint32_t split_seq;	   /* SPLITs of this epoch that are done or have failed */
	struct planning *planning; /* NULL: none in progress */
	uint32_t plan_seq;	   /* likewise for plans */
	int32_t failed;		   /* the result of the SPLIT or plan that failed last */
	uint64_t since_ns;
	struct coordinator *prev_unstarted, *next_unstarted; /* until START comes */
	UT_hash_handle hh;				     /* by id */
};

/* ---- coordinator.c ---- */

/* Returns the coordinator for that node's request, created if needed. NULL: its epoch has ended, or
 * there are too many. */
struct coordinator *coordinator_for(struct coord *c, uint32_t from, const struct control_epoch *m);
/* Sends to all nodes with members; before START, to those that have asked: only they are known. */
void coordinator_tell(struct coord *c, const struct coordinator *r, const struct control_result *m);
/* The SPLIT or plan with that number has failed. */
struct control_result coordinator_result(const uint8_t *id, uint32_t epoch, uint32_t asked,
					 uint32_t seq, int result, const char *text);
/* Reports that to one node: this node knows of a later epoch, or has too many coordinators. */
void coordinator_refuse(struct coord *c, uint32_t to, const struct control_epoch *of,
			uint32_t asked, uint32_t seq);
/* A node asks for a SPLIT or plan that is over. It knows the result, unless the request failed
 * before START and before the node asked. */
void coordinator_late(struct coord *c, const struct coordinator *r, uint32_t to, uint32_t asked,
		      uint32_t seq);
/* Has START come? */
bool coordinator_has_started(const struct coord *c, const uint8_t *id, uint32_t epoch);
void coordinator_start(struct coord *c, const struct control_start *m);
void coordinator_broken(struct coord *c, const struct control_break *m);
void coordinator_left(struct coord *c, const struct control_left *m);
/* The deadline of a request has passed. */
void coordinator_withdrawn(struct coord *c, const struct control_withdraw *m);
void coordinator_node_lost(struct coord *c, uint32_t node);
uint64_t coordinator_expire(struct coord *c);
void coordinator_free(struct coord *c);

/* ---- split.c ---- */

void split_take(struct coord *c, uint32_t from, const struct control_split *m);
/* If that is its request, it fails for all members. */
void split_withdrawn(struct coord *c, struct coordinator *r, const struct control_withdraw *m);
/* The SPLIT in progress cannot succeed; tells the members' nodes. */
void split_fail(struct coord *c, struct coordinator *r, int result, const char *text);
/* The same without a message, since they know why. */
void split_forget(struct coordinator *r);

/* ---- plans.c ---- */

void plans_take(struct coord *c, uint32_t from, const struct control_plan *m);
/* Like split_withdrawn. */
void plans_withdrawn(struct coord *c, struct coordinator *r, const struct control_withdraw *m);
/* Like split_fail and split_forget. */
void plans_fail(struct coord *c, struct coordinator *r, int result, const char *text);
void plans_forget(struct coordinator *r);

#endif
