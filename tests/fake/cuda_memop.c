/* SPDX-License-Identifier: Apache-2.0
 * What streams write and wait for: words in device memory or registered host memory. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

#define FAR_US 10000

struct memops {
	struct CUctx_st *context;
	unsigned queue;
	unsigned n;
	CUstreamBatchMemOpParams ops[];
};

/* The word is looked at anew each time: it may be unregistered meanwhile. */
static bool word_load(CUdeviceptr p, unsigned bytes, uint64_t *value)
{
	struct fake_pin pin;
	if (!fake_pin(&pin, p, bytes))
		return false;
	*value = bytes == 4 ? __atomic_load_n((uint32_t *)(void *)pin.at, __ATOMIC_ACQUIRE)
			    : __atomic_load_n((uint64_t *)(void *)pin.at, __ATOMIC_ACQUIRE);
	fake_unpin(&pin);
	return true;
}

static bool word_store(CUdeviceptr p, uint64_t value)
{
	struct fake_pin pin;
	if (!fake_pin(&pin, p, 8))
		return false;
	__atomic_store_n((uint64_t *)(void *)pin.at, value, __ATOMIC_RELEASE);
	fake_unpin(&pin);
	return true;
}

/* What a stream of the other queue wrote is seen later. */
static void look_far(const struct memops *m)
{
	if (shared_queue(fake_physical(m->context->device)) == m->queue || !fake_fault("far-late"))
		return;
	usleep(FAR_US);
	fake_note("far");
}

static unsigned word_bytes(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8;
}

/* *reached: the word is not cyclically behind. False: there is no such word. */
static bool word_look(const CUstreamBatchMemOpParams *wait, bool *reached)
{
	uint64_t now;
	if (!word_load(wait->waitValue.address, word_bytes(wait), &now))
		return false;
	*reached = word_bytes(wait) == 4 ? (int32_t)((uint32_t)now - wait->waitValue.value) >= 0
					 : (int64_t)(now - wait->waitValue.value64) >= 0;
	return true;
}

static bool word_wait(const struct memops *m, const CUstreamBatchMemOpParams *wait,
		      const atomic_int *stop)
{
	unsigned round = 0;
	bool reached, good = word_look(wait, &reached);
	if (!good || reached)
		return good;
	connection_hold();
	while (!atomic_load(stop) && (good = word_look(wait, &reached)) && !reached)
		fake_pause(&round);
	look_far(m);
	connection_give_back();
	return good;
}

static void memops_run(void *arg, const atomic_int *stop)
{
	struct memops *m = arg;
	for (unsigned i = 0; i < m->n && !atomic_load(stop); i++) {
		const CUstreamBatchMemOpParams *op = &m->ops[i];
		const bool waits = op->operation != CU_STREAM_MEM_OP_WRITE_VALUE_64;
		if (!waits)
			shared_set_queue(fake_physical(m->context->device), m->queue);
		bool good = waits ? word_wait(m, op, stop)
				  : word_store(op->writeValue.address, op->writeValue.value64);
		if (!good)
			fake_context_fault(m->context);
	}
	free(m);
}

static CUresult memops_check(const CUstreamBatchMemOpParams *op)
{
	uint64_t unused;
	if (op->operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
	    op->operation != CU_STREAM_MEM_OP_WAIT_VALUE_64 &&
	    op->operation != CU_STREAM_MEM_OP_WRITE_VALUE_64)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (op->waitValue.flags || op->waitValue.address % word_bytes(op) ||
	    !word_load(op->waitValue.address, word_bytes(op), &unused))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult memops_put(CUstream handle, unsigned n, const CUstreamBatchMemOpParams *ops)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	for (unsigned i = 0; stream && !error && i < n; i++)
		error = memops_check(&ops[i]);
	if (error)
		return error;
	struct memops *m = malloc(sizeof(*m) + n * sizeof(*ops));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->context = stream_context(stream);
	m->queue = stream_queue(stream);
	m->n = n;
	memcpy(m->ops, ops, n * sizeof(*ops));
	error = stream_put(stream, memops_run, m);
	if (error)
		free(m);
	return error;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned n, CUstreamBatchMemOpParams *ops,
			    unsigned flags)
{
	if (fake_fault("batch-fail"))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (n == 0 || n > CUDA_BATCH_MEM_OPS_MAX || !ops || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return memops_put(stream, n, ops);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags)
{
	CUstreamBatchMemOpParams op = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
						     .address = p,
						     .value64 = value,
						     .flags = flags}};
	return memops_put(stream, 1, &op);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags)
{
	CUstreamBatchMemOpParams op = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
						      .address = p,
						      .value64 = value,
						      .flags = flags}};
	return memops_put(stream, 1, &op);
}
