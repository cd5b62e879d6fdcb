/* SPDX-License-Identifier: Apache-2.0
 * Several processes that share the stand-ins' GPUs, for the tests of the stand-ins. */
#ifndef FAKE_RANKS_H
#define FAKE_RANKS_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake_nccl.h"

#define PROCESSES_MAX 4

/* State shared by the processes of one test. */
struct ranks {
	atomic_int arrived[PROCESSES_MAX + 1]; /* for ranks_barrier */
	_Atomic uint64_t step;		       /* for ranks_wait; the tests set it */
	int pids[PROCESSES_MAX];
	int socks[PROCESSES_MAX][2]; /* [i][0] for process i, [i][1] for the others */
	ncclUniqueId id;
	CUipcMemHandle handle;
	_Alignas(4096) char scratch[128 * 4096];
};

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (a_ != b_) {                                                                    \
			fprintf(stderr, "%s:%d: %s is %lld, not %s (%lld)\n", __FILE__, __LINE__,  \
				#a, a_, #b, b_);                                                   \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

#define OK(call) CHECK_EQ(call, 0)

typedef void ranks_part(struct ranks *ranks, int rank);

/* Forks n processes that run the part under a time limit, with a fresh NCCLSVC_FAKE_DIR. Fails
 * unless all exit with 0, except process `killed` (-1: none), which must die of SIGKILL. */
void ranks_run(int n, ranks_part *part, int killed);
/* Waits until all n processes have reached this barrier. */
void ranks_barrier(struct ranks *ranks, int n);
void ranks_wait(struct ranks *ranks, uint64_t step);
/* Makes or removes $NCCLSVC_FAKE_DIR/fault.<name>. */
void fault_on(const char *name, int pid);
void fault_off(const char *name);
/* Initializes CUDA and makes the device's primary context current. */
CUcontext gpu_open(int device);
CUdeviceptr gpu_alloc(size_t bytes);
CUstream stream_open(void);
/* gpu_open, then a communicator of n processes. All of them call it. */
ncclComm_t comm_open(struct ranks *ranks, int rank, int n);
/* Repeats the test until it returns true. Returns false after 20 s. */
bool soon(bool (*test)(void *arg), void *arg);
void snooze(int ms);
/* Number of files in NCCLSVC_FAKE_DIR whose names begin with start. */
int files_named(const char *start);

#endif
