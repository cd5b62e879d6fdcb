/* SPDX-License-Identifier: Apache-2.0
 * READY votes that other nodes pass on: see disseminate.c. */
#ifndef SCHED_DISSEMINATE_H
#define SCHED_DISSEMINATE_H

#include "internode_comm.h"

/* Between so few nodes, each sends its vote to all others, which is the fastest. */
#define DISSEMINATE_DIRECT_NODES 4
/* More bytes than these go straight to all other nodes with the vote, since a message has room for
 * few such votes. */
#define DISSEMINATE_BYTES_MAX	 512

/* Are the operation's READY votes passed on? */
bool disseminate_used(const struct internode_comm *s, const struct operation_key *key);
/* Votes have become known: passes on those whose turn it is. */
void disseminate_votes(struct scheduler *sched, struct node_match *j);
/* Asks the nodes whose votes are missing for them. */
void disseminate_pull(struct scheduler *sched, const struct node_match *j);
/* Sends this node's vote, if it is READY, to a node that lacks it. j: NULL if the operation has
 * ended here. */
void disseminate_answer(struct scheduler *sched, struct internode_comm *s,
			const struct node_match *j, const struct operation_key *key, uint32_t to);
/* Keeps another node's READY vote. False: no memory, and the epoch ends. */
typedef bool vote_keeper(struct scheduler *sched, struct node_match *j, uint32_t voter,
			 const struct svc_record *record, const char *payload, size_t bytes);
/* Keeps those votes of an INTERNODE_VOTES that are new. False: it is not valid. */
bool disseminate_keep(struct scheduler *sched, struct node_match *j, const char *body, size_t bytes,
		      vote_keeper *keep);
/* Passes on what has waited too long. */
void disseminate_expire(struct scheduler *sched);
/* The match is about to be freed. */
void disseminate_forget(struct scheduler *sched, struct node_match *j);
/* A node ends the epoch, and will pass on no more votes. */
void disseminate_over(struct scheduler *sched, struct internode_comm *s);
/* At the end of an epoch: are votes under way on an operation that all nodes have voted on? */
bool disseminate_pending(const struct scheduler *sched, const struct internode_comm *s);

#endif
