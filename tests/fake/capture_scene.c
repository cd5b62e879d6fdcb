/* SPDX-License-Identifier: Apache-2.0 */
#include "capture_scene.h"

CUstream streams[SCENE_STREAMS];
static _Atomic uint64_t *words;
static CUdeviceptr words_at;

void scene_open(struct ranks *ranks)
{
	gpu_open(0);
	words = (_Atomic uint64_t *)(void *)ranks->scratch;
	OK(cuMemHostRegister(ranks->scratch, sizeof(ranks->scratch), CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&words_at, ranks->scratch, 0));
	for (unsigned i = 0; i < SCENE_STREAMS; i++)
		streams[i] = stream_open();
}

_Atomic uint64_t *word(unsigned i)
{
	return &words[i];
}

CUdeviceptr word_at(unsigned i)
{
	return words_at + i * sizeof(*words);
}

void writes(CUstream stream, unsigned i, uint64_t value)
{
	OK(cuStreamWriteValue64(stream, word_at(i), value, 0));
}

void waits(CUstream stream, unsigned i, uint64_t value)
{
	OK(cuStreamWaitValue64(stream, word_at(i), value, 0));
}

void await(unsigned i, uint64_t value)
{
	while (atomic_load(word(i)) != value)
		snooze(1);
}

void stays(unsigned i, uint64_t value)
{
	snooze(20);
	CHECK_EQ(atomic_load(word(i)), value);
}

void map(CUdeviceptr p)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, SCENE_MAPPING, &prop, 0));
	OK(cuMemMap(p, SCENE_MAPPING, 0, handle, 0));
	OK(cuMemSetAccess(p, SCENE_MAPPING, &access, 1));
	OK(cuMemRelease(handle));
}

CUevent event_open(void)
{
	CUevent event;
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	return event;
}

void begin(CUstream stream, int mode)
{
	OK(cuStreamBeginCapture(stream, mode));
}

CUgraph end(CUstream stream)
{
	CUgraph graph;
	OK(cuStreamEndCapture(stream, &graph));
	CHECK(graph);
	return graph;
}

CUresult end_error(CUstream stream)
{
	CUgraph graph = (CUgraph)(void *)&graph;
	CUresult error = cuStreamEndCapture(stream, &graph);
	CHECK(error && !graph);
	return error;
}

CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec exec;
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

CUgraphExec end_exec(CUstream stream)
{
	CUgraph graph = end(stream);
	CUgraphExec exec = instantiate(graph);
	OK(cuGraphDestroy(graph));
	return exec;
}

void launch(CUgraphExec exec, CUstream stream)
{
	OK(cuGraphLaunch(exec, stream));
}

void joins(CUstream b, CUstream a)
{
	CUevent event = event_open();
	OK(cuEventRecord(event, a));
	OK(cuStreamWaitEvent(b, event, 0));
	OK(cuEventDestroy(event));
}

size_t nodes_in(CUgraph graph)
{
	size_t n = 0;
	OK(cuGraphGetNodes(graph, NULL, &n));
	return n;
}
