/* SPDX-License-Identifier: Apache-2.0
 * Which job this process is of, as people know it. */
#ifndef CLIENT_COMM_IDENTITY_H
#define CLIENT_COMM_IDENTITY_H

#include "base/api.h"

/* The first that is known: option (may be NULL), NCCLSVC_JOB, the Slurm step, torchrun's run, the
 * Kubernetes pod, the MPI job, the control group. Empty: none is. Returns job. */
char *identity_of(const char *option, char job[NCCLSVC_JOB_BYTES]);

/* The option, else what NCCLSVC_ADMIT says, else the tenant. False: neither is valid. */
bool admit_of(ncclsvc_admit option, ncclsvc_admit *admit);

#endif
