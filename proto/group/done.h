/* SPDX-License-Identifier: Apache-2.0
 * What a member's operations on NCCL have done in an epoch, as one word. The words of all members
 * add up to 0 if no operation is done on some ranks only: all have done the same number of
 * collectives and of SPLITs, each Send has its Recv, and all have the same plan. Otherwise the sum
 * is almost certainly not 0. */
#ifndef PROTO_GROUP_DONE_H
#define PROTO_GROUP_DONE_H

#include <stdint.h>

/* The parts of the word: how many operations a member has done, and which plan is in force. All
 * members must have the same parts. */
enum done_by_all { DONE_COLLECTIVES = 1, DONE_SPLITS = 2, DONE_PLAN = 3 };

/* splitmix64's last step. */
static inline uint64_t done_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static inline uint64_t done_hash(uint32_t kind, uint32_t a, uint32_t b)
{
	return done_mix(((uint64_t)a << 32 | b) + kind * UINT64_C(0x9e3779b97f4a7c15));
}

/* The weights of all ranks add up to 0. */
static inline uint64_t done_by_all(enum done_by_all kind, int32_t rank, int32_t nranks)
{
	const uint32_t next = (uint32_t)(rank + 1 < nranks ? rank + 1 : 0);
	return done_hash((uint32_t)kind, (uint32_t)rank, 0) - done_hash((uint32_t)kind, next, 0);
}

/* A Recv adds the negative of its Send. */
static inline uint64_t done_message(int32_t from, int32_t to)
{
	return done_hash(DONE_PLAN + 1, (uint32_t)from, (uint32_t)to);
}

#endif
