/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_gpu.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "proto/dynlib.h"

#define SYMBOL(function, symbol, parameters)                                                       \
	{.name = symbol, .offset = offsetof(struct gpu, cu.function)},

bool gpu_load(struct gpu *g)
{
	static const struct dynlib_symbol symbols[] = {CUDA_FUNCTIONS(SYMBOL)};
	*g = (struct gpu){0};
	/* Never closed: the driver does not survive that. */
	return dynlib_open("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]), g,
			   g->text, sizeof(g->text));
}

bool gpu_good(struct gpu *g, CUresult result, const char *call)
{
	const char *name = NULL, *meaning = NULL;
	if (result == CUDA_SUCCESS)
		return true;
	g->cu.cuGetErrorName(result, &name);
	g->cu.cuGetErrorString(result, &meaning);
	snprintf(g->text, sizeof(g->text), "GPU %d: %s: %s (%s)", g->ordinal, call,
		 name ? name : "unknown error", meaning ? meaning : "no description");
	return false;
}

bool gpu_open(struct gpu *g, int ordinal)
{
	int n = 0;
	if (!gpu_load(g))
		return false;
	g->ordinal = ordinal;
	if (!GPU_DO(g, cuInit, 0) || !GPU_DO(g, cuDeviceGetCount, &n))
		return false;
	if (ordinal >= n) {
		snprintf(g->text, sizeof(g->text),
			 "there is no GPU %d, only %d GPUs: use --ranks and --gpus to choose",
			 ordinal, n);
		return false;
	}
	if (!GPU_DO(g, cuDeviceGet, &g->device, ordinal) ||
	    !GPU_DO(g, cuDevicePrimaryCtxRetain, &g->context, g->device))
		return false;
	return GPU_DO(g, cuCtxSetCurrent, g->context) && GPU_DO(g, cuCtxSynchronize);
}

void gpu_close(struct gpu *g)
{
	if (g->module)
		g->cu.cuModuleUnload(g->module);
	if (g->context)
		g->cu.cuDevicePrimaryCtxRelease(g->device);
	*g = (struct gpu){0};
}

/* Multiplies and adds, `spins` times in each thread. The store never executes, but keeps the
 * compiler from removing the loop. The driver compiles it for its GPU. */
static const char busy_ptx[] = ".version 7.0\n"
			       ".target sm_70\n"
			       ".address_size 64\n"
			       ".visible .entry ncclsvc_busy(\n"
			       "	.param .u64 nowhere,\n"
			       "	.param .u32 spins\n"
			       ")\n"
			       "{\n"
			       "	.reg .pred %p<3>;\n"
			       "	.reg .b32 %r<3>;\n"
			       "	.reg .f32 %f<4>;\n"
			       "	.reg .b64 %rd<3>;\n"
			       "	ld.param.u32 %r1, [spins];\n"
			       "	mov.u32 %r2, %tid.x;\n"
			       "	cvt.rn.f32.u32 %f1, %r2;\n"
			       "	add.f32 %f2, %f1, 0f3F800000;\n"
			       "LOOP:\n"
			       "	fma.rn.f32 %f1, %f1, 0f3F800001, 0f3F000000;\n"
			       "	fma.rn.f32 %f2, %f2, 0f3F800001, 0f3F000000;\n"
			       "	add.s32 %r1, %r1, -1;\n"
			       "	setp.ne.s32 %p1, %r1, 0;\n"
			       "	@%p1 bra LOOP;\n"
			       "	add.f32 %f3, %f1, %f2;\n"
			       "	setp.neu.f32 %p2, %f3, 0fBF800000;\n"
			       "	@%p2 bra DONE;\n"
			       "	ld.param.u64 %rd1, [nowhere];\n"
			       "	cvta.to.global.u64 %rd2, %rd1;\n"
			       "	st.global.f32 [%rd2], %f3;\n"
			       "DONE:\n"
			       "	ret;\n"
			       "}\n";

bool gpu_prepare_busy(struct gpu *g)
{
	static const struct dynlib_symbol symbols[] = {CUDA_KERNEL_FUNCTIONS(SYMBOL)};
	if (g->busy)
		return true;
	if (!dynlib_open("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]), g, g->text,
			 sizeof(g->text)))
		return false;
	return GPU_DO(g, cuDeviceGetAttribute, &g->multiprocessors,
		      CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->device) &&
	       GPU_DO(g, cuModuleLoadData, &g->module, busy_ptx) &&
	       GPU_DO(g, cuModuleGetFunction, &g->busy, g->module, "ncclsvc_busy");
}

static bool launch(struct gpu *g, CUstream stream, unsigned blocks, uint32_t spins)
{
	CUdeviceptr nowhere = 0;
	void *parameters[] = {&nowhere, &spins};
	return GPU_DO(g, cuLaunchKernel, g->busy, blocks, 1, 1, 256, 1, 1, 0, stream, parameters,
		      NULL);
}

bool gpu_be_busy(struct gpu *g, CUstream stream, unsigned spins)
{
	/* Twice the full load of every multiprocessor's 2048 threads. */
	return launch(g, stream, (unsigned)g->multiprocessors * 16, spins ? spins : 1);
}

bool gpu_be_short(struct gpu *g, CUstream stream)
{
	return launch(g, stream, 1, 1);
}

/* ---- Graphs ---- */

static bool graphs_load(struct gpu *g)
{
	static const struct dynlib_symbol symbols[] = {
		{"cuGraphInstantiateWithFlags", offsetof(struct gpu, instantiate)},
		{"cuGraphLaunch", offsetof(struct gpu, launch)},
		{"cuGraphExecDestroy", offsetof(struct gpu, exec_destroy)},
	};
	return g->launch ||
	       dynlib_open("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]), g,
			   g->text, sizeof(g->text));
}

bool gpu_graph_end(struct gpu *g, CUstream stream, CUgraphExec *exec)
{
	CUgraph graph;
	if (!graphs_load(g) || !GPU_DO(g, cuStreamEndCapture, stream, &graph))
		return false;
	const bool good =
		gpu_good(g, g->instantiate(exec, graph, 0), "cuGraphInstantiateWithFlags");
	return GPU_DO(g, cuGraphDestroy, graph) && good;
}

bool gpu_graph_launch(struct gpu *g, CUgraphExec exec, CUstream stream)
{
	return gpu_good(g, g->launch(exec, stream), "cuGraphLaunch");
}

bool gpu_graph_destroy(struct gpu *g, CUgraphExec exec)
{
	return gpu_good(g, g->exec_destroy(exec), "cuGraphExecDestroy");
}
