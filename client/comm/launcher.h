/* SPDX-License-Identifier: Apache-2.0
 * What launchers tell the processes that they start, by environment variables. INVALID_ARGUMENT
 * names the variable, or those that are missing. A launcher can start another one: those count
 * whose job has as many ranks as the world. */
#ifndef CLIENT_COMM_LAUNCHER_H
#define CLIENT_COMM_LAUNCHER_H

#include "base/api.h"

#define LAUNCHER_JOB 640 /* bytes of a job's name, NUL included */

/* How many ranks the job has: that of the first launcher in launcher.c that says both rank and
 * size, so torchrun's if srun or mpirun has started that. */
ncclsvc_result launcher_size(int *world);
/* This process's rank. Two launchers that differ are refused. */
ncclsvc_result launcher_rank(int world, int *rank);
/* How many ranks a full node has; 0: no launcher says it. placed: this process's rank is the
 * launcher's, and is refused if ranks are not placed node by node; else -1. */
ncclsvc_result launcher_local(int world, int placed, int *local);
/* A name that all ranks of the job have in common, and no other job at the same time has. */
ncclsvc_result launcher_job(int world, char name[LAUNCHER_JOB]);

#endif
