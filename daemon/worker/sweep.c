/* SPDX-License-Identifier: Apache-2.0
 * The release of memory that sessions have returned, and of closed sessions. */
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "worker.h"

static CUresult close_ipc(struct worker *w, struct import *i)
{
	CUresult error = CUDA_SUCCESS;
	HASH_DELETE(hh_name, w->named, i);
	while (!error && i->opens--)
		error = cu.cuIpcCloseMemHandle(i->address);
	return error;
}

static CUresult close_mapping(const struct import *i)
{
	CUresult error = cu.cuMemUnmap(i->address, i->bytes);
	cu.cuMemAddressFree(i->address, i->bytes);
	cu.cuMemRelease(i->handle);
	return error;
}

/* All of it, or a part of a range. */
static void let_import_go(struct worker *w, struct import *i)
{
	CUresult error = CUDA_SUCCESS;
	if (range_close_part(w, i))
		return;
	DL_DELETE(w->leaving, i);
	i->leaves = false;
	w->ranges_leaving -= i->kind == SVC_REGION_MAPPINGS;
	if (i->users) { /* it was imported again */
		closing_end(w, i);
		return;
	}
	if (import_find(w, i->address) == i) /* otherwise it is not in the table */
		HASH_DEL(w->imports, i);
	if (i->kind == SVC_REGION_IPC)
		error = close_ipc(w, i);
	else if (i->kind != SVC_REGION_MAPPINGS)
		error = close_mapping(i);
	else if (i->address)
		error = cu.cuMemAddressFree(i->address, i->bytes);
	worker_bad(w, error, "imported memory cannot be closed");
	closing_end(w, i);
	free(i->parts);
	free(i);
}

/* For an IPC handle, the driver waits for all work in flight, and a launch may wait for a trainer
 * that waits for this worker's next launch. So such memory is not closed while launches are in
 * flight, unless none is stuck and the memory has waited long. */
static bool may_close_all(const struct worker *w, uint64_t now)
{
	return !w->in_flight || (!w->stuck && now >= w->close_by_ns);
}

/* Unmapping does not wait for the GPU, and tasks in flight use no memory that was returned: the
 * scheduler returns memory when the tasks that use it have ended. */
static struct import *closable(const struct worker *w, bool all)
{
	struct import *i = w->leaving;
	while (i && !all && i->kind == SVC_REGION_IPC)
		i = i->next;
	return i;
}

bool imports_sweep(struct worker *w, uint64_t now)
{
	if (!w->close_by_ns)
		return false;
	const bool all = may_close_all(w, now);
	const uint64_t end = clock_now() + WORKER_TURN_NS;
	struct import *i;
	while (clock_now() < end) {
		if ((i = closable(w, all)))
			let_import_go(w, i);
		else if (w->closed && all)
			session_let_go(w);
		else
			break;
	}
	if (!w->leaving && !w->closed)
		w->close_by_ns = 0;
	else if (all)
		w->close_by_ns = now + (w->in_flight ? IMPORT_CLOSE_AGAIN_NS : 0);
	return closable(w, !w->in_flight) || (w->closed && !w->in_flight);
}
