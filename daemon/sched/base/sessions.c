/* SPDX-License-Identifier: Apache-2.0
 * Trainers: which rings are polled, and what is freed when a region or a session goes. */
#include "sessions.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/log.h"
#include "base/nofail.h"
#include "base/pool.h"
#include "supervisor.h"

#define DEPARTURES_PER_TURN 64
#define HOLE_BYTES	    ((uint64_t)64 << 20) /* takes long enough to punch that other users wait */

struct departure {
	struct departure *prev, *next;
	uint32_t region, serial;
	uint64_t until; /* a record number that was not yet written when the command came */
};

static void tell_crowded(const struct user *u, bool crowded)
{
	for (struct session *s = u->active; s; s = s->next_active)
		atomic_store_explicit(&s->ring->crowded, crowded, memory_order_relaxed);
}

/* Clients that spin need a core each, in addition to the engine's; otherwise they must yield. */
static void advise_spin(struct engine *e, struct session *changed)
{
	struct user *u;
	bool crowded = e->nactive + 1 > e->cores;
	atomic_store_explicit(&changed->ring->spin_ns, (uint32_t)e->spin.worth_ns,
			      memory_order_relaxed);
	atomic_store_explicit(&changed->ring->crowded, crowded, memory_order_relaxed);
	if (crowded == e->crowded)
		return;
	e->crowded = crowded;
	DL_FOREACH (e->users, u)
		tell_crowded(u, crowded);
}

void engine_session_poll(struct engine *e, struct session *s)
{
	if (!s->ring || s->broken)
		return;
	s->active = true;
	e->nactive++;
	atomic_store(&s->ring->asleep, 0);
	DL_APPEND2(s->user->active, s, prev_active, next_active);
	advise_spin(e, s);
}

void engine_session_idle(struct engine *e, struct session *s)
{
	if (!s->active)
		return;
	DL_DELETE2(s->user->active, s, prev_active, next_active);
	s->active = false;
	e->nactive--;
	advise_spin(e, s);
	/* Either the client sees the flag, or this thread sees its record or its signal, since both
	 * are seq_cst. This also covers a record with a wrong number, whose signal may have come
	 * while the ring was polled. */
	atomic_store(&s->ring->asleep, 1);
	uint64_t number = __atomic_load_n(&svc_record_slot(s->ring, s->entries, s->next)->number,
					  __ATOMIC_SEQ_CST);
	if (number != svc_number_before(s->entries, s->next) && !s->broken)
		engine_session_active(e, s);
	if (s->inputs)
		e->inputs_due = e->ninputs;
}

struct user *engine_user(struct engine *e, uint32_t uid)
{
	struct user *u;
	DL_FOREACH (e->users, u)
		if (u->uid == uid)
			return u;
	u = nofail_calloc(1, sizeof(*u), "a user");
	u->uid = uid;
	u->ready_end = &u->ready;
	DL_APPEND(e->users, u);
	return u;
}

void engine_drop_departures(struct session *s)
{
	struct departure *d, *next;
	DL_FOREACH_SAFE (s->departures, d, next)
		free(d);
	s->departures = NULL;
}

void engine_free_session(struct session *s)
{
	engine_drop_departures(s);
	free(s->handles);
	free(s->regions);
	free(s->busy);
	free(s->lines);
	free(s);
}

bool engine_let_session_go(struct engine *e, struct session *s)
{
	struct user *u = s->user;
	/* With other nodes, an epoch ends a little later than requested. */
	if (s->tasks || s->dirty || s->members || (u->sessions == 1 && u->ready))
		return false;
	e->sessions[s->slot] = NULL;
	engine_event(e, &(struct event){.kind = EVENT_SESSION_GONE, .session = s->slot});
	for (uint32_t i = 0; i < s->nregions; i++)
		u->file_bytes -= s->regions[i].file_bytes;
	engine_free_session(s);
	if (!--u->sessions) {
		if (e->turn == u)
			e->turn = NULL;
		DL_DELETE(e->users, u);
		if (u->pool)
			pool_destroy(u->pool);
		free(u);
	}
	return true;
}

static void answer_region(struct engine *e, struct session *s, enum event_kind kind,
			  uint32_t region, uint32_t serial)
{
	engine_event(e,
		     &(struct event){.kind = kind, .session = s->slot, .region = {region, serial}});
}

static void remove_region(struct engine *e, struct session *s, uint32_t region, uint32_t serial)
{
	struct region *r = &s->regions[region];
	/* The tasks of an open group hold no pins. */
	const bool busy = r->pins || s->group;
	if (!busy) {
		s->user->file_bytes -= r->file_bytes;
		*r = (struct region){0};
	}
	answer_region(e, s, busy ? EVENT_REGION_BUSY : EVENT_REGION_GONE, region, serial);
}

/* Tasks submitted earlier may use it, and have not been taken in yet. */
void engine_remove_region_later(struct engine *e, struct session *s, const struct command *c)
{
	const uint32_t region = c->region.region, serial = c->region.serial;
	if (!s->ring || s->broken) {
		remove_region(e, s, region, serial);
		return;
	}
	struct departure *d = malloc(sizeof(*d));
	if (!d) {
		answer_region(e, s, EVENT_REGION_BUSY, region, serial);
		return;
	}
	*d = (struct departure){.region = region, .serial = serial, .until = s->next + s->entries};
	DL_APPEND(s->departures, d);
	engine_session_active(e, s);
}

void engine_regions_depart(struct engine *e, struct session *s)
{
	struct departure *d;
	for (uint32_t n = 0; n < DEPARTURES_PER_TURN && (d = s->departures); n++) {
		if (s->next < d->until && !s->broken && !session_ring_empty(s))
			return;
		remove_region(e, s, d->region, d->serial);
		DL_DELETE(s->departures, d);
		free(d);
	}
}

/* ---- A user's own threads ---- */

static struct pool *pool_of(struct engine *e, struct user *u)
{
	if (u->pool || u->pool_failed)
		return u->pool;
	u->pool = pool_create_beside(e->pool, e->config.threads > 1 ? e->config.threads - 1 : 1);
	u->pool_failed = !u->pool;
	if (u->pool_failed)
		log_warning("no threads or memory for separate helper threads of user %u, who can "
			    "delay others by punching holes into shared memory",
			    u->uid);
	return u->pool;
}

struct pool *engine_own_pool(struct engine *e, struct task *const *tasks, uint32_t n)
{
	struct user *most = NULL;
	if (!e->users->next)
		return NULL;
	for (uint32_t k = 0; k < n; k++) {
		struct user *u = tasks[k] ? tasks[k]->session->user : NULL;
		if (u && u->file_bytes > HOLE_BYTES && (!most || u->file_bytes > most->file_bytes))
			most = u;
	}
	return most ? pool_of(e, most) : NULL;
}
