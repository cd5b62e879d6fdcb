/* SPDX-License-Identifier: Apache-2.0
 *
 * cudaFree, and cuMemFree for programs that are linked with the driver: memory that was in an
 * operation is imported by the GPU's worker, and is the GPU's again only when that has closed it,
 * too. PyTorch, which frees its cache when it is out of memory, and tries again at once, needs it
 * then. So the daemon lets it go first. A call that the dynamic linker does not bind to these (the
 * runtime linked statically, dlsym of a library) frees as ever: see ncclsvc_mem_sweep. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "session.h"

#define FREE_WAIT_MS	1000 /* at most, for tasks, and for the worker */
#define NOT_INITIALIZED 3    /* cudaErrorInitializationError, CUDA_ERROR_NOT_INITIALIZED */

/* The next library's function. A library that was not loaded for all, as Python loads its modules,
 * is found by name. */
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

__attribute__((visibility("default"))) int cudaFree(void *p);
int cudaFree(void *p)
{
	static const char *const libraries[] = {"libcudart.so.13", "libcudart.so.12", NULL};
	static int (*_Atomic next)(void *);
	if (!next)
		next = (int (*)(void *))find_next("cudaFree", libraries);
	if (p)
		sessions_forget(p, FREE_WAIT_MS);
	return next ? next(p) : NOT_INITIALIZED;
}

__attribute__((visibility("default"))) int cuMemFree_v2(unsigned long long p);
int cuMemFree_v2(unsigned long long p)
{
	static const char *const libraries[] = {"libcuda.so.1", NULL};
	static int (*_Atomic next)(unsigned long long);
	if (!next)
		next = (int (*)(unsigned long long))find_next("cuMemFree_v2", libraries);
	if (p)
		sessions_forget((const void *)(uintptr_t)p, FREE_WAIT_MS);
	return next ? next(p) : NOT_INITIALIZED;
}
