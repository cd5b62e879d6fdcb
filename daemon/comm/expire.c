/* SPDX-License-Identifier: Apache-2.0
 *
 * Deadlines of communicators. Two heaps are ordered by deadline: one of members' JOINs, and one of
 * communicators, by the earliest deadline of their split, their plan and their end. peer/watch.c
 * and peer/share_log.c have others. So entries that are not due cost nothing, however many there
 * are.
 */
#include <stddef.h>

#include "base/clock.h"
#include "base/loop.h"
#include "base/timings.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "consequences.h"
#include "gpu/nccl_comm.h"
#include "peer/comm_peer.h"
#include "peer/share_log.h"
#include "remote.h"
#include "requests.h"

/* Aborts operations still running on GPUs, which may never end by themselves. Returns the next
 * deadline; 0: none.
 */
static uint64_t expire_draining(struct communicator *m, uint64_t now)
{
	const uint64_t end = m->life.since_ns + comm_completion_ns(m);
	if (m->life.state != NCCLSVC_EPOCH_DRAINING || !m->nccl_comm || m->nccl_comm->aborting)
		return 0;
	if (end > now)
		return end;
	comm_event(m, NCCLSVC_CAUSE_DEADLINE);
	nccl_comm_abort(m->nccl_comm, "tasks of a past epoch do not end");
	return 0;
}

/* Whether members of that account wait for a split, looked up once for many communicators. */
struct splits {
	const struct account *of;
	bool under_way;
};

/* Tells members that their suspended epoch has ended here, but only after splits that are under way
 * have been answered: the members then compare how many splits they have seen. */
static uint64_t expire_suspended(struct communicator *m, uint64_t now, struct splits *splits)
{
	if (!m->suspended || epoch_held(&m->life))
		return 0;
	if (splits->of != m->account)
		*splits = (struct splits){m->account, comm_splits_under_way(m->comms, m->account)};
	if (splits->under_way && now < m->life.since_ns + EPOCH_HANDOVER_NS)
		return now + NAP_NS;
	comm_tell_suspended(m);
	return 0;
}

/* Checks the requests that wait for all members, at most once per member. */
static void expire_communicator(struct comms *s, struct communicator *m, uint64_t now,
				struct splits *splits)
{
	uint64_t next = comm_split_expire(m, now);
	next = earlier(next, plan_expire(m, now));
	if (m->cuda && m->start)
		comm_try_start(s, m);
	comm_try_give(s, m);
	next = earlier(next, expire_draining(m, now));
	next = earlier(next, expire_suspended(m, now, splits));
	if (comm_is_forgettable(m)) {
		const uint64_t end = comm_idle_end(m);
		if (end <= now) {
			comm_event(m, NCCLSVC_CAUSE_DEADLINE);
			comm_forget(s, m);
			return;
		}
		next = earlier(next, end);
	}
	if (next)
		comm_deadline(m, next);
}

static uint64_t expire_communicators(struct comms *s, uint64_t now)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	struct deadline *d;
	struct splits splits = {0};
	while ((d = deadlines_first(&s->deadlines)) && d->at_ns <= now) {
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		deadlines_remove(&s->deadlines, d);
		expire_communicator(
			s,
			(struct communicator *)((char *)d -
						offsetof(struct communicator, deadline)),
			now, &splits);
		remote_handle_own(s);
	}
	return d ? d->at_ns : 0;
}

/* The messages caused by each overdue JOIN are handled in this turn, too; otherwise they would all
 * be due at once. */
static uint64_t expire_joins(struct comms *s, uint64_t now)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	struct deadline *d;
	while ((d = deadlines_first(&s->joins)) && d->at_ns <= now) {
		const struct member *member =
			(struct member *)((char *)d - offsetof(struct member, deadline));
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		const struct membership at = member->session->memberships[member->handle];
		deadlines_remove(&s->joins, d);
		comm_expire_join(s, at.comm, (uint32_t)at.rank);
		remote_handle_own(s);
	}
	return d ? d->at_ns : 0;
}

uint64_t comm_expire(struct comms *s, uint64_t now)
{
	uint64_t next = earlier(peer_watch(s, now), shares_expire(s, now));
	next = earlier(next, expire_communicators(s, now));
	next = earlier(next, consequences_log(s, now));
	return earlier(next, expire_joins(s, now));
}

void comms_reload(struct comms *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		comm_deadline(m, clock_now());
}
