/* SPDX-License-Identifier: Apache-2.0
 * How long kernels of collectives have waited for each rank. The kernels count in their control
 * blocks, from PEER_POLL_NS on. */
#include "account/lateness.h"
#include "look.h"

static struct peer_waits waited_for(const struct communicator *m, uint32_t rank, uint32_t late)
{
	const struct peer_waited *w = &peer_member_control(m, rank)->waited[late];
	return (struct peer_waits){peer_load64(&w->kernels), peer_load64(&w->ns)};
}

void peer_lateness_note(struct communicator *m, uint64_t now)
{
	const uint32_t number = lateness_half_of(now);
	struct peer_lateness *l = &m->peer->lateness[number & 1];
	if (l->number == number)
		return;
	l->number = number;
	l->since_ns = now;
	for (uint32_t k = 0; k < m->nranks; k++)
		for (uint32_t late = 0; late < m->nranks; late++)
			l->before[k][late] = waited_for(m, k, late);
}

/* The older of the half minutes that are to be shown; NULL: there is none. */
static const struct peer_lateness *oldest_recent(const struct peer_epoch *p, uint64_t now)
{
	const struct peer_lateness *oldest = NULL;
	for (uint32_t half = 0; half < 2; half++) {
		const struct peer_lateness *l = &p->lateness[half];
		if (lateness_is_recent(l->number, now) && (!oldest || l->number < oldest->number))
			oldest = l;
	}
	return oldest;
}

/* The record has the counters of the member whose kernels waited longest for the rank. Members can
 * write anything to their control blocks. */
bool peer_lateness_read(const struct communicator *m, uint32_t rank, uint64_t now,
			ncclsvc_lateness_info *i)
{
	const struct peer_lateness *l = m->peer ? oldest_recent(m->peer, now) : NULL;
	if (!l)
		return false;
	i->kernel_window_ns = now > l->since_ns ? now - l->since_ns : 1;
	for (uint32_t k = 0; k < m->nranks; k++) {
		const struct peer_waits w = waited_for(m, k, rank);
		const uint64_t ns = w.ns - l->before[k][rank].ns;
		if (k == rank || ns <= i->kernel_waited_ns)
			continue;
		i->kernel_waited_ns = ns < i->kernel_window_ns ? ns : i->kernel_window_ns;
		i->kernel_waits = (uint32_t)(w.kernels - l->before[k][rank].kernels);
	}
	return true;
}
