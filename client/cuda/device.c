/* SPDX-License-Identifier: Apache-2.0
 * GPUs in a session, and which of the daemon's workers serves each. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "gpu_state.h"

/* The session's GPU state, created at first use. NULL with the error set. Locked. */
static struct gpu *gpu_get(ncclsvc_session *s)
{
	if (s->gpu)
		return s->gpu;
	const struct cuda *cuda = cuda_open();
	if (!cuda)
		return NULL;
	struct gpu *g = calloc(1, sizeof(*g));
	if (!g || !(g->regions = calloc(DEVICE_REGIONS, sizeof(*g->regions))) ||
	    !(g->sorted = calloc(DEVICE_REGIONS, sizeof(*g->sorted))) ||
	    !(g->pins = calloc(s->tasks.entries, sizeof(*g->pins)))) {
		if (g) {
			free(g->regions);
			free(g->sorted);
			free(g);
		}
		error_set(NCCLSVC_NO_MEMORY, "out of memory");
		return NULL;
	}
	g->cuda = cuda;
	return s->gpu = g;
}

ncclsvc_result gpu_primary(struct gpu *g, int device, CUcontext *context)
{
	CUdevice cu;
	if (device >= GPU_DEVICES)
		return error_set(NCCLSVC_LIMIT, "there is no GPU %d: %d GPUs can be used", device,
				 GPU_DEVICES);
	if (!g->primary[device]) {
		ncclsvc_result r = cuda_device(g->cuda, device, &cu);
		if (r)
			return r;
		CUresult e = g->cuda->cuDevicePrimaryCtxRetain(&g->primary[device], cu);
		if (e) {
			g->primary[device] = NULL;
			return cuda_error(g->cuda, e, "CUDA cannot create a context on the GPU");
		}
	}
	*context = g->primary[device];
	return NCCLSVC_OK;
}

static void uuid_text(const uint8_t *u, char *to)
{
	to += sprintf(to, "GPU-");
	for (int i = 0; i < 16; i++)
		to += sprintf(to, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u[i]);
}

static ncclsvc_result match(const ncclsvc_device_info *list, size_t n, const CUuuid *uuid,
			    int device, int32_t *number)
{
	char text[64];
	for (size_t i = 0; i < n; i++) {
		if (memcmp(list[i].uuid, uuid->bytes, sizeof(list[i].uuid)))
			continue;
		if (list[i].state == NCCLSVC_DEVICE_FAILED)
			return error_set(NCCLSVC_UNSUPPORTED,
					 "the daemon cannot use GPU %d (its device %d): %.*s",
					 device, list[i].device, (int)sizeof(list[i].text),
					 list[i].text);
		if (list[i].device < 0)
			return error_set(NCCLSVC_PROTOCOL,
					 "the daemon reported an invalid number for GPU %d: %d",
					 device, list[i].device);
		*number = list[i].device;
		return NCCLSVC_OK;
	}
	uuid_text((const uint8_t *)uuid->bytes, text);
	return error_set(NCCLSVC_UNSUPPORTED,
			 "the daemon has no worker for GPU %d (%s) among its %zu: list its devices "
			 "with `ncclsvc-ctl devices`",
			 device, text, n);
}

ncclsvc_result device_match(ncclsvc_session *s, int device, int32_t *number)
{
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	CUuuid uuid;
	CUdevice cu;
	const struct cuda *cuda = cuda_open();
	if (!cuda)
		return NCCLSVC_UNSUPPORTED;
	ncclsvc_result r = cuda_device(cuda, device, &cu);
	if (r)
		return r;
	CUresult e = cuda->cuDeviceGetUuid(&uuid, cu);
	if (e)
		return cuda_error(cuda, e, "CUDA does not report the GPU's UUID");
	r = ncclsvc_list_devices(s, &list, &n);
	if (!r)
		r = match(list, n, &uuid, device, number);
	ncclsvc_list_free(list);
	return r;
}

static bool is_visible(const uint8_t uuid[16])
{
	const struct cuda *cuda = cuda_open();
	int n = 0;
	CUdevice cu;
	CUuuid own;
	if (!cuda || cuda->cuDeviceGetCount(&n))
		return false;
	for (int i = 0; i < n; i++)
		if (!cuda->cuDeviceGet(&cu, i) && !cuda->cuDeviceGetUuid(&own, cu) &&
		    !memcmp(own.bytes, uuid, sizeof(own.bytes)))
			return true;
	return false;
}

/* The driver maps a GPU's memory only in processes that can open its device file. A container lacks
 * the file, or its control group forbids to open it; a GPU that only CUDA_VISIBLE_DEVICES hides has
 * one. */
static bool may_open(uint32_t device_file)
{
	char path[32];
	snprintf(path, sizeof(path), "/dev/nvidia%u", device_file - 1);
	const int fd = device_file ? open(path, O_RDWR | O_CLOEXEC) : -1;
	const int error = errno;
	if (fd >= 0)
		close(fd);
	/* Other errors say nothing about the file. */
	return !device_file || fd >= 0 ||
	       (error != ENOENT && error != EACCES && error != EPERM && error != ENXIO &&
		error != ENODEV);
}

uint16_t devices_out_of_reach(ncclsvc_session *s)
{
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	uint16_t out = 0;
	if (ncclsvc_list_devices(s, &list, &n))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (list[i].device >= 0 && list[i].device < 16 && !is_visible(list[i].uuid) &&
		    !may_open(list[i].device_file))
			out |= (uint16_t)(1u << list[i].device);
	ncclsvc_list_free(list);
	return out;
}

ncclsvc_result gpu_usable(ncclsvc_session *s)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (s->options.no_ring)
		return error_set(NCCLSVC_UNSUPPORTED, "GPU communicators need a session with a "
						      "ring: open it without no_ring");
	if (!cuda_open())
		return NCCLSVC_UNSUPPORTED;
	session_lock(s);
	if (!gpu_get(s))
		r = NCCLSVC_NO_MEMORY;
	session_unlock(s);
	return r;
}

ncclsvc_result devices_rematch(ncclsvc_session *s)
{
	uint64_t wanted = 0; /* one bit for each of GPU_DEVICES */
	int32_t numbers[GPU_DEVICES];
	ncclsvc_result r = NCCLSVC_OK;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->device >= 0 && !c->split)
			wanted |= UINT64_C(1) << c->device;
	if (!wanted)
		return NCCLSVC_OK;
	session_unlock(s);
	for (int d = 0; !r && d < GPU_DEVICES; d++)
		if (wanted >> d & 1)
			r = device_match(s, d, &numbers[d]);
	session_lock(s);
	for (ncclsvc_comm *c = s->comms; !r && c; c = c->next)
		if (c->device >= 0 && wanted >> c->device & 1)
			c->daemon_device = numbers[c->device];
	return r;
}
