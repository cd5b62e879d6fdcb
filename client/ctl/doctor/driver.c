/* SPDX-License-Identifier: Apache-2.0
 * The process that tests the driver, which may hang or crash. Its findings go into a file that its
 * parent holds. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "proto/abi/nccl_abi.h"
#include "proto/dynlib.h"

#define CUDA_POINTER(function, name, parameters) CUresult(*function) parameters;
#define NCCL_POINTER(function, type, parameters) type(*function) parameters;
struct cuda {
	CUDA_FUNCTIONS(CUDA_POINTER)
};
struct nccl {
	NCCL_FUNCTIONS(NCCL_POINTER)
};

#define AT(function, exported)                                                                     \
	{                                                                                          \
		exported, offsetof(struct cuda, function)                                          \
	}

/* Only these: an old driver that lacks other symbols must still report its version. */
static const struct dynlib_symbol cuda_symbols[] = {
	AT(cuInit, "cuInit"),
	AT(cuDriverGetVersion, "cuDriverGetVersion"),
	AT(cuGetErrorName, "cuGetErrorName"),
	AT(cuGetErrorString, "cuGetErrorString"),
	AT(cuDeviceGetCount, "cuDeviceGetCount"),
	AT(cuDeviceGet, "cuDeviceGet"),
	AT(cuDeviceGetName, "cuDeviceGetName"),
	AT(cuDeviceGetUuid, "cuDeviceGetUuid_v2"),
	AT(cuDeviceGetAttribute, "cuDeviceGetAttribute"),
	AT(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer"),
};
static const struct dynlib_symbol nccl_symbols[] = {
	{"ncclGetVersion", offsetof(struct nccl, ncclGetVersion)},
};

static struct cuda cu;
static struct doctor_driver found;

static bool save(void)
{
	return pwrite(DOCTOR_DRIVER_FD, &found, sizeof(found), 0) == (ssize_t)sizeof(found);
}

static void look_at_nccl(void)
{
	struct nccl nccl = {0};
	if (!dynlib_open("libnccl.so.2", nccl_symbols, 1, &nccl, found.nccl_text,
			 sizeof(found.nccl_text)))
		return;
	found.nccl_open = true;
	nccl.ncclGetVersion(&found.nccl_version);
}

static bool failed(CUresult error)
{
	const char *name = NULL, *meaning = NULL;
	if (!error)
		return false;
	cu.cuGetErrorName(error, &name);
	cu.cuGetErrorString(error, &meaning);
	snprintf(found.cuda_text, sizeof(found.cuda_text), "%s (%s)", name ? name : "unknown error",
		 meaning ? meaning : "?");
	return true;
}

static CUresult look_at_gpu(int i, int n)
{
	struct doctor_gpu *g = &found.gpus[i];
	CUdevice device = 0, other;
	CUuuid uuid = {{0}};
	CUresult error = cu.cuDeviceGet(&device, i);
	if (!error)
		error = cu.cuDeviceGetUuid(&uuid, device);
	if (!error)
		error = cu.cuDeviceGetName(g->name, sizeof(g->name), device);
	if (!error)
		error = cu.cuDeviceGetAttribute(&g->mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device);
	if (!error) {
		int enabled = 0;
		CUresult unknown =
			cu.cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
		g->mps = mps_in_use(unknown, enabled, &g->mps_server);
	}
	memcpy(g->uuid, uuid.bytes, sizeof(g->uuid));
	g->name[sizeof(g->name) - 1] = '\0';
	for (int k = 0; k < n && !error; k++) {
		int can = 0;
		if (k == i)
			continue;
		error = cu.cuDeviceGet(&other, k);
		if (!error)
			error = cu.cuDeviceCanAccessPeer(&can, device, other);
		if (can)
			g->peers |= 1u << k;
	}
	return error;
}

static void look_at_cuda(void)
{
	int n = 0;
	if (!dynlib_open("libcuda.so.1", cuda_symbols,
			 sizeof(cuda_symbols) / sizeof(cuda_symbols[0]), &cu, found.cuda_text,
			 sizeof(found.cuda_text)))
		return;
	found.cuda_open = true;
	cu.cuDriverGetVersion(&found.cuda_version);
	save();
	if (failed(cu.cuInit(0)))
		return;
	found.cuda_init = true;
	save();
	if (failed(cu.cuDeviceGetCount(&n)))
		return;
	if (n > DOCTOR_GPUS)
		n = DOCTOR_GPUS;
	for (int i = 0; i < n; i++)
		if (failed(look_at_gpu(i, n)))
			return;
	found.ngpus = n;
	found.listed = true;
}

/* NCCL first: it starts nothing, and the driver may never return. */
int doctor_driver_main(void)
{
	look_at_nccl();
	if (!save())
		return 1;
	look_at_cuda();
	bool saved = save();
	/* Exit without the driver's exit handlers. */
	_exit(saved ? 0 : 1);
}
