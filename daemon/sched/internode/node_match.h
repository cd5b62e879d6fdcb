/* SPDX-License-Identifier: Apache-2.0
 * Where the tasks of several nodes match: internode_comm.h tells how the nodes agree. */
#ifndef SCHED_NODE_MATCH_H
#define SCHED_NODE_MATCH_H

#include "coord/sequencer.h"
#include "internode_comm.h"

/* One node's vote, and the bytes that came with it. */
struct node_vote {
	struct vote vote;
	char *payload; /* NULL: none */
	size_t bytes;
};

/* An operation that tasks of several nodes match in. */
struct node_match {
	struct operation_key key;
	struct comm *comm;
	UT_hash_handle hh;
	uint32_t nparts; /* nodes that take part */
	uint32_t mine;	 /* this one among them */
	uint32_t votes;	 /* this node's own too */
	bool resolved;	 /* all votes are there, one of them FAILED: status is for whoever posts */
	bool asked;
	uint64_t due_ns;       /* for answers; 0: none is waited for */
	uint64_t first_ns;     /* when another node was ready first; 0: none is, or on GPUs */
	ncclsvc_status status; /* or for what this node has asked */
	struct task **tasks;   /* of this node, that wait here; NULL: none (yet) */
	uint32_t ntasks;
	struct node_match *prev_due, *next_due;
	struct node_vote
		parts[]; /* by place among the communicator's nodes; of a pair: sender, receiver */
};

/* ---- For the scheduler ---- */

/* The task waits for other nodes no more. */
static inline void node_match_release(struct engine *e, struct task *t)
{
	t->node_match = NULL;
	e->committed--;
}

/* In what follows, a communicator whose members are all of this node has nothing to do with it:
 * false, where something else is to be done then. */

/* All local members have posted the collective, and agree. */
bool node_match_post_collective(struct engine *e, struct comm *c);
void node_match_post_p2p(struct engine *e, struct task *t);
/* The current collective cannot run, for this node's reasons. */
bool node_match_fail_collective(struct engine *e, struct comm *c, const ncclsvc_status *st);
/* Members of all nodes wait for each other: this node fails what others have begun, until so many
 * collectives are over. */
void node_match_give_up(struct engine *e, struct comm *c, const ncclsvc_status *st,
			uint64_t collectives);
/* The current collective is over already, as others have decided: poison it. */
void node_match_look(struct engine *e, struct comm *c);
/* True if this node has spoken about the current collective, and not all others have. */
bool node_match_voted(struct comm *c);
/* When this node heard first that another one is ready for the current collective; 0: it has not.
 */
uint64_t node_match_first_ns(struct comm *c);
/* Are all other nodes known to be ready for the current collective? On GPUs, that is not known. */
bool node_match_awaited(struct comm *c);
/* A task that waits for other nodes is to fail: ask them. */
void node_match_ask(struct engine *e, struct task *t, const ncclsvc_status *st);
void node_match_take_message(struct engine *e, struct internode_comm *s, uint32_t place,
			     const struct internode_header *h, const char *body);
/* FAILED, ASK or WAITING, from the sequencer. */
void node_match_take_decision(struct engine *e, struct internode_comm *s,
			      const struct internode_header *h, const char *body);
/* To a new one: what this node has failed, or asked for. */
void node_match_vote_again(struct engine *e, struct internode_comm *s);
/* What this node requests of it. */
void node_match_entry(const struct node_match *j, struct request_entry *entry);
/* Its request is void, and this node has asked for it to fail: so it does. */
void node_match_withdraw(struct engine *e, struct node_match *j);
/* Its tasks are launched: they wait no more, and it is freed. */
void node_match_launched(struct engine *e, struct node_match *j);
/* A member of this node has left its plan: nothing of it that waits for it comes to be. */
void node_match_plan_left(struct engine *e, struct comm *c, int32_t rank);
/* A new plan: its pairs count from 0. */
void node_match_plan_begins(const struct comm *c);
/* A member of this node left: nothing that waits for it comes to be. */
void node_match_member_left(struct engine *e, struct comm *c, int32_t rank,
			    const ncclsvc_status *st);
void node_match_expire(struct engine *e);
void node_match_free(struct engine *e, struct internode_comm *s, struct node_match *j);

/* ---- Between node_match.c, node_match_messages.c and node_match_pair.c ---- */

/* NULL: none. */
struct node_match *node_match_find(struct internode_comm *s, const struct operation_key *key);
/* Made if need be; NULL: out of memory, or the others are too far ahead. */
struct node_match *node_match_get(struct internode_comm *s, const struct operation_key *key);
/* t waits for other nodes: from now on nothing takes it back. */
void node_match_commit(struct engine *e, struct node_match *j, struct task *t);
/* To all others that take part. */
void node_match_tell_failed(struct engine *e, const struct node_match *j,
			    const struct failed_note *failed);
/* That part is ready, for this. */
void node_match_ready(struct node_match *j, uint32_t part, const struct svc_record *record);
/* This node's word, which may conclude it. */
void node_match_vote_ready(struct engine *e, struct node_match *j, const struct svc_record *record);
void node_match_vote_failed(struct engine *e, struct node_match *j, const ncclsvc_status *st);
/* The place among the communicator's nodes of one that takes part; and the reverse. */
uint32_t node_match_place_of(const struct node_match *j, uint32_t part);
uint32_t node_match_part_of(const struct node_match *j, uint32_t place);
/* What that part has failed with. False: no memory. */
bool node_match_keep_failed(struct node_match *j, uint32_t part, const struct failed_note *failed);
/* It has failed, and this node had said so before, or has not got to it. */
void node_match_conclude_failed(struct engine *e, struct node_match *j);
/* Of a TIMEOUT: the local ranks that have not posted it. */
void node_match_name_missing(const struct comm *c, const struct node_match *j, ncclsvc_status *st);
/* All have spoken: it runs, or has failed. */
void node_match_conclude(struct engine *e, struct node_match *j);
void node_match_end_tasks(struct engine *e, struct node_match *j, const ncclsvc_status *st);

/* Of one that the sequencer decides: the request that it is in; NULL: none yet. */
struct launch_request *node_match_request(const struct node_match *j);
/* Its tasks are not to be launched, nor is what was requested together with them, by that. */
void node_match_call_off(struct engine *e, struct node_match *j);

/* ---- node_match_pair.c ---- */

/* Has the member here posted its side of the pair, or will it never, as it has left? */
bool node_match_pair_past(struct internode_comm *s, const struct operation_key *key);
/* The other side of a pair is ready, and nobody here has posted it: is another pair posted here
 * that was to match it, if only both were of the plan, or neither? Then both fail. */
void node_match_check_kind(struct engine *e, struct node_match *j);
/* Its plan was left by the member here, which has not posted it and never will: it is freed. */
void node_match_forget_left(struct engine *e, struct node_match *j);

#endif
