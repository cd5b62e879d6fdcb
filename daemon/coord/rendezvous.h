/* SPDX-License-Identifier: Apache-2.0
 * Where the members of a communicator gather. The communicator's id names the node, which
 * knows which of its ranks have joined. Private to coord. */
#ifndef COORD_RENDEZVOUS_H
#define COORD_RENDEZVOUS_H

#include "base/hash.h"
#include "coord.h"
#include "missing.h"

enum slot_state { SLOT_FREE, SLOT_JOINING, SLOT_JOINED, SLOT_BROKEN };

struct member_slot {
	enum slot_state state;
	uint32_t node, session, request_id; /* of its JOIN */
	int32_t pid, device;
	uint64_t since_ns; /* when its JOIN arrived */
	bool late;	   /* its deadline has passed in this attempt to join */
	bool fail_fast;	   /* its JOIN ends when another waiting member dies */
	bool lost;	   /* free, since its node was lost */
	uint8_t resume;	   /* these three as in control_join */
	bool survives;
	uint64_t done;
};

struct rendezvous {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t nranks, uid, cuda;
	uint32_t admit;	       /* ncclsvc_admit; between nodes, the user is the tenant */
	uint32_t epoch;	       /* the running or the last epoch */
	uint64_t internode_id; /* of that epoch */
	uint32_t known; /* the last number known to members, perhaps counted by an earlier daemon */
	uint32_t transport; /* of GPUs' memory */
	bool running;	    /* an epoch runs, as far as this node knows */
	uint32_t lineage;   /* of the running or the last epoch, or of the one that JOINs continue;
			       0: it cannot be continued */
	uint32_t left_lineage; /* a member had left this one, so it cannot be continued */
	bool split;	/* part of a SPLIT that is not done, so no other process can take a slot */
	int unjoinable; /* why nobody can join any more, with `refused`; 0: all can */
	struct member_slot *members;
	uint32_t joining, held; /* held: slots that are not free */
	struct refusal refused; /* the last one in this attempt to join */
	uint64_t idle_ns;
	uint64_t since_ns;
	uint64_t number; /* its name in inspection, if this node has no communicator of that id */
	struct rendezvous *prev_idle, *next_idle; /* while it has no members */
	struct rendezvous *prev_own, *next_own;	  /* likewise, in its user's list */
	UT_hash_handle hh;
};

/* One user's rendezvous without members. */
struct idle_user {
	uint32_t uid;
	uint64_t cost; /* of all of them, in member slots */
	struct rendezvous *oldest;
	UT_hash_handle hh;
};

/* ---- rendezvous_table.c ---- */

/* NULL: none. */
struct rendezvous *rendezvous_find(const struct coord *c, const uint8_t *id);
/* NULL: there is no room, or no memory; for a part of a SPLIT, there is always memory. */
struct rendezvous *rendezvous_create(struct coord *c, const uint8_t *id, uint32_t uid,
				     uint32_t nranks, bool subcomm);
void rendezvous_forget(struct coord *c, struct rendezvous *r);
/* No rank is held: the rendezvous takes the owner and the settings of the newcomer. */
void rendezvous_hand_over(struct coord *c, struct rendezvous *r, const struct control_join *m);
/* The rank's slot is free, or held by the same member before. */
void rendezvous_take_slot(struct coord *c, uint32_t from, struct rendezvous *r,
			  const struct control_join *m, enum slot_state state);
void rendezvous_free_slot(struct coord *c, struct rendezvous *r, struct member_slot *s);
/* Forgets those that have had no members for long. Returns the next deadline; 0: none. */
uint64_t rendezvous_expire(struct coord *c);
void rendezvous_free(struct coord *c);
/* Do members wait for a subcommunicator of a split? */
bool rendezvous_splits(const struct coord *c);
/* Does a member on that node hold a rank? */
bool rendezvous_has_member_on(const struct coord *c, uint32_t node);

/* Inspection: what this node knows of a communicator without a running epoch. */
struct rendezvous_view {
	uint32_t node;			     /* where its members gather */
	const struct rendezvous *rendezvous; /* NULL: none, or it is on another node */
};
struct rendezvous_view rendezvous_look(const struct coord *c, const uint8_t *id);
/* Fills in the state of i->rank, which no process of this node holds, or the node that knows it. */
void rendezvous_describe(const struct coord *c, const struct rendezvous_view *v,
			 ncclsvc_member_info *i);

/* ---- rendezvous.c ---- */

void rendezvous_join(struct coord *c, uint32_t from, const struct control_join *m);
void rendezvous_refused(struct coord *c, uint32_t from, const struct control_refuse *m);
void rendezvous_withdrawn(struct coord *c, uint32_t from, const struct control_withdraw *m);
void rendezvous_broken(struct coord *c, uint32_t from, const struct control_break *m);
void rendezvous_left(struct coord *c, uint32_t from, const struct control_left *m);
void rendezvous_node_lost(struct coord *c, uint32_t node);

#endif
