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

#include "abi/cuda_abi.h"

#define FAKE_GPUS_MAX 16

#pragma GCC visibility push(default)

/* Under the names that the driver exports. */
#define FAKE_DECLARE(function, exported, parameters) CUresult function parameters __asm__(exported);
CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

/* Calls that not every driver has. They work on the calling process alone, and ignore args. */
CUresult cuCheckpointProcessLock(int pid, void *args);
CUresult cuCheckpointProcessCheckpoint(int pid, void *args);
CUresult cuCheckpointProcessRestore(int pid, void *args);
CUresult cuCheckpointProcessUnlock(int pid, void *args);

/* ---- What the stand-in for NCCL needs beside them ---- */

/* Runs on the stream's thread, and frees arg. *stop is not 0 once the context has failed: then it
 * only frees, and what waits gives up. */
typedef void fake_op(void *arg, const atomic_int *stop);
CUresult fake_stream_enqueue(CUstream stream, fake_op *op, void *arg);

/* What a captured kernel does at each launch, on its stream; drop comes when its graph goes. */
struct fake_node {
	CUresult (*fire)(void *arg, CUstream stream);
	void (*drop)(void *arg);
	void *arg;
};
/* Adds it to the graph into which the stream is captured; *captured is false if it is not. */
CUresult fake_stream_capture(CUstream stream, const struct fake_node *node, bool *captured);

/* Device memory that an operation uses stays mapped while it is pinned. NULL: not all of it is
 * device memory or registered. Otherwise where to read and write it. */
struct fake_pin {
	void *range;
	char *at;
	CUdeviceptr p;
	size_t bytes;
};
bool fake_pin(struct fake_pin *pin, CUdeviceptr p, size_t bytes);
void fake_unpin(struct fake_pin *pin);
/* An operation touched what it may not: the context fails for good. */
void fake_context_fault(CUcontext context);
/* True if the memory came from another process. */
bool fake_memory_imported(CUdeviceptr p);

/* Sleeps a little longer each time, up to 50 us; *round starts at 0. */
void fake_pause(unsigned *round);
/* True if the fault is asked for. */
bool fake_fault(const char *name);
/* For tests to see: a file <event>-<pid>-<n>, for each time. */
void fake_note(const char *event);
/* What the real one would suffer in silence; notes "misused". */
_Noreturn void fake_die(const char *why);
const char *fake_dir(void);
/* The physical number of a visible device. */
int fake_physical(CUdevice device);
/* When the process started, in ticks; 0 if it is dead. */
unsigned long long fake_process_start(int pid);

#pragma GCC visibility pop

#endif
