/* SPDX-License-Identifier: Apache-2.0
 * Helpers for tests of the direct transport: operations in kernels on the ranks' own streams. */
#ifndef TESTS_GPU_KERNELS_H
#define TESTS_GPU_KERNELS_H

#include "ranks.h"

#define SMALL	    64		      /* words of an operation on the direct transport */
#define LARGE	    ((size_t)9 << 20) /* bytes of an operation that NCCL runs */
#define LARGE_WORDS (LARGE / sizeof(uint32_t))
#define LONG_WORDS  ((size_t)1 << 19) /* words of a kernel's longest message: more than a ring */

/* Starts a daemon. Skips the test if communicators have no kernels on this machine. */
void kernels_daemon_start(struct daemon *d);
/* Like ranks_run, with kernels_daemon_start. */
void kernels_run(int n, client_main *main, void *arg);

/* From now on until kernels_rejoin, the epoch ends with this result. So it may be over before the
 * rank has submitted everything: then the functions below set the task to 0. */
void kernels_may_end(struct rank *r, ncclsvc_result result);
/* Checks a submission's result. */
void kernels_submitted(const struct rank *r, ncclsvc_result result, ncclsvc_task *task);
/* Waits until the task has failed with the result that the epoch ends with. False: the epoch was
 * over before the task was submitted. */
bool kernels_failed(const struct rank *r, ncclsvc_task task, ncclsvc_status *st);
/* Sums n words over all ranks, in place. Not for use in a group. */
ncclsvc_task kernels_sum(struct rank *r, CUdeviceptr p, size_t n);
/* Sends n words to, or receives them from, another rank. */
void kernels_send(struct rank *r, CUdeviceptr p, size_t n, int to, ncclsvc_task *task);
void kernels_recv(struct rank *r, CUdeviceptr p, size_t n, int from, ncclsvc_task *task);
/* Waits until the communicator reports that its epoch has ended, with the expected result. */
void kernels_over(struct rank *r, ncclsvc_result expected);
/* Rejoins after the epoch's end. */
void kernels_rejoin(struct rank *r);
/* How many of the epoch's collectives went through staging memory. It is the same on all ranks
 * between a barrier and the next collective. */
uint64_t kernels_staged(const struct rank *r);

#endif
