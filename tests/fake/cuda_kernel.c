/* SPDX-License-Identifier: Apache-2.0
 * Kernels: whatever their code is, they take time on their stream, and do nothing else. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

#define NS_EACH UINT64_C(20) /* of what the kernel's second parameter counts */

#pragma GCC visibility push(default)
#define DECLARE(function, exported, parameters) CUresult function parameters __asm__(exported);
CUDA_KERNEL_FUNCTIONS(DECLARE)
#undef DECLARE
#pragma GCC visibility pop

struct kernel {
	uint64_t ns;
};

static void kernel_run(void *arg, const atomic_int *stop)
{
	struct kernel *k = arg;
	for (uint64_t left = k->ns, part; left && !atomic_load(stop); left -= part) {
		part = left < 1000000 ? left : 1000000;
		nanosleep(&(struct timespec){.tv_nsec = (long)part}, NULL);
	}
	free(k);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!image || !strstr(image, ".entry"))
		return CUDA_ERROR_INVALID_VALUE;
	*module = malloc(1);
	return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult error = enter();
	if (!error)
		free(module);
	return error;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!module || !name)
		return CUDA_ERROR_INVALID_HANDLE;
	*function = (CUfunction)module;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
			CUstream stream, void **parameters, void **extra)
{
	uint32_t n;
	if (!function || !grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
	    shared_bytes > 48 << 10 || !parameters || extra)
		return CUDA_ERROR_INVALID_VALUE;
	struct kernel *k = malloc(sizeof(*k));
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(&n, parameters[1], sizeof(n));
	k->ns = n * NS_EACH;
	CUresult error = fake_stream_enqueue(stream, kernel_run, k);
	if (error)
		free(k);
	return error;
}
