/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_list.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/cuda/mps.h"

bool gpu_list_get(int i, struct gpu_entry *e)
{
	CUuuid uuid;
	size_t bytes = 0;
	int n = 0;
	memset(e, 0, sizeof(*e));
	if (cu.cuDeviceGetCount(&n) || i >= n || cu.cuDeviceGet(&e->device, i) ||
	    cu.cuDeviceGetUuid(&uuid, e->device) ||
	    cu.cuDeviceGetName(e->name, sizeof(e->name), e->device) ||
	    cu.cuDeviceTotalMem(&bytes, e->device))
		return false;
	memcpy(e->uuid, &uuid, sizeof(e->uuid));
	e->bytes = bytes;
	return true;
}

uint32_t gpu_list_device_file(CUdevice device)
{
	char id[16], path[64], line[128];
	uint32_t number, file = 0;
	if (cu.cuDeviceGetPCIBusId(id, sizeof(id), device))
		return 0;
	for (char *c = id; *c; c++)
		*c = (char)tolower(*c);
	snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", id);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Device Minor: %" SCNu32, &number) == 1)
			file = number + 1;
	if (f)
		fclose(f);
	return file;
}

uint32_t gpu_list_reach(int i)
{
	CUdevice own, other;
	uint32_t reach = 0;
	int n = 0, can;
	if (cu.cuDeviceGetCount(&n) || cu.cuDeviceGet(&own, i))
		return 0;
	for (int k = 0; k < n && k < 32; k++)
		if (k != i && !cu.cuDeviceGet(&other, k) &&
		    !cu.cuDeviceCanAccessPeer(&can, own, other) && can)
			reach |= UINT32_C(1) << k;
	return reach;
}

uint32_t gpu_list_mps(CUdevice device, uint64_t *server)
{
	int enabled = 0;
	CUresult error = cu.cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
	return mps_in_use(error, enabled, server);
}
