/* SPDX-License-Identifier: Apache-2.0
 *
 * The last operations of one session, in a ring that one thread writes and any number of threads
 * read. To write one costs the stores of a cache line: there is no lock, and nothing is allocated.
 *
 * The writer stores an entry's words, each with release, and then the number of entries, `written`.
 * So a reader that has loaded any word of entry n finds `written` at n at least, and knows by that
 * whether the entry that it read may be overwritten: see recorder_read.
 */
#ifndef RECORDER_RING_H
#define RECORDER_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "proto/ncclsvc_types.h"

#define RECORDER_ENTRIES 2048 /* a power of two; one of them may be being written */

/* A finished operation. In an operation in a CUDA graph, seq is its place there. */
struct recorded {
	uint32_t join; /* which rank of which communicator: its number in struct recording */
	uint8_t op, type;
	int8_t result;
	uint8_t state; /* ncclsvc_state */
	uint64_t seq, count;
	uint64_t submitted_ns;
	uint64_t matched_ns; /* 0: when it was started */
	uint64_t started_ns; /* 0: never */
	uint64_t done_ns;    /* 0: not known */
	uint32_t graph;
	uint32_t collective; /* its number among its rank's collectives, the low half */
	int32_t peer;	     /* or root; -1: none */
	uint32_t kernel;     /* of a kernel on the trainer's GPU, its number; else 0 */
	const char *label;   /* [NCCLSVC_LABEL_BYTES]; NULL: none. Not what recorder_read returns */
};

#define RECORDED_WORDS 8

struct recorder_ring {
	_Alignas(64) _Atomic uint64_t written; /* entries so far */
	_Alignas(64) _Atomic uint64_t words[RECORDER_ENTRIES][RECORDED_WORDS];
	/* Labels and kernels, which few entries have; the entry's first word says whether. */
	_Atomic uint64_t more[RECORDER_ENTRIES][NCCLSVC_LABEL_BYTES / sizeof(uint64_t) + 1];
};

#define RECORDED_MORE 0x80 /* beside the state */

static inline void recorder_store(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

/* Most operations have none. */
void recorder_put_more(struct recorder_ring *r, uint64_t n, const struct recorded *x);

/* The entry's first word. */
static inline uint64_t recorder_what(const struct recorded *x, bool more)
{
	return x->join | (uint64_t)x->op << 32 | (uint64_t)x->type << 40 |
	       (uint64_t)(uint8_t)x->result << 48 |
	       (uint64_t)(x->state | (more ? RECORDED_MORE : 0)) << 56;
}

/* Counts of elements need 46 bits (SVC_REGION_MAX), ranks 16. */
#define RECORDED_COUNT_BITS 47
#define RECORDED_COUNT_MAX  ((UINT64_C(1) << RECORDED_COUNT_BITS) - 1)

static inline void recorder_put(struct recorder_ring *r, const struct recorded *x)
{
	const uint64_t n = atomic_load_explicit(&r->written, memory_order_relaxed);
	_Atomic uint64_t *words = r->words[n % RECORDER_ENTRIES];
	const uint64_t count = x->count < RECORDED_COUNT_MAX ? x->count : RECORDED_COUNT_MAX;
	const bool more = x->label || x->kernel;
	recorder_store(&words[0], recorder_what(x, more));
	recorder_store(&words[1], x->seq);
	recorder_store(&words[2], count | (uint64_t)(x->peer + 1) << RECORDED_COUNT_BITS);
	recorder_store(&words[3], x->submitted_ns);
	recorder_store(&words[4], x->matched_ns);
	recorder_store(&words[5], x->started_ns);
	recorder_store(&words[6], x->done_ns);
	recorder_store(&words[7], x->graph | (uint64_t)x->collective << 32);
	if (__builtin_expect(more, false))
		recorder_put_more(r, n, x);
	recorder_store(&r->written, n + 1);
	/* The next entry's line is no longer in the nearest cache: let it come meanwhile. */
	__builtin_prefetch((const void *)r->words[(n + 1) % RECORDER_ENTRIES], 1);
}

/* NULL: out of memory. Its memory is there when it is first written. */
struct recorder_ring *recorder_ring_create(void);
void recorder_ring_free(struct recorder_ring *r);

/* The entries that can be read are numbers *first to *end - 1. */
void recorder_range(const struct recorder_ring *r, uint64_t *first, uint64_t *end);
/* Reads entry n. False: it is overwritten. label: its label, or empty. */
bool recorder_read(const struct recorder_ring *r, uint64_t n, struct recorded *x,
		   char label[NCCLSVC_LABEL_BYTES]);

#endif
