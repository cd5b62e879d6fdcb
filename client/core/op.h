/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_OP_H
#define CLIENT_CORE_OP_H

#include <stdbool.h>

#include "base/api.h"
#include "proto/task.h"

/* An operation before it becomes a record. */
struct op {
	struct svc_record record;
	ncclsvc_comm *comm;
	const char *src;
	char *dst;
	uint64_t src_bytes, dst_bytes;
	ncclsvc_task *task;
	struct chunk *chunk; /* staging, if any buffer is a plain pointer */
	bool src_staged, dst_staged;
	bool quiet;
	size_t src_at, dst_at, chunk_bytes;
	bool copied;  /* copy the source even from session memory */
	bool entered; /* the operation is a task now */
	/* On GPUs: */
	struct CUstream_st *stream;
	bool detached;		    /* the stream does not wait for it */
	uint64_t planned;	    /* 0: not planned; otherwise grows in the order of groups */
	uint16_t region_entries[2]; /* of its regions in the table, from 1; 0: none */
	uint64_t shares[2];	    /* with other ranks (cuda/direct/shares.c); 0: none */
	bool unshared;		    /* its buffers cannot be shared */
	/* If a kernel does the operation: which kernel, how many earlier operations share it, and
	 * its number among the communicator's. */
	uint8_t kernel;	      /* enum kernel */
	uint32_t joined;      /* number of earlier operations in the same kernel */
	uint32_t turn;	      /* a message's number among those of its direction */
	uint32_t group_index; /* among all operations of the group */
	uint32_t slice;	      /* slice, among the group's operations that go to the daemon */
	bool beside_nccl;     /* on the side stream, beside the group's NCCL operations */
	uint8_t blocks;
	uint16_t threads;
	struct capture *capture;
	uint32_t kernel_seq, coll_seq, message; /* 0: the operation is in a graph */
	uint32_t newest_coll_seq;		/* of the communicator */
	bool captured;				/* its stream is being captured into a graph */
	bool stream_started; /* its stream starts the operation (cuda/capture/captured_group.h) */
	uint32_t captured_group;     /* its number, if it is in one or started like one */
	struct captured_group *kept; /* for a graph */
	uint64_t operation,
		collective; /* how many operations of all transports were submitted before */
	bool posts;
	struct CUctx_st *push; /* context to make current for the launch, or NULL */
	unsigned long long stream_id;
	struct CUctx_st *stream_context; /* context of a default stream */
};

#endif
