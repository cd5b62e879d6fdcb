/* SPDX-License-Identifier: Apache-2.0
 *
 * The drop-in libnccl.so.2: what all its files share. NCCL's functions, each in the file of its
 * subject, are thin: they check, and hand over to the session of their GPU.
 *
 *   error.c    sentences, NCCL_DEBUG        session.c  a session for each GPU; fork
 *   comm.c     handles: who is inside       config.c   ncclConfig_t, field by field
 *   start.c    joins, splits, in threads    init.c     the functions that begin communicators
 *   end.c      the functions that end them  info.c     what they tell
 *   group.c    ncclGroupStart and End       submit.c   operations to sessions
 *   ops.c      the operations               redop.c    reductions that the user makes
 *   memory.c   lent memory, registration    suspend.c  suspended ones, and what memory they take
 *   device.c   the device API, and
 *   onesided.c one-sided operations, which are refused
 *   interrupt.c  Ctrl-C in Python programs
 *   params.c   NCCL's variables, which are the daemon's
 *   connections.c, mps.c  what CUDA reads in the environment when it is initialized
 *   driver.c   CUDA's driver
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

#define NCCL_ABI_VERSION 23203 /* whose nccl.h this is */

/* Declares and exports a function of nccl_abi.h, under both of its names. */
#define NCCL_EXPORT(function, type, parameters)                                                    \
	__attribute__((visibility("default"), weak)) type function parameters;                     \
	__attribute__((visibility("default"))) type p##function parameters;
NCCL_FUNCTIONS(NCCL_EXPORT)
NCCL_MORE_FUNCTIONS(NCCL_EXPORT)
/* Behind a function's definition: its second name. */
#define NCCL_TWIN(function)                                                                        \
	__attribute__((visibility("default"), alias(#function))) __typeof__(function) p##function

/* A fork waits until nobody has that lock of the file's: its child would never get it. Registered
 * early, so that it is taken behind session.c's; no other is taken within it. */
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

/* Leaves the sentence for ncclGetLastError and the open group, and returns result. */
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t result, const char *format,
							...);
/* The same of a call of libncclsvc that failed: its sentence, and NCCL's nearest result. */
ncclResult_t fail_service(ncclsvc_result result);
ncclResult_t result_of(ncclsvc_result result);
/* The sentence of the process's last failure. Of the calling thread until its next call. */
const char *last_sentence(void);
/* A line of NCCL_DEBUG=WARN, that fails nothing. */
__attribute__((format(printf, 1, 2))) void warn(const char *format, ...);
/* A line of NCCL_DEBUG=INFO. */
__attribute__((format(printf, 1, 2))) void inform(const char *format, ...);

/* State of a thread. On the heap: a library that is opened late has little thread-local room. */
struct own {
	char sentence[1024]; /* of last_sentence */
	char text[768];	     /* of ncclGetLastError */
	struct group *group; /* NULL before the first */
};
struct own *own(void);

/* ---- connections.c ---- */

/* Warns, once, of an environment in which streams hold each other up. */
void connections_check(void);

#endif
