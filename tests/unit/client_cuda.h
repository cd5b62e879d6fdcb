/* SPDX-License-Identifier: Apache-2.0
 * GPUs for tests of the client library, through libcuda.so.1: the real one or tests/fake's. The
 * peer plays the daemon and its workers. */
#ifndef TESTS_CLIENT_CUDA_H
#define TESTS_CLIENT_CUDA_H

#include "client_peer.h"
#include "proto/abi/cuda_abi.h"

#define CUDA_POINTER(function, name, parameters) CUresult(*function) parameters;
extern struct test_cuda {
	CUDA_FUNCTIONS(CUDA_POINTER)
} cu;
#undef CUDA_POINTER

#define MiB		      ((size_t)1 << 20)
#define GOOD(call)	      assert_int_equal(call, CUDA_SUCCESS)
/* The daemon numbers its devices differently. */
#define DAEMON_DEVICE(device) (7 - (device))

extern bool fake; /* not a real GPU */
extern int gpus;

/* For main: opens the driver, and creates tests/fake's directory; removes it. */
void gpus_open(void);
void gpus_close(void);
/* Turns one of tests/fake's faults on or off. */
void gpus_fault(const char *name, bool on);

/* A peer with the GPUs, and the primary context of GPU 0. */
int gpu_setup(void **state);
#define GPU_TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)
int gpu_teardown(void **state);

/* A session, a communicator, and a non-blocking stream set for the thread. */
ncclsvc_session *open_gpu(ncclsvc_comm **comm, CUstream *stream);
ncclsvc_comm *join_gpu(ncclsvc_session *s, int device);
CUstream new_stream(void);
CUdeviceptr new_memory(size_t bytes);
/* Memory of cuMemCreate, shareable as these handle types. */
CUmemGenericAllocationHandle create(size_t bytes, int types);
/* Maps the memory there, and releases the handle. */
void map_at(CUdeviceptr p, size_t bytes, CUmemGenericAllocationHandle handle);
static inline void *pointer(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}
/* An in-place AllReduce of n floats. */
ncclsvc_task reduce(ncclsvc_comm *comm, CUdeviceptr p, size_t n);
/* Task n's record, as the ring holds it. */
struct svc_record record(uint64_t n);
struct svc_timeline *timeline(uint32_t index);
/* Waits up to WAIT_MS until the stream has written the value. */
void wait_ready(uint32_t index, uint64_t value);
bool stream_idle(CUstream stream);
void stream_ends(CUstream stream);
/* Does what a worker does at a task's end: raises done, and writes the status. */
void work(uint64_t n);
unsigned open_fds(void);

/* Blocks the stream until the gate is opened. */
void gate_shut(CUstream stream);
void gate_open(void);

#endif
