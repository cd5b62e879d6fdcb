/* SPDX-License-Identifier: Apache-2.0
 * Trainers that the driver checkpoints off their GPUs and restores (cuCheckpointProcess*). */
#include <string.h>

#include "checkpoints.h"
#include "ranks.h"

#define MIB   ((size_t)1 << 20)
#define BYTES (4 * MIB)
#define WORDS (BYTES / 8)

static ncclsvc_result sum(struct rank *r, CUdeviceptr p, ncclsvc_task *task)
{
	return ncclsvc_all_reduce(at(p), at(p + BYTES / 2), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
				  r->comm, task);
}

/* Sums value * (rank + 1) over all ranks, from the buffer's first half into its second one. */
static void sum_here(struct rank *r, const struct buffer *b, uint32_t value)
{
	ncclsvc_task task;
	CHECK_CU(cu.cuMemsetD32Async(b->p, value * (uint32_t)(r->rank + 1), WORDS, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(b->p + BYTES / 2, 0, WORDS, r->stream));
	CHECK_OK(sum(r, b->p, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_check(b->p + BYTES / 2, value * (uint32_t)(r->n * (r->n + 1) / 2), WORDS,
		  memory_name(b->kind));
}

static void refused_here(struct rank *r, const struct buffer *b)
{
	CHECK_RESULT(sum(r, b->p, NULL), NCCLSVC_UNSUPPORTED);
	CHECK(strstr(ncclsvc_last_error(),
		     "restored from a checkpoint: use memory of cuMemCreate"));
}

/* First only rank 0 is checkpointed, several times; then all are. */
static void restored_rank(struct client *c)
{
	struct rank r;
	struct buffer alloc, vmm;
	rank_open(&r, c);
	checkpoints_needed();
	buffer_make(&alloc, MEMORY_ALLOC, r.gpu, r.session, BYTES);
	buffer_make(&vmm, MEMORY_VMM, r.gpu, r.session, BYTES);
	sum_here(&r, &alloc, 1);
	sum_here(&r, &vmm, 1);
	for (uint32_t k = 2; k < 6; k++) {
		const bool away = !r.rank || k > 3;
		if (away) {
			checkpoint_leave();
			checkpoint_return();
			refused_here(&r, &alloc);
		}
		sum_here(&r, &vmm, k);
	}
	stage("waiting for the daemon to drop its imports");
	for (int i = 0; device_info(r.session, r.gpu).imports > 1; i++, sleep_ms(10))
		CHECK(i < 1000);
	buffer_free(&alloc);
	buffer_free(&vmm);
	rank_close(&r);
}

static void test_restored(void)
{
	ranks_run(ranks_count(), restored_rank, NULL);
}

const struct gpu_test checkpoint_tests[] = {
	{"checkpoint/restored", test_restored, 1, 60, TEST_QUICK | TEST_NCCL},
	{0},
};
