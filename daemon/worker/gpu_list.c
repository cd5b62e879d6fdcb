/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_list.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

void gpu_uuid_text(const uint8_t *u, char text[WORKER_UUID_TEXT])
{
	snprintf(text, WORKER_UUID_TEXT,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
		 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
		 u[14], u[15]);
}

uint32_t gpu_list_mps(uint64_t *server)
{
	char path[PATH_MAX];
	struct stat st;
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
	snprintf(path, sizeof(path), "%s/control", directory ? directory : "/tmp/nvidia-mps");
	*server = 0;
	if (stat(path, &st))
		return NCCLSVC_MPS_NONE;
	*server = st.st_ino;
	return NCCLSVC_MPS_ACTIVE;
}
