/* SPDX-License-Identifier: Apache-2.0
 * Kernels: those of client/kernels run as the CPU reference; all others only take time on their
 * stream. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph.h"
#include "proto/abi/peer_abi.h"

#define NS_EACH UINT64_C(20) /* per unit of the kernel's second parameter */

#pragma GCC visibility push(default)
#define DECLARE(function, exported, parameters) CUresult function parameters __asm__(exported);
CUDA_KERNEL_FUNCTIONS(DECLARE)
CUDA_OPTIONAL_FUNCTIONS(DECLARE)
#undef DECLARE
#pragma GCC visibility pop

/* ---- Modules ---- */

struct CUfunc_st {
	struct CUfunc_st *next; /* next of the module */
	struct CUctx_st *context;
	atomic_uint users; /* the module, and kernels that will run or are in graphs */
	atomic_bool unloaded;
	const struct peer_kernel *peer; /* NULL: any other kernel */
};

struct CUmod_st {
	struct CUmod_st *next;
	struct CUctx_st *context;
	struct CUfunc_st *functions;
	bool fat;
	size_t bytes;
	char image[];
};

#define FAT_MAGIC 0xba55ed50

/* The beginning of a fat binary. */
struct fat_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* bytes that follow */
};

/* The image's size if it is PTX or a fat binary; otherwise 0. */
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
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	bool fat;
	const size_t bytes = image ? image_bytes(image, &fat) : 0;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*module = malloc(sizeof(**module) + bytes);
	if (!*module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*module)->context = context;
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

static void function_unref(struct CUfunc_st *f)
{
	if (atomic_fetch_sub(&f->users, 1) == 1)
		free(f);
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult error = enter();
	if (!error)
		error = capture_unsafe();
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
		atomic_store(&f->unloaded, true);
		function_unref(f);
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

/* The image's code is compressed, but its name is not. The names of its kernels begin with it. */
static bool has_kernel(const struct CUmod_st *module, const char *name)
{
	static const char begin[] = "ncclsvc_peer_";
	const char *at = module->image, *end = at + module->bytes;
	while (peer_kernel_find(name) &&
	       (at = memmem(at, (size_t)(end - at), begin, sizeof(begin) - 1))) {
		const size_t length = strnlen(at, (size_t)(end - at));
		if (!at[-1] && strncmp(name, at, length) == 0 &&
		    (!name[length] || name[length] == '_'))
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
	if (module->fat ? !has_kernel(module, name) : !has_entry(module->image, name))
		return CUDA_ERROR_NOT_FOUND;
	struct CUfunc_st *f = malloc(sizeof(*f));
	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	*f = (struct CUfunc_st){.next = module->functions,
				.context = module->context,
				.users = 1,
				.peer = peer_kernel_find(name)};
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
	struct CUfunc_st *function;
	unsigned grid[3], block[3], shared_bytes;
	struct peer_messages argument; /* for a kernel of client/kernels */
	uint32_t n;		       /* for any other kernel */
	void *parameters[2];	       /* for both */
};

static unsigned product(const unsigned n[3])
{
	return n[0] * n[1] * n[2];
}

static void take_time(uint64_t ns, const atomic_int *stop)
{
	for (uint64_t left = ns, part; left && !atomic_load(stop); left -= part) {
		part = left < 1000000 ? left : 1000000;
		nanosleep(&(struct timespec){.tv_nsec = (long)part}, NULL);
	}
}

static void kernel_run(void *arg, const atomic_int *stop)
{
	const struct kernel *k = arg;
	if (atomic_load(&k->function->unloaded))
		fake_die("a kernel runs whose module was unloaded");
	if (k->function->peer)
		peer_kernel_run(k->context, k->function->peer, product(k->grid), &k->argument,
				stop);
	else
		take_time(k->n * NS_EACH, stop);
}

static void kernel_drop(void *arg)
{
	struct kernel *k = arg;
	function_unref(k->function);
	free(k);
}

static const struct fake_work kernel_work = {CU_GRAPH_NODE_TYPE_KERNEL, kernel_run, kernel_drop,
					     NULL};

static bool launchable(const CUDA_KERNEL_NODE_PARAMS *p)
{
	return p->func && p->gridDimX && p->gridDimY && p->gridDimZ && p->blockDimX &&
	       p->blockDimY && p->blockDimZ && p->sharedMemBytes <= 48 << 10 && p->kernelParams &&
	       !p->extra;
}

static struct kernel *kernel_new(struct CUctx_st *context, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct kernel *k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	*k = (struct kernel){.context = context,
			     .function = p->func,
			     .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
			     .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
			     .shared_bytes = p->sharedMemBytes};
	if (p->func->peer) {
		peer_kernel_launch(p->func->peer, product(k->grid), product(k->block),
				   p->kernelParams[0], &k->argument);
		k->parameters[0] = &k->argument;
	} else {
		memcpy(&k->n, p->kernelParams[1], sizeof(k->n));
		k->parameters[1] = &k->n;
	}
	atomic_fetch_add(&p->func->users, 1);
	return k;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
			CUstream handle, void **parameters, void **extra)
{
	CUresult error;
	const CUDA_KERNEL_NODE_PARAMS p = {.func = function,
					   .gridDimX = grid_x,
					   .gridDimY = grid_y,
					   .gridDimZ = grid_z,
					   .blockDimX = block_x,
					   .blockDimY = block_y,
					   .blockDimZ = block_z,
					   .sharedMemBytes = shared_bytes,
					   .kernelParams = parameters,
					   .extra = extra};
	if (!launchable(&p))
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_fault("launch-fail"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (function->context != stream_context(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	struct kernel *k = kernel_new(stream_context(stream), &p);
	return k ? stream_put(stream, &kernel_work, k) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- Nodes ---- */

/* The parameters are valid while the node has them. */
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!node || !params)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	node_check(node);
	if (!node->action || node->action->work != &kernel_work)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	struct kernel *k = node->action->arg;
	*params = (CUDA_KERNEL_NODE_PARAMS){.func = k->function,
					    .gridDimX = k->grid[0],
					    .gridDimY = k->grid[1],
					    .gridDimZ = k->grid[2],
					    .blockDimX = k->block[0],
					    .blockDimY = k->block[1],
					    .blockDimZ = k->block[2],
					    .sharedMemBytes = k->shared_bytes,
					    .kernelParams = k->parameters,
					    .ctx = k->context};
	return graph_unlock(CUDA_SUCCESS);
}

static CUresult action_of(const CUDA_KERNEL_NODE_PARAMS *params, struct action **action)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!params || !launchable(params))
		return CUDA_ERROR_INVALID_VALUE;
	struct kernel *k = kernel_new(params->ctx ? params->ctx : context, params);
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*action = action_new(&kernel_work, k);
	return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
			      const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct action *action;
	CUresult error = action_of(params, &action);
	return error ? error
		     : graph_add_node(node, graph, after, n, CU_GRAPH_NODE_TYPE_KERNEL, action,
				      NULL);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct action *action;
	CUresult error = action_of(params, &action);
	return error ? error : exec_set_action(exec, node, action);
}
