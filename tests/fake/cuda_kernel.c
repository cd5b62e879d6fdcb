/* SPDX-License-Identifier: Apache-2.0
 * Kernels: those of client/kernels run as their twins; all others, whatever their code is, take
 * time on their stream, and do nothing else. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"
#include "proto/abi/peer.h"

#define NS_EACH UINT64_C(20) /* of what the kernel's second parameter counts */

#pragma GCC visibility push(default)
#define DECLARE(function, exported, parameters) CUresult function parameters __asm__(exported);
CUDA_KERNEL_FUNCTIONS(DECLARE)
CUDA_OPTIONAL_FUNCTIONS(DECLARE)
#undef DECLARE
#pragma GCC visibility pop

/* ---- Modules ---- */

struct CUfunc_st {
	struct CUfunc_st *next;		/* of the module */
	const struct peer_kernel *peer; /* NULL: another one */
};

struct CUmod_st {
	struct CUmod_st *next;
	struct CUfunc_st *functions;
	bool fat;
	size_t bytes;
	char image[];
};

#define FAT_MAGIC 0xba55ed50

/* What a fat binary begins with. */
struct fat_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* that follow */
};

/* Its bytes, if it is PTX or a fat binary; otherwise 0. */
static size_t image_bytes(const char *image, bool *fat)
{
	struct fat_header h = {0};
	if (strnlen(image, sizeof(h.magic)) == sizeof(h.magic))
		memcpy(&h.magic, image, sizeof(h.magic));
	*fat = h.magic == FAT_MAGIC;
	if (!*fat)
		return strstr(image, ".version") && strstr(image, ".entry") ? strlen(image) + 1 : 0;
	memcpy(&h, image, sizeof(h));
	return h.header_bytes + h.bytes;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUmod_st *modules;

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	bool fat;
	const size_t bytes = image ? image_bytes(image, &fat) : 0;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*module = malloc(sizeof(**module) + bytes);
	if (!*module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*module)->functions = NULL;
	(*module)->fat = fat;
	(*module)->bytes = bytes;
	memcpy((*module)->image, image, bytes);
	pthread_mutex_lock(&lock);
	(*module)->next = modules;
	modules = *module;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	struct CUmod_st **link = &modules;
	while (*link && *link != module)
		link = &(*link)->next;
	if (*link)
		*link = module->next;
	else
		error = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&lock);
	if (error)
		return error;
	for (struct CUfunc_st *f = module->functions, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	free(module);
	return CUDA_SUCCESS;
}

static bool has_entry(const char *image, const char *name)
{
	const size_t length = strlen(name);
	while ((image = strstr(image, ".entry"))) {
		image += strlen(".entry");
		while (isspace((unsigned char)*image))
			image++;
		if (length && strncmp(image, name, length) == 0 &&
		    (image[length] == '(' || isspace((unsigned char)image[length])))
			return true;
	}
	return false;
}

/* The code is compressed, but the name that it was given is not. */
static bool has_name(const struct CUmod_st *module, const char *name)
{
	const size_t length = strlen(name) + 1;
	const char *at = module->image, *end = at + module->bytes;
	while (length > 1 && (at = memmem(at, (size_t)(end - at), name, length))) {
		if (!at[-1])
			return true;
		at++;
	}
	return false;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!module || !name)
		return CUDA_ERROR_INVALID_HANDLE;
	if (module->fat ? !has_name(module, name) : !has_entry(module->image, name))
		return CUDA_ERROR_NOT_FOUND;
	struct CUfunc_st *f = malloc(sizeof(*f));
	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	*f = (struct CUfunc_st){module->functions, peer_kernel_find(name)};
	module->functions = f;
	pthread_mutex_unlock(&lock);
	*function = f;
	return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
	CUresult error = enter();
	return error ? error : function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- Launches ---- */

struct kernel {
	struct CUctx_st *context;
	const struct peer_kernel *peer; /* NULL: another one */
	unsigned blocks;
	struct peer_call call;
	uint64_t ns; /* of another one */
};

static void take_time(uint64_t ns, const atomic_int *stop)
{
	for (uint64_t left = ns, part; left && !atomic_load(stop); left -= part) {
		part = left < 1000000 ? left : 1000000;
		nanosleep(&(struct timespec){.tv_nsec = (long)part}, NULL);
	}
}

static void kernel_run(void *arg, const atomic_int *stop)
{
	struct kernel *k = arg;
	if (k->peer)
		peer_kernel_run(k->context, k->peer, k->blocks, &k->call, stop);
	else
		take_time(k->ns, stop);
	free(k);
}

/* Puts a copy on the stream. */
static CUresult kernel_fire(void *arg, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	struct kernel *k = malloc(sizeof(*k));
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*k = *(const struct kernel *)arg;
	k->context = stream_context(stream);
	error = stream_put(stream, kernel_run, k);
	if (error)
		free(k);
	return error;
}

static CUresult kernel_put(const struct kernel *kernel, CUstream stream)
{
	bool captured = false;
	struct kernel *k = malloc(sizeof(*k));
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*k = *kernel;
	CUresult error = fake_stream_capture(
		stream, &(struct fake_node){.fire = kernel_fire, .drop = free, .arg = k},
		&captured);
	if (!error && captured)
		return CUDA_SUCCESS;
	if (!error)
		error = kernel_fire(k, stream);
	free(k);
	return error;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
			CUstream stream, void **parameters, void **extra)
{
	uint32_t n;
	if (!function || !grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
	    shared_bytes > 48 << 10 || !parameters || extra)
		return CUDA_ERROR_INVALID_VALUE;
	struct kernel k = {.peer = function->peer, .blocks = grid_x * grid_y * grid_z};
	if (k.peer) {
		memcpy(&k.call, parameters[0], sizeof(k.call));
		peer_kernel_check(k.peer, k.blocks, block_x * block_y * block_z, &k.call);
	} else {
		memcpy(&n, parameters[1], sizeof(n));
		k.ns = n * NS_EACH;
	}
	return kernel_put(&k, stream);
}
