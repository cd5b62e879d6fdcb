/* SPDX-License-Identifier: Apache-2.0
 * Initialization, devices, contexts, and the entry of every call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int initialized; /* 1: yes; -1: this process was forked from one that was */
static int ngpus, nvisible;
static int visible[FAKE_GPUS_MAX];
static size_t memory_bytes;
static char dir[FAKE_PATH_MAX - 64];
static struct CUctx_st contexts[FAKE_GPUS_MAX];

#define STACK_MAX 16
static _Thread_local struct CUctx_st *stack[STACK_MAX];
static _Thread_local unsigned top; /* stack[top] is current */

/* ---- Environment --------------------------------------------------------------------------- */

const char *fake_dir(void)
{
	return dir[0] ? dir : getenv("NCCLSVC_FAKE_DIR");
}

static void uuid_of(int gpu, CUuuid *uuid)
{
	static const unsigned char start[16] = {0xfa, 0x4e, 0xc0, 0xde, 0, 0, 0x40, 0, 0x80};
	memcpy(uuid->bytes, start, 16);
	uuid->bytes[15] = (char)gpu;
}

static void uuid_text(int gpu, char *text)
{
	CUuuid u;
	uuid_of(gpu, &u);
	char *p = text + sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		p += sprintf(p, "%02x", (unsigned char)u.bytes[i]);
	}
}

static int gpu_named(const char *word, size_t length)
{
	if (length >= 8 && strncmp(word, "GPU-", 4) == 0) {
		for (int i = 0; i < ngpus; i++) {
			char text[64];
			uuid_text(i, text);
			if (length <= strlen(text) && strncasecmp(text, word, length) == 0)
				return i;
		}
		return -1;
	}
	char *end;
	long n = strtol(word, &end, 10);
	return length > 0 && end == word + length && n >= 0 && n < ngpus ? (int)n : -1;
}

/* As in the driver: up to the first invalid one, and none at all if a GPU is listed twice. */
static void find_visible(void)
{
	const char *p = getenv("CUDA_VISIBLE_DEVICES");
	if (!p) {
		for (nvisible = 0; nvisible < ngpus; nvisible++)
			visible[nvisible] = nvisible;
		return;
	}
	for (nvisible = 0; nvisible < ngpus;) {
		p += strspn(p, " ");
		size_t length = strcspn(p, ", ");
		int gpu = gpu_named(p, length);
		if (gpu < 0)
			return;
		for (int i = 0; i < nvisible; i++) {
			if (visible[i] == gpu) {
				nvisible = 0;
				return;
			}
		}
		visible[nvisible++] = gpu;
		p += length;
		p += strspn(p, " ");
		if (*p++ != ',')
			return;
	}
}

static void forked(void)
{
	if (atomic_load(&initialized) == 1)
		atomic_store(&initialized, -1);
	mps_forked();
}

static CUresult initialize(void)
{
	const char *p = getenv("NCCLSVC_FAKE_DIR");
	if (!p || !*p || strlen(p) >= sizeof(dir)) {
		fprintf(stderr, "the stand-in for libcuda needs NCCLSVC_FAKE_DIR, a directory\n");
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	const char *n = getenv("NCCLSVC_FAKE_GPUS");
	ngpus = n ? atoi(n) : 2;
	if (ngpus > FAKE_GPUS_MAX)
		ngpus = FAKE_GPUS_MAX;
	n = getenv("NCCLSVC_FAKE_MEMORY");
	memory_bytes = n ? strtoull(n, NULL, 10) : (size_t)1 << 30;
	find_visible();
	if (nvisible <= 0)
		return CUDA_ERROR_NO_DEVICE;
	strcpy(dir, p);
	for (int i = 0; i < nvisible; i++)
		contexts[i].device = i;
	CUresult error = mps_connect();
	if (!error)
		error = shared_open();
	if (!error)
		pthread_atfork(NULL, NULL, forked);
	return error;
}

size_t device_memory(void)
{
	return memory_bytes;
}

bool device_valid(CUdevice device)
{
	return device >= 0 && device < nvisible;
}

int fake_physical(CUdevice device)
{
	return visible[device];
}

struct CUctx_st *context_of(CUdevice device)
{
	return &contexts[device];
}

/* ---- Entry --------------------------------------------------------------------------------- */

static void wedge(void)
{
	if (fake_fault("wedge")) {
		for (;;)
			pause();
	}
}

CUresult enter(void)
{
	wedge();
	if (host_calling())
		fake_die("a host function, or the destructor of a user object, calls CUDA");
	return atomic_load(&initialized) == 1 ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static void fail_context(struct CUctx_st *context, CUresult error)
{
	int none = 0;
	atomic_compare_exchange_strong(&context->error, &none, error);
}

void contexts_fail(CUresult error)
{
	for (int i = 0; i < FAKE_GPUS_MAX; i++)
		fail_context(&contexts[i], error);
}

void fake_context_fault(CUcontext context)
{
	fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

CUresult enter_context(struct CUctx_st **context)
{
	CUresult error = enter();
	if (error)
		return error;
	struct CUctx_st *c = stack[top];
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (fake_fault("sticky"))
		fake_context_fault(c);
	if (fake_fault("contained"))
		fail_context(c, 226); /* a memory error that only affects this process */
	*context = c;
	return atomic_load(&c->error);
}

CUresult cuInit(unsigned flags)
{
	wedge();
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	CUresult error = CUDA_SUCCESS;
	if (atomic_load(&initialized) < 0)
		error = CUDA_ERROR_NOT_INITIALIZED;
	else if (atomic_load(&initialized) == 0)
		error = initialize();
	if (!error)
		atomic_store(&initialized, 1);
	pthread_mutex_unlock(&lock);
	return error;
}

CUresult cuDriverGetVersion(int *version)
{
	wedge();
	*version = fake_fault("driver-old") ? 11040 : 13000;
	return CUDA_SUCCESS;
}

/* ---- Devices ------------------------------------------------------------------------------- */

CUresult cuDeviceGetCount(int *count)
{
	CUresult error = enter();
	if (!error)
		*count = nvisible;
	return error;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!device_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult enter_device(CUdevice device)
{
	CUresult error = enter();
	return error ? error : device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	CUresult error = enter_device(device);
	if (!error && size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!error)
		snprintf(name, (size_t)size, "Fake GPU");
	return error;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUresult error = enter_device(device);
	if (!error)
		uuid_of(visible[device], uuid);
	return error;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	CUresult error = enter_device(device);
	if (!error)
		*bytes = memory_bytes;
	return error;
}

CUresult cuDeviceGetAttribute(int *value, int what, CUdevice device)
{
	CUresult error = enter_device(device);
	if (error)
		return error;
	switch (what) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		*value = 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
		*value = mps_connected();
		return fake_fault("mps-unknown") ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	CUresult error = enter_device(device);
	if (!error && size < 13)
		return CUDA_ERROR_INVALID_VALUE;
	if (!error)
		snprintf(id, (size_t)size, "0000:%02X:00.0", 0x10 + visible[device]);
	return error;
}

/* NCCLSVC_FAKE_NO_PEER: pairs of GPUs that cannot access each other's memory: "0-1 2-3" */
static bool out_of_reach(int a, int b)
{
	char one[32], other[32];
	const char *pairs = getenv("NCCLSVC_FAKE_NO_PEER");
	snprintf(one, sizeof(one), "%d-%d", a, b);
	snprintf(other, sizeof(other), "%d-%d", b, a);
	return pairs && (strstr(pairs, one) || strstr(pairs, other));
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to)
{
	CUresult error = enter_device(from);
	if (!error)
		error = enter_device(to);
	if (!error)
		*can = from != to && !out_of_reach(visible[from], visible[to]);
	return error;
}

/* ---- Contexts ------------------------------------------------------------------------------ */

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device)
{
	CUresult error = enter_device(device);
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	contexts[device].refs++;
	pthread_mutex_unlock(&lock);
	*c = &contexts[device];
	return CUDA_SUCCESS;
}

/* The real driver resets the context with the last reference. Here its memory and streams stay
 * until the process ends. */
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUresult error = enter_device(device);
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	if (contexts[device].refs == 0)
		error = CUDA_ERROR_INVALID_CONTEXT;
	else
		contexts[device].refs--;
	pthread_mutex_unlock(&lock);
	return error;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult error = enter();
	if (!error)
		stack[top] = context;
	return error;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CUresult error = enter();
	if (!error)
		*context = stack[top];
	return error;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!stack[top])
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = stack[top]->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (top + 1 == STACK_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack[++top] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!stack[top])
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = stack[top];
	stack[top] = NULL;
	if (top > 0)
		top--;
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	struct CUctx_st *context;
	int can = 0;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (flags || !peer)
		return CUDA_ERROR_INVALID_VALUE;
	error = cuDeviceCanAccessPeer(&can, context->device, peer->device);
	if (!error && !can)
		error = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (error)
		return error;
	return atomic_fetch_or(&context->peers, 1u << peer->device) & 1u << peer->device
		       ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
		       : CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_refuse_context(context);
	return error ? error : streams_wait(context);
}
