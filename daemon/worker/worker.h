/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: the process that owns one GPU's context, its NCCL communicators, and memory imported
 * from trainers. One thread does everything except ending communicators, since NCCL wants a single
 * launching thread per GPU.
 *
 *   worker.c         start, loop and sleep
 *   control.c        the supervisor's requests
 *   worker_launch.h  from the queue to the GPU, in order: worker_launch.c; copy.c without NCCL
 *   comm_slot.h      communicators: comm_slot.c, their ends in ending.c, reductions in redop.c
 *   import.h         memory: import.c; range.c for several mappings as one; its release in sweep.c
 *   report.c         messages to the supervisor
 *   probe.c          lists the GPUs, in a process of its own
 */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <stdint.h>

#include "comm_slot.h"
#include "gpu_api.h"
#include "import.h"
#include "proto/abi/worker_queue.h"
#include "proto/ring.h"
#include "proto/spin.h"
#include "proto/worker_protocol.h"

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
	/* If device memory is staged; then there is no NCCL, and there are no slots. */
	char *staging; /* NULL: memory is not staged */
	uint64_t staging_bytes;
	struct {
		CUstream stream;
		uint64_t enqueued; /* seq of the last copy */
	} copies[COPY_SLOTS];
	struct import *imports; /* by address */
	struct import *named;	/* imports of CUDA IPC, by name */
	struct import *range;	/* the range whose parts are being received, or NULL */
	struct range_opening *openings;
	struct import *leaving;	 /* to be released */
	uint32_t ranges_leaving; /* among those */
	struct closing *closings;
	uint64_t closings_due_ns; /* the earliest deadline; 0: none */
	struct closed_session *closed;
	uint64_t close_by_ns; /* then even while tasks are in flight; 0: nothing to release */
	struct closer *closer;
	bool stuck; /* some slot waits for input, or has made no progress for a while */
	uint64_t tail, checked_ns;
	uint32_t high_slot; /* slots from here on were never used */
	uint32_t in_flight; /* slots with launches that have not completed */
	bool quit;
	bool supervisor_lost;
	char dying[SVC_TEXT_BYTES]; /* not empty: why the context is lost */
};

/* If the error is fatal, tells the supervisor and ends the loop; returns error != 0. */
bool worker_bad(struct worker *w, CUresult error, const char *what);
/* Another worker must take over, for this reason. */
void worker_die(struct worker *w, const char *why);
void worker_send(struct worker *w, const struct worker_message *m);

/* control.c: handles the supervisor's messages, for WORKER_TURN_NS. False: the supervisor is gone.
 */
bool control_handle(struct worker *w);

#endif
