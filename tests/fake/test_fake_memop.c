/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: memory operations of streams and of graph nodes.
 * With the real libraries, they check the real driver instead. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "capture_scene.h"

#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED
#define A	streams[0]
#define B	streams[1]
#define C	streams[2]
#define ROUNDS	500
#define HIGH	UINT64_C(0x1234567800000000) /* upper half of words whose lower half the test uses */
#define OTHER	UINT64_C(0xfedcba9800000000)

/* ---- Operations ---- */

static CUstreamBatchMemOpParams op(int operation, CUdeviceptr p, uint64_t value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = {.operation = operation, .address = p, .value64 = value}};
}

static CUstreamBatchMemOpParams write32(unsigned i, uint32_t value)
{
	return op(CU_STREAM_MEM_OP_WRITE_VALUE_32, word_at(i), value);
}

static CUstreamBatchMemOpParams wait32(unsigned i, uint32_t value)
{
	return op(CU_STREAM_MEM_OP_WAIT_VALUE_32, word_at(i), value);
}

static CUstreamBatchMemOpParams write64(unsigned i, uint64_t value)
{
	return op(CU_STREAM_MEM_OP_WRITE_VALUE_64, word_at(i), value);
}

static CUstreamBatchMemOpParams wait64(unsigned i, uint64_t value)
{
	return op(CU_STREAM_MEM_OP_WAIT_VALUE_64, word_at(i), value);
}

/* The driver copies the operations, so the array can be overwritten at once. */
static void batch(CUstream stream, CUstreamBatchMemOpParams *ops, unsigned n)
{
	OK(cuStreamBatchMemOp(stream, n, ops, 0));
	memset(ops, 0xff, n * sizeof(*ops));
}

/* Captures the batch as a graph of one node. */
static CUgraph batch_graph(CUstreamBatchMemOpParams *ops, unsigned n)
{
	CUgraphNode node;
	size_t room = 1;
	int type;
	begin(A, RELAXED);
	batch(A, ops, n);
	CUgraph graph = end(A);
	CHECK_EQ(nodes_in(graph), 1);
	OK(cuGraphGetNodes(graph, &node, &room));
	OK(cuGraphNodeGetType(node, &type));
	CHECK_EQ(type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
	return graph;
}

static CUgraphExec batch_exec(CUstreamBatchMemOpParams *ops, unsigned n)
{
	CUgraph graph = batch_graph(ops, n);
	CUgraphExec exec = instantiate(graph);
	OK(cuGraphDestroy(graph));
	return exec;
}

/* ---- Halves of words ---- */

static _Atomic uint32_t *low(unsigned i)
{
	return (_Atomic uint32_t *)(void *)word(i);
}

/* The GPU writes one half of words 0 to 3, by calls and in a batch, and waits for halves. */
static void halves_put(CUstream stream)
{
	CUstreamBatchMemOpParams ops[] = {
		op(CU_STREAM_MEM_OP_WRITE_VALUE_32, word_at(2), UINT64_C(0xdddddddd00000003)),
		op(CU_STREAM_MEM_OP_WRITE_VALUE_32, word_at(3) + 4, 4),
		op(CU_STREAM_MEM_OP_WAIT_VALUE_32, word_at(2), UINT64_C(0xdddddddd00000003)),
		op(CU_STREAM_MEM_OP_WAIT_VALUE_32, word_at(3) + 4, 4),
	};
	OK(cuStreamWriteValue32(stream, word_at(0), 1, 0));
	OK(cuStreamWriteValue32(stream, word_at(1) + 4, 2, 0));
	OK(cuStreamWaitValue32(stream, word_at(0), 1, 0));
	OK(cuStreamWaitValue32(stream, word_at(1) + 4, 2, 0));
	batch(stream, ops, 4);
}

static void halves_set(uint64_t value)
{
	for (unsigned i = 0; i < 4; i++)
		atomic_store(word(i), value);
}

static void halves_are(uint64_t value)
{
	const uint64_t high = value >> 32 << 32, rest = (uint32_t)value;
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(0)), high | 1);
	CHECK_EQ(atomic_load(word(1)), UINT64_C(2) << 32 | rest);
	CHECK_EQ(atomic_load(word(2)), high | 3);
	CHECK_EQ(atomic_load(word(3)), UINT64_C(4) << 32 | rest);
}

static void halves(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	halves_set(UINT64_MAX);
	halves_put(A);
	halves_are(UINT64_MAX);
	begin(A, RELAXED);
	halves_put(A);
	CUgraphExec exec = end_exec(A);
	halves_are(UINT64_MAX);
	for (uint64_t i = 0; i < 20; i++) {
		const uint64_t value = i << 32 | (i + 100);
		halves_set(value);
		launch(exec, A);
		halves_are(value);
	}
}

/* A 32-bit wait ends when its half has reached the value, modulo wrap-around, regardless of the
 * other half. */
static void cyclic(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	CUstreamBatchMemOpParams ops[] = {wait32(0, UINT32_MAX), write64(1, 1), wait32(0, 5),
					  write64(1, 2)};
	CUgraphExec exec = batch_exec(ops, 4);
	for (int i = 0; i < 3; i++) {
		atomic_store(word(1), 0);
		atomic_store(word(0), HIGH | (UINT32_MAX - 1));
		launch(exec, A);
		stays(1, 0);
		atomic_store(low(0), 4);
		await(1, 1);
		stays(1, 1);
		CHECK_EQ(cuStreamQuery(A), CUDA_ERROR_NOT_READY);
		atomic_store(low(0), 5);
		OK(cuStreamSynchronize(A));
		CHECK_EQ(atomic_load(word(1)), 2);
		CHECK_EQ(atomic_load(word(0)), HIGH | 5);
	}
}

/* ---- Replays against a CPU thread ---- */

/* Word 0 signals that a launch is ready, word 1 that this thread is done. */
static void *other_side(void *arg)
{
	uint64_t *seen = arg;
	for (; *seen < ROUNDS; ++*seen) {
		while (atomic_load(low(0)) != 1)
			sched_yield();
		CHECK_EQ(atomic_load(low(1)), 0);
		atomic_store(low(0), 0);
		atomic_store(low(1), 1);
	}
	return NULL;
}

static void replays(struct ranks *ranks, int rank)
{
	pthread_t thread;
	uint64_t seen = 0;
	(void)rank;
	scene_open(ranks);
	CUstreamBatchMemOpParams ops[] = {write32(0, 1), wait32(1, 1), write32(1, 0)};
	atomic_store(word(0), HIGH);
	atomic_store(word(1), OTHER);
	CUgraphExec exec = batch_exec(ops, 3);
	OK(pthread_create(&thread, NULL, other_side, &seen));
	/* Some launches follow the previous one on the same stream, others on the other stream. */
	for (unsigned i = 0; i < ROUNDS; i++)
		launch(exec, i / 10 % 2 ? B : A);
	OK(cuStreamSynchronize(A));
	OK(cuStreamSynchronize(B));
	OK(pthread_join(thread, NULL));
	CHECK_EQ(seen, ROUNDS);
	CHECK_EQ(atomic_load(word(0)), HIGH);
	CHECK_EQ(atomic_load(word(1)), OTHER);
}

/* ---- Two executable graphs ---- */

/* A waiting launch delays later work on its stream and the next launch of the same executable
 * graph, but no other stream. */
static void held_up(CUgraphExec exec)
{
	launch(exec, A);
	await(0, 1);
	atomic_store(word(0), 0);
	launch(exec, B);
	writes(C, 2, 1);
	OK(cuStreamSynchronize(C));
	CHECK_EQ(atomic_load(word(2)), 1);
	stays(0, 0);
	CHECK_EQ(cuStreamQuery(A), CUDA_ERROR_NOT_READY);
	atomic_store(word(1), 1);
	OK(cuStreamSynchronize(A));
	await(0, 1);
	CHECK_EQ(atomic_load(word(1)), 0);
	CHECK_EQ(cuStreamQuery(B), CUDA_ERROR_NOT_READY);
	atomic_store(word(0), 0);
	atomic_store(word(1), 1);
	OK(cuStreamSynchronize(B));
}

/* The two executable graphs wait for each other. */
static void executables(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	CUstreamBatchMemOpParams asks[] = {write32(0, 1), wait32(1, 1), write32(1, 0)},
				 answers[] = {wait64(0, 1), write64(0, 0), write64(1, 1)};
	CUgraphExec one = batch_exec(asks, 3), other = batch_exec(answers, 3);
	held_up(one);
	for (unsigned i = 0; i < ROUNDS; i++) {
		launch(one, A);
		launch(other, B);
	}
	OK(cuStreamSynchronize(A));
	OK(cuStreamSynchronize(B));
	CHECK_EQ(atomic_load(word(0)), 0);
	CHECK_EQ(atomic_load(word(1)), 0);
}

/* ---- Updates ---- */

/* Waits for word 0, then writes words i and i + 1. */
static CUgraph writer(unsigned i, uint64_t value)
{
	CUstreamBatchMemOpParams ops[] = {wait64(0, 1), write64(i, value),
					  write32(i + 1, (uint32_t)value)};
	return batch_graph(ops, 3);
}

static void wrote(CUgraphExec exec, unsigned i, uint64_t value)
{
	atomic_store(word(i), 0);
	atomic_store(word(i + 1), HIGH);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(i)), value);
	CHECK_EQ(atomic_load(word(i + 1)), HIGH | value);
}

/* The update fails. */
static void refused(CUgraphExec exec, CUstreamBatchMemOpParams *ops, unsigned n)
{
	CUgraphExecUpdateResultInfo result;
	CUgraph graph = batch_graph(ops, n);
	CHECK_EQ(cuGraphExecUpdate(exec, graph, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK_EQ(result.result, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
	OK(cuGraphDestroy(graph));
}

static void updates(struct ranks *ranks, int rank)
{
	CUgraphExecUpdateResultInfo result;
	(void)rank;
	scene_open(ranks);
	CUgraph first = writer(1, 10), second = writer(3, 20);
	CUgraphExec exec = instantiate(first);
	/* A running launch keeps its operations. */
	launch(exec, A);
	OK(cuGraphExecUpdate(exec, second, &result));
	CHECK_EQ(result.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	OK(cuGraphDestroy(second));
	atomic_store(word(0), 1);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(1)), 10);
	CHECK_EQ(atomic_load(word(2)), 10);
	CHECK_EQ(atomic_load(word(3)), 0);
	wrote(exec, 3, 20);
	CHECK_EQ(atomic_load(word(1)), 10);
	/* An update cannot change the number or the kinds of operations. */
	CUstreamBatchMemOpParams fewer[] = {wait64(0, 1), write64(1, 2)},
				 more[] = {wait64(0, 1), write64(1, 2), write32(2, 2),
					   write64(3, 2)},
				 others[] = {wait64(0, 1), write32(1, 2), write32(2, 2)};
	refused(exec, fewer, 2);
	refused(exec, more, 4);
	refused(exec, others, 3);
	wrote(exec, 3, 20);
	OK(cuGraphExecUpdate(exec, first, &result));
	OK(cuGraphDestroy(first));
	wrote(exec, 1, 10);
}

/* ---- Child graphs and clones ---- */

static void set_child(CUgraphExec exec, CUgraphNode node, CUgraph child, CUresult error)
{
	CHECK_EQ(cuGraphExecChildGraphNodeSetParams(exec, node, child), error);
	OK(cuGraphDestroy(child));
}

static void children(struct ranks *ranks, int rank)
{
	CUgraph graph, clone;
	CUgraphNode one;
	(void)rank;
	scene_open(ranks);
	CUstreamBatchMemOpParams fewer[] = {wait64(0, 1), write64(1, 2)};
	CUgraph child = writer(1, 10);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddChildGraphNode(&one, graph, NULL, 0, child));
	OK(cuGraphDestroy(child));
	OK(cuGraphClone(&clone, graph));
	CUgraphExec exec = instantiate(graph), cloned = instantiate(clone);
	OK(cuGraphDestroy(clone));
	/* Work after the child graph waits for all of its operations. */
	launch(exec, A);
	writes(A, 5, 1);
	launch(cloned, B);
	stays(5, 0);
	CHECK_EQ(atomic_load(word(1)), 0);
	CHECK_EQ(cuStreamQuery(B), CUDA_ERROR_NOT_READY);
	atomic_store(word(0), 1);
	OK(cuStreamSynchronize(A));
	OK(cuStreamSynchronize(B));
	CHECK_EQ(atomic_load(word(5)), 1);
	wrote(exec, 1, 10);
	wrote(cloned, 1, 10);
	set_child(exec, one, writer(2, 30), 0);
	wrote(exec, 2, 30);
	set_child(exec, one, batch_graph(fewer, 2), CUDA_ERROR_INVALID_VALUE);
	wrote(exec, 2, 30);
	wrote(cloned, 1, 10);
	OK(cuGraphExecDestroy(cloned));
	/* A captured launch is also a child graph. */
	begin(A, RELAXED);
	launch(exec, A);
	launch(exec, A);
	CUgraphExec twice = end_exec(A);
	OK(cuGraphDestroy(graph));
	OK(cuGraphExecDestroy(exec));
	wrote(twice, 2, 30);
	/* A running launch survives the destruction of its handle. */
	atomic_store(word(0), 0);
	atomic_store(word(2), 0);
	launch(twice, A);
	OK(cuGraphExecDestroy(twice));
	stays(2, 0);
	atomic_store(word(0), 1);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(2)), 30);
}

#define PART(name)                                                                                 \
	static void name##_test(void **state)                                                      \
	{                                                                                          \
		(void)state;                                                                       \
		ranks_run(1, name, -1);                                                            \
	}

PART(halves)
PART(cyclic)
PART(replays)
PART(executables)
PART(updates)
PART(children)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(halves_test),	cmocka_unit_test(cyclic_test),
		cmocka_unit_test(replays_test), cmocka_unit_test(executables_test),
		cmocka_unit_test(updates_test), cmocka_unit_test(children_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
