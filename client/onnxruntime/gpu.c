/* SPDX-License-Identifier: Apache-2.0
 * ONNX Runtime puts all outputs of a custom CUDA operator into device memory, including signals.
 * The driver is opened when the first signal is written. */
#include <dlfcn.h>
#include <pthread.h>

#include "ort.h"

typedef int memset_async_fn(unsigned long long at, unsigned char byte, size_t n,
			    struct CUstream_st *stream);

static memset_async_fn *memset_d8;

static void open_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (driver)
		memset_d8 = (memset_async_fn *)dlsym(driver, "cuMemsetD8Async");
}

bool gpu_set_byte(struct CUstream_st *stream, void *at, unsigned char byte)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, open_driver);
	return memset_d8 && !memset_d8((uintptr_t)at, byte, 1, stream);
}
