/* SPDX-License-Identifier: Apache-2.0
 * Operations of members on several nodes: their names, and why a node fails one. Nodes send both
 * structs to each other unchanged. */
#ifndef COORD_NODE_OPERATION_H
#define COORD_NODE_OPERATION_H

#include "mismatch.h"

/* The name of a collective in its epoch, or of a Send and its Recv: then a is the sender and b the
 * receiver; otherwise both are -1. Each plan counts its own operations, so that the leftovers of
 * one plan do not match those of the next. */
struct operation_key {
	int32_t a, b;
	uint64_t seq;	/* with the plan's number above PLAN_SHIFT */
	uint64_t subop; /* of a staged operation: its chunk, from 1 */
};

#define PLAN_SHIFT 42 /* PLAN_NUMBER_MAX has room above */

static inline uint32_t operation_plan(const struct operation_key *key)
{
	return (uint32_t)(key->seq >> PLAN_SHIFT);
}

/* The same operation, perhaps another subop of it? */
static inline bool operation_same(const struct operation_key *a, const struct operation_key *b)
{
	return a->a == b->a && a->b == b->b && a->seq == b->seq;
}

/* Why a node, or the sequencer, fails an operation. */
struct failed_note {
	ncclsvc_status status;
	struct mismatch posted; /* for a MISMATCH: the records of its members */
	/* From the sequencer: the epoch cannot continue in order because the node of that place
	 * (-1: none) does not answer, or for status.result. */
	uint32_t ends_epoch;
	int32_t node;
};

#endif
