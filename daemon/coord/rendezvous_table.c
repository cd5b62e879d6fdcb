/* SPDX-License-Identifier: Apache-2.0
 * The communicators whose members gather on this node: which ranks are held, and how long those
 * without members are kept. */
#include "rendezvous.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/nofail.h"
#include "base/timings.h"

#define RENDEZVOUS_MAX SVC_COMMS_MAX

struct rendezvous *rendezvous_find(const struct coord *c, const uint8_t *id)
{
	struct rendezvous *r;
	HASH_FIND(hh, c->rendezvous, id, sizeof(r->id), r);
	return r;
}

/* When it is forgotten, if no slot is held by then. */
static uint64_t idle_end(const struct coord *c, const struct rendezvous *r)
{
	return r->idle_ns + (c->keep_ns > RENDEZVOUS_KEPT_NS ? c->keep_ns : RENDEZVOUS_KEPT_NS);
}

/* The memory size of a rendezvous, in member slots. */
static uint64_t cost(uint32_t nranks)
{
	return nranks + sizeof(struct rendezvous) / sizeof(struct member_slot) + 1;
}

static struct idle_user *find_user(const struct coord *c, uint32_t uid)
{
	struct idle_user *u;
	HASH_FIND(hh, c->idle_users, &uid, sizeof(uid), u);
	return u;
}

static void charge(struct coord *c, struct rendezvous *r)
{
	struct idle_user *u = find_user(c, r->uid);
	if (!u) {
		u = nofail_calloc(1, sizeof(*u), "a communicator without members");
		u->uid = r->uid;
		HASH_ADD(hh, c->idle_users, uid, sizeof(u->uid), u);
	}
	u->cost += cost(r->nranks);
	DL_APPEND2(u->oldest, r, prev_own, next_own);
}

static void discharge(struct coord *c, struct rendezvous *r)
{
	struct idle_user *u = find_user(c, r->uid);
	u->cost -= cost(r->nranks);
	DL_DELETE2(u->oldest, r, prev_own, next_own);
	if (u->oldest)
		return;
	HASH_DEL(c->idle_users, u);
	free(u);
}

/* No slot is held; it is kept for a restart. */
static void begin_idle(struct coord *c, struct rendezvous *r)
{
	r->idle_ns = coord_now(c);
	DL_APPEND2(c->idle, r, prev_idle, next_idle);
	charge(c, r);
	c->ops->deadline(c->arg, idle_end(c, r));
}

static void end_idle(struct coord *c, struct rendezvous *r)
{
	DL_DELETE2(c->idle, r, prev_idle, next_idle);
	discharge(c, r);
}

void rendezvous_forget(struct coord *c, struct rendezvous *r)
{
	HASH_DEL(c->rendezvous, r);
	if (!r->held)
		end_idle(c, r);
	free(r->members);
	free(r);
}

/* Communicators with members are charged to their users (SHARE_COMMS, SHARE_RANKS). The others are
 * dropped to make room: for later ones of the same user, and for anybody's when the table is full.
 */
static void make_room(struct coord *c, uint32_t uid, uint32_t nranks)
{
	const struct idle_user *u;
	while ((u = find_user(c, uid)) && u->cost + cost(nranks) > SVC_USER_RANKS)
		rendezvous_forget(c, u->oldest);
	if (HASH_COUNT(c->rendezvous) >= RENDEZVOUS_MAX && c->idle)
		rendezvous_forget(c, c->idle);
}

/* Without memory, a JOIN is refused. But nobody else can ever take the slot of a SPLIT's
 * subcommunicator, so the other members would wait forever. */
struct rendezvous *rendezvous_create(struct coord *c, const uint8_t *id, uint32_t uid,
				     uint32_t nranks, bool subcomm)
{
	make_room(c, uid, nranks);
	if (HASH_COUNT(c->rendezvous) >= RENDEZVOUS_MAX)
		return NULL;
	static const char what[] = "a SPLIT's subcommunicator";
	struct rendezvous *r = subcomm ? nofail_calloc(1, sizeof(*r), what) : calloc(1, sizeof(*r));
	struct member_slot *members = subcomm ? nofail_calloc(nranks, sizeof(*members), what)
					      : calloc(nranks, sizeof(*members));
	if (!r || !members) {
		free(r);
		free(members);
		return NULL;
	}
	memcpy(r->id, id, sizeof(r->id));
	r->uid = uid;
	r->nranks = nranks;
	r->members = members;
	r->since_ns = coord_now(c);
	r->number = c->ops->new_uid(c->arg);
	HASH_ADD(hh, c->rendezvous, id, sizeof(r->id), r);
	begin_idle(c, r);
	return r;
}

void rendezvous_hand_over(struct coord *c, struct rendezvous *r, const struct control_join *m)
{
	discharge(c, r);
	r->uid = m->uid;
	charge(c, r);
	r->admit = m->admit;
	r->cuda = m->cuda;
	r->transport = m->transport;
	memcpy(r->label, m->label, sizeof(r->label));
	r->label[sizeof(r->label) - 1] = '\0';
}

void rendezvous_take_slot(struct coord *c, uint32_t from, struct rendezvous *r,
			  const struct control_join *m, enum slot_state state)
{
	struct member_slot *s = &r->members[m->rank];
	if (!r->held)
		end_idle(c, r);
	r->held += s->state == SLOT_FREE;
	*s = (struct member_slot){.state = state,
				  .node = from,
				  .session = m->session,
				  .request_id = m->request_id,
				  .pid = m->pid,
				  .device = m->device,
				  .fail_fast = m->fail_fast,
				  .resume = (uint8_t)m->resume,
				  .survives = m->survives,
				  .done = m->done,
				  .since_ns = coord_now(c)};
}

void rendezvous_free_slot(struct coord *c, struct rendezvous *r, struct member_slot *s)
{
	if (s->state == SLOT_FREE)
		return;
	if (s->state == SLOT_JOINING)
		r->joining--;
	s->state = SLOT_FREE;
	if (!--r->held)
		begin_idle(c, r);
}

uint64_t rendezvous_expire(struct coord *c)
{
	const uint64_t now = coord_now(c);
	while (c->idle && now >= idle_end(c, c->idle))
		rendezvous_forget(c, c->idle);
	return c->idle ? idle_end(c, c->idle) : 0;
}

void rendezvous_free(struct coord *c)
{
	struct rendezvous *r, *next;
	HASH_ITER (hh, c->rendezvous, r, next)
		rendezvous_forget(c, r);
}

/* ---- Inspection ---- */

static void describe_slot(const struct coord *c, const struct member_slot *s,
			  ncclsvc_member_info *i)
{
	if (s->state == SLOT_FREE)
		return;
	i->state = s->state == SLOT_BROKEN ? NCCLSVC_MEMBER_BROKEN : NCCLSVC_MEMBER_JOINING;
	i->pid = s->pid;
	i->device = s->device;
	i->elsewhere = s->node == c->me ? 0 : s->node + 1;
	if (s->state == SLOT_JOINING)
		i->waiting_ns = coord_now(c) - s->since_ns;
}

struct rendezvous_view rendezvous_look(const struct coord *c, const uint8_t *id)
{
	const uint32_t node = coord_rendezvous(c, id);
	return (struct rendezvous_view){node, node == c->me ? rendezvous_find(c, id) : NULL};
}

void rendezvous_describe(const struct coord *c, const struct rendezvous_view *v,
			 ncclsvc_member_info *i)
{
	if (v->rendezvous && (uint32_t)i->rank < v->rendezvous->nranks) {
		describe_slot(c, &v->rendezvous->members[i->rank], i);
	} else if (v->node != c->me && i->state != NCCLSVC_MEMBER_DEAD) {
		i->state = NCCLSVC_MEMBER_UNKNOWN;
		i->elsewhere = v->node + 1;
	}
}

bool rendezvous_splits(const struct coord *c)
{
	const struct rendezvous *r = c->rendezvous;
	while (r && !(r->split && r->joining))
		r = r->hh.next;
	return r;
}

bool rendezvous_has_member_on(const struct coord *c, uint32_t node)
{
	for (const struct rendezvous *r = c->rendezvous; r; r = r->hh.next)
		for (uint32_t k = 0; k < r->nranks; k++)
			if (r->members[k].state != SLOT_FREE && r->members[k].node == node)
				return true;
	return false;
}
