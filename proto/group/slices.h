/* SPDX-License-Identifier: Apache-2.0
 *
 * A group of more operations than can be submitted at once goes in slices, one after the other.
 *
 * In a group every operation may wait for any other, on any rank. So the slices must be cut alike
 * on all ranks, though each rank knows its own operations alone, and may cut elsewhere:
 *
 *   - An operation's *turn* is how many of its kind come before it in the group: collectives of its
 *     communicator, or Sends, or Recvs, of that communicator with that peer. So a Send has the turn
 *     of its Recv, and a collective has the same turn on all ranks.
 *   - Operations are ordered by turn; in a turn by communicator; there collectives come first, and
 *     messages go by their distance from sender to receiver, then by sender. All of that is the
 *     same for all ranks that take part. So there is one order of all collectives and messages.
 *   - A slice is a piece of that order, and what one process does for several ranks of one
 *     collective or message is not cut.
 *
 * Take the first in the order that has not ended. All before it have ended, so all ranks that take
 * part in it have submitted it, or can: it ends, and no rank waits for ever. That is so wherever
 * ranks cut, as long as their groups hold the same. (NCCL launches large groups in rounds of turns,
 * too.) */
#ifndef PROTO_SLICES_H
#define PROTO_SLICES_H

#include <stdbool.h>
#include <stdint.h>

struct slice_op {
	const unsigned char *comm; /* id */
	int32_t nranks, rank;
	int32_t peer;  /* of a message */
	bool message;  /* else a collective */
	bool sends;    /* a message */
	uint32_t turn; /* slices_order's */
	uint32_t at;   /* in the group, from 0 */
};

/* Orders a group's operations, which come as they are in the group. */
void slices_order(struct slice_op *ops, uint32_t n);
/* Of ordered operations: how many of the first are a slice, `most` at most (unless one collective
 * has more). */
uint32_t slices_cut(const struct slice_op *ops, uint32_t n, uint32_t most);

#endif
