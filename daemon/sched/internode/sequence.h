/* SPDX-License-Identifier: Apache-2.0
 * This node's requests to the sequencer, and its launches when the sequencer says so; and the
 * sequencer itself, if this node runs it. */
#ifndef SCHED_SEQUENCE_H
#define SCHED_SEQUENCE_H

#include "coord/sequencer.h"
#include "internode_comm.h"

struct launch_request;
struct set_match;

/* False: out of memory; sequence_finish frees. */
bool sequence_init(struct scheduler *sched);
/* Memory that sequence_init takes for tasks. */
uint64_t sequence_bytes(const struct scheduler_config *config);
/* Does another node wait for the sequencer of this node? */
bool sequence_awaited(const struct scheduler *sched);
/* When a node last sent a message to it. */
uint64_t sequence_message_ns(const struct scheduler *sched);
/* Does that node run the sequencer? The lowest surviving node does. */
bool sequence_is_by(const struct scheduler *sched, uint32_t node);
/* The index of the sequencer's node in the communicator; UINT32_MAX: it has no member. */
uint32_t sequence_node_index(const struct scheduler *sched, const struct internode_comm *s);
/* Requests the set that launch_sets has collected. fits: otherwise it can never be launched, and
 * its epochs end. */
void sequence_request(struct scheduler *sched, bool fits);
/* This node fails the operation, or asks for its failure if request r contains it. */
void sequence_withdraw(struct scheduler *sched, const struct internode_comm *s,
		       const struct operation_key *key, const struct launch_request *r,
		       const struct failed_note *note);
/* It has failed the operation because its members' records differ, and the others are to fail it
 * now. */
void sequence_wait_no_more(struct scheduler *sched, const struct internode_comm *s,
			   const struct operation_key *key, const struct failed_note *note);
/* The sequencer has failed it: a successor may have to tell other nodes. */
void sequence_remember_failed(struct internode_comm *s, const struct operation_key *key,
			      const struct failed_note *note);
/* The sequencer has dropped the request; the rest of it must be requested again. */
void sequence_void(struct scheduler *sched, struct launch_request *r);
/* Likewise, though the sequencer may still launch it: all its epochs end. */
void sequence_give_up(struct scheduler *sched, struct launch_request *r);
/* Tells the workers to create it. False: a queue has no room now. */
typedef bool creation_launch_fn(struct scheduler *sched, const struct creation *k);
/* Takes a communicator that several nodes must create; launch is called when its turn has come. */
void sequence_request_creation(struct scheduler *sched, struct creation *k,
			       creation_launch_fn *launch);
/* Cancels it, if its turn has not come. */
void sequence_cancel_creation(struct scheduler *sched, uint64_t number);
/* Is a launch due in the sequencer's order? *m: the match to launch; NULL: a creation. */
bool sequence_next(const struct scheduler *sched, struct set_match **m);
/* False: a queue has no room now. */
bool sequence_launch_creation(struct scheduler *sched);
/* The launch that was due is done. */
void sequence_launched(struct scheduler *sched);
/* No request of the communicator follows. */
void sequence_leave(struct scheduler *sched, const struct internode_comm *s);
/* Takes a communicator that has ended here, of which only the nodes and failures are left. If the
 * sequencer is lost before it has told all nodes of these failures, this node tells the successor.
 */
void sequence_ended(struct scheduler *sched, struct internode_comm *s);
/* Has the sequencer closed it, so that no operation of it is launched any more? */
bool sequence_was_closed(const struct comm *c);
/* Likewise, and are all granted launches done? */
bool sequence_closed(const struct scheduler *sched, const struct internode_comm *s);
/* REQUEST, WITHDRAW, LAUNCH, CLOSED or SUCCESSION. */
void sequence_take_message(struct scheduler *sched, const struct internode_header *h,
			   const char *body, int node);
/* led: the lost node ran the sequencer. */
void sequence_node_lost(struct scheduler *sched, uint32_t node, bool led);
/* Call it in each round of a loop with other nodes. */
void sequence_poll(struct scheduler *sched);
void sequence_finish(struct scheduler *sched);

#endif
