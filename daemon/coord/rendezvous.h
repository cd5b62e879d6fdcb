/* SPDX-License-Identifier: Apache-2.0
 * Where the members of a communicator gather: coord's own header. The node that the communicator's
 * id decides knows, of all its ranks, who has joined. */
#ifndef COORD_RENDEZVOUS_H
#define COORD_RENDEZVOUS_H

#include "base/hash.h"
#include "coord.h"
#include "missing.h"

enum slot_state { SLOT_FREE, SLOT_JOINING, SLOT_JOINED, SLOT_BROKEN };

struct member_slot {
	enum slot_state state;
	uint32_t node, session, serial; /* of its JOIN */
	int32_t pid, device;
	uint64_t since_ns; /* when its JOIN came */
	bool late;	   /* its deadline has passed in this attempt of the members to join */
	bool fail_fast;	   /* its JOIN ends when another member that waits dies */
};

struct rendezvous {
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	uint32_t nranks, uid, cuda;
	uint32_t epoch; /* that runs, or was the last to */
	uint32_t known; /* the last number that members know of: another node may have counted */
	uint32_t transport; /* of GPUs' memory */
	bool running;	    /* an epoch, as far as is known here */
	uint32_t ended;	    /* the last epoch that is known to be over */
	bool split;	    /* part of a SPLIT that is not done: nobody else can take a slot */
	int unjoinable;	    /* why nobody can join any more, with `refused`; 0: all can */
	struct member_slot *members;
	uint32_t joining, held; /* held: slots that are not free */
	struct refusal refused; /* the last of this attempt to join */
	uint64_t idle_ns;
	uint64_t since_ns;
	uint64_t number; /* what inspection calls it, if this node has no communicator of that id */
	struct rendezvous *prev_idle, *next_idle; /* while nobody holds it */
	struct rendezvous *prev_own, *next_own;	  /* the same, of its user's */
	UT_hash_handle hh;
};

/* One user's rendezvous that nobody holds. */
struct idle_user {
	uint32_t uid;
	uint64_t cost; /* of all, in member slots */
	struct rendezvous *oldest;
	UT_hash_handle hh;
};

/* The id's own. */
uint32_t rendezvous_node(const struct coord *c, const uint8_t *id);
/* Any node that lives: the next one, if the id's own is gone. */
uint32_t rendezvous_of(const struct coord *c, const uint8_t *id);
/* NULL: none. */
struct rendezvous *rendezvous_find(const struct coord *c, const uint8_t *id);
void rendezvous_join(struct coord *c, uint32_t from, const struct control_join *m);
void rendezvous_refused(struct coord *c, uint32_t from, const struct control_refuse *m);
void rendezvous_withdrawn(struct coord *c, uint32_t from, const struct control_withdraw *m);
void rendezvous_broken(struct coord *c, uint32_t from, const struct control_break *m);
void rendezvous_left(struct coord *c, uint32_t from, const struct control_left *m);
void rendezvous_node_lost(struct coord *c, uint32_t node);
uint64_t rendezvous_expire(struct coord *c);
void rendezvous_free(struct coord *c);

/* Inspection: what is known here of a communicator whose epoch does not run. */
struct rendezvous_view {
	uint32_t node;			     /* where its members gather */
	const struct rendezvous *rendezvous; /* NULL: none, or it is another node's */
};
struct rendezvous_view rendezvous_look(const struct coord *c, const uint8_t *id);
/* Fills in the state of i->rank, which nobody of this node holds, or which node knows it. */
void rendezvous_describe(const struct coord *c, const struct rendezvous_view *v,
			 ncclsvc_member_info *i);

#endif
