/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: graphs, launches, updates and user objects. With the real
 * libraries, they check the real driver instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "capture_scene.h"

#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED
#define A	streams[0]
#define B	streams[1]
#define C	streams[2]

/* ---- Captured operations ---- */

static void count(void *arg)
{
	atomic_fetch_add((_Atomic uint64_t *)arg, 1);
}

static CUstreamBatchMemOpParams op(int operation, unsigned i, uint64_t value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = {.operation = operation, .address = word_at(i), .value64 = value}};
}

static void types_are(CUgraph graph, const int *types, size_t n)
{
	CUgraphNode nodes[16];
	size_t room = 16;
	int type;
	OK(cuGraphGetNodes(graph, nodes, &room));
	CHECK_EQ(room, n);
	for (size_t i = 0; i < n; i++) {
		OK(cuGraphNodeGetType(nodes[i], &type));
		CHECK_EQ(type, types[i]);
	}
}

/* Nodes run in call order. Copies from registered memory happen at each launch. */
static void kinds(struct ranks *ranks, int rank)
{
	static const int types[] = {
		CU_GRAPH_NODE_TYPE_MEMSET,	 CU_GRAPH_NODE_TYPE_MEMCPY,
		CU_GRAPH_NODE_TYPE_MEMCPY,	 CU_GRAPH_NODE_TYPE_MEMCPY,
		CU_GRAPH_NODE_TYPE_HOST,	 CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
		CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
		CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
	};
	CUstreamBatchMemOpParams ops[2];
	(void)rank;
	scene_open(ranks);
	CUdeviceptr p = gpu_alloc(64);
	begin(A, RELAXED);
	OK(cuMemsetD8Async(p, 7, 16, A));
	OK(cuMemcpyDtoDAsync(p + 16, p, 8, A));
	OK(cuMemcpyHtoDAsync(p + 24, (void *)word(0), 8, A));
	OK(cuMemcpyDtoHAsync((void *)word(1), p + 16, 16, A)); /* words 1 and 2 */
	OK(cuLaunchHostFunc(A, count, (void *)word(3)));
	waits(A, 3, 2);
	OK(cuStreamWriteValue32(A, word_at(4) + 4, 9, 0));
	OK(cuStreamWaitValue32(A, word_at(4) + 4, 9, 0));
	ops[0] = op(CU_STREAM_MEM_OP_WRITE_VALUE_64, 5, 10);
	ops[1] = op(CU_STREAM_MEM_OP_WRITE_VALUE_32, 6, 0xffffffff00000001);
	OK(cuStreamBatchMemOp(A, 2, ops, 0));
	writes(A, 7, 11);
	CUgraph graph = end(A);
	types_are(graph, types, sizeof(types) / sizeof(types[0]));
	CUgraphExec exec = instantiate(graph);
	OK(cuGraphUpload(exec, A));
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(3)), 0);
	for (uint64_t i = 1; i <= 3; i++) {
		for (unsigned k = 4; k < 8; k++)
			atomic_store(word(k), 0);
		atomic_store(word(3), 1); /* the host function increments it to 2 */
		atomic_store(word(0), 1000 + i);
		atomic_store(word(6), UINT64_MAX);
		launch(exec, A);
		OK(cuStreamSynchronize(A));
		CHECK_EQ(atomic_load(word(1)), 0x0707070707070707);
		CHECK_EQ(atomic_load(word(2)), 1000 + i);
		CHECK_EQ(atomic_load(word(3)), 2);
		CHECK_EQ(atomic_load(word(4)), UINT64_C(9) << 32);
		CHECK_EQ(atomic_load(word(5)), 10);
		CHECK_EQ(atomic_load(word(6)), UINT64_C(0xffffffff00000001));
		CHECK_EQ(atomic_load(word(7)), 11);
	}
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* Copies of pageable memory also happen at each launch. */
static void pageable(struct ranks *ranks, int rank)
{
	char in[16] = "first", out[16] = "";
	(void)rank;
	scene_open(ranks);
	CUdeviceptr p = gpu_alloc(64);
	waits(A, 0, 1); /* captured calls do not wait for this */
	begin(A, RELAXED);
	OK(cuMemcpyHtoDAsync(p, in, 16, A));
	OK(cuMemcpyDtoHAsync(out, p, 16, A));
	CUgraphExec exec = end_exec(A);
	strcpy(in, "second");
	atomic_store(word(0), 1);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	CHECK(strcmp(out, "second") == 0);
}

/* ---- Order ---- */

/* Two branches that wait for each other. */
static void branches(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	begin(A, RELAXED);
	writes(A, 0, 1);
	joins(B, A);
	writes(B, 1, 1);
	waits(B, 2, 1);
	writes(B, 3, 1);
	waits(A, 1, 1);
	writes(A, 2, 1);
	waits(A, 3, 1);
	waits(A, 4, 1);
	joins(A, B);
	writes(A, 5, 1);
	CUgraphExec exec = end_exec(A);
	for (int i = 0; i < 3; i++) {
		for (unsigned k = 0; k < 6; k++)
			atomic_store(word(k), 0);
		launch(exec, C);
		writes(C, 6, 1);
		await(3, 1);
		stays(5, 0);
		CHECK_EQ(atomic_load(word(6)), 0);
		atomic_store(word(4), 1);
		OK(cuStreamSynchronize(C));
		CHECK_EQ(atomic_load(word(5)), 1);
		CHECK_EQ(atomic_load(word(6)), 1);
		atomic_store(word(6), 0);
	}
}

/* Many consecutive forks, each joined at once. */
static void forks(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	begin(A, RELAXED);
	for (unsigned i = 0; i < 100; i++) {
		writes(A, i, 1);
		joins(B, A);
		writes(B, 100 + i, 1);
		waits(A, 100 + i, 1);
		joins(A, B);
	}
	CUgraphExec exec = end_exec(A);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	for (unsigned i = 0; i < 200; i++)
		CHECK_EQ(atomic_load(word(i)), 1);
}

/* Launches of one executable graph do not overlap, even on different streams. Launches of two do.
 */
static void launches(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	begin(A, RELAXED);
	writes(A, 0, 1);
	waits(A, 1, 1);
	CUgraph graph = end(A);
	CUgraphExec one = instantiate(graph), other = instantiate(graph);
	OK(cuGraphDestroy(graph));
	launch(one, A);
	await(0, 1);
	atomic_store(word(0), 0);
	launch(one, B);
	stays(0, 0);
	launch(other, C);
	await(0, 1);
	CHECK_EQ(cuStreamQuery(A), CUDA_ERROR_NOT_READY);
	atomic_store(word(1), 1);
	OK(cuStreamSynchronize(A));
	OK(cuStreamSynchronize(B));
	OK(cuStreamSynchronize(C));
	/* A running launch survives the destruction of its handle. */
	atomic_store(word(0), 0);
	atomic_store(word(1), 0);
	launch(one, A);
	OK(cuGraphExecDestroy(one));
	await(0, 1);
	writes(A, 2, 1);
	stays(2, 0);
	atomic_store(word(1), 1);
	await(2, 1);
}

/* ---- Updates ---- */

static CUgraph writer(uint64_t value)
{
	begin(A, RELAXED);
	waits(A, 0, 1);
	writes(A, 1, value);
	return end(A);
}

static void wrote(CUgraphExec exec, uint64_t value)
{
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(1)), value);
}

static void updates(struct ranks *ranks, int rank)
{
	CUgraphExecUpdateResultInfo result;
	(void)rank;
	scene_open(ranks);
	CUgraph first = writer(1), second = writer(2), longer, other;
	CUgraphExec exec = instantiate(first);
	/* An update does not change running launches. */
	launch(exec, A);
	OK(cuGraphExecUpdate(exec, second, &result));
	CHECK_EQ(result.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	OK(cuGraphDestroy(second));
	atomic_store(word(0), 1);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(1)), 1);
	wrote(exec, 2);
	begin(A, RELAXED);
	writes(A, 1, 3);
	longer = end(A);
	CHECK_EQ(cuGraphExecUpdate(exec, longer, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK_EQ(result.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
	begin(A, RELAXED);
	waits(A, 0, 1);
	OK(cuLaunchHostFunc(A, count, (void *)word(2)));
	other = end(A);
	CHECK_EQ(cuGraphExecUpdate(exec, other, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK_EQ(result.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
	wrote(exec, 2);
	OK(cuGraphExecUpdate(exec, first, &result));
	wrote(exec, 1);
}

static void set_child(CUgraphExec exec, CUgraphNode node, uint64_t value)
{
	CUgraph child = writer(value);
	OK(cuGraphExecChildGraphNodeSetParams(exec, node, child));
	OK(cuGraphDestroy(child));
	wrote(exec, value);
}

static size_t roots_of(CUgraph graph, CUgraphNode *nodes)
{
	size_t all = 0, n = 1;
	OK(cuGraphGetRootNodes(graph, NULL, &all));
	OK(cuGraphGetRootNodes(graph, nodes, &n)); /* returns at most n nodes */
	CHECK_EQ(n, 1);
	OK(cuGraphGetRootNodes(graph, nodes, &all));
	return all;
}

/* As in JAX: each command is a child graph, and updates replace that child. */
static void children(struct ranks *ranks, int rank)
{
	CUgraph graph, child, clone, other, seen;
	CUgraphNode empty, one, two, nodes[2];
	const CUlaunchAttributeValue priority = {.pad = {0}};
	CUgraphExec exec;
	(void)rank;
	scene_open(ranks);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
	OK(cuGraphCreate(&child, 0));
	OK(cuStreamBeginCaptureToGraph(A, child, NULL, NULL, 0, RELAXED));
	waits(A, 0, 1);
	writes(A, 1, 5);
	CHECK(end(A) == child);
	CHECK_EQ(nodes_in(child), 2);
	CHECK_EQ(roots_of(child, nodes), 1);
	CHECK_EQ(cuGraphKernelNodeSetAttribute(nodes[0], CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority),
		 CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphAddChildGraphNode(&one, graph, &empty, 1, child));
	OK(cuGraphDestroy(child)); /* the node has its own copy */
	OK(cuGraphChildGraphNodeGetGraph(one, &seen));
	CHECK_EQ(nodes_in(seen), 2);
	CHECK_EQ(cuGraphChildGraphNodeGetGraph(empty, &seen), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamBeginCaptureToGraph(A, graph, &one, NULL, 1, RELAXED));
	writes(A, 2, 1);
	CHECK(end(A) == graph);
	OK(cuGraphClone(&clone, graph));
	exec = instantiate(graph);
	launch(exec, A);
	stays(2, 0);
	atomic_store(word(0), 1);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(1)), 5);
	CHECK_EQ(atomic_load(word(2)), 1);
	begin(A, RELAXED);
	writes(A, 1, 6);
	other = end(A);
	CHECK_EQ(cuGraphExecChildGraphNodeSetParams(exec, one, other), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuGraphExecChildGraphNodeSetParams(exec, empty, other), CUDA_ERROR_INVALID_VALUE);
	/* The node remains valid after each update. */
	set_child(exec, one, 7);
	set_child(exec, one, 8);
	OK(cuGraphExecUpdate(exec, clone, &(CUgraphExecUpdateResultInfo){0}));
	wrote(exec, 5);
	set_child(exec, one, 9);
	/* A captured launch is also a child node. */
	OK(cuGraphDestroy(graph));
	begin(A, RELAXED);
	waits(A, 3, 1);
	launch(exec, A);
	graph = end(A);
	CHECK_EQ(nodes_in(graph), 2);
	OK(cuGraphExecDestroy(exec));
	exec = instantiate(graph);
	atomic_store(word(1), 0);
	launch(exec, A);
	stays(1, 0);
	atomic_store(word(3), 1);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(1)), 9);
	/* A node added to the graph does not change the executable graph. */
	exec = instantiate(clone);
	OK(cuGraphAddChildGraphNode(&two, clone, NULL, 0, graph));
	CHECK_EQ(roots_of(clone, nodes), 2);
	CHECK(nodes[1] == two);
	wrote(exec, 5);
}

/* The single node on which stream A's next captured node will depend. */
static CUgraphNode last_of(CUgraph *graph)
{
	int status;
	const CUgraphNode *after;
	size_t n;
	OK(cuStreamGetCaptureInfo_v2(A, &status, NULL, graph, &after, &n));
	CHECK_EQ(n, 1);
	return after[0];
}

/* Adds a node without successors during a capture, then moves it behind a node captured later. */
static void edges(struct ranks *ranks, int rank)
{
	CUgraph graph;
	CUgraphNode record;
	(void)rank;
	scene_open(ranks);
	CUevent event = event_open();
	begin(A, RELAXED);
	OK(cuStreamWaitEvent(A, event, CU_EVENT_WAIT_EXTERNAL));
	waits(A, 0, 1);
	const CUgraphNode first = last_of(&graph);
	OK(cuGraphAddEventRecordNode(&record, graph, &first, 1, event));
	waits(A, 1, 1);
	writes(A, 2, 1);
	const CUgraphNode second = last_of(&graph);
	CHECK_EQ(cuGraphAddDependencies(graph, &first, &record, 1), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuGraphRemoveDependencies(graph, &second, &record, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphAddDependencies(graph, &second, &record, 1));
	OK(cuGraphRemoveDependencies(graph, &first, &record, 1));
	CHECK(last_of(&graph) == second);
	CHECK_EQ(nodes_in(graph), 5);
	CHECK(end(A) == graph);
	CUgraphExec exec = instantiate(graph), again = instantiate(graph);
	launch(exec, A);
	launch(again, C); /* runs after the first launch */
	OK(cuStreamWaitEvent(B, event, CU_EVENT_WAIT_DEFAULT));
	writes(B, 3, 1);
	atomic_store(word(0), 1);
	stays(3, 0);
	atomic_store(word(1), 1);
	await(2, 1);
	OK(cuStreamSynchronize(B));
	OK(cuStreamSynchronize(C));
	CHECK_EQ(atomic_load(word(3)), 1);
	OK(cuGraphDestroy(graph));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphExecDestroy(again));
	OK(cuEventDestroy(event));
}

static void instantiation(struct ranks *ranks, int rank)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
						.result_out = 99};
	CUgraphExec exec;
	CUgraphNode node, twice[2];
	(void)rank;
	scene_open(ranks);
	CUgraph graph = writer(1), empty;
	params.hUploadStream = B;
	OK(cuGraphInstantiateWithParams(&exec, graph, &params));
	CHECK_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
	atomic_store(word(0), 1);
	wrote(exec, 1);
	CHECK_EQ(cuGraphInstantiateWithFlags(&exec, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuGraphInstantiateWithFlags(&exec, graph, 1 << 20), CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphCreate(&empty, 0));
	exec = instantiate(empty);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	OK(cuGraphAddEmptyNode(&node, empty, NULL, 0));
	twice[0] = twice[1] = node;
	CHECK_EQ(cuGraphAddEmptyNode(&node, empty, twice, 2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuGraphAddEmptyNode(&node, graph, twice, 1), CUDA_ERROR_INVALID_VALUE);
}

/* ---- User objects ---- */

static _Atomic uint64_t gone;

static void destroyed_are(uint64_t n)
{
	snooze(20);
	CHECK_EQ(atomic_load(&gone), n);
}

static CUuserObject object_open(void)
{
	CUuserObject object;
	OK(cuUserObjectCreate(&object, (void *)&gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	return object;
}

static bool all_gone(void *n)
{
	return atomic_load(&gone) == *(uint64_t *)n;
}

static void user_objects(struct ranks *ranks, int rank)
{
	CUuserObject object;
	uint64_t n = 0;
	(void)rank;
	scene_open(ranks);
	CHECK_EQ(cuUserObjectCreate(&object, NULL, count, 1, 0), CUDA_ERROR_INVALID_VALUE);
	object = object_open();
	OK(cuUserObjectRetain(object, 2));
	OK(cuUserObjectRelease(object, 2));
	destroyed_are(n);
	OK(cuUserObjectRelease(object, 1));
	n++;
	CHECK(soon(all_gone, &n));
	/* The graph, its executable graph and a launch each hold references. The graph is available
	 * during its capture. */
	object = object_open();
	begin(A, RELAXED);
	waits(A, 0, 1);
	int status;
	CUgraph graph, clone;
	OK(cuStreamGetCaptureInfo_v2(A, &status, NULL, &graph, NULL, NULL));
	OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	CHECK(end(A) == graph);
	CUgraphExec exec = instantiate(graph);
	OK(cuGraphClone(&clone, graph));
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(clone));
	launch(exec, A);
	OK(cuGraphExecDestroy(exec));
	destroyed_are(n);
	atomic_store(word(0), 1);
	n++;
	CHECK(soon(all_gone, &n));
	/* An update replaces the executable graph's references. */
	graph = writer(1);
	object = object_open();
	OK(cuGraphRetainUserObject(graph, object, 2, 0));
	OK(cuUserObjectRelease(object, 1));
	exec = instantiate(graph);
	OK(cuGraphReleaseUserObject(graph, object, 2));
	destroyed_are(n);
	OK(cuGraphExecUpdate(exec, graph, &(CUgraphExecUpdateResultInfo){0}));
	n++;
	CHECK(soon(all_gone, &n));
	OK(cuGraphDestroy(graph));
	OK(cuGraphExecDestroy(exec));
	/* A failed capture drops its graph's references. */
	object = object_open();
	begin(A, RELAXED);
	OK(cuStreamGetCaptureInfo_v2(A, &status, NULL, &graph, NULL, NULL));
	OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	CHECK_EQ(cuStreamSynchronize(A), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQ(end_error(A), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	n++;
	CHECK(soon(all_gone, &n));
}

/* ---- Remapped memory ---- */

static void mapped_anew(struct ranks *ranks, int rank)
{
	CUdeviceptr p;
	unsigned char byte = 0;
	(void)rank;
	scene_open(ranks);
	OK(cuMemAddressReserve(&p, SCENE_MAPPING, 0, 0, 0));
	map(p);
	begin(A, RELAXED);
	OK(cuMemsetD8Async(p, 7, 64, A));
	CUgraphExec exec = end_exec(A);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	OK(cuMemUnmap(p, SCENE_MAPPING));
	map(p);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	OK(cuMemcpyDtoH(&byte, p, 1));
	CHECK_EQ(byte, 7);
}

#define PART(name)                                                                                 \
	static void name##_test(void **state)                                                      \
	{                                                                                          \
		(void)state;                                                                       \
		ranks_run(1, name, -1);                                                            \
	}

PART(kinds)
PART(pageable)
PART(branches)
PART(forks)
PART(launches)
PART(updates)
PART(children)
PART(edges)
PART(instantiation)
PART(user_objects)
PART(mapped_anew)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kinds_test),	      cmocka_unit_test(pageable_test),
		cmocka_unit_test(branches_test),      cmocka_unit_test(forks_test),
		cmocka_unit_test(launches_test),      cmocka_unit_test(updates_test),
		cmocka_unit_test(children_test),      cmocka_unit_test(edges_test),
		cmocka_unit_test(instantiation_test), cmocka_unit_test(user_objects_test),
		cmocka_unit_test(mapped_anew_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
