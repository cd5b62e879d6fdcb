/* SPDX-License-Identifier: Apache-2.0
 * CUDA through the driver only, opened at run time, so that one program works with and without it.
 */
#include "buffers.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

typedef unsigned long long device_pointer;

struct gpu {
	struct CUstream_st *stream;
	int (*cuMemAlloc_v2)(device_pointer *p, size_t bytes);
	int (*cuMemFree_v2)(device_pointer p);
	int (*cuMemcpyHtoDAsync_v2)(device_pointer to, const void *from, size_t bytes,
				    struct CUstream_st *stream);
	int (*cuMemcpyDtoHAsync_v2)(void *to, device_pointer from, size_t bytes,
				    struct CUstream_st *stream);
	int (*cuStreamSynchronize)(struct CUstream_st *stream);
};

static bool good(int error, const char *what)
{
	if (error)
		say("%s fails: CUDA error %d", what, error);
	return !error;
}

static bool find(void *library, const char *name, void *function)
{
	void *found = dlsym(library, name);
	memcpy(function, &found, sizeof(found));
	if (!found)
		say("the driver lacks %s", name);
	return found;
}

#define FIND(name)	  find(library, #name, (void *)&(name))
#define FIND_FOR(g, name) find(library, #name, (void *)&(g)->name)

static bool start(struct gpu *g, void *library, int ordinal)
{
	int (*cuInit)(unsigned flags);
	int (*cuDeviceGet)(int *device, int ordinal);
	int (*cuDevicePrimaryCtxRetain)(void **context, int device);
	int (*cuCtxSetCurrent)(void *context);
	int (*cuStreamCreate)(struct CUstream_st * *stream, unsigned flags);
	void *context;
	int device;
	return FIND(cuInit) && FIND(cuDeviceGet) && FIND(cuDevicePrimaryCtxRetain) &&
	       FIND(cuCtxSetCurrent) && FIND(cuStreamCreate) && FIND_FOR(g, cuMemAlloc_v2) &&
	       FIND_FOR(g, cuMemFree_v2) && FIND_FOR(g, cuMemcpyHtoDAsync_v2) &&
	       FIND_FOR(g, cuMemcpyDtoHAsync_v2) && FIND_FOR(g, cuStreamSynchronize) &&
	       good(cuInit(0), "cuInit") && good(cuDeviceGet(&device, ordinal), "cuDeviceGet") &&
	       good(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") &&
	       good(cuCtxSetCurrent(context), "cuCtxSetCurrent") &&
	       good(cuStreamCreate(&g->stream, 1 /* non-blocking */), "cuStreamCreate");
}

void *gpu_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		say("--device cuda: no driver: %s", dlerror());
	return library;
}

struct gpu *gpu_open(int ordinal)
{
	void *library = gpu_driver();
	struct gpu *g = library ? calloc(1, sizeof(*g)) : NULL;
	if (g && start(g, library, ordinal))
		return g;
	free(g);
	return NULL;
}

void gpu_close(struct gpu *g)
{
	free(g); /* the driver frees the rest when the process ends */
}

struct CUstream_st *gpu_stream(const struct gpu *g)
{
	return g->stream;
}

static bool make_shared(struct buffer *b, ncclsvc_session *s)
{
	if (ncclsvc_mem_alloc(s, b->bytes, &b->shared)) {
		say("%s", ncclsvc_last_error());
		return false;
	}
	b->host = b->shared;
	return true;
}

bool buffer_make(struct buffer *b, ncclsvc_session *s, struct gpu *g, size_t bytes)
{
	device_pointer p = 0;
	*b = (struct buffer){.bytes = bytes};
	if (s && !g)
		return make_shared(b, s);
	b->host = b->heap = calloc(1, bytes);
	if (!b->heap) {
		say("out of memory");
		return false;
	}
	if (g && !good(g->cuMemAlloc_v2(&p, bytes), "cuMemAlloc"))
		return false;
	b->shared = (void *)(uintptr_t)p;
	return true;
}

void buffer_free(struct buffer *b, struct gpu *g)
{
	free(b->heap);
	if (g && b->shared)
		g->cuMemFree_v2((uintptr_t)b->shared);
	*b = (struct buffer){0};
}

bool buffer_put(const struct buffer *b, struct gpu *g)
{
	return !g ||
	       good(g->cuMemcpyHtoDAsync_v2((uintptr_t)b->shared, b->host, b->bytes, g->stream),
		    "cuMemcpyHtoDAsync");
}

bool buffer_get(const struct buffer *b, struct gpu *g)
{
	return !g ||
	       (good(g->cuMemcpyDtoHAsync_v2(b->host, (uintptr_t)b->shared, b->bytes, g->stream),
		     "cuMemcpyDtoHAsync") &&
		good(g->cuStreamSynchronize(g->stream), "cuStreamSynchronize"));
}
