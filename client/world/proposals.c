/* SPDX-License-Identifier: Apache-2.0
 * Each rank's view of the world. The ranks compare these before any group is joined. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "world.h"

/* One rank's proposal, as it is gathered. */
struct proposal {
	int32_t local, data, horizontal, pipeline;
	int32_t on_gpus;
	int32_t unusable; /* the result from its GPU */
	uint32_t reserved;
	uint32_t survivor; /* its id is in use */
	uint8_t id[NCCLSVC_ID_BYTES];
};

static struct proposal proposal_of(const ncclsvc_world *w)
{
	struct proposal c = {
		.local = w->sizes.local,
		.data = w->sizes.data,
		.horizontal = w->sizes.horizontal,
		.pipeline = w->sizes.pipeline,
		.on_gpus = w->device != NCCLSVC_DEVICE_HOST,
		.unusable = w->unusable,
		.survivor = w->has_base,
	};
	memcpy(c.id, w->base.bytes, sizeof(c.id));
	return c;
}

static ncclsvc_result differ(const char *what, int first, int other, int rank)
{
	return error_set(NCCLSVC_MISMATCH,
			 "the ranks disagree on the world's %s: rank 0 has %d, rank %d has %d",
			 what, first, rank, other);
}

/* Every rank compares all proposals with rank 0's, so all reach the same result. */
static ncclsvc_result compare(const struct proposal *proposals, int n)
{
	const struct proposal *a = &proposals[0];
	for (int k = 1; k < n; k++) {
		const struct proposal *b = &proposals[k];
		if (a->local != b->local)
			return differ("local size", a->local, b->local, k);
		if (a->data != b->data)
			return differ("data", a->data, b->data, k);
		if (a->horizontal != b->horizontal)
			return differ("horizontal", a->horizontal, b->horizontal, k);
		if (a->pipeline != b->pipeline)
			return differ("pipeline", a->pipeline, b->pipeline, k);
		if (a->on_gpus != b->on_gpus)
			return error_set(NCCLSVC_MISMATCH,
					 "the ranks disagree on the world's device: rank 0 is on "
					 "%s, rank %d on %s",
					 a->on_gpus ? "a GPU" : "the host", k,
					 b->on_gpus ? "a GPU" : "the host");
	}
	return NCCLSVC_OK;
}

/* If one rank cannot join the world, no rank begins to. */
static ncclsvc_result all_usable(const ncclsvc_world *w, const struct proposal *proposals, int n)
{
	if (w->unusable)
		return error_set(w->unusable, "%s", w->why);
	for (int k = 0; k < n; k++)
		if (proposals[k].unusable)
			return error_set(NCCLSVC_UNSUPPORTED,
					 "rank %d cannot use its GPU: see that rank's own error",
					 k);
	return NCCLSVC_OK;
}

/* A survivor's id belongs to existing communicators, so it is used; without a survivor, rank 0's.
 * Survivors of different worlds cannot share one, because their communicators would never match. */
static ncclsvc_result choose_id(ncclsvc_world *w, const struct proposal *proposals, int n)
{
	int chosen = -1;
	for (int k = 0; k < n; k++) {
		if (!proposals[k].survivor)
			continue;
		if (chosen >= 0 &&
		    memcmp(proposals[chosen].id, proposals[k].id, sizeof(proposals[k].id)))
			return error_set(NCCLSVC_MISMATCH,
					 "ranks %d and %d belong to different worlds: end one of "
					 "them, or restart both with ncclsvc_world_init",
					 chosen, k);
		if (chosen < 0)
			chosen = k;
	}
	memcpy(w->base.bytes, proposals[chosen < 0 ? 0 : chosen].id, sizeof(w->base.bytes));
	w->has_base = true;
	return NCCLSVC_OK;
}

uint64_t world_set_timeout(ncclsvc_world *w, uint64_t timeout_ns)
{
	session_lock(w->session);
	const uint64_t before = atomic_exchange(&w->host->timeout_ns, timeout_ns);
	session_unlock(w->session);
	return before;
}

ncclsvc_result proposals_compare(ncclsvc_world *w, int timeout_ms)
{
	const int n = w->layout.size;
	ncclsvc_task task;
	struct proposal *proposals = calloc((size_t)n + 1, sizeof(*proposals));
	if (!proposals)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	struct proposal *own = proposals + n;
	ncclsvc_result r =
		w->has_base ? NCCLSVC_OK : ncclsvc_unique_id_request(w->session, &w->base);
	const uint64_t users = world_set_timeout(w, timeout_on_wire(timeout_ms));
	*own = proposal_of(w);
	if (!r)
		r = ncclsvc_all_gather(own, proposals, sizeof(*own), NCCLSVC_UINT8, w->host, &task);
	if (!r)
		r = ncclsvc_wait(w->session, task, NCCLSVC_NO_TIMEOUT);
	world_set_timeout(w, users);
	if (!r)
		r = compare(proposals, n);
	if (!r)
		r = all_usable(w, proposals, n);
	if (!r)
		r = choose_id(w, proposals, n);
	free(proposals);
	return r;
}
