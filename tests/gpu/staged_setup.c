/* SPDX-License-Identifier: Apache-2.0 */
#include "staged_setup.h"

#include <stdlib.h>

void stage_memory(const char *bytes)
{
	setup.staged = true;
	setenv("NCCLSVCD_TRANSPORT", "mpi", 1);
	if (bytes)
		setenv("NCCLSVCD_STAGING_BYTES", bytes, 1);
}

void need_mpi(void)
{
	char *const argv[] = {"/bin/sh", "-c", "command -v mpirun", NULL};
	static char out[4096];
	if (getenv("NCCLSVC_TEST_NO_MPI") || run_program(argv, out, sizeof(out)))
		skip_test("needs Open MPI");
}

static const char *const both_mpi[] = {"mpi", "mpi", "mpi", "mpi"};

void staged_nodes_start(struct cluster *c, int gpus)
{
	need_mpi();
	stage("starting the daemons");
	cluster_start_staged(c, 2, gpus, both_mpi, NULL);
}
