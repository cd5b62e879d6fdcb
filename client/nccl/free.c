/* SPDX-License-Identifier: Apache-2.0
 * CUDA's functions that free memory: cudaFree, cuMemFree for programs linked with the driver, and
 * cuMemUnmap for those that get it through the runtime, as PyTorch does for its expandable
 * segments. Memory that was used in an operation is imported by the GPU's worker, and returns to
 * the GPU only once the worker has closed it too. PyTorch, which frees its cache when it is out of
 * memory and retries at once, needs it by then. So the daemon releases it first. A call that the
 * dynamic linker does not bind to these functions (a statically linked runtime, dlsym of a library)
 * frees as usual: see ncclsvc_mem_sweep. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "nccl_session.h"

#define EXPORTED __attribute__((visibility("default")))

#define NOT_INITIALIZED 3 /* cudaErrorInitializationError, CUDA_ERROR_NOT_INITIALIZED */

/* Finds the next library's function. A library that was not loaded globally, as Python loads its
 * modules, is found by name. */
static void *find_next(const char *name, const char *const libraries[])
{
	void *found = dlsym(RTLD_NEXT, name);
	for (; !found && *libraries; libraries++) {
		void *library = dlopen(*libraries, RTLD_LAZY | RTLD_NOLOAD);
		if (library)
			found = dlsym(library, name);
	}
	return found;
}

static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12", NULL};

EXPORTED int cudaFree(void *p);
int cudaFree(void *p)
{
	static int (*_Atomic next)(void *);
	if (!next)
		next = (int (*)(void *))find_next("cudaFree", runtimes);
	if (p)
		sessions_forget(p);
	return next ? next(p) : NOT_INITIALIZED;
}

EXPORTED int cuMemFree_v2(unsigned long long p);
int cuMemFree_v2(unsigned long long p)
{
	static const char *const libraries[] = {"libcuda.so.1", NULL};
	static int (*_Atomic next)(unsigned long long);
	if (!next)
		next = (int (*)(unsigned long long))find_next("cuMemFree_v2", libraries);
	if (p)
		sessions_forget((const void *)(uintptr_t)p);
	return next ? next(p) : NOT_INITIALIZED;
}

static int (*_Atomic driver_unmap)(unsigned long long p, size_t bytes);

/* Unmaps one mapping or several of one allocation; of several, only the first is released now. */
static int unmap(unsigned long long p, size_t bytes)
{
	sessions_forget((const void *)(uintptr_t)p);
	return driver_unmap(p, bytes);
}

static void replace(const char *symbol, void **function)
{
	if (strcmp(symbol, "cuMemUnmap") || !*function)
		return;
	driver_unmap = (int (*)(unsigned long long, size_t)) * function;
	*function = (void *)unmap;
}

/* The last argument points to an enum that says whether the driver has the function. */
EXPORTED int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
					      unsigned long long flags, int *found);
int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
				     unsigned long long flags, int *found)
{
	static int (*_Atomic next)(const char *, void **, unsigned, unsigned long long, int *);
	if (!next)
		next = (int (*)(const char *, void **, unsigned, unsigned long long,
				int *))find_next("cudaGetDriverEntryPointByVersion", runtimes);
	const int error = next ? next(symbol, function, version, flags, found) : NOT_INITIALIZED;
	if (!error)
		replace(symbol, function);
	return error;
}
