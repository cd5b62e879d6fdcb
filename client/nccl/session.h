/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_SESSION_H
#define NCCL_SESSION_H

#include "dropin.h"
#include "proto/svc_limits.h"

/* A session of this process: all its communicators and memory on one GPU. It lives as long as the
 * process, unless its daemon is lost; what is joined afterwards has a new one. */
struct gpu_session {
	ncclsvc_session *service;
	int device;
	atomic_bool lost;
	_Atomic ncclsvc_task newest;
	atomic_long swept_ms, forget_failed_ms;
	struct gpu_session *next;
};

#define RING_ENTRIES SVC_GROUP_TASKS

/* The device that is current on this thread, as cudaGetDevice says it. */
ncclResult_t device_current(int *device);
ncclResult_t session_get(int device, struct gpu_session **session);
/* CLOCK_MONOTONIC_COARSE */
long now_ms(void);
/* Has the daemon let go of memory that is about to be freed. Waits for 1 s at most; not at all for
 * 10 s after a wait that was in vain, since a program frees thousands of mappings in a row. */
void sessions_forget(const void *p);
/* NCCL's version behind the daemon. */
ncclResult_t session_nccl_version(int *version);
/* The daemon, or one of its workers: it would ask itself. */
bool process_is_daemon(void);
/* The number of this process among its forebears: it grows with each fork. */
unsigned process_generation(void);

#endif
