/* SPDX-License-Identifier: Apache-2.0
 * Ranks with lent memory, of which NCCL makes symmetric windows. */
#ifndef TESTS_GPU_WINDOWS_H
#define TESTS_GPU_WINDOWS_H

#include "ranks.h"

#define MIB   ((size_t)1 << 20)
#define BYTES (4 * MIB) /* of an allocation */
#define WORDS 1000

/* The rank, and so many bytes that are lent. */
void open_rank(struct rank *r, struct client *c, CUdeviceptr *p, size_t bytes);
void give_back(const struct rank *r, CUdeviceptr p);
/* What the daemon shows of this rank's only communicator. */
uint32_t windows_of(struct rank *r);
/* As memory has it. */
uint32_t bits(float value);
/* Every rank gives k times its number from 1; waits and checks. */
void sum(struct rank *r, CUdeviceptr src, CUdeviceptr dst, size_t n, unsigned k);
/* All ranks say so: by a sum that is none for windows. */
bool all_say(struct rank *r, bool yes);
/* All ranks see as many, and go on only then: who gives memory back takes the others' windows. */
void wait_windows(struct rank *r, uint32_t windows);
/* Uses them until NCCL has that many windows. False: it gives none on this machine. */
bool warm(struct rank *r, CUdeviceptr src, CUdeviceptr dst, uint32_t windows);

#endif
