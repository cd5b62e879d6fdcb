/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's symmetric windows, in memory that is lent: small collectives in them are faster, large
 * ones slower. So each allocation is mapped twice. The second address alone is registered, and
 * which of the two a task gives to NCCL says which kernels it gets. The engine decides, alike for
 * all members (transport/nccl/window.c); what it asks for comes through the queue, in the order of
 * tasks.
 *
 * Registering waits for all members' workers, and one that fails alone might let the others wait
 * for long: what can fail here by itself is done before, by LAUNCH_PREPARE.
 */
#include <unistd.h>
#include <utlist.h>

#include "base/log.h"
#include "base/timings.h"
#include "launch.h"
#include "worker.h"

bool window_op(const struct launch *l)
{
	return l->op >= LAUNCH_PREPARE && l->op <= LAUNCH_DROP;
}

static CUresult make_alias(const struct worker *w, struct import *i)
{
	CUmemGenericAllocationHandle handle;
	if (i->alias)
		return CUDA_SUCCESS;
	CUresult error = cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)i->address);
	if (error)
		return error;
	error = import_map(w, handle, i->bytes, &i->alias);
	if (error)
		i->alias = 0;
	cu.cuMemRelease(handle); /* the mapping keeps it */
	return error;
}

static bool prepare(struct worker *w, struct comm_slot *l, const struct launch *ask)
{
	struct slot_window *at = &l->windows[ask->src_window - 1];
	struct import *i = import_find(w, ask->src);
	/* NCCL must never see imported memory as a window: it may hang. */
	if (at->import || l->windowless || !i || i->kind != SVC_REGION_LENT || !i->users ||
	    i->bytes != ask->count)
		return false;
	if (worker_bad(w, make_alias(w, i), "a window's memory cannot be mapped"))
		return false;
	at->import = i;
	i->users++;
	return true;
}

/* NCCL gives none where the GPUs have no such kernels. */
static bool enroll(struct comm_slot *l, const struct launch *ask)
{
	struct slot_window *at = &l->windows[ask->src_window - 1];
	if (!at->import || at->window)
		return false;
	uint64_t start = worker_clock();
	ncclResult_t result = nccl.ncclCommWindowRegister(
		l->comm, (void *)(uintptr_t)at->import->alias, at->import->bytes, &at->window,
		NCCL_WIN_COLL_SYMMETRIC);
	if (result)
		at->window = NULL;
	l->windowless = !at->window;
	if (result)
		log_warning("NCCL communicator %u: small collectives go without symmetric windows: "
			    "%s",
			    ask->slot, nccl.ncclGetErrorString(result));
	else
		log_info("NCCL communicator %u: symmetric window %u of %llu bytes %s in %llu us",
			 ask->slot, ask->src_window, (unsigned long long)at->import->bytes,
			 at->window ? "registered" : "refused by NCCL",
			 (unsigned long long)(worker_clock() - start) / 1000);
	return at->window;
}

static void drop(struct worker *w, const struct comm_slot *l, struct slot_window *at)
{
	ncclResult_t result = ncclSuccess;
	if (at->window && l->comm) /* else its end was the window's, too */
		result = nccl.ncclCommWindowDeregister(l->comm, at->window);
	if (result)
		log_warning("NCCL cannot end a symmetric window: %s",
			    nccl.ncclGetErrorString(result));
	if (at->import)
		import_close(w, at->import->address);
	*at = (struct slot_window){0};
}

void windows_drop(struct worker *w, struct comm_slot *l)
{
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		drop(w, l, &l->windows[i]);
}

void window_run(struct worker *w, const struct launch *ask)
{
	struct comm_slot *l = ask->slot < WORKER_COMM_SLOTS ? &w->slots[ask->slot] : NULL;
	bool good = true;
	/* An abort of the slot ends all of its launches, this one too. */
	if (!l || !l->comm || l->failed || l->draining || !ask->src_window ||
	    ask->src_window > WORKER_WINDOWS)
		return;
	CUresult error = launch_tell(w, ask->slot); /* not to wait for the other workers */
	if (ask->op == LAUNCH_PREPARE) {
		good = prepare(w, l, ask);
	} else if (ask->op == LAUNCH_REGISTER) {
		good = enroll(l, ask);
	} else {
		replays_forget(w, ask->slot, true);
		drop(w, l, &l->windows[ask->src_window - 1]);
	}
	atomic_store(&w->queue->slots[ask->slot].window, good ? WINDOW_GOOD : WINDOW_BAD);
	l->due = ask->seq;
	if (!error)
		error = launch_tell(w, ask->slot);
	if (worker_bad(w, error, "a window's state cannot be told"))
		comm_slot_failed(w, ask->slot, "a window", ncclUnhandledCudaError);
}

bool window_address(const struct comm_slot *l, uint8_t window, uint64_t *address)
{
	if (!window)
		return true;
	const struct slot_window *at = &l->windows[window - 1];
	if (window > WORKER_WINDOWS || !at->window ||
	    *address - at->import->address >= at->import->bytes)
		return false;
	*address += at->import->alias - at->import->address;
	return true;
}

bool window_pending(const struct worker *w, uint32_t slot)
{
	return w->slots[slot].window_seq > atomic_load(&w->queue->slots[slot].completed);
}

bool window_stuck(const struct worker *w, uint32_t slot)
{
	for (uint64_t end = worker_clock() + WINDOW_STUCK_NS; window_pending(w, slot);) {
		if (worker_clock() > end)
			return true;
		usleep(NAP_NS / 1000);
	}
	return false;
}
