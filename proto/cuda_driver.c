/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_driver.h"

#include <pthread.h>
#include <stdio.h>

#include "dynlib.h"

#define SYMBOL(function, symbol, parameters)                                                       \
	{.name = (symbol), .offset = offsetof(struct cuda, function)},

bool cuda_driver_load(struct cuda *cuda, int *version, char *text, size_t size)
{
	static const struct dynlib_symbol symbols[] = {CUDA_FUNCTIONS(SYMBOL)
							       CUDA_KERNEL_FUNCTIONS(SYMBOL)};
	static const struct dynlib_symbol optional[] = {CUDA_CAPTURE_FUNCTIONS(SYMBOL)
								CUDA_OPTIONAL_FUNCTIONS(SYMBOL)};
	void *library = dynlib_open(CUDA_DRIVER_SONAME, symbols,
				    sizeof(symbols) / sizeof(symbols[0]), cuda, text, size);
	if (!library)
		return false;
	dynlib_optional(library, optional, sizeof(optional) / sizeof(optional[0]), cuda);
	CUresult error = cuda->cuDriverGetVersion(version);
	if (error) {
		cuda_driver_error(cuda, error, text, size);
		return false;
	}
	if (*version < CUDA_DRIVER_VERSION_NEEDED) {
		snprintf(text, size,
			 "the NVIDIA driver supports CUDA %d.%d, but %d.%d is needed: install a "
			 "newer driver",
			 *version / 1000, *version % 1000 / 10, CUDA_DRIVER_VERSION_NEEDED / 1000,
			 CUDA_DRIVER_VERSION_NEEDED % 1000 / 10);
		return false;
	}
	return true;
}

void cuda_driver_error(const struct cuda *cuda, CUresult error, char *text, size_t size)
{
	const char *name = NULL, *meaning = NULL;
	cuda->cuGetErrorName(error, &name);
	cuda->cuGetErrorString(error, &meaning);
	snprintf(text, size, "%s (%s)", name ? name : "unknown CUDA error",
		 meaning ? meaning : "no description");
}

/* ---- One per process ---- */

static struct cuda driver;
static const struct cuda *opened; /* NULL: see failure */
static char failure[256];

static void open_once(void)
{
	char error[160];
	int version = 0;
	if (!cuda_driver_load(&driver, &version, failure, sizeof(failure)))
		return;
	CUresult e = driver.cuInit(0);
	if (!e) {
		opened = &driver;
		return;
	}
	cuda_driver_error(&driver, e, error, sizeof(error));
	snprintf(failure, sizeof(failure), "the NVIDIA driver does not start: %s", error);
}

const struct cuda *cuda_driver(const char **why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, open_once);
	*why = failure;
	return opened;
}
