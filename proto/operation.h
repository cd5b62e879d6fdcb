/* SPDX-License-Identifier: Apache-2.0
 * The definition of each operation: one row of a table, which determines everything else: the
 * extents of its buffers, how it works in place, and which rank sends what to which. */
#ifndef PROTO_OPERATION_H
#define PROTO_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "ncclsvc_types.h"

enum svc_op_kind {
	SVC_OP_KNOWN = 1,
	SVC_OP_HAS_DATA = 2, /* a type and a count */
	SVC_OP_REDUCES = 4,  /* receivers get one result from all senders */
	SVC_OP_HAS_ROOT = 8, /* peer is the one rank that sends or receives */
	SVC_OP_IS_P2P = 16,  /* peer is the other rank */
};

/* The size of a rank's buffer. */
enum svc_blocks {
	SVC_BLOCKS_NONE,
	SVC_BLOCKS_ONE,	 /* count elements */
	SVC_BLOCKS_EACH, /* count elements for each rank, in the order of ranks */
};

struct svc_operation {
	uint8_t kind; /* of enum svc_op_kind; 0: there is no such operation */
	/* enum svc_blocks, for ranks other than the root (or the peer), and for that rank; equal if
	 * there is none.
	 */
	uint8_t src[2], dst[2];
};

/* By number. One lookup replaces a series of tests for every record. */
extern const struct svc_operation svc_operations[UINT8_MAX + 1];

static inline const struct svc_operation *svc_operation(unsigned op)
{
	return &svc_operations[op <= UINT8_MAX ? op : 0];
}

static inline bool svc_op_known(unsigned op)
{
	return svc_operation(op)->kind & SVC_OP_KNOWN;
}

static inline bool svc_op_reduces(unsigned op)
{
	return svc_operation(op)->kind & SVC_OP_REDUCES;
}

static inline bool svc_op_has_root(unsigned op)
{
	return svc_operation(op)->kind & SVC_OP_HAS_ROOT;
}

static inline bool svc_op_is_p2p(unsigned op)
{
	return svc_operation(op)->kind & SVC_OP_IS_P2P;
}

/* Does a sender have a block for each receiver? Otherwise all get the same one. */
static inline bool svc_op_sends_each(unsigned op)
{
	return svc_operation(op)->src[1] == SVC_BLOCKS_EACH;
}

/* Does a receiver have a block from each sender? */
static inline bool svc_op_receives_each(unsigned op)
{
	return svc_operation(op)->dst[1] == SVC_BLOCKS_EACH;
}

/* Does only the root send? */
static inline bool svc_op_root_sends(unsigned op)
{
	return svc_op_has_root(op) && svc_operation(op)->src[0] == SVC_BLOCKS_NONE;
}

/* Does only the root receive? */
static inline bool svc_op_root_receives(unsigned op)
{
	return svc_op_has_root(op) && svc_operation(op)->dst[0] == SVC_BLOCKS_NONE;
}

/* Does this rank send? Not for Send and Recv. */
static inline bool svc_op_sends(unsigned op, int32_t root, uint32_t rank)
{
	return !svc_op_root_sends(op) || (uint32_t)root == rank;
}

/* Does this rank receive? Not for Send and Recv. */
static inline bool svc_op_receives(unsigned op, int32_t root, uint32_t rank)
{
	return !svc_op_root_receives(op) || (uint32_t)root == rank;
}

#endif
