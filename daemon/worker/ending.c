/* SPDX-License-Identifier: Apache-2.0
 * The end of a slot. Destroying or aborting an NCCL communicator may wait for the node's other
 * ranks, whose workers may wait for a launch of this one. So a separate thread makes that call,
 * while the worker's thread continues to launch. The slot is free for its next owner at once. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/timings.h"
#include "worker.h"

struct slot_ending {
	struct slot_ending *prev, *next; /* of endings that have left their slots */
	CUstream stream;
	uint32_t slot;
	bool logged; /* a long duration was logged */
	pthread_t thread;
	CUcontext context;
	ncclComm_t comm;
	bool abort;
	int bell;
	uint64_t begun_ns;
	ncclResult_t result;
	atomic_bool over;
};

static void *end_main(void *arg)
{
	struct slot_ending *n = arg;
	const uint64_t one = 1;
	const int bell = n->bell;
	cu.cuCtxSetCurrent(n->context);
	n->result = n->abort ? nccl.ncclCommAbort(n->comm) : nccl.ncclCommDestroy(n->comm);
	atomic_store(&n->over, true);
	ssize_t rung = write(bell, &one, sizeof(one));
	(void)rung; /* it fails only when the counter is full, and then it is readable */
	return NULL;
}

static void begin(struct worker *w, struct comm_slot *l, uint32_t slot, bool abort)
{
	struct slot_ending *n = calloc(1, sizeof(*n));
	if (!n) {
		worker_die(w, "out of memory");
		return;
	}
	*n = (struct slot_ending){.stream = l->stream,
				  .slot = slot,
				  .context = w->context,
				  .comm = l->comm,
				  .abort = abort,
				  .bell = w->bell,
				  .begun_ns = clock_now()};
	l->ending = n;
	l->comm = NULL; /* from here on, only the ending uses it */
	if (pthread_create(&n->thread, NULL, end_main, n)) {
		l->ending = NULL;
		free(n);
		worker_die(w, "no thread can be started");
	}
}

/* NCCL has finished with it. */
static void finish(struct slot_ending *n)
{
	pthread_join(n->thread, NULL);
	log_info("NCCL communicator %u: %s in %llu ms%s%s", n->slot,
		 n->abort ? "aborted" : "destroyed",
		 (unsigned long long)(clock_now() - n->begun_ns) / 1000000, n->result ? ": " : "",
		 n->result ? nccl.ncclGetErrorString(n->result) : "");
	free(n);
}

void comm_slot_end_apart(struct worker *w, uint32_t slot, bool abort)
{
	struct comm_slot *l = &w->slots[slot];
	begin(w, l, slot, abort);
	if (l->ending)
		DL_APPEND(w->endings, l->ending);
	*l = (struct comm_slot){0};
}

void endings_watch(struct worker *w)
{
	struct slot_ending *n, *next;
	DL_FOREACH_SAFE (w->endings, n, next) {
		w->in_flight++;
		if (!n->logged && clock_now() - n->begun_ns > ABORT_LONG_NS) {
			n->logged = true;
			log_warning("NCCL communicator %u: NCCL has not ended it for %d s", n->slot,
				    (int)(ABORT_LONG_NS / 1000000000));
		}
		if (!atomic_load(&n->over))
			continue;
		DL_DELETE(w->endings, n);
		cu.cuStreamDestroy(n->stream);
		finish(n);
	}
}

bool comm_slot_abort(struct worker *w, const struct worker_message *m)
{
	struct comm_slot *l = &w->slots[m->comm.slot];
	if (!l->comm)
		return false;
	l->draining = true;
	l->abort_key = m->key;
	begin(w, l, m->comm.slot, true);
	return true;
}

void comm_slot_destroy(struct worker *w, uint32_t slot)
{
	struct comm_slot *l = &w->slots[slot];
	if (!l->comm || l->draining)
		return;
	comm_slot_end_apart(w, slot, false);
}

/* Writes behind the aborted kernels may wait for a process's input. While they exist, they can
 * still reset a timeline to their values. */
void comm_slot_drain(struct worker *w, uint32_t slot)
{
	struct comm_slot *l = &w->slots[slot];
	struct worker_message m = {
		.kind = WORKER_COMM_ABORT, .key = l->abort_key, .comm.slot = slot};
	if (w->dying[0])
		return;
	if (l->ending && atomic_load(&l->ending->over)) {
		finish(l->ending);
		l->ending = NULL;
	}
	if (l->comm || l->ending)
		return;
	CUresult error = cu.cuStreamQuery(l->stream);
	if (error == CUDA_ERROR_NOT_READY)
		return;
	worker_bad(w, error, "the stream of a communicator that is aborted has failed");
	cu.cuStreamDestroy(l->stream);
	*l = (struct comm_slot){0};
	worker_send(w, &m);
}
