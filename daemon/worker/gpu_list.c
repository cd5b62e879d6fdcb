/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_list.h"

#include <string.h>

#include "mps.h"

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

uint32_t gpu_list_mps(CUdevice device, uint64_t *server)
{
	int enabled = 0;
	CUresult error = cu.cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
	return mps_in_use(error, enabled, server);
}
