/* SPDX-License-Identifier: Apache-2.0
 * The daemon's own sequencer, with its allocations counted. */
#include "allocations.h"

#include <stdlib.h>

#include "base/hash.h"

int64_t sequencer_held[ALLOCATIONS_NODES];

static void *count_malloc(size_t size)
{
	sequencer_held[node_now]++;
	return malloc(size);
}

static void *count_calloc(size_t n, size_t size)
{
	sequencer_held[node_now]++;
	return calloc(n, size);
}

static void *count_realloc(void *p, size_t size)
{
	sequencer_held[node_now] += !p;
	return realloc(p, size);
}

static void count_free(void *p)
{
	sequencer_held[node_now] -= p != NULL;
	free(p);
}

#include "base/nofail.h"

#define nofail_malloc(bytes, what)    count_malloc(bytes)
#define nofail_calloc(n, bytes, what) count_calloc(n, bytes)
#define malloc			      count_malloc
#define calloc			      count_calloc
#define realloc			      count_realloc
#define free			      count_free
#include "coord/sequencer.c"
