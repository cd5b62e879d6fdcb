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
	HASH_DEL(w->imports, i);
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

/* The driver waits for all work in flight, and a launch may wait for a trainer that waits for this
 * worker's next launch. So memory is not closed while launches are in flight, unless none is stuck
 * and the memory has waited long. */
static bool may_close(const struct worker *w, uint64_t now)
{
	if (!w->close_by_ns || (!w->in_flight && !w->lendings))
		return w->close_by_ns;
	return !w->stuck && !lendings_stuck(w, now) && now >= w->close_by_ns;
}

bool imports_sweep(struct worker *w, uint64_t now)
{
	if (!may_close(w, now))
		return false;
	const uint64_t end = clock_now() + WORKER_TURN_NS;
	while ((w->leaving || w->closed) && clock_now() < end) {
		if (w->leaving)
			let_import_go(w, w->leaving);
		else
			session_let_go(w);
	}
	const bool busy = w->in_flight || w->lendings;
	w->close_by_ns = w->leaving || w->closed ? now + (busy ? IMPORT_CLOSE_AGAIN_NS : 0) : 0;
	return w->close_by_ns && !busy;
}
