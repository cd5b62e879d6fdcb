/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda.h"
#include "base/error.h"

#include <dlfcn.h>
#include <string.h>

const struct cuda *cuda_open(void)
{
	const char *why;
	const struct cuda *cuda = cuda_driver(&why);
	if (!cuda)
		error_set(NCCLSVC_UNSUPPORTED, "cannot use GPUs: %s", why);
	return cuda;
}

/* Does not load the driver: loading is slow, and not every program needs it. */
bool cuda_is_initialized(void)
{
	CUresult (*count)(int *);
	int n;
	void *library = dlopen(CUDA_DRIVER_SONAME, RTLD_LAZY | RTLD_NOLOAD);
	if (!library) {
		dlerror(); /* clears the error */
		return false;
	}
	void *symbol = dlsym(library, "cuDeviceGetCount");
	memcpy(&count, &symbol, sizeof(count));
	bool initialized = symbol && count(&n) != CUDA_ERROR_NOT_INITIALIZED;
	dlclose(library);
	return initialized;
}

bool cuda_captures(const struct cuda *c)
{
	return c->cuThreadExchangeStreamCaptureMode && c->cuStreamGetCaptureInfo_v2 &&
	       c->cuStreamUpdateCaptureDependencies && c->cuUserObjectCreate &&
	       c->cuUserObjectRelease && c->cuGraphRetainUserObject &&
	       c->cuGraphAddEventRecordNode && c->cuGraphAddDependencies &&
	       c->cuGraphRemoveDependencies;
}

ncclsvc_result cuda_error(const struct cuda *c, CUresult error, const char *what)
{
	char text[160];
	cuda_driver_error(c, error, text, sizeof(text));
	ncclsvc_result r = NCCLSVC_SYSTEM;
	if (error == CUDA_ERROR_OUT_OF_MEMORY)
		r = NCCLSVC_NO_MEMORY;
	else if (error == CUDA_ERROR_NOT_SUPPORTED)
		r = NCCLSVC_UNSUPPORTED;
	return error_set(r, "%s: %s", what, text);
}

ncclsvc_result cuda_device(const struct cuda *c, int ordinal, CUdevice *device)
{
	int count = 0;
	CUresult e = c->cuDeviceGetCount(&count);
	if (!e && (ordinal < 0 || ordinal >= count))
		return error_argument("there is no GPU %d: this process sees %d, counting from 0",
				      ordinal, count);
	if (!e)
		e = c->cuDeviceGet(device, ordinal);
	return e ? cuda_error(c, e, "CUDA cannot open the GPU") : NCCLSVC_OK;
}
