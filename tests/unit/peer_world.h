/* SPDX-License-Identifier: Apache-2.0
 * The collective kernels on the CPU, for tests: one thread per rank, with as many kernels
 * running at a time. */
#ifndef TESTS_PEER_WORLD_H
#define TESTS_PEER_WORLD_H

#include <pthread.h>
#include <stdint.h>

#include "kernels/cpu_ref.h"
#include "proto/ncclsvc_types.h"

#define FEW	   704					      /* bytes */
#define MANY	   150000				      /* more than two chunks */
#define MOST	   (PEER_SLOT_LINES(2) * LL_LINE_DATA + 1024) /* maximum of all tests */
#define KERNEL_SEQ 78			/* for kernels where it does not matter */
#define NEAR_WRAP  UINT32_C(0xfffffffe) /* the second operation has launch_seq 2 */
#define ABOVE(v)   ((uint32_t)((v) >> 32))
#define GUARD	   0xa5
#define BUFFER	   (MOST * PEER_RANKS + 64)
#define ALL(ranks) ((uint8_t)((1u << (ranks)) - 1))

struct kernel {
	void (*run)(struct peer_call);
	unsigned bytes, rounds, values; /* for the tests */
};
extern const struct kernel few, many;
extern const struct kernel *kernel; /* the kernel under test */
/* cmocka setups that choose it. */
int with_few(void **unused);
int with_many(void **unused);

struct rank {
	unsigned number, nranks;
	pthread_t thread;
	char *staging;
	struct peer_control control;
	uint8_t src[BUFFER], dst[BUFFER];
	struct world *world;
};

struct world {
	unsigned nranks;
	struct rank ranks[PEER_RANKS];
	pthread_barrier_t round;
	void (*work)(struct rank *);
	atomic_uint arrived; /* for the work */
};

static inline struct peer_state *state(struct rank *r)
{
	return (struct peer_state *)r->staging;
}

/* All ranks do the work, each in its own thread. */
struct world *world_run(unsigned nranks, void (*work)(struct rank *));
void world_free(struct world *w);
/* Each rank sends to all, and receives from all. */
struct peer_call call_of(struct rank *r, uint64_t bytes);
/* Runs the direct kernel, with this number of each rank's two shares mapped. */
void direct_run(struct peer_call c, const uint32_t *mapped);

/* ---- Kernels of several blocks ---- */

#define BLOCKS_MOST 3

void block_run(const struct kernel *k, const struct peer_call *c, uint32_t number, uint32_t blocks);
void blocks_in_turn(const struct kernel *k, const struct peer_call *c, uint32_t blocks);
void blocks_at_once(const struct kernel *k, const struct peer_call *c, uint32_t blocks);

#endif
