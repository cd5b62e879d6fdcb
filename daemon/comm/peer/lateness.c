/* SPDX-License-Identifier: Apache-2.0
 * Whom kernels of collectives wait for, as the looks at the pages find it. A kernel that waits for
 * less than PEER_LOOK_NS does not say so; of longer waits, looks find a share that is as large as
 * the share of time. */
#include "account/lateness.h"
#include "look.h"

/* Bits: the ranks that have not begun a collective that another one's kernel waits in. */
static uint32_t late_ranks(const struct communicator *m, const struct look *looks)
{
	uint32_t late = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (looks[k].waits && !looks[k].moves)
			late |= ~(looks[k].came | UINT32_C(1) << k);
	return late & ((UINT32_C(1) << m->nranks) - 1);
}

void peer_lateness_count(struct communicator *m, const struct look *looks, uint64_t now)
{
	const uint32_t number = lateness_half_of(now), late = late_ranks(m, looks);
	struct peer_lateness *l = &m->peer->lateness[number & 1];
	if (l->number != number)
		*l = (struct peer_lateness){.number = number};
	l->looks++;
	l->waited += late != 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		l->late[k] += late >> k & 1;
}

bool peer_lateness_read(const struct communicator *m, uint32_t rank, uint64_t now,
			ncclsvc_lateness_info *i)
{
	for (uint32_t half = 0; m->peer && half < 2; half++) {
		const struct peer_lateness *l = &m->peer->lateness[half];
		if (!lateness_is_recent(l->number, now))
			continue;
		i->looks += l->looks;
		i->looks_waited += l->waited;
		i->looks_late += l->late[rank];
	}
	return i->looks;
}
