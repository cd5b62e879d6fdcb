/* SPDX-License-Identifier: Apache-2.0
 * A sequencer from within, for sequencer.c and succession.c. */
#ifndef COORD_SEQUENCER_STATE_H
#define COORD_SEQUENCER_STATE_H

#include "base/hash.h"
#include "sequencer.h"
#include "vote.h"

#define UNKNOWN_NODE UINT32_MAX

struct request_key {
	uint64_t node, number;
};

/* One request of a node. */
struct request {
	struct request_key key;
	UT_hash_handle hh;
	struct request *next; /* in what hangs together */
	bool whole;	      /* all messages have come */
	uint64_t visit;
	uint64_t order; /* of its first entry */
	uint32_t n;
	struct request_entry *entries;
};

/* One node's part in an operation. */
struct part {
	struct vote vote;
	bool asked;
	uint32_t node; /* UNKNOWN_NODE: nobody has named it yet */
	struct request *request;
};

struct operation_id {
	uint64_t internode_id;
	struct operation_key key;
};

/* An operation of which some have spoken. */
struct operation {
	struct operation_id id;
	UT_hash_handle hh;
	uint64_t since_ns;
	uint64_t due_ns; /* for the votes of who was asked; 0: nobody was */
	bool withdrawn;	 /* somebody wants it to fail, for: */
	ncclsvc_status why;
	uint32_t votes, shown; /* so far; and when those who wait were told last */
	uint32_t nparts;
	struct part parts[]; /* by place */
};

/* A communicator that some have left. */
struct closing {
	struct closing *prev, *next;
	uint64_t internode_id;
	uint64_t due_ns; /* when it is closed without those that have not left; 0: not known yet */
	uint32_t n;
	struct {
		uint32_t node;
		bool left;
	} nodes[];
};

/* A communicator of which somebody will request something again. */
struct open_internode_comm {
	uint64_t id;
	UT_hash_handle hh;
};

struct failure {
	struct failure *next;
	struct operation_id id;
	struct failed_note note;
};

struct sequencer {
	const struct sequencer_ops *ops;
	void *arg;
	uint32_t nodes;
	uint64_t visit, looked_ns;
	struct open_internode_comm *internode_comms;
	struct request *requests;
	struct operation *operations;
	struct closing *closings;
	uint64_t grants; /* the last one's number */
	bool active;	 /* this is the sequencer */
	bool succeeds;	 /* ... when all have reported */
	struct grant *reported;
	size_t nreported;
	struct failure *failures; /* that a former one has told some nodes */
	struct {
		bool lost, reported;
	} at[]; /* [nodes] */
};

/* ---- sequencer.c ---- */

struct operation *sequencer_find(const struct sequencer *q, uint64_t internode_id,
				 const struct operation_key *key);
/* Asks all nodes that have not spoken. */
void sequencer_ask_all(struct sequencer *q, struct operation *o);
/* The operation leaves, and all that was requested together with it is to be requested again. */
void sequencer_fail(struct sequencer *q, struct operation *o, const struct failed_note *note);
/* All have spoken. True: it has failed. */
bool sequencer_conclude(struct sequencer *q, struct operation *o);
/* Each node launches in the order in which its members have posted it. */
void sequencer_launch_all(struct sequencer *q, struct request *at, uint64_t grant);
/* With all that hangs together with it. False: some of that is not here yet. */
bool sequencer_try_launch(struct sequencer *q, struct request *r);
/* Have all that live left it? Then it is closed. */
void sequencer_try_close(struct sequencer *q, struct closing *c);

/* ---- succession.c ---- */

/* A former sequencer has failed that on some nodes. */
void succession_keep_failure(struct sequencer *q, const struct operation_id *id,
			     const struct failed_note *note);
/* Takes over from the one that is lost, if all that live have reported. */
void succession_try(struct sequencer *q);
void succession_free(struct sequencer *q);

#endif
