/* SPDX-License-Identifier: Apache-2.0
 * Matching of tasks across nodes; internode_comm.h explains how the nodes agree. */
#ifndef SCHED_NODE_MATCH_H
#define SCHED_NODE_MATCH_H

#include "coord/sequencer.h"
#include "internode_comm.h"

/* One node's vote, and the bytes that came with it. */
struct node_vote {
	struct vote vote;
	char *payload; /* NULL: none */
	size_t bytes;
	bool direct;	/* its node has sent it to all others */
	uint32_t steps; /* bitmap of those in which it was passed on: disseminate.c */
};

/* An operation in which tasks of several nodes match. */
struct node_match {
	struct operation_key key;
	struct comm *comm;
	UT_hash_handle hh;
	uint32_t nvoters; /* nodes that take part */
	uint32_t mine;	  /* the index of this node among them */
	uint32_t votes;	  /* including this node's own */
	bool resolved; /* all nodes have voted, one of them FAILED: status is for tasks posted later
			*/
	bool asked;
	/* For answers, if asked; for the others' votes, if this node's records differ. 0: none */
	uint64_t due_ns;
	uint64_t late_ns;      /* when votes of incomplete steps are passed on; 0: none wait */
	uint64_t first_ns;     /* when another node was ready first; 0: none is, or on GPUs */
	ncclsvc_status status; /* or for what this node has asked */
	struct task **tasks;   /* of this node, that wait here; NULL: none (yet) */
	uint32_t ntasks;
	struct node_match *prev_due, *next_due;
	struct node_match *prev_late, *next_late;
	struct node_vote voters[]; /* by node index; of a pair: sender, receiver */
};

/* ---- For the scheduler ---- */

/* The task no longer waits for other nodes. */
static inline void node_match_release(struct scheduler *sched, struct task *t)
{
	t->node_match = NULL;
	sched->internode->committed--;
}

/* The following functions return false for a communicator whose members are all on this node, or
 * where the caller must act. */

/* All local members have posted the collective. differ: NULL if they agree. */
bool node_match_post_collective(struct scheduler *sched, struct comm *c,
				const ncclsvc_status *differ);
void node_match_post_p2p(struct scheduler *sched, struct task *t);
/* This node cannot run the current collective. */
bool node_match_fail_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *st);
/* Members of all nodes wait for each other: this node fails the operations that others have begun,
 * up to this number of finished collectives. */
void node_match_give_up(struct scheduler *sched, struct comm *c, const ncclsvc_status *st,
			uint64_t collectives);
/* Other nodes have already decided the end of the current collective: poison it. */
void node_match_look(struct scheduler *sched, struct comm *c);
/* Has this node voted on the current collective while other votes are missing? */
bool node_match_voted(struct comm *c);
/* When this node heard first that another one is ready for the current collective; 0: it has not.
 */
uint64_t node_match_first_ns(struct comm *c);
/* Are all other nodes known to be ready for the current collective? On GPUs, that is not known. */
bool node_match_awaited(struct comm *c);
/* If that node's members have all left, and it has ended its epoch: it votes no more, and what
 * waits for its vote fails. */
void node_match_node_over(struct scheduler *sched, struct comm *c, uint32_t node_index);
/* A task that waits for other nodes must fail: asks them. */
void node_match_ask(struct scheduler *sched, struct task *t, const ncclsvc_status *st);
void node_match_take_message(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			     const struct internode_header *h, const char *body);
/* READY votes of several nodes, or a question for this node's. */
void node_match_take_votes(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			   const struct internode_header *h, const char *body);
/* FAILED, ASK or WAITING, from the sequencer. */
void node_match_take_decision(struct scheduler *sched, struct internode_comm *s,
			      const struct internode_header *h, const char *body);
/* This node's request of it to the sequencer. */
void node_match_entry(const struct node_match *j, struct request_entry *entry);
/* Its request is void, and this node has asked for its failure: it fails. */
void node_match_withdraw(struct scheduler *sched, struct node_match *j);
/* Its tasks are launched and wait no more; frees it. */
void node_match_launched(struct scheduler *sched, struct node_match *j);
/* A local member has left its plan; plan operations that wait for it fail. */
void node_match_plan_left(struct scheduler *sched, struct comm *c, int32_t rank);
/* A new plan, whose pairs count from 0. */
void node_match_plan_begins(const struct comm *c);
/* A local member has left; operations that wait for it fail. */
void node_match_member_left(struct scheduler *sched, struct comm *c, int32_t rank,
			    const ncclsvc_status *st);
void node_match_expire(struct scheduler *sched);
void node_match_free(struct scheduler *sched, struct internode_comm *s, struct node_match *j);

/* ---- Between node_match.c, node_match_messages.c and node_match_pair.c ---- */

/* NULL: none. */
struct node_match *node_match_find(struct internode_comm *s, const struct operation_key *key);
/* Created if needed; NULL: out of memory, or the other nodes are too far ahead. */
struct node_match *node_match_get(struct internode_comm *s, const struct operation_key *key);
/* t waits for other nodes, and cannot be taken back from now on. */
void node_match_commit(struct scheduler *sched, struct node_match *j, struct task *t);
/* Sends to all other nodes that take part. */
void node_match_tell_failed(struct scheduler *sched, const struct node_match *j,
			    const struct failed_note *failed);
/* The voter is ready, with this record. */
void node_match_ready(struct node_match *j, uint32_t voter, const struct svc_record *record);
/* This node's vote, which may be the last one. */
void node_match_vote_ready(struct scheduler *sched, struct node_match *j,
			   const struct svc_record *record);
void node_match_vote_failed(struct scheduler *sched, struct node_match *j,
			    const ncclsvc_status *st);
/* Converts between a node's index in the communicator and its index among those that take part. */
uint32_t node_match_node_index(const struct node_match *j, uint32_t voter);
uint32_t node_match_voter_of(const struct node_match *j, uint32_t node_index);
/* Because the records of a collective differ? */
bool node_match_differs(const struct node_match *j, const ncclsvc_status *st);
/* Keeps the failure of that voter. False: no memory. */
bool node_match_keep_failed(struct node_match *j, uint32_t voter, const struct failed_note *failed);
/* It has failed, and no task of this node waits in it. */
void node_match_conclude_failed(struct scheduler *sched, struct node_match *j);
/* For a TIMEOUT: the local ranks that have not posted it. */
void node_match_name_missing(const struct comm *c, const struct node_match *j, ncclsvc_status *st);
/* All have voted: it runs, or has failed. */
void node_match_conclude(struct scheduler *sched, struct node_match *j);
void node_match_end_tasks(struct scheduler *sched, struct node_match *j, const ncclsvc_status *st);

/* For operations decided by the sequencer: the request that contains it; NULL: none yet. */
struct launch_request *node_match_request(const struct node_match *j);
/* Cancels the launch of its tasks, and of everything requested together with them. */
void node_match_call_off(struct scheduler *sched, struct node_match *j);

/* ---- node_match_pair.c ---- */

/* Has the local member posted its side of the pair, or has it left and never will? */
bool node_match_pair_past(struct internode_comm *s, const struct operation_key *key);
/* The other side of a pair is ready, and this side is not posted. Is another pair posted here that
 * would match it if both were planned, or both unplanned? Then both fail. */
void node_match_check_kind(struct scheduler *sched, struct node_match *j);
/* The local member has left its plan without posting the pair: frees it. */
void node_match_forget_left(struct scheduler *sched, struct node_match *j);

#endif
