/* SPDX-License-Identifier: Apache-2.0 */
#include "identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/names.h"
#include "proto/process/cgroup.h"

/* NULL: it is not set, or empty. */
static const char *value_of(const char *name)
{
	const char *text = getenv(name);
	return text && *text ? text : NULL;
}

/* Writes "slurm 1234.0", or "slurm 1234" if the second part is missing. False if the first is. */
static bool name_of(char *to, const char *launcher, const char *first, const char *second)
{
	char text[256];
	if (!first)
		return false;
	snprintf(text, sizeof(text), "%s %s%s%s", launcher, first, second ? "." : "",
		 second ? second : "");
	svc_label_copy(to, NCCLSVC_JOB_BYTES, text);
	return true;
}

/* torchrun without --rdzv-id says "none". */
static const char *torchrun(void)
{
	const char *run = value_of("TORCHELASTIC_RUN_ID");
	return run && strcmp(run, "none") != 0 ? run : NULL;
}

static bool launcher_says(char *job)
{
	return name_of(job, "slurm", value_of("SLURM_JOB_ID"), value_of("SLURM_STEP_ID")) ||
	       name_of(job, "torchrun", torchrun(), NULL) ||
	       (value_of("KUBERNETES_SERVICE_HOST") &&
		name_of(job, "pod", value_of("HOSTNAME"), NULL));
}

static bool mpi_says(char *job)
{
	return name_of(job, "mpi", value_of("PMIX_NAMESPACE"), NULL) ||
	       name_of(job, "mpi", value_of("OMPI_MCA_ess_base_jobid"), NULL);
}

char *identity_of(const char *option, char job[NCCLSVC_JOB_BYTES])
{
	char group[NCCLSVC_JOB_BYTES];
	const char *given = option && *option ? option : value_of("NCCLSVC_JOB");
	if (given)
		return svc_label_copy(job, NCCLSVC_JOB_BYTES, given);
	if (launcher_says(job))
		return job;
	svc_cgroup_of(getpid(), group);
	if (!strncmp(group, "pod ", 4) || !mpi_says(job))
		memcpy(job, group, sizeof(group));
	return job;
}

bool admit_of(ncclsvc_admit option, ncclsvc_admit *admit)
{
	static const char *const names[] = {
		[NCCLSVC_ADMIT_TENANT] = "tenant",
		[NCCLSVC_ADMIT_USER] = "user",
		[NCCLSVC_ADMIT_ANY] = "any",
	};
	const char *name = value_of("NCCLSVC_ADMIT");
	*admit = option ? option : NCCLSVC_ADMIT_TENANT;
	if (option || !name)
		return *admit >= NCCLSVC_ADMIT_TENANT && *admit <= NCCLSVC_ADMIT_ANY;
	while (*admit <= NCCLSVC_ADMIT_ANY && strcmp(name, names[*admit]) != 0)
		++*admit;
	return *admit <= NCCLSVC_ADMIT_ANY;
}
