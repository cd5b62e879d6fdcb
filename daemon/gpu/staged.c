/* SPDX-License-Identifier: Apache-2.0
 *
 * Without NCCL (with transport = mpi, or if it is missing), device memory is staged through host
 * memory that the scheduler and all workers map. Workers only copy, in one order for all
 * communicators, so they need no state per communicator. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "coord/coord.h"
#include "gpu.h"
#include "proto/fdio.h"
#include "sched/api/scheduler.h"

/* Ordinary memory, for operations between nodes when no pinned memory is free: as many slots as a
 * task group can use on a node. Its pages are allocated only while in use. */
#define MORE_SLOTS (2 * SVC_GROUP_TASKS)

static int staging_make(struct gpus *s)
{
	const uint64_t slot = STAGING_SLOT_BYTES;
	struct staging *st = calloc(1, sizeof(*st));
	if (!st)
		return -1;
	uint64_t pinned = (s->config->staging_bytes + slot - 1) / slot * s->ngpus;
	uint64_t slots = pinned + (s->coord->n > 1 ? MORE_SLOTS : 0);
	st->pinned = pinned * slot;
	st->bytes = slots * slot;
	st->fd = svc_memfd_create("ncclsvc-staging", st->bytes, true);
	st->base = st->fd < 0 ? MAP_FAILED
			      : mmap(NULL, st->bytes, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_NORESERVE, st->fd, 0);
	if (st->base == MAP_FAILED) {
		if (st->fd >= 0)
			close(st->fd);
		free(st);
		return -1;
	}
	s->staging = st;
	struct command cmd = {.kind = COMMAND_STAGING};
	cmd.staging.base = st->base;
	cmd.staging.pinned = (uint32_t)pinned;
	cmd.staging.slots = (uint32_t)slots;
	scheduler_command(s->scheduler, &cmd);
	return 0;
}

int staging_choose(struct gpus *s, const char *no_nccl)
{
	if (s->config->transport != CONFIG_TRANSPORT_MPI && !no_nccl[0])
		return 0;
	if (s->config->transport == CONFIG_TRANSPORT_NCCL) {
		log_error("transport = nccl, but NCCL cannot be used: %s", no_nccl);
		errno = ENODEV;
		return -1;
	}
	if (s->config->transport == CONFIG_TRANSPORT_AUTO)
		log_warning("NCCL cannot be used: %s. GPU memory is staged through host memory, "
			    "which is slower, as with transport = mpi",
			    no_nccl);
	if (staging_make(s)) {
		log_error("there is too little host memory to stage GPU memory: lower "
			  "staging_bytes in ncclsvcd.conf(5)");
		errno = ENOMEM;
		return -1;
	}
	for (uint32_t i = 0; i < s->ngpus; i++)
		s->gpu[i]->info.transport = NCCLSVC_TRANSPORT_MPI;
	return 0;
}

void staging_free(struct gpus *s)
{
	struct staging *st = s->staging;
	if (!st)
		return;
	munmap(st->base, st->bytes);
	close(st->fd);
	free(st);
	s->staging = NULL;
}

static void tell_scheduler(struct gpu *g, uint32_t generation)
{
	scheduler_command(g->gpus->scheduler,
			  &(struct command){.kind = COMMAND_DEVICE_WORKER,
					    .worker = {(uint32_t)g->index, generation}});
}

void staging_worker_ready(struct gpu *g)
{
	if (g->gpus->staging)
		tell_scheduler(g, g->generation);
}

void staging_worker_lost(struct gpu *g)
{
	if (g->gpus->staging)
		tell_scheduler(g, 0);
}
