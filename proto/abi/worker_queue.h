/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that the scheduler shares with one GPU's worker: launches go in, and the GPU itself
 * writes how far each slot has come. A slot is one NCCL communicator and its stream.
 *
 * The scheduler writes launches[head % WORKER_LAUNCHES] and then increments head; the worker takes
 * the launches between tail and head. As in ring.h, the doorbell is rung only if `asleep` is set.
 *
 * If device memory is staged (transport = mpi), a worker has no NCCL, and two slots: one for copies
 * from the GPU into pinned host memory, one for copies back. Its successor must not run a lost
 * worker's launches, so these launches, and LAUNCH_INIT, carry the generation of their worker.
 */
#ifndef WORKER_QUEUE_H
#define WORKER_QUEUE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#define WORKER_LAUNCHES	  8192 /* a power of two, more than a task group has tasks */
#define WORKER_COMM_SLOTS 256

enum {
	LAUNCH_MORE = 1,     /* the same ncclGroup continues */
	LAUNCH_CAPTURED = 2, /* the low half of done becomes `value`; go is reset */
	LAUNCH_AHEAD = 4,    /* go is reset, too, once it has come: the GPU waits for it */
};
enum { COPY_IN, COPY_OUT, COPY_SLOTS };

/* Not an operation of a task, and never in a group: NCCL creates the slot's communicator, which the
 * supervisor has announced to the worker, or is about to; value: its number. Waits for the other
 * workers' LAUNCH_INITs. */
enum { LAUNCH_INIT = 239 };

struct launch {
	uint64_t src, dst; /* in the worker's address space */
	uint64_t count;
	uint64_t seq;	/* the new value of the slot's `completed` */
	uint64_t value; /* wait for ready >= value, then done = value */
	uint64_t task;	/* its id in inspection */
	uint32_t slot;
	uint32_t session;  /* slot of the session that owns the timelines */
	uint32_t timeline; /* 0: none */
	int32_t peer;
	uint8_t op, type, redop, flags;
	/* For copies: blocks of count bytes between src or dst and the staging memory. */
	uint32_t blocks;
	uint32_t generation;	      /* also for LAUNCH_INIT */
	uint64_t host;		      /* offset */
	uint64_t stride, host_stride; /* distance between blocks */
	uint32_t once;		      /* its captured group, if that runs only once; or 0 */
	uint8_t pad[20];
};
static_assert(sizeof(struct launch) == 128, "launch");

struct slot_progress {
	_Alignas(64) _Atomic uint64_t completed; /* written by the GPU */
};

struct worker_queue {
	_Alignas(64) _Atomic uint64_t head; /* total launches so far */
	_Alignas(64) _Atomic uint64_t tail;
	_Atomic uint32_t asleep;
	_Atomic uint32_t
		generation; /* of the worker; written by the supervisor before the worker starts */
	_Alignas(4096) struct slot_progress slots[WORKER_COMM_SLOTS]; /* whole pages, for the GPU */
	struct launch launches[WORKER_LAUNCHES];
};

#endif
