/* SPDX-License-Identifier: Apache-2.0
 * A process that lists the GPUs for the supervisor, which never touches CUDA itself, and exits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_list.h"
#include "proto/fdio.h"
#include "worker.h"
#include "worker_main.h"

int probe_main(void)
{
	struct worker_message m = {.kind = WORKER_DEVICE};
	struct gpu_entry e;
	char no_nccl[sizeof(m.text)] = "";
	int driver = 0, nccl_version = 0;
	if (!gpu_api_open_cuda(&driver, m.text, sizeof(m.text))) {
		m.result = NCCLSVC_UNSUPPORTED;
		svc_send(WORKER_FD, &m, sizeof(m), NULL, 0, 0);
		return EXIT_FAILURE;
	}
	if (!gpu_api_open_nccl(&nccl_version, no_nccl, sizeof(no_nccl)))
		nccl_version = 0;
	for (int i = 0; gpu_list_get(i, &e); i++) {
		m = (struct worker_message){
			.kind = WORKER_DEVICE,
			.result = NCCLSVC_IN_PROGRESS,
			.key = (uint64_t)i,
			.device = {.memory_bytes = e.bytes,
				   .driver_version = driver,
				   .nccl_version = nccl_version,
				   .reach = gpu_list_reach(i),
				   .device_file = gpu_list_device_file(e.device)}};
		memcpy(m.text, no_nccl, sizeof(m.text)); /* why the version is 0 */
		memcpy(m.device.uuid, e.uuid, sizeof(m.device.uuid));
		memcpy(m.device.name, e.name, sizeof(m.device.name));
		if (svc_send(WORKER_FD, &m, sizeof(m), NULL, 0, 0))
			return EXIT_FAILURE;
	}
	m = (struct worker_message){.kind = WORKER_DEVICE};
	return svc_send(WORKER_FD, &m, sizeof(m), NULL, 0, 0) ? EXIT_FAILURE : EXIT_SUCCESS;
}
