/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: the rules of stream capture. With the real libraries, they check
 * the real driver instead. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "capture_scene.h"
#include "proto/cuda_driver.h"

#define GLOBAL	     CU_STREAM_CAPTURE_MODE_GLOBAL
#define THREAD_LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED	     CU_STREAM_CAPTURE_MODE_RELAXED
#define MODULE	     ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }"
#define A	     streams[0]
#define B	     streams[1]
#define C	     streams[2]

static int status_of(CUstream stream)
{
	int status = -1;
	OK(cuStreamIsCapturing(stream, &status));
	return status;
}

#define NONE	    CU_STREAM_CAPTURE_STATUS_NONE
#define ACTIVE	    CU_STREAM_CAPTURE_STATUS_ACTIVE
#define INVALIDATED CU_STREAM_CAPTURE_STATUS_INVALIDATED

/* Stream A's capture is still open, but invalidated. */
static void spoilt(void)
{
	CHECK_EQ(status_of(A), INVALIDATED);
	CHECK_EQ(cuStreamWriteValue64(A, word_at(0), 1, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK_EQ(end_error(A), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK_EQ(status_of(A), NONE);
}

static void spoilt_not(void)
{
	CHECK_EQ(status_of(A), ACTIVE);
	OK(cuGraphDestroy(end(A)));
}

/* ---- Begin and end ---- */

static CUresult thread_result;

static void *end_elsewhere(void *graph)
{
	CUcontext context;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	thread_result = cuStreamEndCapture(A, graph);
	return NULL;
}

static void *write_elsewhere(void *unused)
{
	CUcontext context;
	(void)unused;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	thread_result = cuStreamWriteValue64(A, word_at(0), 1, 0);
	return NULL;
}

static CUresult in_thread(void *(*run)(void *), void *arg)
{
	pthread_t thread;
	OK(pthread_create(&thread, NULL, run, arg));
	OK(pthread_join(thread, NULL));
	return thread_result;
}

static void ends(struct ranks *ranks, int rank)
{
	CUgraph graph;
	(void)rank;
	scene_open(ranks);
	CHECK_EQ(cuStreamEndCapture(A, &graph), CUDA_ERROR_ILLEGAL_STATE);
	CHECK_EQ(cuStreamBeginCapture(A, 3), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuStreamBeginCapture(NULL, RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	begin(A, GLOBAL);
	CHECK_EQ(cuStreamBeginCapture(A, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	CHECK_EQ(in_thread(end_elsewhere, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	spoilt_not();
	begin(A, THREAD_LOCAL);
	CHECK_EQ(in_thread(end_elsewhere, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	spoilt_not();
	begin(A, RELAXED);
	OK(in_thread(end_elsewhere, &graph));
	CHECK_EQ(nodes_in(graph), 0);
	/* The capture includes another thread's work on the stream. */
	begin(A, THREAD_LOCAL);
	OK(in_thread(write_elsewhere, NULL));
	CHECK_EQ(nodes_in(end(A)), 1);
	begin(A, RELAXED);
	joins(B, A);
	CHECK_EQ(status_of(B), ACTIVE);
	CHECK_EQ(cuStreamEndCapture(B, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	spoilt();
	CHECK_EQ(status_of(B), NONE);
}

/* ---- Several streams ---- */

static void streams_join(struct ranks *ranks, int rank)
{
	(void)rank;
	scene_open(ranks);
	begin(A, RELAXED);
	joins(B, A);
	writes(B, 0, 1);
	joins(C, B);
	writes(C, 1, 1);
	joins(A, B);
	CHECK_EQ(end_error(A), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	CHECK_EQ(status_of(C), NONE);
	begin(A, RELAXED);
	joins(B, A);
	writes(B, 0, 1);
	joins(A, B);
	writes(B, 0, 2);
	CHECK_EQ(end_error(A), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	/* A stream without new work since its join need not join again. */
	begin(A, RELAXED);
	writes(A, 0, 1);
	joins(B, A);
	writes(B, 0, 1);
	joins(A, B);
	joins(C, B);
	OK(cuGraphDestroy(end(A)));
	CHECK_EQ(status_of(B), NONE);
	stays(0, 0);
}

/* ---- Events ---- */

static void events(struct ranks *ranks, int rank)
{
	CUevent event, before, never;
	CUgraph other;
	(void)rank;
	scene_open(ranks);
	event = event_open();
	before = event_open();
	never = event_open();
	OK(cuEventRecord(before, C));
	OK(cuStreamSynchronize(C));
	/* Waiting for an event recorded outside the capture fails even if the event is complete. */
	begin(A, RELAXED);
	CHECK_EQ(cuStreamWaitEvent(A, before, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	spoilt();
	begin(A, RELAXED);
	OK(cuStreamWaitEvent(A, never, 0));
	spoilt_not();
	/* Queries of a captured event during the capture. */
	begin(A, RELAXED);
	OK(cuEventRecord(event, A));
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
	spoilt();
	begin(A, RELAXED);
	OK(cuEventRecord(event, A));
	CHECK_EQ(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
	spoilt();
	/* Queries and waits after the capture. */
	begin(A, RELAXED);
	OK(cuEventRecord(event, A));
	OK(cuGraphDestroy(end(A)));
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
	CHECK_EQ(cuStreamWaitEvent(B, event, 0), CUDA_ERROR_CAPTURED_EVENT);
	CHECK_EQ(status_of(B), NONE);
	OK(cuEventRecord(event, B));
	OK(cuEventSynchronize(event));
	/* The legacy stream cannot be captured. */
	begin(A, RELAXED);
	OK(cuEventRecord(event, A));
	CHECK_EQ(cuStreamWaitEvent(NULL, event, 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	spoilt();
	/* Two captures cannot be merged. */
	begin(A, RELAXED);
	begin(B, RELAXED);
	OK(cuEventRecord(event, B));
	CHECK_EQ(cuStreamWaitEvent(A, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
	spoilt();
	CHECK(cuStreamEndCapture(B, &other) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuEventDestroy(event));
	OK(cuEventDestroy(before));
	OK(cuEventDestroy(never));
}

static void external_events(struct ranks *ranks, int rank)
{
	CUevent event;
	CUgraphExec records, waits_for;
	(void)rank;
	scene_open(ranks);
	event = event_open();
	CHECK_EQ(cuEventRecordWithFlags(event, A, CU_EVENT_RECORD_EXTERNAL),
		 CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuStreamWaitEvent(A, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuEventRecordWithFlags(event, A, 2), CUDA_ERROR_INVALID_VALUE);
	begin(A, RELAXED);
	waits(A, 0, 1);
	OK(cuEventRecordWithFlags(event, A, CU_EVENT_RECORD_EXTERNAL));
	OK(cuEventQuery(event)); /* the capture did not record the event */
	records = end_exec(A);
	begin(A, RELAXED);
	OK(cuStreamWaitEvent(A, event, CU_EVENT_WAIT_EXTERNAL));
	writes(A, 1, 1);
	waits_for = end_exec(A);
	/* A launch records the event as a direct call would. */
	launch(records, A);
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	OK(cuStreamWaitEvent(B, event, 0));
	writes(B, 2, 1);
	launch(waits_for, C);
	stays(1, 0);
	stays(2, 0);
	atomic_store(word(0), 1);
	await(1, 1);
	await(2, 1);
	OK(cuEventSynchronize(event));
	OK(cuStreamSynchronize(C));
	atomic_store(word(1), 0);
	launch(waits_for, C);
	OK(cuStreamSynchronize(C));
	CHECK_EQ(atomic_load(word(1)), 1);
	/* The same if the event's previous record was captured. */
	begin(B, RELAXED);
	OK(cuEventRecord(event, B));
	OK(cuGraphDestroy(end(B)));
	launch(records, A);
	OK(cuEventSynchronize(event));
	OK(cuGraphExecDestroy(records));
	OK(cuGraphExecDestroy(waits_for));
	OK(cuEventDestroy(event));
}

/* ---- Calls that a capture cannot answer ---- */

static void questions(struct ranks *ranks, int rank)
{
	CUdeviceptr p;
	(void)rank;
	scene_open(ranks);
	begin(A, RELAXED);
	CHECK_EQ(cuStreamSynchronize(A), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	spoilt();
	begin(A, RELAXED);
	CHECK_EQ(cuStreamQuery(A), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	spoilt();
	begin(A, RELAXED);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	spoilt();
	begin(A, RELAXED);
	joins(B, A);
	CHECK_EQ(cuStreamSynchronize(B), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	spoilt();
	/* Work on other streams can still be waited for. */
	begin(A, RELAXED);
	writes(C, 0, 1);
	OK(cuStreamSynchronize(C));
	OK(cuMemAlloc(&p, 64));
	OK(cuMemFree(p));
	spoilt_not();
}

static void legacy_stream(struct ranks *ranks, int rank)
{
	CUdeviceptr p;
	char bytes[8];
	int status;
	(void)rank;
	scene_open(ranks);
	p = gpu_alloc(64);
	begin(A, RELAXED);
	OK(cuMemsetD8Async(p, 1, 64, NULL));
	OK(cuMemcpyDtoH(bytes, p, 8));
	CHECK_EQ(status_of(NULL), NONE);
	spoilt_not();
	OK(cuStreamCreate(&A, CU_STREAM_DEFAULT));
	begin(A, RELAXED);
	CHECK_EQ(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	spoilt_not();
	begin(A, RELAXED);
	CHECK_EQ(cuMemsetD8Async(p, 1, 64, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	spoilt();
	begin(A, RELAXED);
	CHECK_EQ(cuMemcpyDtoH(bytes, p, 8), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	spoilt();
	begin(A, RELAXED);
	CHECK_EQ(cuStreamSynchronize(NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	spoilt();
}

/* ---- Modes ---- */

static CUdeviceptr safe; /* device memory */
static CUevent safe_event;
static CUmodule safe_module;
static CUgraph safe_graph;
static CUgraphExec safe_exec;
static struct cuda cuda;
static _Alignas(4096) char pages[2][4096]; /* the second is registered */

static CUresult unsafe_call(unsigned i)
{
	CUdeviceptr p;
	CUmodule module;
	char bytes[8] = "";
	switch (i) {
	case 0:
		return cuMemAlloc(&p, 64);
	case 1:
		return cuMemFree(safe);
	case 2:
		return cuEventQuery(safe_event);
	case 3:
		return cuEventSynchronize(safe_event);
	case 4:
		return cuStreamQuery(C);
	case 5:
		return cuStreamSynchronize(C);
	case 6:
		return cuMemcpyDtoH(bytes, safe, 8);
	case 7:
		return cuMemcpyHtoD(safe, bytes, 8);
	case 8:
		return cuMemHostRegister(pages[0], sizeof(pages[0]), 0);
	case 9:
		return cuMemHostUnregister(pages[1]);
	case 10:
		return cuda.cuModuleLoadData(&module, MODULE);
	case 11:
		return cuda.cuModuleUnload(safe_module);
	case 12:
		return cuIpcOpenMemHandle(&p, (CUipcMemHandle){0}, 1);
	case 13:
		return cuIpcCloseMemHandle(safe);
	case 14:
		return cuGraphExecDestroy(safe_exec);
	case 15:
		return cuGraphDestroy(safe_graph);
	}
	return -1;
}

#define UNSAFE 16

static void unsafe_calls(struct ranks *ranks, int rank)
{
	char why[256];
	int version;
	(void)rank;
	scene_open(ranks);
	safe = gpu_alloc(64);
	safe_event = event_open();
	CHECK(cuda_driver_load(&cuda, &version, why, sizeof(why)));
	OK(cuda.cuModuleLoadData(&safe_module, MODULE));
	OK(cuMemHostRegister(pages[1], sizeof(pages[1]), 0));
	OK(cuGraphCreate(&safe_graph, 0));
	safe_exec = instantiate(safe_graph);
	for (unsigned i = 0; i < UNSAFE; i++) {
		begin(A, GLOBAL);
		CUresult error = unsafe_call(i);
		if (error != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
			fprintf(stderr, "unsafe call %u: %d\n", i, error);
		CHECK_EQ(error, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		spoilt();
	}
	begin(A, RELAXED);
	for (unsigned i = 0; i < UNSAFE; i++)
		CHECK(unsafe_call(i) != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	spoilt_not();
}

static void *alloc_elsewhere(void *mode)
{
	CUcontext context;
	CUdeviceptr p;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuThreadExchangeStreamCaptureMode(mode));
	thread_result = cuMemAlloc(&p, 64);
	return NULL;
}

static CUresult alloc_here(int mode)
{
	CUdeviceptr p;
	int m = mode;
	OK(cuThreadExchangeStreamCaptureMode(&m));
	CHECK_EQ(m, GLOBAL);
	CUresult error = cuMemAlloc(&p, 64);
	OK(cuThreadExchangeStreamCaptureMode(&m));
	CHECK_EQ(m, mode);
	return error;
}

/* An allocation, for every pair of capture mode and thread mode. */
static void modes(struct ranks *ranks, int rank)
{
	static const bool here[3][3] = {{1, 1, 0}, {1, 1, 0}, {0, 0, 0}};
	static const bool elsewhere[3][3] = {{1, 0, 0}, {0, 0, 0}, {0, 0, 0}};
	int bad = 3;
	(void)rank;
	scene_open(ranks);
	CHECK_EQ(cuThreadExchangeStreamCaptureMode(&bad), CUDA_ERROR_INVALID_VALUE);
	for (int capture = GLOBAL; capture <= RELAXED; capture++) {
		for (int mode = GLOBAL; mode <= RELAXED; mode++) {
			int m = mode;
			begin(A, capture);
			CHECK_EQ(alloc_here(mode), here[capture][mode]
							   ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
							   : CUDA_SUCCESS);
			here[capture][mode] ? spoilt() : spoilt_not();
			begin(A, capture);
			CHECK_EQ(in_thread(alloc_elsewhere, &m),
				 elsewhere[capture][mode] ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
							  : CUDA_SUCCESS);
			elsewhere[capture][mode] ? spoilt() : spoilt_not();
		}
	}
}

/* ---- Dependencies of the next node ---- */

static size_t after(CUstream stream, CUgraphNode *first, uint64_t *id, CUgraph *graph)
{
	int status;
	size_t n = 99;
	const CUgraphNode *nodes = NULL;
	OK(cuStreamGetCaptureInfo_v2(stream, &status, id, graph, &nodes, &n));
	CHECK_EQ(status, ACTIVE);
	*first = n ? nodes[0] : NULL;
	return n;
}

static void dependencies(struct ranks *ranks, int rank)
{
	CUgraphNode first, second, none;
	CUgraph graph, same;
	CUgraphExec exec;
	uint64_t ids[2];
	int status;
	size_t n;
	const CUgraphNode *nodes;
	const CUgraphEdgeData *edges;
	(void)rank;
	scene_open(ranks);
	OK(cuStreamGetCaptureInfo_v2(A, &status, NULL, NULL, NULL, NULL));
	CHECK_EQ(status, NONE);
	CHECK_EQ(cuStreamUpdateCaptureDependencies(A, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
		 CUDA_ERROR_ILLEGAL_STATE);
	begin(A, RELAXED);
	CHECK_EQ(after(A, &none, &ids[0], &graph), 0);
	writes(A, 0, 1);
	CHECK_EQ(after(A, &first, &ids[1], &same), 1);
	CHECK(ids[0] == ids[1] && graph == same);
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS);
	/* The next node replaces the stream's last one, so it may run while the first one waits. */
	waits(A, 1, 1);
	OK(cuStreamUpdateCaptureDependencies(A, &first, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	writes(A, 2, 1);
	CHECK_EQ(after(A, &second, NULL, NULL), 1);
	CHECK(second != first);
	OK(cuStreamUpdateCaptureDependencies_v2(A, &first, NULL, 1,
						CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	OK(cuStreamGetCaptureInfo_v3(A, &status, NULL, NULL, &nodes, &edges, &n));
	CHECK_EQ(n, 2);
	/* Nodes removed from the dependencies count as joined. */
	exec = end_exec(A);
	launch(exec, A);
	await(2, 1);
	CHECK_EQ(cuStreamQuery(A), CUDA_ERROR_NOT_READY);
	atomic_store(word(1), 1);
	OK(cuStreamSynchronize(A));
	begin(A, RELAXED);
	CHECK_EQ(after(A, &none, &ids[1], NULL), 0);
	CHECK(ids[0] != ids[1]);
	spoilt_not();
}

#define PART(name)                                                                                 \
	static void name##_test(void **state)                                                      \
	{                                                                                          \
		(void)state;                                                                       \
		ranks_run(1, name, -1);                                                            \
	}

PART(ends)
PART(streams_join)
PART(events)
PART(external_events)
PART(questions)
PART(legacy_stream)
PART(unsafe_calls)
PART(modes)
PART(dependencies)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_test),	     cmocka_unit_test(streams_join_test),
		cmocka_unit_test(events_test),	     cmocka_unit_test(external_events_test),
		cmocka_unit_test(questions_test),    cmocka_unit_test(legacy_stream_test),
		cmocka_unit_test(unsafe_calls_test), cmocka_unit_test(modes_test),
		cmocka_unit_test(dependencies_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
