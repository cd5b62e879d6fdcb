/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: the process that owns one GPU's context, its NCCL communicators, and what it imported
 * of trainers' memory. One thread does everything but to end communicators, for NCCL wants one
 * launcher for each GPU.
 *
 *   worker.c         start, loop and sleep
 *   control.c        the supervisor's requests
 *   launch.h         from the queue to the GPU, in order: launch.c; copy.c without NCCL
 *   comm_slot.h      communicators: comm_slot.c, their ends in ending.c, reductions in redop.c
 *   import.h         memory: import.c; range.c for several mappings as one
 *   probe.c          which GPUs there are: a process of its own
 */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <stdint.h>

#include "abi/worker_queue.h"
#include "comm_slot.h"
#include "gpu_api.h"
#include "import.h"
#include "ring.h"
#include "spin.h"
#include "worker_protocol.h"

struct worker {
	int sock, bell, queue_fd;
	struct worker_queue *queue;
	uint32_t generation;  /* this worker's, in the queue */
	CUdeviceptr progress; /* queue->slots as the GPU addresses them */
	CUdevice device;
	CUcontext context;
	int32_t driver_version, nccl_version;
	char name[NCCLSVC_NAME_BYTES];
	uint8_t uuid[16];
	uint64_t worker_bytes;
	struct spin spin;
	CUdeviceptr scratch; /* for what has no buffer of its own: barriers, warm-up */
	struct session_timelines sessions[SVC_SESSIONS_MAX];
	struct comm_slot slots[WORKER_COMM_SLOTS];
	struct comm_slot_init inits[WORKER_COMM_SLOTS];
	struct slot_ending *endings; /* that have left their slots */
	/* Where device memory is staged; then there is no NCCL, and there are no slots. */
	char *staging; /* NULL: it is not */
	uint64_t staging_bytes;
	struct {
		CUstream stream;
		uint64_t enqueued; /* seq of the last copy */
	} copies[COPY_SLOTS];
	struct import *imports; /* by address */
	struct import *named;	/* those of CUDA IPC, by what they are of */
	struct import *range;	/* whose parts are being told, or NULL */
	struct range_opening *openings;
	struct lending *lendings;
	uint64_t lendings_ns;	 /* when they were looked at */
	struct import *leaving;	 /* to be let go */
	uint32_t ranges_leaving; /* among those */
	struct closing *closings;
	uint64_t closings_due_ns; /* the first of them; 0: there is none */
	struct closed_session *closed;
	uint64_t close_by_ns; /* then also while tasks are in flight; 0: nothing is to be let go */
	struct closer *closer;
	bool stuck; /* some slot waits for somebody's input, or has not got on for a while */
	uint64_t tail, checked_ns;
	uint32_t high_slot; /* slots from here on were never used */
	uint32_t in_flight; /* slots with launches that have not completed */
	bool quit;
	bool supervisor_lost;
	char dying[SVC_TEXT_BYTES]; /* not empty: the context is lost, and why */
};

uint64_t worker_clock(void);
/* Tells the supervisor, and ends the loop, if the error is fatal; returns error != 0. */
bool worker_bad(struct worker *w, CUresult error, const char *what);
/* Another worker must take over, and why. */
void worker_die(struct worker *w, const char *why);
void worker_send(struct worker *w, const struct worker_message *m, int fd);

/* control.c: handles what the supervisor sent, for WORKER_TURN_NS. False: it is gone. */
bool control_handle(struct worker *w);

#endif
