/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for libcuda.so.1, only for tests: GPUs made of shared memory, whose only kernels are
 * those of client/kernels.
 * Processes with the same NCCLSVC_FAKE_DIR share the GPUs. The CPU can access device pointers.
 *
 * Environment, read at cuInit:
 *   NCCLSVC_FAKE_DIR         directory for its files (required; the test removes it)
 *   NCCLSVC_FAKE_GPUS        number of GPUs (2)
 *   NCCLSVC_FAKE_MEMORY      bytes per GPU (1 GiB)
 *   NCCLSVC_FAKE_NO_PEER     pairs of GPUs that cannot access each other's memory: "0-1 2-3"
 *   CUDA_VISIBLE_DEVICES     as in the driver: numbers and GPU-<uuid>
 *   CUDA_MPS_PIPE_DIRECTORY  the process becomes a client of the control daemon that answers here
 *
 * Faults on demand: faults.c.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>

#include "proto/abi/cuda_graph_abi.h"

#define FAKE_GPUS_MAX 16

#pragma GCC visibility push(default)

/* Uses the names that the driver exports. */
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

/* ---- Interfaces for the libnccl stand-in ---- */

/* One operation of a stream. If captured, each launch of the graph runs it. */
struct fake_work {
	int type; /* type of its node */
	/* Runs on a thread of the stream. *stop is non-zero once the context has failed: work then
	 * does nothing, and waits end. */
	void (*run)(void *arg, const atomic_int *stop);
	void (*drop)(void *arg);
	/* Creates the argument that run and drop get for one launch of the graph. If NULL, they get
	 * arg itself. */
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
/* Permanently fails the context after an invalid memory access. */
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
