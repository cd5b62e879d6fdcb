/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_SESSION_H
#define NCCL_SESSION_H

#include "dropin.h"
#include "proto/svc_limits.h"

/* A session of this process: all its communicators and memory on one GPU. It lives as long as the
 * process, unless its daemon is lost; later joins use a new session. */
struct gpu_session {
	ncclsvc_session *service;
	int device;
	atomic_bool lost;
	_Atomic ncclsvc_task newest;
	atomic_long swept_ms, forget_failed_ms;
	struct gpu_session *next;
};

#define RING_ENTRIES SVC_GROUP_TASKS

/* The device that is current on this thread, as cudaGetDevice reports it. */
ncclResult_t device_current(int *device);
ncclResult_t session_get(int device, struct gpu_session **session);
/* CLOCK_MONOTONIC_COARSE */
long now_ms(void);
/* Makes the daemon release memory that is about to be freed. Waits for at most 1 s, and not at all
 * for 10 s after a wait that failed, because a program may free thousands of mappings in a row. */
void sessions_forget(const void *p);
/* The number of forks between this process and its first ancestor. */
unsigned process_generation(void);

#endif
