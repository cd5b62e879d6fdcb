/* SPDX-License-Identifier: Apache-2.0
 * What each rank believes the world to be. The ranks compare this before any group is joined. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/comm.h"
#include "core/session.h"
#include "world.h"

/* One rank's claim, as it is gathered. */
struct claim {
	int32_t local, data, horizontal, pipeline;
	int32_t on_gpus;
	int32_t unusable; /* the result from its GPU */
	uint32_t reserved;
	uint32_t survivor; /* its id is in use */
	uint8_t id[NCCLSVC_ID_BYTES];
};

static struct claim claim_of(const ncclsvc_world *w)
{
	struct claim c = {
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

/* Every rank compares all claims with rank 0's, so all reach the same result. */
static ncclsvc_result compare(const struct claim *claims, int n)
{
	const struct claim *a = &claims[0];
	for (int k = 1; k < n; k++) {
		const struct claim *b = &claims[k];
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
static ncclsvc_result all_usable(const ncclsvc_world *w, const struct claim *claims, int n)
{
	if (w->unusable)
		return error_set(w->unusable, "%s", w->why);
	for (int k = 0; k < n; k++)
		if (claims[k].unusable)
			return error_set(NCCLSVC_UNSUPPORTED,
					 "rank %d cannot use its GPU: see that rank's own error",
					 k);
	return NCCLSVC_OK;
}

/* A survivor's id belongs to existing communicators, so it is used; without a survivor, rank 0's.
 * Survivors of different worlds cannot share one, because their communicators would never match. */
static ncclsvc_result choose_id(ncclsvc_world *w, const struct claim *claims, int n)
{
	int chosen = -1;
	for (int k = 0; k < n; k++) {
		if (!claims[k].survivor)
			continue;
		if (chosen >= 0 && memcmp(claims[chosen].id, claims[k].id, sizeof(claims[k].id)))
			return error_set(NCCLSVC_MISMATCH,
					 "ranks %d and %d belong to different worlds: end one of "
					 "them, or restart both with ncclsvc_world_init",
					 chosen, k);
		if (chosen < 0)
			chosen = k;
	}
	memcpy(w->base.bytes, claims[chosen < 0 ? 0 : chosen].id, sizeof(w->base.bytes));
	w->has_base = true;
	return NCCLSVC_OK;
}

ncclsvc_result claims_compare(ncclsvc_world *w, int timeout_ms)
{
	const int n = w->layout.size;
	ncclsvc_task task;
	struct claim *claims = calloc((size_t)n + 1, sizeof(*claims));
	if (!claims)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	struct claim *own = claims + n;
	ncclsvc_result r = w->has_base ? NCCLSVC_OK : ncclsvc_unique_id_create(&w->base);
	session_lock(w->session);
	uint64_t former = w->host->timeout_ns; /* the user's */
	__atomic_store_n(&w->host->timeout_ns, timeout_on_wire(timeout_ms), __ATOMIC_RELAXED);
	session_unlock(w->session);
	*own = claim_of(w);
	if (!r)
		r = ncclsvc_all_gather(own, claims, sizeof(*own), NCCLSVC_UINT8, w->host, &task);
	if (!r)
		r = ncclsvc_wait(w->session, task, NCCLSVC_NO_TIMEOUT);
	session_lock(w->session);
	__atomic_store_n(&w->host->timeout_ns, former, __ATOMIC_RELAXED);
	session_unlock(w->session);
	if (!r)
		r = compare(claims, n);
	if (!r)
		r = all_usable(w, claims, n);
	if (!r)
		r = choose_id(w, claims, n);
	free(claims);
	return r;
}
