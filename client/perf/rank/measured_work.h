/* SPDX-License-Identifier: Apache-2.0
 * An operation to measure, with its sizes. Shared by the service's ranks and the baselines, so that
 * all do, count and check the same. */
#ifndef PERF_MEASURED_WORK_H
#define PERF_MEASURED_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ncclsvc_types.h"

#define PERF_SENDRECV NCCLSVC_SEND /* rank r sends to r + 1 and receives from r - 1 */

/* One rank's sums and products must be exact in int8 for any order of the ranks. */
#define PERF_RANKS_MAX 127
#define PERF_GPUS_MAX  64

struct work {
	uint8_t op, type, redop, in_place;
	int32_t root;
	uint32_t nranks;
	uint64_t count; /* elements, as NCCL counts them for this operation */
};

/* Number of elements that this rank sends and receives; 0 if the rank has no such buffer. */
struct work_sides {
	uint64_t send, recv;
	/* In place: offsets, in elements, of both in the one buffer. */
	uint64_t send_at, recv_at;
};

size_t work_type_size(unsigned type);
bool work_reduces(unsigned op);
bool work_has_root(unsigned op);
bool work_can_be_in_place(unsigned op);

/* The largest count whose size is at most `bytes`, computed as in nccl-tests. */
uint64_t work_count(unsigned op, unsigned type, uint32_t nranks, uint64_t bytes);
/* The printed size: the maximum of what is sent and received, over all ranks. */
uint64_t work_bytes(const struct work *w);
struct work_sides work_sides(const struct work *w, uint32_t rank);

/* Elements of the derived type for counts beyond MPI's int. */
#define PERF_MPI_BLOCK 1024
/* Whether a plain Open MPI call does this. */
bool work_mpi_can(const struct work *w);

/* Types that only GPUs support. */
#define PERF_GPU_TYPES (1u << NCCLSVC_FLOAT8E4M3 | 1u << NCCLSVC_FLOAT8E5M2)
/* These cannot be reduced. */
#define PERF_MOVED_TYPES                                                                           \
	(1u << NCCLSVC_BOOL | 1u << NCCLSVC_INT16 | 1u << NCCLSVC_UINT16 | 1u << NCCLSVC_INT4 |    \
	 1u << NCCLSVC_UINT4)
/* NCCL has no AllToAll in place. */
bool work_nccl_can(const struct work *w);

/* In GB/s, as nccl-tests computes them; 0 if there is no time. */
double work_algbw(const struct work *w, double us);
double work_busbw(const struct work *w, double us);

/* ---- Inputs and expected results: data.c ---- Inputs of reductions are small integers, chosen so
 * that the result is exact in the element type in any order; those of copies are arbitrary bits. */

#define DATA_GUARD 64 /* bytes after a buffer that must stay as data_poison left them */

/* Fills a rank's send buffer of work_sides(w, rank).send elements. */
void data_fill(const struct work *w, uint64_t seed, uint32_t rank, void *send);
/* Overwrites bytes + DATA_GUARD bytes. */
void data_poison(void *buffer, uint64_t bytes);
/* Number of elements in a rank's receive buffer that differ from the expected ones. */
uint64_t data_wrong(const struct work *w, uint64_t seed, uint32_t rank, const void *recv);
/* Number of guard elements (of one byte) after `bytes` that were overwritten. */
uint64_t data_guard_wrong(const void *buffer, uint64_t bytes);

#endif
