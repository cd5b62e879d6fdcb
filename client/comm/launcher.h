/* SPDX-License-Identifier: Apache-2.0
 * What launchers tell the processes they start, in environment variables. INVALID_ARGUMENT names
 * the wrong or missing variables. A launcher can start another one: the one whose job has as many
 * ranks as the world counts. */
#ifndef CLIENT_COMM_LAUNCHER_H
#define CLIENT_COMM_LAUNCHER_H

#include "base/api.h"

#define LAUNCHER_JOB  640 /* bytes of a job's name, including NUL */
#define LAUNCHER_HOST 256 /* bytes of a host's name, including NUL */

/* The job's number of ranks, from the first launcher in launcher.c that sets both rank and size. So
 * torchrun wins over the srun or mpirun that started it. */
ncclsvc_result launcher_size(int *world);
/* This process's rank. Launchers that disagree are refused. */
ncclsvc_result launcher_rank(int world, int *rank);
/* Ranks on a full node; 0: no launcher says. If `placed` is not -1, it is this process's rank from
 * the launcher, and ranks that are not placed node by node are refused. */
ncclsvc_result launcher_local(int world, int placed, int *local);
/* A name that all ranks of the job share, and that no other running job has. */
ncclsvc_result launcher_job(int world, char name[LAUNCHER_JOB]);
/* The name or address of the job's first node; empty: no launcher says. */
ncclsvc_result launcher_first_node(int world, char host[LAUNCHER_HOST]);

#endif
