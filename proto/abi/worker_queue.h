/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that the engine shares with one GPU's worker: launches go in, and the GPU itself
 * writes how far each slot has come. A slot is one NCCL communicator and its stream.
 *
 * The engine writes launches[head % WORKER_LAUNCHES] and then adds to head; the worker takes what
 * lies between tail and head. As in ring.h, the doorbell is rung only if `asleep` is set.
 *
 * Where device memory is staged (transport = mpi), a worker has no NCCL, and two slots: copies from
 * the GPU into pinned host memory, and copies back. A launch for a worker that is gone must not
 * reach the next one, so these launches, and LAUNCH_INIT, name the generation of their worker.
 */
#ifndef WORKER_QUEUE_H
#define WORKER_QUEUE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#define WORKER_LAUNCHES	  8192 /* a power of two, more than a task group has tasks */
#define WORKER_COMM_SLOTS 256

enum {
	LAUNCH_MORE = 1,      /* the same ncclGroup goes on */
	LAUNCH_TRIGGERED = 2, /* done's low half becomes `value`; go is taken back */
	LAUNCH_AHEAD = 4,     /* so is, too, when it has come: the GPU waits for it */
};
enum { COPY_IN, COPY_OUT, COPY_SLOTS };

/* Beside tasks' operations, and alone, not in a group: NCCL makes the slot's communicator, which
 * the supervisor has told the worker about, or will in a moment; value: its number. Waits for the
 * other workers'. */
enum { LAUNCH_INIT = 239 };

struct launch {
	uint64_t src, dst; /* in the worker's address space */
	uint64_t count;
	uint64_t seq;	/* what the slot's `completed` becomes */
	uint64_t value; /* wait for ready >= value, then done = value */
	uint64_t task;	/* as inspection shows it */
	uint32_t slot;
	uint32_t session;  /* slot; whose timelines */
	uint32_t timeline; /* 0: none */
	int32_t peer;
	uint8_t op, type, redop, flags;
	/* A copy: blocks of count bytes, between src or dst and the staging memory. */
	uint32_t blocks;
	uint32_t generation;	      /* also of LAUNCH_INIT */
	uint64_t host;		      /* offset */
	uint64_t stride, host_stride; /* from block to block */
	uint8_t pad[24];
};
static_assert(sizeof(struct launch) == 128, "launch");

struct slot_progress {
	_Alignas(64) _Atomic uint64_t completed; /* by the GPU */
};

struct worker_queue {
	_Alignas(64) _Atomic uint64_t head; /* launches ever */
	_Alignas(64) _Atomic uint64_t tail;
	_Atomic uint32_t asleep;
	_Atomic uint32_t
		generation; /* of the worker; the supervisor writes it before it starts one */
	_Alignas(4096) struct slot_progress
		slots[WORKER_COMM_SLOTS]; /* whole pages: the GPU's too */
	struct launch launches[WORKER_LAUNCHES];
};

#endif
