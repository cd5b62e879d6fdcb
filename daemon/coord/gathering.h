/* SPDX-License-Identifier: Apache-2.0
 * What a communicator's home knows of it: home.c and home_plan.c. */
#ifndef CLUSTER_GATHERING_H
#define CLUSTER_GATHERING_H

#include <uthash.h>

#include "home.h"
#include "missing.h"

struct planning;

/* Of a request for another epoch than the home knows, if it knows any: another home that is gone
 * may have begun it. */
#define HOME_STALE_TEXT "the communicator lacks members, or its epoch is over: rejoin it first"

enum gathered { SEAT_FREE, SEAT_JOINING, SEAT_JOINED, SEAT_BROKEN };

struct gathered_seat {
	enum gathered state;
	uint32_t node, session, serial; /* of its JOIN */
	int32_t pid, device;
	bool split;
	uint64_t since_ns; /* when its JOIN came */
	bool late;	   /* its deadline has passed in this attempt of the members to join */
};

struct asked_split {
	bool here;
	int32_t colour, key;
};

struct gathering {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t nranks, uid, cuda, epoch;
	uint32_t transport; /* of GPUs' memory */
	bool running;	    /* an epoch, as far as is known here */
	struct gathered_seat *seats;
	uint32_t joining, held;	   /* held: seats that are not free */
	struct refusal refused;	   /* the last of this attempt to join */
	struct asked_split *split; /* [nranks]; NULL: none under way */
	uint32_t splitting;
	struct planning *planning; /* NULL: none under way */
	uint32_t plan_round;	   /* of this epoch: plans that were put in force, or refused */
	uint64_t idle_ns;
	uint64_t since_ns;
	uint64_t number; /* what inspection calls it, if this node has no communicator of that id */
	UT_hash_handle hh;
};

/* ---- home.c ---- */

/* NULL: none. */
struct gathering *home_find(struct cluster *c, const uint8_t *id);
/* To every node that has a seat here; each once. */
void home_tell_nodes(struct cluster *c, const struct gathering *g, enum control_kind kind,
		     const void *body, size_t size);

/* Inspection: what is known here of a communicator whose epoch does not run. */
struct home_view {
	uint32_t home;
	const struct gathering *gathering; /* NULL: none, or it is another node's */
};
struct home_view home_look(struct cluster *c, const uint8_t *id);
/* Fills in the state of i->rank, which nobody of this node holds, or which node knows it. */
void home_describe(const struct cluster *c, const struct home_view *v, ncclsvc_member_info *i);

/* ---- home_plan.c ---- */

/* No plan comes of it: the members' nodes know why. */
void home_plan_forget(struct gathering *g);
/* The same, and they are told. */
void home_plan_refuse(struct cluster *c, struct gathering *g, int result, const char *text);

#endif
