/* SPDX-License-Identifier: Apache-2.0
 * A launcher can start another one: srun, mpirun, torchrun. Each says which rank the process has in
 * its job, and how large that is: the one whose job is as large as the world means the world. */
#include "launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "proto/svc_limits.h"

struct source {
	const char *rank, *size; /* environment variables; size NULL: the launcher does not say */
};

static const struct source sources[] = {
	{"RANK", "WORLD_SIZE"}, /* torchrun */
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
	{"PMIX_RANK", NULL}, /* beside the variables of those that use PMIx */
};
#define SOURCES (sizeof(sources) / sizeof(sources[0]))

static ncclsvc_result number_of(const char *name, int most, int *number)
{
	char *end;
	const char *text = getenv(name);
	errno = 0;
	const long n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < 0 || n > most)
		return error_argument("%s is '%s': it must be a number from 0 to %d", name, text,
				      most);
	*number = (int)n;
	return NCCLSVC_OK;
}

/* *rank is -1 if it says none, or its job has another size, *size, than the world. */
static ncclsvc_result ask(const struct source *s, int world, int *rank, int *size)
{
	ncclsvc_result r = NCCLSVC_OK;
	*rank = -1;
	*size = 0;
	if (!getenv(s->rank) || (s->size && !getenv(s->size)))
		return NCCLSVC_OK;
	if (s->size)
		r = number_of(s->size, SVC_RANKS_MAX, size);
	if (r || (s->size && *size != world))
		return r;
	return number_of(s->rank, world - 1, rank);
}

static ncclsvc_result none(int world, const struct source *other, int size)
{
	if (other)
		return error_argument(
			"%s is %d, but the daemon's world has %d ranks: start as many "
			"processes, or set ranks in ncclsvcd.conf(5)",
			other->size, size, world);
	return error_argument(
		"no launcher has given this process a rank: none of RANK (torchrun), "
		"OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID and PMIX_RANK is set, or "
		"without the size that belongs to it");
}

ncclsvc_result launcher_rank(int world, int *rank)
{
	const struct source *found = NULL, *other = NULL;
	int other_size = 0;
	for (size_t i = 0; i < SOURCES; i++) {
		const struct source *s = &sources[i];
		int its, size;
		if (!s->size && (found || other)) /* the launcher that uses it has spoken */
			continue;
		const ncclsvc_result r = ask(s, world, &its, &size);
		if (r)
			return r;
		if (its < 0) {
			other_size = size && !other ? size : other_size;
			other = size && !other ? s : other;
		} else if (found && its != *rank) {
			return error_argument("%s is %d, and %s is %d: unset the one that does not "
					      "mean the world of %d ranks",
					      found->rank, *rank, s->rank, its, world);
		} else {
			found = s;
			*rank = its;
		}
	}
	return found ? NCCLSVC_OK : none(world, other, other_size);
}
