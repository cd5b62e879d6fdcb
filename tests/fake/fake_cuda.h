/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for libcuda.so.1, for tests alone: GPUs made of shared memory, whose only
 * kernels are those of client/kernels.
 * Processes that share NCCLSVC_FAKE_DIR share the GPUs. A device pointer can be read and written by
 * the CPU. Environment, read at cuInit:
 *   NCCLSVC_FAKE_DIR     a directory for its files (required; the test removes it)
 *   NCCLSVC_FAKE_GPUS    how many (2)
 *   NCCLSVC_FAKE_MEMORY  bytes of each (1 GiB)
 *   NCCLSVC_FAKE_NO_PEER pairs of them that cannot access each other's memory: "0-1 2-3"
 *   CUDA_VISIBLE_DEVICES as the driver reads it: numbers and GPU-<uuid>
 *   CUDA_MPS_PIPE_DIRECTORY  whose control daemon the process becomes a client of, if one answers
 * Faults on demand: faults.c.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>

#include "abi/cuda_graph_abi.h"

#define FAKE_GPUS_MAX 16

#pragma GCC visibility push(default)

/* Under the names that the driver exports. */
#define FAKE_DECLARE(function, exported, parameters) CUresult function parameters __asm__(exported);
CUDA_FUNCTIONS(FAKE_DECLARE)
CUDA_CAPTURE_FUNCTIONS(FAKE_DECLARE)
CUDA_GRAPH_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

/* Calls that some drivers lack. They only affect the calling process, and ignore args. */
CUresult cuCheckpointProcessLock(int pid, void *args);
CUresult cuCheckpointProcessCheckpoint(int pid, void *args);
CUresult cuCheckpointProcessRestore(int pid, void *args);
CUresult cuCheckpointProcessUnlock(int pid, void *args);

/* ---- What the stand-in for NCCL needs beside them ---- */

/* What a stream does when its turn comes, and also a graph into which it was captured, at each
 * launch. */
struct fake_work {
	int type; /* type of its node */
	/* Runs on a thread of the stream. *stop is not 0 once the context has failed: then it does
	 * nothing, and waits give up. */
	void (*run)(void *arg, const atomic_int *stop);
	void (*drop)(void *arg);
	/* Creates the argument for one launch of the graph; run and drop also get it. NULL: arg
	 * itself. */
	void *(*again)(void *arg);
};
/* Enqueues work that cannot be captured. Takes ownership of arg, unless it fails. */
CUresult fake_stream_enqueue(CUstream stream, const struct fake_work *work, void *arg);

/* Device memory that an operation uses stays mapped while it is pinned. NULL: some of it is not
 * device memory or registered memory. Otherwise the address at which to access it. */
struct fake_pin {
	void *range;
	char *at;
	CUdeviceptr p;
	size_t bytes;
};
bool fake_pin(struct fake_pin *pin, CUdeviceptr p, size_t bytes);
void fake_unpin(struct fake_pin *pin);
/* An operation accessed memory that it must not: the context fails permanently. */
void fake_context_fault(CUcontext context);

/* Sleeps a little longer each time, up to 50 us; *round starts at 0. */
void fake_pause(unsigned *round);
/* True if the fault is turned on. */
bool fake_fault(const char *name);
/* Records an event for tests, as a file <event>-<pid>-<n>. */
void fake_note(const char *event);
/* For misuse that the real driver would tolerate silently; records "misused". */
_Noreturn void fake_die(const char *why);
const char *fake_dir(void);
/* The physical number of a visible device. */
int fake_physical(CUdevice device);
/* When the process started, in ticks; 0 if it is dead. */
unsigned long long fake_process_start(int pid);

#pragma GCC visibility pop

#endif
