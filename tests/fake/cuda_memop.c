/* SPDX-License-Identifier: Apache-2.0
 * Writes and waits of streams and graphs, for words in device memory or registered host memory. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct memops {
	struct CUctx_st *context;
	unsigned n;
	CUstreamBatchMemOpParams ops[];
};

/* The word is looked up each time, because it may be unregistered meanwhile. */
static bool word_load(CUdeviceptr p, unsigned bytes, uint64_t *value)
{
	struct fake_pin pin;
	if (!fake_pin(&pin, p, bytes))
		return false;
	*value = bytes == 4 ? atomic_load_explicit((_Atomic uint32_t *)(void *)pin.at,
						   memory_order_acquire)
			    : atomic_load_explicit((_Atomic uint64_t *)(void *)pin.at,
						   memory_order_acquire);
	fake_unpin(&pin);
	return true;
}

static bool word_store(CUdeviceptr p, unsigned bytes, uint64_t value)
{
	struct fake_pin pin;
	if (!fake_pin(&pin, p, bytes))
		return false;
	if (bytes == 4)
		atomic_store_explicit((_Atomic uint32_t *)(void *)pin.at, (uint32_t)value,
				      memory_order_release);
	else
		atomic_store_explicit((_Atomic uint64_t *)(void *)pin.at, value,
				      memory_order_release);
	fake_unpin(&pin);
	return true;
}

static unsigned word_bytes(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
			       op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32
		       ? 4
		       : 8;
}

static bool waits(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
	       op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

/* *reached: the word has reached the value, modulo wrap-around. False: there is no such word. */
static bool word_look(const CUstreamBatchMemOpParams *wait, bool *reached)
{
	uint64_t now;
	if (!word_load(wait->waitValue.address, word_bytes(wait), &now))
		return false;
	*reached = word_bytes(wait) == 4 ? (int32_t)((uint32_t)now - wait->waitValue.value) >= 0
					 : (int64_t)(now - wait->waitValue.value64) >= 0;
	return true;
}

static bool word_wait(const CUstreamBatchMemOpParams *wait, const atomic_int *stop)
{
	unsigned round = 0;
	bool reached, good = word_look(wait, &reached);
	if (!good || reached)
		return good;
	connection_hold();
	while (!atomic_load(stop) && (good = word_look(wait, &reached)) && !reached)
		fake_pause(&round);
	connection_give_back();
	return good;
}

static void memops_run(void *arg, const atomic_int *stop)
{
	struct memops *m = arg;
	for (unsigned i = 0; i < m->n && !atomic_load(stop); i++) {
		const CUstreamBatchMemOpParams *op = &m->ops[i];
		bool good = waits(op) ? word_wait(op, stop)
				      : word_store(op->writeValue.address, word_bytes(op),
						   word_bytes(op) == 4 ? op->writeValue.value
								       : op->writeValue.value64);
		if (!good)
			fake_context_fault(m->context);
	}
}

static const struct fake_work memops_work = {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, memops_run, free,
					     NULL};

/* Addresses and values may change, but not the number of operations, their kinds or their context.
 */
bool memops_updatable(const struct action *old, const struct action *new)
{
	const struct memops *o = old->arg, *n = new->arg;
	if (o->context != n->context || o->n != n->n)
		return false;
	for (unsigned i = 0; i < o->n; i++)
		if (o->ops[i].operation != n->ops[i].operation)
			return false;
	return true;
}

static CUresult memops_check(const CUstreamBatchMemOpParams *op)
{
	uint64_t unused;
	if (op->operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
	    op->operation != CU_STREAM_MEM_OP_WAIT_VALUE_64 &&
	    op->operation != CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
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
	m->n = n;
	memcpy(m->ops, ops, n * sizeof(*ops));
	return stream_put(stream, &memops_work, m);
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

/* 32-bit operations use the low half of value. */
static CUresult one_put(CUstream stream, int operation, CUdeviceptr p, uint64_t value,
			unsigned flags)
{
	const CUstreamBatchMemOpParams op = {
		.waitValue = {
			.operation = operation, .address = p, .value64 = value, .flags = flags}};
	return memops_put(stream, 1, &op);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr p, uint32_t value, unsigned flags)
{
	return one_put(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, p, value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags)
{
	return one_put(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, p, value, flags);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr p, uint32_t value, unsigned flags)
{
	return one_put(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, p, value, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags)
{
	return one_put(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, p, value, flags);
}
