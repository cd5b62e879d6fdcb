/* SPDX-License-Identifier: Apache-2.0 */
#include "measured_work.h"

#include <limits.h>

size_t work_type_size(unsigned type)
{
	switch (type) {
#define SIZE_OF(id, value, name, bytes)                                                            \
	case value:                                                                                \
		return bytes;
		NCCLSVC_TYPES(SIZE_OF)
#undef SIZE_OF
	}
	return 0;
}

bool work_reduces(unsigned op)
{
	return op == NCCLSVC_ALL_REDUCE || op == NCCLSVC_REDUCE || op == NCCLSVC_REDUCE_SCATTER;
}

bool work_has_root(unsigned op)
{
	return op == NCCLSVC_BROADCAST || op == NCCLSVC_REDUCE || op == NCCLSVC_GATHER ||
	       op == NCCLSVC_SCATTER;
}

bool work_can_be_in_place(unsigned op)
{
	return op != PERF_SENDRECV && op != NCCLSVC_BARRIER;
}

/* Operations whose size is that of all ranks' blocks together. */
static bool counts_blocks(unsigned op)
{
	return op == NCCLSVC_ALL_GATHER || op == NCCLSVC_REDUCE_SCATTER ||
	       op == NCCLSVC_ALL_TO_ALL || op == NCCLSVC_GATHER || op == NCCLSVC_SCATTER;
}

uint64_t work_count(unsigned op, unsigned type, uint32_t nranks, uint64_t bytes)
{
	if (op == NCCLSVC_BARRIER)
		return 0;
	uint64_t elements = bytes / work_type_size(type);
	return counts_blocks(op) ? elements / nranks : elements;
}

uint64_t work_bytes(const struct work *w)
{
	if (w->op == NCCLSVC_BARRIER)
		return 0;
	uint64_t one = w->count * work_type_size(w->type);
	return counts_blocks(w->op) ? one * w->nranks : one;
}

struct work_sides work_sides(const struct work *w, uint32_t rank)
{
	uint64_t one = w->count, all = w->count * w->nranks, mine = w->count * rank;
	bool root = w->root == (int32_t)rank;
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
	case PERF_SENDRECV:
		return (struct work_sides){.send = one, .recv = one};
	case NCCLSVC_ALL_GATHER:
		return (struct work_sides){.send = one, .recv = all, .send_at = mine};
	case NCCLSVC_REDUCE_SCATTER:
		return (struct work_sides){.send = all, .recv = one, .recv_at = mine};
	case NCCLSVC_BROADCAST:
		return (struct work_sides){.send = root ? one : 0, .recv = one};
	case NCCLSVC_REDUCE:
		return (struct work_sides){.send = one, .recv = root ? one : 0};
	case NCCLSVC_ALL_TO_ALL:
		return (struct work_sides){.send = all, .recv = all};
	case NCCLSVC_GATHER:
		return (struct work_sides){
			.send = one, .recv = root ? all : 0, .send_at = root ? mine : 0};
	case NCCLSVC_SCATTER:
		return (struct work_sides){
			.send = root ? all : 0, .recv = one, .recv_at = root ? mine : 0};
	}
	return (struct work_sides){0};
}

bool work_mpi_can(const struct work *w)
{
	bool reduces = work_reduces(w->op);
	if (reduces && (w->type == NCCLSVC_FLOAT16 || w->type == NCCLSVC_BFLOAT16 ||
			PERF_GPU_TYPES >> w->type & 1))
		return false;
	if (w->count <= INT_MAX)
		return true;
	return !reduces && w->count % PERF_MPI_BLOCK == 0 && w->count / PERF_MPI_BLOCK <= INT_MAX;
}

bool work_nccl_can(const struct work *w)
{
	return w->op != NCCLSVC_ALL_TO_ALL || !w->in_place;
}

double work_algbw(const struct work *w, double us)
{
	return us > 0 ? (double)work_bytes(w) / us / 1e3 : 0;
}

double work_busbw(const struct work *w, double us)
{
	double n = w->nranks, factor = 1;
	if (w->op == NCCLSVC_ALL_REDUCE)
		factor = 2 * (n - 1) / n;
	else if (counts_blocks(w->op))
		factor = (n - 1) / n;
	return work_algbw(w, us) * factor;
}
