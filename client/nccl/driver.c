/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "driver.h"
#include "proto/dynlib.h"

static struct driver driver;
static bool opened;
static char text[256]; /* why it is not */

#define NAME(function, name, parameters)  const char *function;
#define NAMED(function, name, parameters) .function = (name),
static const struct {
	CUDA_FUNCTIONS(NAME)
} names = {CUDA_FUNCTIONS(NAMED)};

static void open_once(void)
{
#define WANTED(function)                                                                           \
	{                                                                                          \
		names.function, offsetof(struct driver, function)                                  \
	}
	const struct dynlib_symbol symbols[] = {
		WANTED(cuInit),
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
		WANTED(cuMemcpyDtoH),
		WANTED(cuPointerGetAttribute),
		WANTED(cuEventRecord),
	};
	if (!dynlib_open("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]), &driver,
			 text, sizeof(text)))
		return;
	const CUresult e = driver.cuInit(0);
	snprintf(text, sizeof(text), "the NVIDIA driver does not start: error %d", e);
	opened = !e;
}

ncclResult_t driver_open(const struct driver **cuda)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, open_once);
	*cuda = &driver;
	return opened ? ncclSuccess : fail(ncclInvalidUsage, "GPUs cannot be used: %s", text);
}
