/* SPDX-License-Identifier: Apache-2.0
 * Shares: regions of GPU memory that this rank shares with the other ranks of an epoch, whose
 * libraries map them (importer.c). A share's slot is its region's entry in the table, so it is
 * free again when the memory is gone and no task uses it. */
#include <stdlib.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "peer.h"
#include "shares.h"

/* Shared regions stay until they are freed; the others must have room, too. */
#define SHARED_MOST (DEVICE_REGIONS * 3 / 4)

#define ALL_SAID UINT32_MAX /* peer.said: the others know how many shares there have been */

_Static_assert(DEVICE_REGIONS <= PEER_SHARES, "each region has a slot");

static void drop(struct gpu *g, struct peer *p, unsigned slot)
{
	if (!p || !p->shares || !p->shares[slot])
		return;
	p->shares[slot] = 0;
	g->shared -= !--g->regions[slot].shares;
}

/* Nothing shares the region any more. Locked. */
static void shares_drop(ncclsvc_session *s, const struct device_region *region)
{
	for (const ncclsvc_comm *c = s->comms; region->shares && c; c = c->next)
		drop(s->gpu, c->peer, (unsigned)(region - s->gpu->regions));
}

/* The region's share, which is sent to the daemon at the first use. 0: none. */
static uint64_t share_of(ncclsvc_session *s, struct peer *p, const ncclsvc_comm *comm,
			 uint16_t entry)
{
	struct device_region *region = entry ? &s->gpu->regions[entry - 1] : NULL;
	if (!region || !region->id)
		return 0;
	if (!p->shares)
		p->shares = calloc(DEVICE_REGIONS, sizeof(*p->shares));
	uint32_t *number = p->shares ? &p->shares[entry - 1] : NULL;
	if (!number)
		return 0;
	if (!*number) {
		const struct svc_share request = {.comm = comm->handle,
						  .region = region->id,
						  .slot = entry - 1u,
						  .number = p->nshares + 1};
		if (s->gpu->shared >= SHARED_MOST || !call_forget(s, SVC_SHARE, &request))
			return 0;
		s->gpu->shares_drop = shares_drop;
		s->gpu->shared += !region->shares++;
		*number = ++p->nshares;
	}
	return peer_share(entry - 1u, *number);
}

/* Whether other ranks access the operation's buffers. Those of a Send are only read here. */
static bool is_shared(const struct op *op)
{
	if (op->route.kernel == KERNEL_MESSAGES)
		return op->record.op == NCCLSVC_RECV && op->dst_bytes >= PEER_MESSAGE_LONG;
	return op->route.kernel == KERNEL_DIRECT;
}

/* Buffers that cannot be shared, go through staging memory. */
static bool goes_staged(ncclsvc_result r)
{
	return r != NCCLSVC_OK && r != NCCLSVC_INVALID_ARGUMENT && r != NCCLSVC_DAEMON_LOST;
}

static ncclsvc_result buffers_find(ncclsvc_session *s, struct op *op, uint64_t since, bool *yielded)
{
	const ncclsvc_result r = device_buffers_find(s, s->gpu, op, since, yielded);
	op->regions.unshared = goes_staged(r);
	if (!op->regions.unshared)
		return r;
	op->regions.entries[0] = op->regions.entries[1] = 0;
	return NCCLSVC_OK;
}

ncclsvc_result shares_prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			      bool *finished)
{
	struct gpu *g = s->gpu;
	ncclsvc_result r = NCCLSVC_OK;
	bool yielded = false;
	g->clock++;
	if (!*since)
		*since = g->clock;
	for (unsigned i = 0; !r && !yielded && i < n; i++) {
		const CUcontext context = ops[i].comm->peer->capture->context;
		if (!is_shared(&ops[i]) || ops[i].regions.unshared || cuda_push(g->cuda, context))
			continue;
		const int mode = relaxed_begin(g->cuda);
		r = buffers_find(s, &ops[i], *since, &yielded);
		relaxed_end(g->cuda, mode);
		cuda_pop(g->cuda, context);
	}
	*finished = !r && !yielded;
	for (unsigned i = 0; *finished && i < n; i++)
		for (unsigned k = 0; is_shared(&ops[i]) && k < 2; k++)
			ops[i].regions.shares[k] = share_of(s, ops[i].comm->peer, ops[i].comm,
							    ops[i].regions.entries[k]);
	return r;
}

static int by_number(const void *a, const void *b)
{
	const struct svc_share *x = a, *y = b;
	return (x->number > y->number) - (x->number < y->number);
}

static ncclsvc_result say(ncclsvc_session *s, uint32_t connections, const struct svc_share *share)
{
	struct call call = {.bound = true, .connections = connections};
	return call_run(s, &call, SVC_SHARE, share, -1, deadline_in(REQUEST_MS));
}

/* Returns how many there are, in the order of their numbers. Locked. */
static unsigned to_say(const ncclsvc_session *s, const struct peer *p, uint32_t handle,
		       struct svc_share *shares)
{
	const struct device_region *regions = s->gpu->regions;
	unsigned n = 0;
	for (unsigned i = 0; i < DEVICE_REGIONS; i++)
		if (p->shares[i] > p->said && regions[i].id)
			shares[n++] = (struct svc_share){.comm = handle,
							 .region = regions[i].id,
							 .slot = i | SVC_SHARE_AGAIN,
							 .number = p->shares[i]};
	qsort(shares, n, sizeof(*shares), by_number);
	return n;
}

ncclsvc_result shares_again(ncclsvc_session *s, struct peer *p, uint32_t handle)
{
	const uint32_t connections = session_connections(s);
	ncclsvc_result r = NCCLSVC_OK;
	if (!p->shares || p->said == ALL_SAID)
		return NCCLSVC_OK;
	struct svc_share *shares = calloc(DEVICE_REGIONS, sizeof(*shares));
	if (!shares)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	const unsigned n = to_say(s, p, handle, shares);
	for (unsigned i = 0; !r && i < n; i++) {
		r = say(s, connections, &shares[i]);
		if (r == NCCLSVC_NOT_FOUND) /* another thread has freed it meanwhile */
			r = NCCLSVC_OK;
		if (!r)
			p->said = shares[i].number;
	}
	free(shares);
	if (!r)
		r = say(s, connections,
			&(struct svc_share){
				.comm = handle, .slot = SVC_SHARE_AGAIN, .number = p->nshares});
	if (!r)
		p->said = ALL_SAID;
	return r;
}

void shares_end(struct gpu *g, struct peer *p)
{
	for (unsigned i = 0; p->shares && i < DEVICE_REGIONS; i++)
		drop(g, p, i);
	free(p->shares);
	p->shares = NULL;
}
