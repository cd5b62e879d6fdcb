/* SPDX-License-Identifier: Apache-2.0
 * A launcher can start another one: srun, mpirun, torchrun. Each gives the process a rank and its
 * job's size; the launcher whose job has the world's size counts. */
#include "launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "proto/svc_limits.h"

#define LOCAL_SIZES 2
#define JOB_PARTS   3

/* Environment variables; NULL: the launcher sets none. */
struct source {
	const char *rank, *size;
	const char *local_rank, *local_sizes[LOCAL_SIZES]; /* the first one that is set counts */
	/* The variables that together name the job; the first `required` ones must be set. */
	const char *job[JOB_PARTS];
	unsigned required;
	const char *nodes; /* the first node, or a list that begins with it */
};

/* A launcher that another one starts comes before it: torchrun under srun, say. */
static const struct source sources[] = {
	{
		/* torchrun */
		.rank = "RANK",
		.size = "WORLD_SIZE",
		.local_rank = "LOCAL_RANK",
		.local_sizes = {"LOCAL_WORLD_SIZE"},
		.job = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"},
		.required = 2,
		.nodes = "MASTER_ADDR",
	},
	{
		.rank = "OMPI_COMM_WORLD_RANK",
		.size = "OMPI_COMM_WORLD_SIZE",
		.local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
		.local_sizes = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
		.job = {"PMIX_NAMESPACE"},
		.required = 1,
	},
	{
		/* Open MPI without PMIx */
		.rank = "OMPI_COMM_WORLD_RANK",
		.size = "OMPI_COMM_WORLD_SIZE",
		.job = {"OMPI_MCA_ess_base_jobid"},
		.required = 1,
	},
	{
		.rank = "PMI_RANK",
		.size = "PMI_SIZE",
		.local_rank = "MPI_LOCALRANKID",
		.local_sizes = {"MPI_LOCALNRANKS"},
		.job = {"PMI_JOBID"},
		.required = 1,
	},
	{
		.rank = "SLURM_PROCID",
		.size = "SLURM_STEP_NUM_TASKS",
		.local_rank = "SLURM_LOCALID",
		.local_sizes = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"},
		.job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
		.required = 2,
		.nodes = "SLURM_STEP_NODELIST",
	},
	/* Goes with the variables of the launchers that use PMIx. */
	{.rank = "PMIX_RANK", .job = {"PMIX_NAMESPACE"}, .required = 1},
};
#define SOURCES (sizeof(sources) / sizeof(sources[0]))

/* NULL: not set, or empty. */
static const char *value_of(const char *name)
{
	const char *text = getenv(name);
	return text && *text ? text : NULL;
}

static ncclsvc_result number_of(const char *name, int most, int *number)
{
	char *end;
	const char *text = value_of(name);
	errno = 0;
	const long n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < 0 || n > most)
		return error_argument("%s is '%s': it must be a number from 0 to %d", name, text,
				      most);
	*number = (int)n;
	return NCCLSVC_OK;
}

/* *rank is -1 if the launcher sets none, or if its job's size, *size, differs from the world's. */
static ncclsvc_result ask(const struct source *s, int world, int *rank, int *size)
{
	ncclsvc_result r = NCCLSVC_OK;
	*rank = -1;
	*size = 0;
	if (!value_of(s->rank) || (s->size && !value_of(s->size)))
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
			"%s is %d, but the world has %d ranks: start that many processes, or set "
			"the world's size to match (in the options, or ranks in ncclsvcd.conf(5))",
			other->size, size, world);
	return error_argument("no launcher gave this process a rank: none of RANK (torchrun), "
			      "OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID and PMIX_RANK is set "
			      "together with its size");
}

ncclsvc_result launcher_rank(int world, int *rank)
{
	const struct source *found = NULL, *other = NULL;
	int other_size = 0;
	for (size_t i = 0; i < SOURCES; i++) {
		const struct source *s = &sources[i];
		int its, size;
		if (!s->size && (found || other)) /* the launcher that uses it came first */
			continue;
		const ncclsvc_result r = ask(s, world, &its, &size);
		if (r)
			return r;
		if (its < 0) {
			other_size = size && !other ? size : other_size;
			other = size && !other ? s : other;
		} else if (found && its != *rank) {
			return error_argument("%s is %d, but %s is %d: unset the one that does not "
					      "belong to the world of %d ranks",
					      found->rank, *rank, s->rank, its, world);
		} else {
			found = s;
			*rank = its;
		}
	}
	return found ? NCCLSVC_OK : none(world, other, other_size);
}

static bool says_size(const struct source *s)
{
	return s->size && value_of(s->rank) && value_of(s->size);
}

/* The next launcher whose job has the world's size. */
static const struct source *next_of_world(const struct source *s, int world)
{
	bool sized = false;
	for (size_t i = 0; i < SOURCES; i++)
		sized |= says_size(&sources[i]);
	for (s = s ? s + 1 : sources; s < sources + SOURCES; s++) {
		int rank, size;
		if (!s->size && sized) /* the launcher that uses it came first */
			continue;
		if (!ask(s, world, &rank, &size) && rank >= 0)
			return s;
	}
	return NULL;
}

ncclsvc_result launcher_size(int *world)
{
	for (size_t i = 0; i < SOURCES; i++) {
		const struct source *s = &sources[i];
		if (!says_size(s))
			continue;
		const ncclsvc_result r = number_of(s->size, SVC_RANKS_MAX, world);
		if (!r && *world < 1)
			return error_argument("%s is 0: it must be at least 1", s->size);
		return r;
	}
	return error_argument("no launcher gives the number of ranks: none of WORLD_SIZE "
			      "(torchrun), OMPI_COMM_WORLD_SIZE, PMI_SIZE and SLURM_STEP_NUM_TASKS "
			      "is set together with its rank: set world in the options");
}

/* ---- Nodes ---- */

/* Slurm writes 4(x2),3 for two nodes of 4 ranks and one of 3. */
static ncclsvc_result first_number(const char *name, int world, int *number)
{
	char *end;
	const char *text = value_of(name);
	errno = 0;
	const long n = strtol(text, &end, 10);
	if (errno || end == text || (*end && *end != '(' && *end != ',') || n < 1)
		return error_argument("%s is '%s': it must begin with the number of ranks per node",
				      name, text);
	*number = n < world ? (int)n : world;
	return NCCLSVC_OK;
}

static ncclsvc_result check_placed(const struct source *s, const char *size, int rank, int local)
{
	int local_rank;
	if (rank < 0 || !s->local_rank || !value_of(s->local_rank))
		return NCCLSVC_OK;
	const ncclsvc_result r = number_of(s->local_rank, SVC_RANKS_MAX, &local_rank);
	if (r || local_rank == rank % local)
		return r;
	return error_argument("%s is %d, but with %d ranks per node (%s) rank %d has local rank "
			      "%d: place the ranks node by node (mpirun --map-by ppr:%d:node, srun "
			      "--distribution=block), or set local in the options",
			      s->local_rank, local_rank, local, size, rank, rank % local, local);
}

ncclsvc_result launcher_local(int world, int placed, int *local)
{
	*local = 0;
	for (const struct source *s = NULL; (s = next_of_world(s, world));)
		for (size_t i = 0; i < LOCAL_SIZES; i++) {
			const char *name = s->local_sizes[i];
			if (!name || !value_of(name))
				continue;
			const ncclsvc_result r = first_number(name, world, local);
			return r ? r : check_placed(s, name, placed, *local);
		}
	return NCCLSVC_OK;
}

/* ---- The job ---- */

static bool is_loopback(const char *address)
{
	return !strcmp(address, "localhost") || !strcmp(address, "::1") ||
	       !strncmp(address, "127.", 4);
}

static bool add(char name[LAUNCHER_JOB], const char *key, const char *value)
{
	const size_t at = strlen(name);
	const int n = snprintf(name + at, LAUNCHER_JOB - at, "%s=%s ", key, value);
	return n > 0 && (size_t)n < LAUNCHER_JOB - at;
}

/* A loopback address can name a different job on each node. */
static bool add_part(char name[LAUNCHER_JOB], const char *key, const char *value)
{
	char host[256] = "";
	if (!add(name, key, value))
		return false;
	if (strcmp(key, "MASTER_ADDR") != 0 || !is_loopback(value))
		return true;
	return !gethostname(host, sizeof(host) - 1) && add(name, "host", host);
}

ncclsvc_result launcher_job(int world, char name[LAUNCHER_JOB])
{
	for (const struct source *s = NULL; (s = next_of_world(s, world));) {
		unsigned found = 0;
		name[0] = '\0';
		for (size_t i = 0; i < JOB_PARTS && s->job[i]; i++) {
			const char *value = value_of(s->job[i]);
			if (!value)
				continue;
			if (!add_part(name, s->job[i], value))
				return error_argument(
					"%s is too long for a job name: set job in the options",
					s->job[i]);
			found += i < s->required;
		}
		if (found == s->required)
			return NCCLSVC_OK;
	}
	return error_argument(
		"no launcher names this process's job, with a world of %d ranks: none of "
		"MASTER_ADDR and MASTER_PORT (torchrun), PMIX_NAMESPACE, PMI_JOBID, or "
		"SLURM_JOB_ID and SLURM_STEP_ID is set: set job in the options",
		world);
}

/* The first name of a list. Slurm writes n[001-003,7]-ib,m1 for n001-ib, n002-ib, and so on. */
static bool first_name(const char *list, char host[LAUNCHER_HOST])
{
	size_t n = 0;
	bool inside = false, skips = false;
	for (; *list && (inside || *list != ','); list++) {
		if (*list == '[' || *list == ']') {
			inside = *list == '[';
			skips = false;
			continue;
		}
		skips = skips || (inside && (*list == '-' || *list == ','));
		if (skips)
			continue;
		if (n + 1 == LAUNCHER_HOST)
			return false;
		host[n++] = *list;
	}
	host[n] = '\0';
	return n && !inside;
}

ncclsvc_result launcher_first_node(int world, char host[LAUNCHER_HOST])
{
	host[0] = '\0';
	for (const struct source *s = NULL; (s = next_of_world(s, world));) {
		const char *list = s->nodes ? value_of(s->nodes) : NULL;
		if (!list)
			continue;
		if (!first_name(list, host))
			return error_argument("%s is '%s': it must begin with a host's name",
					      s->nodes, list);
		return NCCLSVC_OK;
	}
	return NCCLSVC_OK;
}
