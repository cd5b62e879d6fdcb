/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_OP_H
#define CLIENT_CORE_OP_H

#include <stdbool.h>

#include "base/api.h"
#include "proto/task.h"

/* An operation on its way into a record. */
struct op {
	struct svc_record record;
	ncclsvc_comm *comm;
	const char *src;
	char *dst;
	uint64_t src_bytes, dst_bytes;
	ncclsvc_task *task;
	struct chunk *chunk; /* staging, if any buffer is plain */
	bool src_staged, dst_staged;
	bool quiet;
	size_t src_at, dst_at, chunk_bytes;
	bool copied;  /* the source, even from session memory */
	bool entered; /* it is a task now */
	/* On GPUs: */
	struct CUstream_st *stream;
	bool detached;	    /* the stream does not wait for it */
	uint64_t planned;   /* 0: not; else it grows with the order of groups */
	uint16_t places[2]; /* of its regions, from 1; 0: none */
	/* If a kernel does it: which, with how many of the operations before, and its place among
	 * the communicator's. */
	uint8_t kernel;	 /* enum kernel */
	uint32_t joined; /* so many operations before it are in the same kernel */
	uint32_t turn;	 /* a message's place among those of the group in its way */
	uint32_t place;	 /* of all in the group */
	uint32_t slice;	 /* of those of the group that go to the daemon */
	bool aside;	 /* on another stream, beside those of the group that go to NCCL */
	uint8_t blocks;
	uint16_t threads;
	struct peer *peer;
	uint32_t serial, round, message; /* 0: it is in a graph */
	uint32_t newest;		 /* round of the communicator */
	bool captured;			 /* the stream is, into a graph */
	bool triggered;			 /* the stream starts it: cuda/trigger.h */
	uint32_t trigger;		 /* its number, if it goes to NCCL so, or from a graph */
	struct trigger *kept;		 /* for a graph */
	uint64_t operation, collective;	 /* how many, of all transports, were submitted before */
	bool posts;
	struct CUctx_st *push; /* to be current when it is launched, or NULL */
	unsigned long long stream_id;
	struct CUctx_st *stream_context; /* of a default stream */
};

#endif
