/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_api.h"

#include <stdio.h>
#include <unistd.h>

#include "base/timings.h"
#include "proto/dynlib.h"

#define NCCL_ENTRY(function, type, args) {#function, offsetof(struct nccl_api, function)},

struct cuda cu;
struct nccl_api nccl;

bool gpu_api_open_cuda(int *version, char *text, size_t size)
{
	CUresult error = CUDA_SUCCESS;
	if (!cuda_driver_load(&cu, version, text, size))
		return false;
	/* An MPS server that has just lost a client briefly refuses new ones. */
	for (int i = 0; !error && i < MPS_TRIES; i++) {
		error = cu.cuInit(0);
		if (error != CUDA_ERROR_MPS_SERVER_NOT_READY || i == MPS_TRIES - 1)
			break;
		error = CUDA_SUCCESS;
		usleep(MPS_NOT_READY_US);
	}
	if (error)
		snprintf(text, size, "the NVIDIA driver does not start: %s",
			 gpu_api_cuda_error(error));
	return !error;
}

bool gpu_api_open_nccl(int *version, char *text, size_t size)
{
	static const struct dynlib_symbol symbols[] = {NCCL_FUNCTIONS(NCCL_ENTRY)};
	const size_t n = sizeof(symbols) / sizeof(symbols[0]);
	if (!dynlib_open("libnccl.so.2", symbols, n, &nccl, text, size))
		return false;
	if (nccl.ncclGetVersion(version)) {
		snprintf(text, size, "libnccl.so.2 does not report its version: %s",
			 nccl.ncclGetLastError(NULL));
		return false;
	}
	if (*version < NCCL_VERSION_NEEDED) {
		snprintf(text, size,
			 "libnccl.so.2 is version %d.%d.%d, but %d.%d is needed: install a newer "
			 "NCCL",
			 *version / 10000, *version % 10000 / 100, *version % 100,
			 NCCL_VERSION_NEEDED / 10000, NCCL_VERSION_NEEDED % 10000 / 100);
		return false;
	}
	return true;
}

const char *gpu_api_cuda_error(CUresult error)
{
	static _Thread_local char text[160];
	cuda_driver_error(&cu, error, text, sizeof(text));
	return text;
}
