/* SPDX-License-Identifier: Apache-2.0
 *
 * The largest operation that uses the direct transport in a communicator. peer_bytes sets the
 * limit; otherwise the file measured on this machine; otherwise there is none, as if two members
 * share a GPU. All members are on this node, and get the same limit when their epoch begins. */
#include <limits.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "comm_peer.h"
#include "gpu/gpu.h"
#include "gpu/mps_service.h"
#include "proto/crossover.h"
#include "shared_gpu.h"

/* ---- Measured limits ---- */

static bool measured_on(const struct comms *s, const struct gpu *g)
{
	for (uint32_t i = 0; i < s->crossover.n; i++)
		if (!strncmp(s->crossover.limits[i].gpu, g->info.name, sizeof(g->info.name)))
			return true;
	return false;
}

static bool measured_here(const struct comms *s)
{
	for (uint32_t i = 0; i < s->gpus->ngpus; i++)
		if (measured_on(s, s->gpus->gpu[i]))
			return true;
	return false;
}

void peer_limits_read(struct comms *s)
{
	char path[PATH_MAX], why[CROSSOVER_TEXT];
	const bool had = s->crossover.n;
	if (!s->gpus->ngpus || !crossover_default_path(path, sizeof(path)))
		return;
	if (!crossover_read(&s->crossover, path, why))
		log_warning("%s is not used: %s. `ncclsvc-perf crossover --write` writes a new one",
			    path, why);
	else if (s->crossover.n && !measured_here(s))
		log_warning("%s is not used: it was measured on different GPUs. `ncclsvc-perf "
			    "crossover --write` measures those of this machine",
			    path);
	else if (s->crossover.n)
		log_info("%s sets the largest operations of the direct transport", path);
	else if (had)
		log_info("%s no longer has limits: the defaults are used", path);
}

ncclsvc_peer_source peer_source_of(const struct comms *s, const struct gpu *g)
{
	if (s->config->peer_bytes >= 0)
		return NCCLSVC_PEER_SET;
	return measured_on(s, g) ? NCCLSVC_PEER_MEASURED : NCCLSVC_PEER_DEFAULT;
}

/* ---- Limits of a communicator ---- */

static const struct gpu *gpu_of(const struct communicator *m, uint32_t rank)
{
	return m->comms->gpus->gpu[m->members[rank].device];
}

/* NULL: they are not all of one model. */
static const char *model_of(const struct communicator *m)
{
	const char *model = gpu_of(m, 0)->info.name;
	for (uint32_t k = 1; k < m->nranks; k++)
		if (strncmp(gpu_of(m, k)->info.name, model, sizeof(gpu_of(m, k)->info.name)) != 0)
			return NULL;
	return model;
}

static bool all_use_mps(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (gpu_mps_of(m->comms->gpus, m->members[k].session) != NCCLSVC_MPS_ACTIVE)
			return false;
	return true;
}

struct peer_limit peer_limit_of(const struct communicator *m)
{
	const int64_t set = m->comms->config->peer_bytes;
	struct shared_gpu shared;
	if (comm_needs_kernels(m, &shared))
		return (struct peer_limit){UINT32_MAX, NCCLSVC_PEER_SHARED_GPU};
	if (set >= 0)
		return (struct peer_limit){set < UINT32_MAX ? (uint32_t)set : UINT32_MAX,
					   NCCLSVC_PEER_SET};
	const bool mps = all_use_mps(m);
	const char *model = model_of(m);
	const struct crossover_limit *l =
		model ? crossover_find(&m->comms->crossover, model, m->nranks, mps) : NULL;
	if (l)
		return (struct peer_limit){l->bytes, NCCLSVC_PEER_MEASURED};
	return (struct peer_limit){UINT32_MAX, NCCLSVC_PEER_DEFAULT};
}
