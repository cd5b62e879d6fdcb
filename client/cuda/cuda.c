/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "base/error.h"
#include "cuda.h"
#include "proto/dynlib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define SONAME	       "libcuda.so.1"
#define VERSION_NEEDED 12000

static struct cuda cuda;
static const struct cuda *opened; /* NULL: text says why */
static char text[LOST_TEXT];

#define EXPORTED(function, name, parameters) const char *function;
#define NAMED(function, name, parameters)    .function = (name),
static const struct {
	CUDA_FUNCTIONS(EXPORTED)
} exported = {CUDA_FUNCTIONS(NAMED)};

static void describe(CUresult error, const char **name, const char **words)
{
	*name = "an unknown error";
	*words = "no description";
	cuda.cuGetErrorName(error, name);
	cuda.cuGetErrorString(error, words);
}

static void try_open(void)
{
#define WANTED(function)                                                                           \
	{                                                                                          \
		exported.function, offsetof(struct cuda, function)                                 \
	}
	const struct dynlib_symbol symbols[] = {
		WANTED(cuInit),
		WANTED(cuDriverGetVersion),
		WANTED(cuGetErrorName),
		WANTED(cuGetErrorString),
		WANTED(cuDeviceGetCount),
		WANTED(cuDeviceGet),
		WANTED(cuDeviceGetAttribute),
		WANTED(cuDeviceGetUuid),
		WANTED(cuDevicePrimaryCtxRetain),
		WANTED(cuDevicePrimaryCtxRelease),
		WANTED(cuCtxGetCurrent),
		WANTED(cuCtxGetDevice),
		WANTED(cuCtxPushCurrent),
		WANTED(cuCtxPopCurrent),
		WANTED(cuCtxSynchronize),
		WANTED(cuMemAlloc),
		WANTED(cuMemFree),
		WANTED(cuMemcpyDtoDAsync),
		WANTED(cuMemcpyDtoH),
		WANTED(cuMemsetD8Async),
		WANTED(cuPointerGetAttribute),
		WANTED(cuPointerGetAttributes),
		WANTED(cuIpcGetMemHandle),
		WANTED(cuMemHostRegister),
		WANTED(cuMemHostUnregister),
		WANTED(cuMemHostGetDevicePointer),
		WANTED(cuMemRelease),
		WANTED(cuMemAddressReserve),
		WANTED(cuMemAddressFree),
		WANTED(cuMemMap),
		WANTED(cuMemUnmap),
		WANTED(cuMemSetAccess),
		WANTED(cuMemExportToShareableHandle),
		WANTED(cuMemImportFromShareableHandle),
		WANTED(cuMemRetainAllocationHandle),
		WANTED(cuStreamCreate),
		WANTED(cuStreamDestroy),
		WANTED(cuStreamSynchronize),
		WANTED(cuStreamGetFlags),
		WANTED(cuStreamGetCtx),
		WANTED(cuStreamGetId),
		WANTED(cuStreamIsCapturing),
		WANTED(cuStreamQuery),
		WANTED(cuStreamWaitValue64),
		WANTED(cuStreamWriteValue64),
		WANTED(cuStreamBatchMemOp),
		WANTED(cuEventCreate),
		WANTED(cuEventRecord),
		WANTED(cuEventQuery),
		WANTED(cuEventDestroy),
	};
	const char *name, *words;
	int version = 0;
	if (!dynlib_open(SONAME, symbols, sizeof(symbols) / sizeof(symbols[0]), &cuda, text,
			 sizeof(text)))
		return;
	CUresult e = cuda.cuDriverGetVersion(&version);
	if (!e && version < VERSION_NEEDED) {
		snprintf(text, sizeof(text),
			 "the NVIDIA driver is for CUDA %d.%d, and %d.%d or later is needed: "
			 "update the driver",
			 version / 1000, version % 1000 / 10, VERSION_NEEDED / 1000,
			 VERSION_NEEDED % 1000 / 10);
		return;
	}
	if (!e)
		e = cuda.cuInit(0);
	if (!e) {
		opened = &cuda;
		return;
	}
	describe(e, &name, &words);
	snprintf(text, sizeof(text), "the NVIDIA driver does not start: %s (%s)", name, words);
}

const struct cuda *cuda_open(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, try_open);
	if (!opened)
		error_set(NCCLSVC_UNSUPPORTED, "GPUs cannot be used: %s", text);
	return opened;
}

/* A driver that is not loaded stays so: it is slow to load, and not everybody needs it. */
bool cuda_is_initialized(void)
{
	CUresult (*count)(int *);
	int n;
	void *library = dlopen(SONAME, RTLD_LAZY | RTLD_NOLOAD);
	if (!library) {
		dlerror(); /* it is nobody's */
		return false;
	}
	void *symbol = dlsym(library, exported.cuDeviceGetCount);
	memcpy(&count, &symbol, sizeof(count));
	bool initialized = symbol && count(&n) != CUDA_ERROR_NOT_INITIALIZED;
	dlclose(library);
	return initialized;
}

ncclsvc_result cuda_error(const struct cuda *c, CUresult error, const char *what)
{
	const char *name, *words;
	(void)c; /* proof that there is a driver to ask */
	describe(error, &name, &words);
	ncclsvc_result r = NCCLSVC_SYSTEM;
	if (error == CUDA_ERROR_OUT_OF_MEMORY)
		r = NCCLSVC_NO_MEMORY;
	else if (error == CUDA_ERROR_NOT_SUPPORTED)
		r = NCCLSVC_UNSUPPORTED;
	return error_set(r, "%s: %s (%s)", what, name, words);
}

ncclsvc_result cuda_device(const struct cuda *c, int ordinal, CUdevice *device)
{
	int count = 0;
	CUresult e = c->cuDeviceGetCount(&count);
	if (!e && (ordinal < 0 || ordinal >= count))
		return error_argument("there is no GPU %d: this process sees %d, counted from 0",
				      ordinal, count);
	if (!e)
		e = c->cuDeviceGet(device, ordinal);
	return e ? cuda_error(c, e, "the GPU cannot be asked for") : NCCLSVC_OK;
}
