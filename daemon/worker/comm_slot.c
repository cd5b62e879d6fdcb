/* SPDX-License-Identifier: Apache-2.0
 * Slots: an NCCL communicator of this GPU's rank, and the stream that its tasks run on. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "worker.h"

#define SCRATCH_BYTES 4096

static void complain(struct worker_message *m, const char *what, ncclResult_t result)
{
	const char *last = nccl.ncclGetLastError(NULL);
	m->result = NCCLSVC_SYSTEM;
	snprintf(m->text, sizeof(m->text), "%s: %s%s%.160s", what, nccl.ncclGetErrorString(result),
		 last && *last ? ": " : "", last ? last : "");
}

/* The first operation pays for connections and kernels, so run it now and not in a trainer's step.
 */
static ncclResult_t warm_up(struct worker *w, const struct comm_slot *l)
{
	void *p = (void *)(uintptr_t)w->scratch;
	return nccl.ncclAllReduce(p, p, SCRATCH_BYTES / sizeof(float), NCCLSVC_FLOAT32, NCCLSVC_MAX,
				  l->comm, l->stream);
}

static void make(struct worker *w, struct worker_message *m)
{
	struct comm_slot *l = &w->slots[m->comm.slot];
	ncclUniqueId id;
	memcpy(&id, m->comm.id, sizeof(id));
	ncclConfig_t config = {
		.size = NCCL_CONFIG_NEEDED_BYTES,
		.magic = NCCL_MAGIC,
		.version = NCCL_VERSION_NEEDED,
		.blocking = 1,
		.cgaClusterSize = NCCL_INT_UNSET,
		.minCTAs = NCCL_INT_UNSET,
		.maxCTAs = NCCL_INT_UNSET,
		.splitShare = 0,
		.trafficClass = NCCL_INT_UNSET,
		.collnetEnable = NCCL_INT_UNSET,
		.CTAPolicy = NCCL_INT_UNSET,
		.shrinkShare = NCCL_INT_UNSET,
		.nvlsCTAs = NCCL_INT_UNSET,
		.nChannelsPerNetPeer = NCCL_INT_UNSET,
		.nvlinkCentricSched = NCCL_INT_UNSET,
	};
	uint64_t start = clock_now();
	int least = 0, greatest = 0;
	cu.cuCtxGetStreamPriorityRange(&least, &greatest);
	CUresult error =
		cu.cuStreamCreateWithPriority(&l->stream, CU_STREAM_NON_BLOCKING, greatest);
	if (worker_bad(w, error, "cannot create a stream for a communicator")) {
		m->result = NCCLSVC_SYSTEM;
		snprintf(m->text, sizeof(m->text), "cannot create a stream: %s",
			 gpu_api_cuda_error(error));
		*l = (struct comm_slot){0};
		return;
	}
	ncclResult_t result =
		nccl.ncclCommInitRankConfig(&l->comm, m->comm.nranks, id, m->comm.rank, &config);
	if (!result)
		result = warm_up(w, l);
	if (!result)
		error = cu.cuStreamSynchronize(l->stream);
	if (!result && !worker_bad(w, error, "the first launch of a new communicator failed")) {
		l->nranks = m->comm.nranks;
		l->rank = m->comm.rank;
		l->enqueued = atomic_load(&w->queue->slots[m->comm.slot].completed);
		l->failed = false;
		log_info("NCCL communicator %u: created in %llu ms, with this GPU as rank %d of %d",
			 m->comm.slot, (unsigned long long)(clock_now() - start) / 1000000, l->rank,
			 l->nranks);
		if (m->comm.slot >= w->high_slot)
			w->high_slot = m->comm.slot + 1;
		return;
	}
	complain(m, "NCCL cannot create the communicator", result);
	if (!result)
		snprintf(m->text, sizeof(m->text), "the communicator's first operation failed: %s",
			 gpu_api_cuda_error(error));
	if (l->comm) {
		comm_slot_end_apart(w, m->comm.slot, true);
		return;
	}
	cu.cuStreamDestroy(l->stream);
	*l = (struct comm_slot){0};
}

static void answer_cancelled(struct worker *w, const struct worker_message *asked)
{
	struct worker_message m = *asked;
	m.result = NCCLSVC_CANCELLED;
	snprintf(m.text, sizeof(m.text), "another rank cannot create its part of it");
	worker_send(w, &m);
}

/* The queue determines when: all workers take the scheduler's launches in the same order, and
 * NCCL's ranks wait for each other here as they do when they first connect. */
void comm_slot_init_asked(struct worker *w, const struct worker_message *m)
{
	struct comm_slot_init *init = &w->inits[m->comm.slot];
	if (m->comm.number > init->number)
		*init = (struct comm_slot_init){m->comm.number, true, *m};
	else
		answer_cancelled(w, m);
}

void comm_slot_init_cancel(struct worker *w, const struct worker_message *m)
{
	struct comm_slot_init *init = &w->inits[m->comm.slot];
	const bool waits = init->waits && init->number == m->comm.number;
	if (init->number > m->comm.number)
		return;
	init->number = m->comm.number; /* even if the request failed */
	init->waits = false;
	if (waits)
		answer_cancelled(w, &init->message);
}

bool comm_slot_init_run(struct worker *w, const struct launch *l)
{
	struct comm_slot_init *init = l->slot < WORKER_COMM_SLOTS ? &w->inits[l->slot] : NULL;
	if (!init || l->generation != w->generation || w->supervisor_lost)
		return true;
	if (init->number < l->value)
		return false;
	if (!init->waits || init->number != l->value)
		return true; /* cancelled */
	init->waits = false;
	make(w, &init->message);
	worker_send(w, &init->message);
	return true;
}

void comm_slot_failed(struct worker *w, uint32_t slot, const char *what, ncclResult_t result)
{
	struct worker_message m = {.kind = WORKER_COMM_FAILED, .comm.slot = slot};
	if (w->slots[slot].failed)
		return;
	w->slots[slot].failed = true;
	/* NCCL may only be the first to see an error of the whole context. */
	CUresult error = cu.cuStreamQuery(w->slots[slot].stream);
	if (error != CUDA_ERROR_NOT_READY)
		worker_bad(w, error, what);
	if (w->dying[0])
		return;
	complain(&m, what, result);
	log_error("NCCL communicator %u has failed: %s", slot, m.text);
	worker_send(w, &m);
}

bool comm_slot_idle(const struct worker *w, uint32_t slot)
{
	const struct comm_slot *l = &w->slots[slot];
	return !l->due && l->enqueued <= atomic_load_explicit(&w->queue->slots[slot].completed,
							      memory_order_acquire);
}
