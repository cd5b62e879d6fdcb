/* SPDX-License-Identifier: Apache-2.0
 * Trainers: which rings are polled, and what is freed when a region or a session goes. */
#include "sched_sessions.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/log.h"
#include "base/nofail.h"
#include "base/pool.h"
#include "held.h"
#include "supervisor.h"

#define DEPARTURES_PER_TURN 64
#define HOLE_BYTES	    ((uint64_t)64 << 20) /* takes long enough to punch that other users wait */

struct departure {
	struct departure *prev, *next;
	uint32_t region, request_id;
	uint64_t until; /* a record number that was not yet written when the command came */
};

static void tell_crowded(const struct user *u, bool crowded)
{
	for (struct sched_session *s = u->active; s; s = s->next_active)
		atomic_store_explicit(&s->ring->crowded, crowded, memory_order_relaxed);
}

/* Clients that spin need a core each, in addition to the scheduler's; otherwise they must yield. */
static void advise_spin(struct scheduler *sched, struct sched_session *changed)
{
	struct user *u;
	bool crowded = sched->nactive + 1 > sched->cores;
	atomic_store_explicit(&changed->ring->spin_ns, (uint32_t)sched->spin.worth_ns,
			      memory_order_relaxed);
	atomic_store_explicit(&changed->ring->crowded, crowded, memory_order_relaxed);
	if (crowded == sched->crowded)
		return;
	sched->crowded = crowded;
	DL_FOREACH (sched->users, u)
		tell_crowded(u, crowded);
}

void sched_session_poll(struct scheduler *sched, struct sched_session *s)
{
	if (!s->ring || s->broken)
		return;
	s->active = true;
	sched->nactive++;
	atomic_store(&s->ring->asleep, 0);
	DL_APPEND2(s->user->active, s, prev_active, next_active);
	advise_spin(sched, s);
}

void sched_session_idle(struct scheduler *sched, struct sched_session *s)
{
	if (!s->active)
		return;
	DL_DELETE2(s->user->active, s, prev_active, next_active);
	s->active = false;
	sched->nactive--;
	advise_spin(sched, s);
	/* Either the client sees the flag, or this thread sees its record or its signal, since both
	 * are seq_cst. This also covers a record with a wrong number, whose signal may have come
	 * while the ring was polled. */
	atomic_store(&s->ring->asleep, 1);
	const uint64_t *slot = &svc_record_slot(s->ring, s->entries, s->next)->number;
	const uint64_t number = atomic_load((const _Atomic uint64_t *)slot);
	if (number != svc_number_before(s->entries, s->next) && !s->broken)
		sched_session_active(sched, s);
	if (s->inputs)
		sched->inputs_due = sched->ninputs;
}

struct user *user_get(struct scheduler *sched, uint32_t uid, uint32_t tenant)
{
	struct user *u;
	DL_FOREACH (sched->users, u)
		if (u->uid == uid && u->tenant == tenant)
			return u;
	u = nofail_calloc(1, sizeof(*u), "a user");
	u->uid = uid;
	u->tenant = tenant;
	u->ready_end = &u->ready;
	DL_APPEND(sched->users, u);
	return u;
}

void regions_drop_departures(struct sched_session *s)
{
	struct departure *d, *next;
	DL_FOREACH_SAFE (s->departures, d, next)
		free(d);
	s->departures = NULL;
}

void sched_session_free(struct sched_session *s)
{
	regions_drop_departures(s);
	held_free_all(s);
	free(s->handles);
	free(s->regions);
	free(s->busy);
	free(s->lines);
	free(s);
}

bool sched_session_release(struct scheduler *sched, struct sched_session *s)
{
	struct user *u = s->user;
	/* With other nodes, an epoch ends a little later than requested. */
	if (s->tasks || s->dirty || s->members || (u->sessions == 1 && u->ready))
		return false;
	sched->sessions[s->slot] = NULL;
	supervisor_event(sched, &(struct event){.kind = EVENT_SESSION_GONE, .session = s->slot});
	for (uint32_t i = 0; i < s->nregions; i++)
		u->file_bytes -= s->regions[i].file_bytes;
	sched_session_free(s);
	if (!--u->sessions) {
		if (sched->turn == u)
			sched->turn = NULL;
		DL_DELETE(sched->users, u);
		if (u->pool)
			pool_destroy(u->pool);
		free(u);
	}
	return true;
}

static void answer_region(struct scheduler *sched, struct sched_session *s, enum event_kind kind,
			  uint32_t region, uint32_t request_id)
{
	supervisor_event(
		sched,
		&(struct event){.kind = kind, .session = s->slot, .region = {region, request_id}});
}

static void remove_region(struct scheduler *sched, struct sched_session *s, uint32_t region,
			  uint32_t request_id)
{
	struct region *r = &s->regions[region];
	/* Tasks of open groups and of suspended epochs hold no pins. */
	const bool busy = r->pins || s->group || s->held;
	if (!busy) {
		s->user->file_bytes -= r->file_bytes;
		*r = (struct region){0};
	}
	answer_region(sched, s, busy ? EVENT_REGION_BUSY : EVENT_REGION_GONE, region, request_id);
}

/* Tasks submitted earlier may use it, and have not been taken in yet. */
void region_remove_later(struct scheduler *sched, struct sched_session *s, const struct command *c)
{
	const uint32_t region = c->region.region, request_id = c->region.request_id;
	if (!s->ring || s->broken) {
		remove_region(sched, s, region, request_id);
		return;
	}
	struct departure *d = malloc(sizeof(*d));
	if (!d) {
		answer_region(sched, s, EVENT_REGION_BUSY, region, request_id);
		return;
	}
	*d = (struct departure){
		.region = region, .request_id = request_id, .until = s->next + s->entries};
	DL_APPEND(s->departures, d);
	sched_session_active(sched, s);
}

void regions_depart(struct scheduler *sched, struct sched_session *s)
{
	struct departure *d;
	for (uint32_t n = 0; n < DEPARTURES_PER_TURN && (d = s->departures); n++) {
		if (s->next < d->until && !s->broken && !sched_session_ring_empty(s))
			return;
		remove_region(sched, s, d->region, d->request_id);
		DL_DELETE(s->departures, d);
		free(d);
	}
}

/* ---- A user's own threads ---- */

static struct pool *pool_of(struct scheduler *sched, struct user *u)
{
	if (u->pool || u->pool_failed)
		return u->pool;
	u->pool = pool_create_beside(sched->pool,
				     sched->config.threads > 1 ? sched->config.threads - 1 : 1);
	u->pool_failed = !u->pool;
	if (u->pool_failed)
		log_warning("no threads or memory for separate helper threads of user %u, who can "
			    "delay others by punching holes into shared memory",
			    u->uid);
	return u->pool;
}

struct pool *user_own_pool(struct scheduler *sched, struct task *const *tasks, uint32_t n)
{
	struct user *most = NULL;
	if (!sched->users->next)
		return NULL;
	for (uint32_t k = 0; k < n; k++) {
		struct user *u = tasks[k] ? tasks[k]->session->user : NULL;
		if (u && u->file_bytes > HOLE_BYTES && (!most || u->file_bytes > most->file_bytes))
			most = u;
	}
	return most ? pool_of(sched, most) : NULL;
}
