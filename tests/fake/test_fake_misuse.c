/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: misuse of captures, graphs and user objects. The real driver
 * tolerates it silently; the stand-in aborts the process with a message. The other tests here do
 * not run on a real driver either. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "capture_scene.h"
#include "proto/cuda_driver.h"

#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED
#define A	streams[0]
#define B	streams[1]

/* ---- Unsupported calls ---- */

/* Allocations in graphs. */
static void allocations(struct ranks *ranks, int rank)
{
	CUdeviceptr p, pool;
	(void)rank;
	scene_open(ranks);
	OK(cuMemAllocAsync(&pool, 64, A));
	begin(A, RELAXED);
	CHECK_EQ(cuMemAllocAsync(&p, 64, A), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQ(end_error(A), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	begin(A, RELAXED);
	CHECK_EQ(cuMemFreeAsync(pool, A), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQ(end_error(A), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuMemFreeAsync(pool, A));
}

/* Updates that move a node's memory operations to another GPU. */
static void other_context(struct ranks *ranks, int rank)
{
	CUgraphExecUpdateResultInfo result;
	(void)rank;
	scene_open(ranks);
	begin(A, RELAXED);
	writes(A, 0, 1);
	CUgraphExec exec = end_exec(A);
	gpu_open(1);
	CUstream stream = stream_open();
	begin(stream, RELAXED);
	writes(stream, 0, 2);
	CHECK_EQ(cuGraphExecUpdate(exec, end(stream), &result),
		 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK_EQ(result.result, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	CHECK_EQ(atomic_load(word(0)), 1);
}

static CUfunction kernel_open(struct cuda *cuda, CUmodule *module)
{
	char why[256];
	int version;
	CUfunction function;
	CHECK(cuda_driver_load(cuda, &version, why, sizeof(why)));
	OK(cuda->cuModuleLoadData(module, ".version 7.0 .entry some_kernel()"));
	OK(cuda->cuModuleGetFunction(&function, *module, "some_kernel"));
	return function;
}

static CUresult kernel_launch(const struct cuda *cuda, CUfunction function, CUstream stream)
{
	uint32_t n = 1;
	void *parameters[] = {NULL, &n};
	return cuda->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

/* Event records and kernel launches require a stream of the same context. Event waits do not. */
static void across_contexts(struct ranks *ranks, int rank)
{
	struct cuda cuda;
	CUmodule module;
	(void)rank;
	scene_open(ranks);
	CUevent event = event_open();
	CUfunction function = kernel_open(&cuda, &module);
	gpu_open(1);
	CUstream stream = stream_open();
	CHECK_EQ(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
	CHECK_EQ(kernel_launch(&cuda, function, stream), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(event, A));
	OK(kernel_launch(&cuda, function, A));
	OK(cuStreamWaitEvent(stream, event, 0));
	OK(cuStreamSynchronize(stream));
	OK(cuStreamSynchronize(A));
	OK(cuEventDestroy(event));
	OK(cuda.cuModuleUnload(module));
}

/* ---- Misuse ---- */

static struct ranks *scene_ranks;
static CUdeviceptr memory;

static CUgraphExec filler(void)
{
	scene_open(scene_ranks);
	memory = gpu_alloc(4096);
	begin(A, RELAXED);
	OK(cuMemsetD8Async(memory, 7, 64, A));
	return end_exec(A);
}

static void replay(CUgraphExec exec)
{
	cuGraphLaunch(exec, A);
	cuStreamSynchronize(A);
}

static void memory_freed(void)
{
	CUgraphExec exec = filler();
	OK(cuMemFree(memory));
	replay(exec);
}

static void memory_other(void)
{
	CUgraphExec exec = filler();
	const CUdeviceptr previous = memory;
	OK(cuMemFree(memory));
	CHECK_EQ(gpu_alloc(4096), previous);
	replay(exec);
}

static void memory_unregistered(void)
{
	CUdeviceptr p;
	scene_open(scene_ranks);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	OK(cuMemHostRegister(page, 4096, 0));
	p = gpu_alloc(64);
	begin(A, RELAXED);
	OK(cuMemcpyHtoDAsync(p, page, 64, A));
	CUgraphExec exec = end_exec(A);
	OK(cuMemHostUnregister(page));
	replay(exec);
}

/* Memory operations in nodes: */

static void word_freed(void)
{
	scene_open(scene_ranks);
	memory = gpu_alloc(4096);
	begin(A, RELAXED);
	OK(cuStreamWriteValue32(A, memory, 1, 0));
	CUgraphExec exec = end_exec(A);
	OK(cuMemFree(memory));
	replay(exec);
}

static void word_other(void)
{
	scene_open(scene_ranks);
	memory = gpu_alloc(4096);
	begin(A, RELAXED);
	OK(cuStreamWaitValue64(A, memory, 0, 0));
	CUgraphExec exec = end_exec(A);
	const CUdeviceptr previous = memory;
	OK(cuMemFree(memory));
	CHECK_EQ(gpu_alloc(4096), previous);
	replay(exec);
}

static void word_unmapped(void)
{
	scene_open(scene_ranks);
	OK(cuMemAddressReserve(&memory, SCENE_MAPPING, 0, 0, 0));
	map(memory);
	begin(A, RELAXED);
	OK(cuStreamWriteValue64(A, memory, 1, 0));
	CUgraphExec exec = end_exec(A);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	OK(cuMemUnmap(memory, SCENE_MAPPING));
	replay(exec);
}

/* Unregisters the word while a launch waits for it. */
static void word_unregistered(void)
{
	CUdeviceptr p;
	scene_open(scene_ranks);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	OK(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&p, page, 0));
	begin(A, RELAXED);
	writes(A, 0, 1);
	OK(cuStreamWaitValue32(A, p, 1, 0));
	CUgraphExec exec = end_exec(A);
	launch(exec, A);
	await(0, 1);
	snooze(5);
	OK(cuMemHostUnregister(page));
	cuStreamSynchronize(A);
}

static void exec_gone(void)
{
	CUgraphExec exec = filler();
	OK(cuGraphExecDestroy(exec));
	replay(exec);
}

static void graph_gone(void)
{
	CUgraph graph;
	scene_open(scene_ranks);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphDestroy(graph));
	cuGraphDestroy(graph);
}

static void graph_captured(void)
{
	CUgraph graph;
	int status;
	scene_open(scene_ranks);
	begin(A, RELAXED);
	OK(cuStreamGetCaptureInfo_v2(A, &status, NULL, &graph, NULL, NULL));
	cuGraphDestroy(graph);
}

static void graph_child(void)
{
	CUgraph graph, child;
	CUgraphNode node;
	scene_open(scene_ranks);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, graph));
	OK(cuGraphChildGraphNodeGetGraph(node, &child));
	cuGraphDestroy(child);
}

static void child_empty(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;
	scene_open(scene_ranks);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, graph));
	cuGraphInstantiateWithFlags(&exec, graph, 0);
}

static void node_gone(void)
{
	CUgraph graph;
	CUgraphNode node;
	int type;
	scene_open(scene_ranks);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
	OK(cuGraphDestroy(graph));
	cuGraphNodeGetType(node, &type);
}

static void stream_gone(void)
{
	scene_open(scene_ranks);
	begin(A, RELAXED);
	joins(B, A);
	cuStreamDestroy(B);
}

static void event_gone(void)
{
	scene_open(scene_ranks);
	CUevent event = event_open();
	begin(A, RELAXED);
	OK(cuEventRecordWithFlags(event, A, CU_EVENT_RECORD_EXTERNAL));
	CUgraphExec exec = end_exec(A);
	OK(cuEventDestroy(event));
	cuGraphLaunch(exec, A);
}

static void module_gone(void)
{
	struct cuda cuda;
	CUmodule module;
	scene_open(scene_ranks);
	CUfunction function = kernel_open(&cuda, &module);
	begin(A, RELAXED);
	OK(kernel_launch(&cuda, function, A));
	CUgraphExec exec = end_exec(A);
	launch(exec, A);
	OK(cuStreamSynchronize(A));
	OK(cuda.cuModuleUnload(module));
	replay(exec);
}

static void calls_cuda(void *arg)
{
	CUdevice device;
	(void)arg;
	cuCtxGetDevice(&device);
}

static void host_calls(void)
{
	scene_open(scene_ranks);
	OK(cuLaunchHostFunc(A, calls_cuda, NULL));
	cuStreamSynchronize(A);
}

static void destructor_calls(void)
{
	CUuserObject object;
	scene_open(scene_ranks);
	OK(cuUserObjectCreate(&object, NULL, calls_cuda, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	OK(cuUserObjectRelease(object, 1));
	snooze(10000);
}

static void nothing(void *arg)
{
	(void)arg;
}

static CUuserObject object_open(void)
{
	CUuserObject object;
	OK(cuUserObjectCreate(&object, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	return object;
}

static void object_gone(void)
{
	scene_open(scene_ranks);
	CUuserObject object = object_open();
	OK(cuUserObjectRelease(object, 1));
	cuUserObjectRelease(object, 1);
}

static void object_of_others(void)
{
	scene_open(scene_ranks);
	CUuserObject object = object_open();
	CUgraph graph;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	cuUserObjectRelease(object, 1);
}

static void object_of_no_graph(void)
{
	scene_open(scene_ranks);
	CUuserObject object = object_open();
	CUgraph graph;
	OK(cuGraphCreate(&graph, 0));
	cuGraphReleaseUserObject(graph, object, 1);
}

static const struct {
	void (*misuse)(void);
	const char *sentence;
} misuses[] = {
	{memory_freed, "uses memory that is not there: it was freed since the capture"},
	{memory_other, "uses memory that was freed since the capture"},
	{memory_unregistered, "it was freed since the capture"},
	{word_freed, "uses memory that is not there: it was freed since the capture"},
	{word_other, "uses memory that was freed since the capture"},
	{word_unmapped, "uses memory that is not there: it was freed since the capture"},
	{word_unregistered, "uses memory that is not there: it was freed since the capture"},
	{exec_gone, "an executable graph is used that does not exist"},
	{graph_gone, "a graph is used that does not exist"},
	{graph_captured, "a graph is destroyed while a stream is captured into it"},
	{graph_child, "a graph is destroyed that is a node's"},
	{child_empty, "made of a node with an empty graph"},
	{node_gone, "a node is used whose graph does not exist"},
	{stream_gone, "a stream is destroyed while it is captured"},
	{event_gone, "uses an event that was destroyed"},
	{module_gone, "a kernel runs whose module was unloaded"},
	{host_calls, "a host function, or the destructor of a user object, calls CUDA"},
	{destructor_calls, "a host function, or the destructor of a user object, calls CUDA"},
	{object_gone, "a user object is used that does not exist"},
	{object_of_others, "released that the program does not have"},
	{object_of_no_graph, "released that the graph does not have"},
};

/* Checks that the misuse aborts the process with the message. */
static void dies(void (*misuse)(void), const char *sentence)
{
	char text[1024];
	int ends[2], status;
	size_t got = 0;
	OK(pipe(ends));
	const int pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(60);
		CHECK(dup2(ends[1], 2) == 2);
		misuse();
		_exit(0);
	}
	close(ends[1]);
	for (ssize_t n; (n = read(ends[0], text + got, sizeof(text) - 1 - got)) > 0;)
		got += (size_t)n;
	text[got] = '\0';
	close(ends[0]);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(text, sentence))
		fprintf(stderr, "status %#x, not with \"%s\":\n%s", (unsigned)status, sentence,
			text);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, sentence));
}

static void misused(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_ranks = ranks;
	for (size_t i = 0; i < sizeof(misuses) / sizeof(misuses[0]); i++)
		dies(misuses[i].misuse, misuses[i].sentence);
	CHECK_EQ(files_named("misused"), sizeof(misuses) / sizeof(misuses[0]));
}

/* ---- A context that fails ---- */

/* A failed context ends a replay on all its branches. */
static void context_fails(struct ranks *ranks, int rank)
{
	CUcontext context;
	(void)rank;
	scene_open(ranks);
	OK(cuCtxGetCurrent(&context));
	begin(A, RELAXED);
	joins(B, A);
	waits(A, 0, 1);
	waits(B, 0, 1);
	writes(B, 1, 1);
	joins(A, B);
	CUgraphExec exec = end_exec(A);
	launch(exec, A);
	launch(exec, B);
	snooze(20);
	fake_context_fault(context);
	CHECK_EQ(cuStreamSynchronize(A), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuGraphLaunch(exec, A), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuStreamDestroy(A), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuStreamDestroy(B), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuGraphExecDestroy(exec));
	CHECK_EQ(atomic_load(word(1)), 0);
}

static void context_fails_test(void **state)
{
	(void)state;
	ranks_run(1, context_fails, -1);
}

static void misused_test(void **state)
{
	(void)state;
	ranks_run(1, misused, -1);
}

static void other_context_test(void **state)
{
	(void)state;
	ranks_run(1, other_context, -1);
}

static void across_contexts_test(void **state)
{
	(void)state;
	ranks_run(1, across_contexts, -1);
}

static void allocations_test(void **state)
{
	(void)state;
	ranks_run(1, allocations, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(allocations_test),   cmocka_unit_test(context_fails_test),
		cmocka_unit_test(other_context_test), cmocka_unit_test(across_contexts_test),
		cmocka_unit_test(misused_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
