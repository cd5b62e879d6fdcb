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

uint32_t gpu_list_mps(uint64_t *server)
{
	struct mps m;
	mps_look(&m);
	*server = m.state == MPS_RUNNING ? m.server : 0;
	return m.state == MPS_RUNNING ? NCCLSVC_MPS_ACTIVE : NCCLSVC_MPS_NONE;
}
