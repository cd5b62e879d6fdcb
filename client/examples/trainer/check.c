/* SPDX-License-Identifier: Apache-2.0
 * Refuses bad parameters, naming them and the remedy, before any rank is started. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffers.h"
#include "trainer.h"

#define REFUSE(...)                                                                                \
	do {                                                                                       \
		say(__VA_ARGS__);                                                                  \
		return false;                                                                      \
	} while (0)

/* ---- The options ---- */

static bool check_shape(const struct options *o)
{
	if (ranks_of(o) > RANKS_MAX)
		REFUSE("--data %d x --horizontal %d x --pipeline %d is %d ranks: the limit is %d",
		       o->data, o->horizontal, o->pipeline, ranks_of(o), RANKS_MAX);
	if (o->single && (ranks_of(o) > 1 || o->rank >= 0))
		REFUSE("--single runs one process: omit --data, --horizontal, --pipeline and "
		       "--rank");
	if (HIDDEN % o->horizontal)
		REFUSE("--horizontal %d does not divide the model's width of %d", o->horizontal,
		       HIDDEN);
	if (o->pipeline > LAYERS)
		REFUSE("--pipeline %d is more than the model's %d layers", o->pipeline, LAYERS);
	if (o->rank >= ranks_of(o))
		REFUSE("--rank %d: --data %d x --horizontal %d x --pipeline %d has ranks 0 to %d",
		       o->rank, o->data, o->horizontal, o->pipeline, ranks_of(o) - 1);
	if (o->kill_rank >= ranks_of(o))
		REFUSE("--kill %d: ranks are 0 to %d", o->kill_rank, ranks_of(o) - 1);
	if (ranks_of(o) % o->nodes)
		REFUSE("--nodes %d does not divide the %d ranks", o->nodes, ranks_of(o));
	return true;
}

static bool check_steps(const struct options *o)
{
	const uint64_t unit = (uint64_t)o->data * o->accumulate * MICRO;
	if (o->steps % o->accumulate)
		REFUSE("--steps %" PRIu64 " is not a multiple of --accumulate %" PRIu64
		       ": the last update would lack steps",
		       o->steps, o->accumulate);
	if (o->checkpoints && o->interval % o->accumulate)
		REFUSE("--every %" PRIu64 " is not a multiple of --accumulate %" PRIu64
		       ": checkpoints are taken only after an update",
		       o->interval, o->accumulate);
	if (o->batch % unit)
		REFUSE("--batch %" PRIu64 " is not a multiple of %" PRIu64
		       ": --data %d x --accumulate %" PRIu64 " x micro-batches of %d",
		       o->batch, unit, o->data, o->accumulate, MICRO);
	return true;
}

static bool check_optimizer(const struct options *o)
{
	if (o->zero && o->data < 2)
		REFUSE("--zero divides the optimizer among replicas: it needs at least --data 2");
	if (o->nccl && !o->cuda)
		REFUSE("--nccl needs --device cuda: host memory does not go through NCCL");
	if (o->nccl && (o->rank >= 0 || o->single))
		REFUSE("--nccl is checked before the ranks are started: omit --rank and --single");
	return true;
}

/* Checks the files for writing now; a rank would notice only after its first steps. */
static bool check_files(const struct options *o)
{
	int dir = o->checkpoints ? open(o->checkpoints, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (o->checkpoints && (dir < 0 || faccessat(dir, ".", W_OK | X_OK, 0)))
		REFUSE("--checkpoints %s: %s", o->checkpoints, strerror(errno));
	if (dir >= 0)
		close(dir);
	FILE *losses = o->losses ? fopen(o->losses, "ae") : NULL;
	if (o->losses && !losses)
		REFUSE("--losses %s: %s", o->losses, strerror(errno));
	if (losses)
		fclose(losses);
	return true;
}

bool check_options(const struct options *o)
{
	struct text text;
	if (!check_shape(o) || !check_steps(o) || !check_optimizer(o) || !check_files(o) ||
	    (o->cuda && !gpu_driver()) || !text_read(&text, o->text))
		return false;
	text_free(&text);
	return true;
}

/* ---- The daemon ---- */

const char *socket_of(const struct options *o, int rank, char *path, size_t size)
{
	const char *pattern = getenv("NCCLSVC_SOCKET"),
		   *node = pattern ? strstr(pattern, "%r") : NULL;
	if (!node)
		return NULL;
	snprintf(path, size, "%.*s%d%s", (int)(node - pattern), pattern,
		 rank * o->nodes / ranks_of(o), node + 2);
	return path;
}

static bool check_transport(const struct options *o, ncclsvc_session *s)
{
	ncclsvc_device_info *devices = NULL;
	size_t n = 0, others = 0;
	if (o->cuda && ncclsvc_list_devices(s, &devices, &n))
		REFUSE("%s", ncclsvc_last_error());
	for (size_t i = 0; i < n; i++)
		others += devices[i].transport != NCCLSVC_TRANSPORT_NCCL;
	ncclsvc_list_free(devices);
	if (o->nccl && others)
		REFUSE("--nccl: %zu of the daemon's %zu GPUs do not use NCCL (\"ncclsvc-ctl "
		       "devices\" says why)",
		       others, n);
	if (o->zero && (!o->cuda || others))
		say("--zero without NCCL: the daemon reduces and gathers the tensors in host "
		    "memory");
	return true;
}

/* The world spans all nodes' daemons. */
static bool check_world(const struct options *o, const ncclsvc_daemon_info *info)
{
	const int ranks = ranks_of(o);
	if ((uint64_t)info->host_ranks * (uint64_t)o->nodes == (uint64_t)ranks)
		return true;
	REFUSE("--data %d x --horizontal %d x --pipeline %d is %d, but the daemon's world has %u "
	       "ranks on %d node%s: start ncclsvcd --ranks %d",
	       o->data, o->horizontal, o->pipeline, ranks, info->host_ranks * (unsigned)o->nodes,
	       o->nodes, o->nodes > 1 ? "s" : "", ranks / o->nodes);
}

bool check_daemon(const struct options *o)
{
	char path[256];
	ncclsvc_session *s;
	ncclsvc_daemon_info info;
	const ncclsvc_options options = {.size = sizeof(options),
					 .socket = socket_of(o, 0, path, sizeof(path)),
					 .name = "trainer",
					 .no_ring = true};
	bool good = !ncclsvc_open(&options, &s);
	if (!good)
		REFUSE("%s", ncclsvc_last_error());
	good = !ncclsvc_daemon(s, &info);
	if (!good)
		say("%s", ncclsvc_last_error());
	good = good && check_world(o, &info) && check_transport(o, s);
	ncclsvc_close(s);
	return good;
}
