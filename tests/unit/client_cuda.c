/* SPDX-License-Identifier: Apache-2.0 */
#include "client_cuda.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/dynlib.h"

struct test_cuda cu;
bool fake;
int gpus;
static char dir[] = "/tmp/ncclsvc-gpus-XXXXXX";
static CUcontext context;
static _Atomic uint64_t *gate;
static uint64_t gate_value;

void gpus_open(void)
{
	char text[256];
#define SYMBOL(function, name, parameters) {name, offsetof(struct test_cuda, function)},
	static const struct dynlib_symbol symbols[] = {CUDA_FUNCTIONS(SYMBOL)};
	if (!mkdtemp(dir)) {
		perror(dir);
		exit(1);
	}
	setenv("NCCLSVC_FAKE_DIR", dir, 0);
	if (!dynlib_open("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]), &cu, text,
			 sizeof(text))) {
		fprintf(stderr, "%s\n", text);
		exit(77);
	}
	if (cu.cuInit(0) || cu.cuDeviceGetCount(&gpus) || !gpus) {
		fprintf(stderr, "no GPU\n");
		exit(77);
	}
	DIR *d = opendir(dir);
	unsigned n = 0;
	while (d && readdir(d))
		n++;
	closedir(d);
	fake = n > 2; /* a real driver writes nothing there */
	gate = mmap(NULL, SVC_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void gpus_close(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	if (system(command))
		perror(command);
}

void gpus_fault(const char *name, bool on)
{
	char path[64];
	snprintf(path, sizeof(path), "%s/fault.%s", dir, name);
	if (!on) {
		unlink(path);
		return;
	}
	const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	if (fd < 0 || dprintf(fd, "0") < 0)
		perror(path);
	close(fd);
}

int gpu_setup(void **state)
{
	CUdevice device;
	CUuuid uuid;
	setenv("NCCLSVC_PEER", "0", 1); /* members register no staging memory */
	setup(state);
	for (int i = 0; i < gpus && i < 4; i++) {
		ncclsvc_device_info *d = &peer.devices[gpus < 4 ? gpus - 1 - i : 3 - i];
		if (cu.cuDeviceGet(&device, i) || cu.cuDeviceGetUuid(&uuid, device))
			return 1;
		memcpy(d->uuid, uuid.bytes, sizeof(d->uuid));
		d->device = DAEMON_DEVICE(i);
		d->state = NCCLSVC_DEVICE_READY;
		peer.ndevices++;
	}
	if (cu.cuDeviceGet(&device, 0) || cu.cuDevicePrimaryCtxRetain(&context, device) ||
	    cu.cuCtxSetCurrent(context) ||
	    cu.cuMemHostRegister(gate, SVC_PAGE,
				 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
		return 1;
	return 0;
}

int gpu_teardown(void **state)
{
	CUcontext now = NULL;
	CUdevice device;
	/* The library must not change the current context. */
	if (cu.cuCtxGetCurrent(&now) || now != context)
		return 1;
	if (cu.cuMemHostUnregister(gate) || cu.cuCtxSetCurrent(NULL) ||
	    cu.cuDeviceGet(&device, 0) || cu.cuDevicePrimaryCtxRelease(device))
		return 1;
	return teardown(state);
}

ncclsvc_comm *join_gpu(ncclsvc_session *s, int device)
{
	ncclsvc_unique_id id;
	ncclsvc_comm *comm = NULL;
	assert_int_equal(ncclsvc_unique_id_create(&id), NCCLSVC_OK);
	if (ncclsvc_comm_join_device(s, &id, 2, 0, device, WAIT_MS, &comm))
		fail_msg("%s", ncclsvc_last_error());
	assert_int_equal(peer.join_device, DAEMON_DEVICE(device));
	return comm;
}

CUstream new_stream(void)
{
	CUstream stream;
	GOOD(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

CUdeviceptr new_memory(size_t bytes)
{
	CUdeviceptr p;
	GOOD(cu.cuMemAlloc(&p, bytes));
	return p;
}

ncclsvc_task reduce(ncclsvc_comm *comm, CUdeviceptr p, size_t n)
{
	ncclsvc_task task = 0;
	void *buffer = (void *)(uintptr_t)p;
	if (ncclsvc_all_reduce(buffer, buffer, n, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, &task))
		fail_msg("%s", ncclsvc_last_error());
	return task;
}

struct svc_record record(uint64_t n)
{
	const struct svc_record *r = svc_record_slot(peer.ring, peer.entries, n);
	assert_int_equal(svc_number_load(&r->number), n);
	return *r;
}

struct svc_timeline *timeline(uint32_t index)
{
	return &svc_timelines(peer.ring)[index];
}

void wait_ready(uint32_t index, uint64_t value)
{
	for (int ms = 0; atomic_load(&timeline(index)->ready) < value; ms++) {
		if (ms == WAIT_MS)
			fail_msg("ready is %llu, not %llu",
				 (unsigned long long)atomic_load(&timeline(index)->ready),
				 (unsigned long long)value);
		usleep(1000);
	}
}

bool stream_idle(CUstream stream)
{
	usleep(20000); /* time for what must not happen */
	CUresult e = cu.cuStreamQuery(stream);
	assert_true(e == CUDA_SUCCESS || e == CUDA_ERROR_NOT_READY);
	return e == CUDA_SUCCESS;
}

void stream_ends(CUstream stream)
{
	for (int ms = 0; cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; ms++) {
		assert_in_range(ms, 0, WAIT_MS);
		usleep(1000);
	}
	GOOD(cu.cuStreamQuery(stream));
}

void work(uint64_t n)
{
	struct svc_record r = record(n);
	assert_true(r.flags & SVC_TASK_TIMELINE);
	wait_ready(r.timeline, r.value);
	atomic_store(&timeline(r.timeline)->done, r.value);
	peer_end_task(&peer, n, NCCLSVC_OK);
}

static unsigned count_fds(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

/* The daemon's side and the streams are threads of this process, and may hold fds for a moment. */
unsigned open_fds(void)
{
	unsigned least = count_fds();
	for (int i = 0; i < 20; i++) {
		usleep(1000);
		unsigned n = count_fds();
		least = n < least ? n : least;
	}
	return least;
}

void gate_shut(CUstream stream)
{
	CUdeviceptr p;
	GOOD(cu.cuMemHostGetDevicePointer(&p, gate, 0));
	GOOD(cu.cuStreamWaitValue64(stream, p, ++gate_value, CU_STREAM_WAIT_VALUE_GEQ));
}

void gate_open(void)
{
	atomic_store(gate, gate_value);
}

ncclsvc_session *open_gpu(ncclsvc_comm **comm, CUstream *stream)
{
	ncclsvc_session *s = session(false);
	*comm = join_gpu(s, 0);
	*stream = new_stream();
	assert_int_equal(ncclsvc_stream_set(s, *stream, NCCLSVC_STREAM_DETACHED), NCCLSVC_OK);
	return s;
}

CUmemGenericAllocationHandle create(size_t bytes, int types)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	CUmemGenericAllocationHandle handle;
	GOOD(cu.cuMemCreate(&handle, bytes, &prop, 0));
	return handle;
}

void map_at(CUdeviceptr p, size_t bytes, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	GOOD(cu.cuMemMap(p, bytes, 0, handle, 0));
	GOOD(cu.cuMemRelease(handle));
	GOOD(cu.cuMemSetAccess(p, bytes, &access, 1));
}
