/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_OP_H
#define CLIENT_CORE_OP_H

#include <stdbool.h>

#include "base/api.h"
#include "proto/names.h"
#include "proto/task.h"

/* On host memory: the chunk through which plain buffers are copied. */
struct op_staged {
	struct chunk *chunk;
	size_t bytes, src_at, dst_at;
	bool src, dst; /* these buffers are copied */
};

/* On GPUs: the buffers' regions. */
struct op_regions {
	uint16_t entries[2]; /* in the table, from 1; 0: none */
	uint64_t shares[2];  /* with other ranks (cuda/direct/shares.c); 0: none */
	bool unshared;	     /* the buffers cannot be shared */
};

/* The operation's route: kernel, ring or capture, and its place among those of its task group. */
struct op_route {
	uint8_t kernel; /* enum kernel; KERNEL_NONE: it goes to the daemon */
	bool captured;	/* its stream is being captured into a graph */
	/* Its stream starts the operation, which is in the ring (cuda/capture/captured_group.h). */
	bool stream_started;
	bool beside_nccl;      /* on the side stream, beside the group's NCCL operations */
	uint32_t group_index;  /* among all operations of the group */
	uint32_t turn;	       /* a message's number among those of its direction */
	uint32_t slice;	       /* slice, among the group's operations that go to the daemon */
	struct CUctx_st *push; /* context to make current for its stream, or NULL */
};

/* Arguments of the launch of its kernel. */
struct op_launch {
	uint32_t joined; /* number of earlier operations in the same kernel */
	uint8_t blocks;
	uint16_t threads;
	uint32_t kernel_seq, coll_seq, message; /* 0: the operation is in a graph */
	uint32_t newest_coll_seq;		/* of the communicator */
	/* How many operations of all transports were submitted before. */
	uint64_t operation, collective;
	bool posts;
	unsigned long long stream_id;
	struct CUctx_st *stream_context; /* context of a default stream */
};

/* Its captured group, if it is in one or started like one. */
struct op_kept {
	uint32_t number;
	struct captured_group *group; /* in a graph; otherwise NULL */
};

/* An operation before it becomes a record. */
struct op {
	/* From the caller: */
	struct svc_record record;
	ncclsvc_comm *comm;
	const char *src;
	char *dst;
	uint64_t src_bytes, dst_bytes;
	ncclsvc_task *task;
	struct CUstream_st *stream;
	uint64_t planned;  /* 0: not planned; otherwise grows in the order of groups */
	uint64_t order;	   /* if planned: its slot's number (struct slot) */
	bool detached;	   /* the stream does not wait for it */
	bool copied;	   /* copy the source even from session memory */
	bool quiet;	   /* its failure is intended and not reported */
	uint8_t scalar[8]; /* of premulsum */
	/* From its submission: */
	bool entered; /* it is a task now */
	struct op_route route;
	struct op_staged staged;
	struct op_regions regions;
	struct capture *capture; /* of its communicator, while the operation is put on streams */
	struct op_launch launch;
	struct op_kept kept;
};

/* Whether it uses a reduction that the program has created. */
static inline bool op_is_premulsum(const struct op *op)
{
	return svc_op_reduces(op->record.op) && svc_redop_made(op->record.redop);
}

#endif
