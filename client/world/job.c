/* SPDX-License-Identifier: Apache-2.0
 * The size, the rank and the id of a job's world. */
#include "job.h"

#include <string.h>

#include "base/error.h"
#include "comm/join.h"
#include "comm/launcher.h"
#include "proto/wire.h"

static ncclsvc_result world_of(const ncclsvc_world_options *o, int *world)
{
	*world = o->world;
	if (o->world == NCCLSVC_WORLD_LAUNCHER)
		return launcher_size(world);
	if (o->world < 0)
		return error_argument("world is %d: use the number of ranks, 0 for the daemon's "
				      "world, or NCCLSVC_WORLD_LAUNCHER",
				      o->world);
	return NCCLSVC_OK;
}

static ncclsvc_result rank_of(const ncclsvc_world_options *o, int world, int *rank)
{
	if (o->rank == -1)
		return error_argument(
			"rank is -1 (any free rank), which only the daemon's world (world 0) "
			"supports: give the rank, or NCCLSVC_RANK_LAUNCHER");
	return world_rank(o->rank, world, rank);
}

/* Without other nodes, all ranks are local. */
static ncclsvc_result local_of(ncclsvc_session *session, const ncclsvc_world_options *o, int world,
			       int rank, int *local)
{
	ncclsvc_node_info *nodes = NULL;
	size_t n = 0;
	*local = o->local;
	if (o->local)
		return NCCLSVC_OK;
	ncclsvc_result r =
		launcher_local(world, o->rank == NCCLSVC_RANK_LAUNCHER ? rank : -1, local);
	if (r || *local)
		return r;
	r = ncclsvc_list_nodes(session, &nodes, &n);
	ncclsvc_list_free(nodes);
	if (!r && n > 1)
		return error_argument(
			"the daemon is one of %zu nodes, and no launcher says how many of the %d "
			"ranks each node has: set local in the options",
			n, world);
	*local = world;
	return r;
}

/* FNV-1a. */
uint64_t job_hash(const void *bytes, size_t n, uint64_t start)
{
	const unsigned char *at = bytes;
	uint64_t h = UINT64_C(0xcbf29ce484222325) ^ start * UINT64_C(0x9e3779b97f4a7c15);
	for (; n; n--, at++)
		h = (h ^ *at) * UINT64_C(0x100000001b3);
	h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
	return h ^ h >> 33;
}

/* The daemon adds the process's user, so different users' jobs with the same name stay apart. */
static ncclsvc_unique_id id_of(const char *name)
{
	ncclsvc_unique_id id;
	uint64_t words[sizeof(id.bytes) / sizeof(uint64_t)];
	const struct svc_job job = {.tag = SVC_JOB_TAG, .user = SVC_JOB_OWN};
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		words[i] = job_hash(name, strlen(name), i);
	memcpy(id.bytes, words, sizeof(id.bytes));
	memcpy(id.bytes + SVC_JOB_AT, &job, sizeof(job));
	return id;
}

static ncclsvc_result name_of(const ncclsvc_world_options *o, int world, ncclsvc_unique_id *id)
{
	char name[LAUNCHER_JOB];
	if (o->job && !*o->job)
		return error_argument("job is empty: give a name, or NULL to use the launcher's");
	const ncclsvc_result r = o->job ? NCCLSVC_OK : launcher_job(world, name);
	if (!r)
		*id = id_of(o->job ? o->job : name);
	return r;
}

ncclsvc_result job_of(ncclsvc_session *session, const ncclsvc_world_options *o,
		      ncclsvc_world_sizes *sizes, int *rank, ncclsvc_unique_id *id)
{
	*sizes = (ncclsvc_world_sizes){.data = o->data,
				       .horizontal = o->horizontal ? o->horizontal : 1,
				       .pipeline = o->pipeline ? o->pipeline : 1};
	ncclsvc_result r = world_of(o, &sizes->world);
	if (!r)
		r = rank_of(o, sizes->world, rank);
	if (!r)
		r = name_of(o, sizes->world, id);
	return r ? r : local_of(session, o, sizes->world, *rank, &sizes->local);
}
