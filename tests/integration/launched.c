/* SPDX-License-Identifier: Apache-2.0
 * A rank started by a launcher: joins the world with the launcher's rank, or the world of its job,
 * and sums over all ranks. Prints its rank and the sum, or the error.
 * Usage: launched [world | job [NAME SIZE RANK]]; without arguments, it calls ncclsvc_comm_world,
 * otherwise ncclsvc_world_init. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ncclsvc_world.h"

static int complain(void)
{
	fprintf(stderr, "%s\n", ncclsvc_last_error());
	return 1;
}

int main(int argc, char *argv[])
{
	ncclsvc_world_options options = {.size = sizeof(options),
					 .rank = NCCLSVC_RANK_LAUNCHER,
					 .device = NCCLSVC_DEVICE_HOST};
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	ncclsvc_world *world = NULL;
	ncclsvc_task task;
	if (ncclsvc_open(NULL, &session))
		return complain();
	if (argc > 1 && !strcmp(argv[1], "job"))
		options.world = NCCLSVC_WORLD_LAUNCHER;
	if (argc > 4) {
		options.job = argv[2];
		options.world = atoi(argv[3]);
		options.rank = atoi(argv[4]);
	}
	if (argc > 1) {
		if (ncclsvc_world_init(session, &options, 20000, &world))
			return complain();
		comm = ncclsvc_world_host_comm(world);
	} else if (ncclsvc_comm_world(session, NCCLSVC_RANK_LAUNCHER, 20000, &comm)) {
		return complain();
	}
	int sum = ncclsvc_comm_rank(comm);
	if (ncclsvc_all_reduce(&sum, &sum, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task) ||
	    ncclsvc_wait(session, task, 20000))
		return complain();
	printf("%d %d\n", ncclsvc_comm_rank(comm), sum);
	ncclsvc_world_free(world);
	ncclsvc_close(session);
	return 0;
}
