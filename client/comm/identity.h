/* SPDX-License-Identifier: Apache-2.0
 * Which job this process is of, as people know it. */
#ifndef CLIENT_COMM_IDENTITY_H
#define CLIENT_COMM_IDENTITY_H

#include "base/api.h"

/* The first that is known: option (may be NULL), NCCLSVC_JOB, the Slurm step, torchrun's run, the
 * Kubernetes pod, the MPI job, the control group. Empty: none is. Returns job. */
char *identity_of(const char *option, char job[NCCLSVC_JOB_BYTES]);

/* Sets *admit to the option, else to the value of NCCLSVC_ADMIT, else to the tenant. False: the
 * option or the value is invalid. */
bool admit_of(ncclsvc_admit option, ncclsvc_admit *admit);

#endif
