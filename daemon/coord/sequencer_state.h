/* SPDX-License-Identifier: Apache-2.0
 * The sequencer's private data, for sequencer.c and succession.c. */
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
	struct request *next; /* in a connected set */
	bool whole;	      /* all messages have come */
	uint64_t visit;
	uint64_t order; /* of its first entry */
	uint32_t n;
	struct request_entry *entries;
};

/* One node of an operation. */
struct voter {
	struct vote vote;
	bool asked;
	uint32_t node; /* UNKNOWN_NODE: not known yet */
	struct request *request;
};

struct operation_id {
	uint64_t internode_id;
	struct operation_key key;
};

/* An operation with at least one vote. */
struct operation {
	struct operation_id id;
	UT_hash_handle hh;
	uint64_t since_ns;
	uint64_t due_ns; /* when the requested votes are due; 0: none were requested */
	bool withdrawn;	 /* a node wants it to fail, with this status: */
	ncclsvc_status why;
	uint32_t votes, shown; /* so far; and when waiting nodes were last told */
	uint32_t nvoters;
	struct voter voters[]; /* by place */
};

/* A communicator that some nodes have left. */
struct closing {
	struct closing *prev, *next;
	uint64_t internode_id;
	uint64_t due_ns; /* when it is closed without the others; 0: not known yet */
	uint32_t n;
	struct {
		uint32_t node;
		bool left;
	} nodes[];
};

/* A communicator for which a node will repeat a request. */
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
	uint64_t grants; /* number of the last grant */
	bool active;	 /* this node runs the sequencer */
	bool succeeds;	 /* ... once all have reported */
	struct grant *reported;
	size_t nreported;
	struct failure *failures; /* that a previous sequencer has reported to some nodes */
	struct {
		bool lost, reported;
	} at[]; /* [nodes] */
};

/* ---- sequencer.c ---- */

struct operation *sequencer_find(const struct sequencer *q, uint64_t internode_id,
				 const struct operation_key *key);
/* Asks all nodes that have not voted. */
void sequencer_ask_all(struct sequencer *q, struct operation *o);
/* Removes the operation; everything requested together with it must be requested again. */
void sequencer_fail(struct sequencer *q, struct operation *o, const struct failed_note *note);
/* All have voted. True: it may never be launched, even if it was withdrawn. */
bool sequencer_must_fail(const struct operation *o);
/* All have voted. True: it has failed. */
bool sequencer_conclude(struct sequencer *q, struct operation *o);
/* Each node launches in the order in which its members have posted. */
void sequencer_launch_all(struct sequencer *q, struct request *at, uint64_t grant);
/* Launches it with the set connected to it. False: part of that set is missing. */
bool sequencer_try_launch(struct sequencer *q, struct request *r);
/* If all surviving nodes have left it, closes it. */
void sequencer_try_close(struct sequencer *q, struct closing *c);

/* ---- succession.c ---- */

/* A previous sequencer has failed it on some nodes. */
void succession_keep_failure(struct sequencer *q, const struct operation_id *id,
			     const struct failed_note *note);
/* Takes over from the lost sequencer, if all surviving nodes have reported. */
void succession_try(struct sequencer *q);
void succession_free(struct sequencer *q);

#endif
