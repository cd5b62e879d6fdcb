/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits a group that is too large to be submitted at once into slices, which are submitted one
 * after the other.
 *
 * In a group, any operation may wait for any other on any rank. So the slices must be compatible on
 * all ranks, although each rank knows only its own operations and may cut in other positions:
 *
 *   - An operation's *turn* is how many of its kind come before it in the group: collectives of its
 *     communicator, or Sends, or Recvs, of that communicator with that peer. So a Send has the turn
 *     of its Recv, and a collective has the same turn on all ranks.
 *   - Operations are ordered by turn; in a turn by communicator; there collectives come first, and
 *     messages go by their distance from sender to receiver, then by sender. All of this is the
 *     same for all ranks that take part, which gives one order of all collectives and messages.
 *   - A slice is a section of that order. It never splits the operations of one process for several
 *     ranks of a collective or message.
 *
 * Consider the first operation in the order that has not ended. All before it have ended, so all
 * ranks that take part in it have submitted it, or can: it ends, and no rank hangs. This holds for
 * any cuts, as long as the ranks' groups match. (NCCL launches large groups in rounds of turns,
 * too.) */
#ifndef PROTO_SLICES_H
#define PROTO_SLICES_H

#include <stdbool.h>
#include <stdint.h>

struct slice_op {
	const unsigned char *comm; /* id */
	int32_t nranks, rank;
	int32_t peer;  /* of a message */
	bool message;  /* otherwise a collective */
	bool sends;    /* a message */
	uint32_t turn; /* set by slices_order */
	uint32_t at;   /* index in the group, from 0 */
};

/* Orders a group's operations, given in group order. */
void slices_order(struct slice_op *ops, uint32_t n);
/* For ordered operations: the length of the first slice, `most` at most (unless one collective has
 * more). */
uint32_t slices_cut(const struct slice_op *ops, uint32_t n, uint32_t most);

#endif
