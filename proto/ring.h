/* SPDX-License-Identifier: Apache-2.0
 *
 * The session memory: one sealed memfd, made by the daemon at ATTACH, written by both sides. A
 * session that survives its daemon hands it to the next one (ATTACH_AGAIN), so streams and CUDA
 * graphs go on using the same timelines. Before that, the client clears the numbers of all records
 * and statuses, and counts from 1 again.
 *
 *   0                    struct svc_ring, one page
 *   SVC_TIMELINES_AT     struct svc_timeline [SVC_TIMELINES], page-aligned for host registration
 *   SVC_RECORDS_AT       struct svc_record [entries]
 *   behind the records   ncclsvc_status [entries]
 *
 * Task n (n = 1, 2, ...) uses slot n % entries of both arrays.
 *
 * Submit: the client fills records[n % entries] except `number` (the second half only with a flag
 * of SVC_TASK_SECOND_HALF), then stores number = n with release. It reuses a slot only when the
 * slot's previous task has ended and its status has been read. Then, after a seq_cst fence, the
 * client writes 1 to the doorbell eventfd if `asleep` is set.
 *
 * Raise a timeline's ready, for tasks on the host: the client stores it; then the same fence, check
 * of `asleep`, and doorbell.
 *
 * Complete: the daemon fills statuses[n % entries] except `number` (the second half only if result
 * is not 0; otherwise it is stale), and stores number = n with release. Then, after a seq_cst
 * fence: if `waiters` > 0 it adds 1 to `wake` and wakes that futex; if `armed` is set it clears it
 * and writes a byte to the completion socket.
 *
 * Wait: the client adds 1 to `waiters`, reads `wake`, fences, checks the status once more, and
 * futex-waits on `wake`. The daemon's death does not wake it, so use a timeout and check the
 * socket.
 *
 * Each side copies the other's data once, and validates the copy. A slot's `number` that is neither
 * that of the previous nor of the next task ends the session with PROTOCOL.
 */
#ifndef PROTO_RING_H
#define PROTO_RING_H

#include <stdatomic.h>

#include "wire.h"

#define SVC_RING_MAGIC	 UINT32_C(0x63767373) /* "ssvc" */
#define SVC_PAGE	 4096
#define SVC_CACHE_LINE	 64
#define SVC_TIMELINES_AT SVC_PAGE
#define SVC_RECORDS_AT	 (2 * SVC_PAGE)

struct svc_ring {
	/* Written once by the daemon. */
	uint32_t magic;
	uint32_t version;
	uint32_t entries;
	uint32_t timelines;
	uint64_t size;

	/* Daemon writes, client reads. */
	_Alignas(SVC_CACHE_LINE) _Atomic uint32_t asleep; /* 1: ring the doorbell after a submit */
	_Atomic int32_t ended;	  /* not 0: the session has ended, and why */
	_Atomic uint32_t spin_ns; /* maximum time for which polling pays */
	_Atomic uint32_t crowded; /* 1: fewer cores than pollers, so yield between polls */
	_Alignas(SVC_CACHE_LINE) _Atomic uint32_t wake; /* futex */

	/* Client writes, daemon reads. */
	_Alignas(SVC_CACHE_LINE) _Atomic uint32_t waiters;
	_Atomic uint32_t armed;
	/* 1: if the daemon is killed, its workers finish what they have, and leave the timelines to
	 * the next daemon. */
	_Atomic uint32_t survives;

	/* The processes that write to this memory, by their pids in the daemon's namespace; 0:
	 * none. The next daemon waits until they have exited. */
	_Alignas(SVC_CACHE_LINE) _Atomic int32_t daemon;
	_Atomic int32_t workers[SVC_RING_WORKERS]; /* one for each GPU */
};

/* done_ns of a status while the daemon writes over the input of its task, which works in place. If
 * the daemon is killed then, the task cannot be repeated. */
#define SVC_STATUS_UNDER_WAY UINT64_MAX

/* Two counters that order one stream's tasks: the producer raises ready, the scheduler raises done.
 *
 * The words behind them show, after the daemon's death, what its workers have begun. On a stream's
 * timeline, a task has run if `done` has reached its value; if only `launched` has, it may be
 * half done. A captured timeline counts groups: those that the workers have launched, and those
 * that the GPU has ended. */
struct svc_timeline {
	_Alignas(SVC_CACHE_LINE) _Atomic uint64_t ready;
	_Atomic uint64_t done;
	/* For captured tasks (wire_task.h). */
	_Atomic uint32_t captured_groups; /* enum svc_captured_mark */
	_Atomic uint32_t go;
	_Atomic uint64_t launched;
	_Atomic uint32_t ended; /* the low half of the count */
	_Atomic uint32_t taken; /* the newest group that the scheduler has taken from `ready` */
	_Atomic uint32_t taken_launch; /* what `launched` is once that group is launched */
	_Atomic uint32_t once;	       /* the newest launched group that runs only once */
	/* The words (group/done.h) of all groups launched so far, and of all but the last one. */
	_Atomic uint64_t did, did_before;
};

/* Whether captured tasks use the timeline. */
enum svc_captured_mark {
	SVC_CAPTURED_NONE = 0, /* the daemon has released it */
	SVC_CAPTURED_USED = 1,
	SVC_CAPTURED_PARTLY = 2, /* the client is submitting its groups again: start none yet */
};

_Static_assert(sizeof(struct svc_ring) <= SVC_PAGE, "ring header");
_Static_assert(sizeof(struct svc_timeline) * SVC_TIMELINES == SVC_PAGE, "timelines");

/* Is it a power of two within the protocol's limits? */
static inline bool svc_ring_entries_valid(uint32_t entries)
{
	return entries >= SVC_RING_MIN && entries <= SVC_RING_MAX && !(entries & (entries - 1));
}

static inline size_t svc_ring_size(uint32_t entries)
{
	return SVC_RECORDS_AT +
	       (size_t)entries * (sizeof(struct svc_record) + sizeof(ncclsvc_status));
}

static inline struct svc_timeline *svc_timelines(struct svc_ring *ring)
{
	return (struct svc_timeline *)((char *)ring + SVC_TIMELINES_AT);
}

static inline struct svc_record *svc_record_slot(struct svc_ring *ring, uint32_t entries,
						 uint64_t n)
{
	return (struct svc_record *)((char *)ring + SVC_RECORDS_AT) + (n & (entries - 1));
}

static inline ncclsvc_status *svc_status_slot(struct svc_ring *ring, uint32_t entries, uint64_t n)
{
	char *statuses =
		(char *)ring + SVC_RECORDS_AT + (size_t)entries * sizeof(struct svc_record);
	return (ncclsvc_status *)statuses + (n & (entries - 1));
}

/* The value of a slot's `number` until record or status n is written to the slot. */
static inline uint64_t svc_number_before(uint32_t entries, uint64_t n)
{
	return n > entries ? n - entries : 0;
}

/* The `number` word of a record or status, the only word that both sides access concurrently. */
static inline uint64_t svc_number_load(const uint64_t *number)
{
	return atomic_load_explicit((const _Atomic uint64_t *)number, memory_order_acquire);
}

static inline void svc_number_store(uint64_t *number, uint64_t n)
{
	atomic_store_explicit((_Atomic uint64_t *)number, n, memory_order_release);
}

#endif
