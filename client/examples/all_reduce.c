/* SPDX-License-Identifier: Apache-2.0
 * Sums one vector over all ranks of the daemon's world. Start it once for each rank. */
#include <ncclsvc.h>
#include <stdio.h>

#define N 1024
#define TRY(call)                                                                                  \
	do {                                                                                       \
		if (call) {                                                                        \
			fprintf(stderr, "%s\n", ncclsvc_last_error());                             \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

int main(void)
{
	ncclsvc_session *session;
	ncclsvc_comm *world;
	ncclsvc_task task;
	void *memory;
	TRY(ncclsvc_open(NULL, &session));
	TRY(ncclsvc_comm_world(session, -1, 30000, &world));
	TRY(ncclsvc_mem_alloc(session, N * sizeof(float), &memory));
	float *x = memory;
	int rank = ncclsvc_comm_rank(world), size = ncclsvc_comm_size(world), wrong = 0;
	for (int i = 0; i < N; i++)
		x[i] = (float)(rank + i);
	TRY(ncclsvc_all_reduce(x, x, N, NCCLSVC_FLOAT32, NCCLSVC_SUM, world, &task));
	TRY(ncclsvc_wait(session, task, 30000));
	for (int i = 0; i < N; i++)
		wrong += x[i] != (float)(size * (size - 1) / 2 + size * i);
	printf("rank %d of %d: %d wrong\n", rank, size, wrong);
	ncclsvc_close(session);
	return wrong != 0;
}
