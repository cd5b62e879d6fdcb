/* SPDX-License-Identifier: Apache-2.0
 *
 * The drop-in libnccl.so.2: what all its files share. NCCL's functions, each in the file of its
 * subject, are thin: they check their arguments and call the session of their GPU.
 *
 * Bottom up; a file only calls files of earlier lines:
 *
 *   version.c  the version of the daemon's NCCL
 *   error.c    results, sentences, NCCL_DEBUG
 *   driver.c   the CUDA driver             nccl_config.c   ncclConfig_t, field by field
 *   connections.c, mps.c  environment variables that CUDA reads when it initializes
 *   nccl_session.c  a session for each GPU; fork
 *   handle.c   communicators as users see them; calls inside
 *   submit.c   operations to sessions      start.c    joins, splits, in threads
 *   redop.c    user-made reductions
 *   nccl_group.c  ncclGroupStart and End
 *
 * NCCL's other functions:
 *
 *   init.c     create communicators        end.c      end them
 *   info.c     queries                     suspend.c  suspending, memory statistics
 *   ops.c      the operations              memory.c   ncclMemAlloc, registration
 *   device.c   the device API (refused)    onesided.c one-sided operations (refused)
 *   params.c   NCCL's variables, which belong to the daemon
 *
 * CUDA's functions that free memory: free.c.
 *
 * Every exported function is weak and has an alias whose name begins with p, as in NCCL, for tools
 * that wrap the one and call the other. */
#ifndef DROPIN_H
#define DROPIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ncclsvc.h"
#include "proto/abi/nccl_abi.h"

#define NCCL_ABI_VERSION 23203 /* the release whose nccl.h this is */

/* Declares and exports a function of nccl_abi.h, under both its names. */
#define NCCL_EXPORT(function, type, parameters)                                                    \
	__attribute__((visibility("default"), weak)) type function parameters;                     \
	__attribute__((visibility("default"))) type p##function parameters;
NCCL_FUNCTIONS(NCCL_EXPORT)
NCCL_MORE_FUNCTIONS(NCCL_EXPORT)
/* Follows a function's definition: exports its second name. */
#define NCCL_ALIAS(function)                                                                       \
	__attribute__((visibility("default"), alias(#function))) __typeof__(function) p##function

/* A fork waits until nobody holds this file's lock, because its child could never get it.
 * Registered early, so that it is taken after nccl_session.c's lock; no other lock is taken while
 * it is held. */
#define FREE_IN_CHILDREN(lock)                                                                     \
	static void before_fork(void)                                                              \
	{                                                                                          \
		pthread_mutex_lock(&lock);                                                         \
	}                                                                                          \
	static void after_fork(void)                                                               \
	{                                                                                          \
		pthread_mutex_unlock(&lock);                                                       \
	}                                                                                          \
	__attribute__((constructor(102))) static void watch_forks(void)                            \
	{                                                                                          \
		pthread_atfork(before_fork, after_fork, after_fork);                               \
	}

/* ---- error.c ---- */

/* Stores the sentence for ncclGetLastError and the open group, and returns result. */
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t result, const char *format,
							...);
/* The same for a failed call of libncclsvc: stores its sentence, and returns the nearest NCCL
 * result. */
ncclResult_t fail_service(ncclsvc_result result);
ncclResult_t result_of(ncclsvc_result result);
/* The sentence of the process's last failure. Belongs to the calling thread until its next call. */
const char *last_sentence(void);
/* Prints a line with NCCL_DEBUG=WARN, without failing anything. */
__attribute__((format(printf, 1, 2))) void warn(const char *format, ...);
/* Prints a line with NCCL_DEBUG=INFO. */
__attribute__((format(printf, 1, 2))) void inform(const char *format, ...);

/* A thread's errors. On the heap, because a library that is opened late has little thread-local
 * storage. */
struct thread_errors {
	char sentence[1024];  /* for last_sentence */
	char text[768];	      /* for ncclGetLastError */
	unsigned group_depth; /* calls of ncclGroupStart without their ncclGroupEnd */
	/* The open group's first failure, for the outermost ncclGroupEnd. */
	ncclResult_t group_failed;
	char group_text[1024];
};
struct thread_errors *thread_errors(void);

/* ---- version.c ---- */

/* Whether this process is the daemon or a worker, which would query itself. */
bool process_is_daemon(void);
/* The version of the daemon's NCCL; without a daemon, the one that this library needs; 0 in the
 * daemon. */
int version_of_daemon(void);

/* ---- connections.c ---- */

/* Warns once if the environment makes streams block each other. */
void connections_check(void);

#endif
