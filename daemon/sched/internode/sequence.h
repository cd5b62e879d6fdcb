/* SPDX-License-Identifier: Apache-2.0
 * This node's requests to the sequencers of its communicators, and its launches in the order that
 * they agree on; and this node's own sequencer, for the communicators that it leads. */
#ifndef SCHED_SEQUENCE_H
#define SCHED_SEQUENCE_H

#include "coord/sequencer.h"
#include "internode_comm.h"

struct launch_request;
struct set_match;

/* False: out of memory; sequence_finish frees. */
bool sequence_init(struct scheduler *sched);
/* The communicator begins; this node's sequencer takes it if rank 0 is here. */
void sequence_begin(struct scheduler *sched, struct internode_comm *s);
/* Does this node lead a communicator? */
bool sequence_awaited(const struct scheduler *sched);
/* Has this node agreed to a launch that has not happened yet? */
bool sequence_launches(const struct scheduler *sched);
/* When a message to or from a sequencer last came. */
uint64_t sequence_message_ns(const struct scheduler *sched);
/* Requests the set that launch_sets has collected. fits: otherwise it can never be launched, and
 * its epoch ends. */
void sequence_request(struct scheduler *sched, bool fits);
/* This node fails the operation, or asks for its failure if request r contains it. */
void sequence_withdraw(struct scheduler *sched, const struct internode_comm *s,
		       const struct operation_key *key, const struct launch_request *r,
		       const struct failed_note *note);
/* It has failed the operation because its members' records differ, and the others are to fail it
 * now. */
void sequence_wait_no_more(struct scheduler *sched, const struct internode_comm *s,
			   const struct operation_key *key, const struct failed_note *note);
/* The sequencer has dropped the request; the rest of it must be requested again. */
void sequence_void(struct scheduler *sched, struct launch_request *r);
/* Likewise, though the sequencer may still launch it: its epoch ends. */
void sequence_give_up(struct scheduler *sched, struct launch_request *r);
/* Tells the workers to create it. False: a queue has no room now. */
typedef bool creation_launch_fn(struct scheduler *sched, const struct creation *k);
/* Takes a communicator that several nodes must create; launch is called when its turn has come. */
void sequence_request_creation(struct scheduler *sched, struct creation *k,
			       creation_launch_fn *launch);
/* Cancels it, if its turn has not come. */
void sequence_cancel_creation(struct scheduler *sched, uint64_t number);
/* May the next launch in the common order be made now? *m: its match; NULL: a creation, or none is
 * due. */
bool sequence_next(const struct scheduler *sched, struct set_match **m);
/* False: a queue has no room now. */
bool sequence_launch_creation(struct scheduler *sched);
/* The launch that was due is done. */
void sequence_launched(struct scheduler *sched);
/* No request of the communicator follows. */
void sequence_leave(struct scheduler *sched, const struct internode_comm *s);
/* Has the sequencer closed it, so that no operation of it is launched any more? */
bool sequence_was_closed(const struct comm *c);
/* Likewise, and are all granted launches done? */
bool sequence_closed(const struct scheduler *sched, const struct internode_comm *s);
/* A message to or from a sequencer. Its communicator has begun here or has ended, or it names none.
 */
void sequence_take_message(struct scheduler *sched, const struct internode_header *h,
			   const char *body, int node);
void sequence_node_lost(struct scheduler *sched, uint32_t node);
/* Call it in each round of a loop with other nodes. */
void sequence_poll(struct scheduler *sched);
void sequence_finish(struct scheduler *sched);

#endif
