/* SPDX-License-Identifier: Apache-2.0 */
#include "share_log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <utlist.h>

#include "account/account.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "comm_peer.h"
#include "memory/memory.h"

#define LOG_ROOM      64
#define MIB	      (UINT64_C(1) << 20)
#define REGION_SHARES 1024 /* a region's end drops them all in one turn of the loop */

/* A region's shares, in all epochs. */
struct region_shares {
	struct session *session; /* its owner, which outlives it */
	uint32_t region, request_id;
	uint64_t until_ns; /* when a REGION_DEL ends its wait */
	bool later;	   /* a member unmaps it later: */
	int32_t later_pid;
	struct shared *all;
	uint32_t n;		  /* of these */
	struct deadline deadline; /* in comms->unshares while a REGION_DEL waits */
};

struct shared {
	struct region_shares *of;
	struct communicator *comm;
	uint32_t rank, slot, number;
	bool dropped;
	uint64_t position; /* of its MAP; once dropped, of its DROP */
	struct shared *prev, *next;
};

/* ---- The bell ---- */

/* An eventfd would not do: its reader could fill its counter and clear O_NONBLOCK, and a write
 * would then block. Setting a timer never blocks, and its descriptor reads like an eventfd. */
static void ring(const struct session *c)
{
	const struct itimerspec now = {.it_value = {0, 1}};
	if (c->bell >= 0)
		timerfd_settime(c->bell, 0, &now, NULL);
}

void shares_bell_give(struct session *c, uint32_t request_id)
{
	char text[SVC_TEXT_BYTES];
	if (c->bell < 0 && !account_take(c->account, SHARE_FDS, 1, text)) {
		if (!session_wait(c))
			session_error(c, SVC_SHARES, request_id, NCCLSVC_LIMIT, "%s", text);
		return;
	}
	if (c->bell < 0) {
		c->bell = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
		if (c->bell < 0) {
			account_give(c->account, SHARE_FDS, 1);
			session_error(c, SVC_SHARES, request_id, NCCLSVC_NO_MEMORY,
				      "the daemon has run out of file descriptors");
			return;
		}
	}
	session_reply(c, SVC_SHARES, request_id, NULL, 0, &c->bell, 1);
}

/* ---- The log ---- */

static struct share_entry *entry_at(const struct peer_shares *l, uint64_t position)
{
	return &l->log[position & (l->room - 1)];
}

/* Is the member with which the epoch began still there? */
static bool takes_part(const struct communicator *m, uint32_t rank)
{
	const struct member *member = &m->members[rank];
	return comm_takes_part(member) && member->session->id == m->peer->members[rank].session;
}

/* The first other member that has not passed the entry; NULL: all have. readers: considers only
 * members that read the log, and are awake. */
static const struct session *behind(const struct communicator *m, uint64_t position, bool readers)
{
	const struct peer_shares *l = &m->peer->shares;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (k != entry_at(l, position)->rank && l->ranks[k].position <= position &&
		    ((l->ranks[k].asked && !m->members[k].asleep) || !readers) && takes_part(m, k))
			return m->members[k].session;
	return NULL;
}

static bool passed(const struct communicator *m, uint64_t position, bool readers)
{
	return !behind(m, position, readers);
}

/* Makes room for one more share: its MAP, and the DROPs of all shares that are not dropped. */
static bool log_reserve(const struct communicator *m, struct peer_shares *l)
{
	uint64_t need = l->end - l->first + 2;
	uint32_t room = l->room ? l->room : LOG_ROOM;
	for (uint32_t k = 0; k < m->nranks; k++)
		need += l->ranks[k].live;
	while (room < need)
		room *= 2;
	if (room == l->room)
		return true;
	const size_t bytes = room * sizeof(struct share_entry);
	struct share_entry *log = account_memory_left(m->account, bytes) ? malloc(bytes) : NULL;
	if (!log)
		return false;
	for (uint64_t at = l->first; at < l->end; at++)
		log[at & (room - 1)] = *entry_at(l, at);
	free(l->log);
	l->log = log;
	l->room = room;
	return true;
}

/* There is room (log_reserve). */
static void append_entry(const struct communicator *m, const struct share_entry *entry)
{
	struct peer_shares *l = &m->peer->shares;
	*entry_at(l, l->end++) = *entry;
	l->ranks[entry->rank].entries++;
	for (uint32_t k = 0; k < m->nranks; k++) {
		atomic_store_explicit(&peer_control_of(m->peer->base, k)->shares, l->end,
				      memory_order_release);
		if (k != entry->rank && takes_part(m, k))
			ring(m->members[k].session);
	}
}

/* There is room (log_reserve). */
static void append(struct shared *share, uint32_t what)
{
	share->position = share->comm->peer->shares.end;
	append_entry(share->comm, &(struct share_entry){.what = what,
							.rank = share->rank,
							.slot = share->slot,
							.number = share->number,
							.share = share});
}

/* ---- Shares ---- */

static struct peer_shares *log_of(const struct shared *share)
{
	return &share->comm->peer->shares;
}

/* The log still has the share's entry unless all members have passed it. */
static void forget_entry(const struct shared *share)
{
	const struct peer_shares *l = log_of(share);
	if (share->position >= l->first)
		entry_at(l, share->position)->share = NULL;
}

static void drop(struct shared *share)
{
	struct share_rank *rank = &log_of(share)->ranks[share->rank];
	if (share->dropped)
		return;
	forget_entry(share);
	rank->slots[share->slot] = NULL;
	rank->live--;
	share->dropped = true;
	append(share, SVC_SHARED_DROP);
}

static void share_free(struct shared *share)
{
	forget_entry(share);
	DL_DELETE(share->of->all, share);
	share->of->n--;
	free(share);
}

/* A waiting REGION_DEL is answered later, by shares_expire, since an answer can end epochs. */
static void let_go(struct shared *share)
{
	struct region_shares *of = share->of;
	struct comms *s = share->comm->comms;
	share_free(share);
	if (of->all || !of->deadline.place)
		return;
	deadlines_take(&s->unshares, &of->deadline);
	deadlines_add(&s->unshares, &of->deadline, clock_now()); /* it has room */
	loop_deadline(s->loop, of->deadline.at_ns);
}

/* A member has passed the entries between these positions: releases their shares, and removes the
 * entries that all have passed. later: the member, if it unmaps the memory only later; or NULL. */
static void settle(struct communicator *m, uint64_t from, uint64_t to, const struct session *later)
{
	struct peer_shares *l = &m->peer->shares;
	for (uint64_t at = from > l->first ? from : l->first; at < to; at++) {
		const struct share_entry *e = entry_at(l, at);
		if (e->what != SVC_SHARED_DROP || !e->share)
			continue;
		if (later) {
			e->share->of->later = true;
			e->share->of->later_pid = later->pid;
		}
		if (passed(m, at, true))
			let_go(e->share);
	}
	while (l->first < l->end && passed(m, l->first, false))
		l->ranks[entry_at(l, l->first++)->rank].entries--;
}

void shares_left(struct communicator *m)
{
	if (m->peer)
		settle(m, 0, m->peer->shares.end, NULL);
}

void shares_end(struct communicator *m)
{
	struct peer_shares *l = &m->peer->shares;
	for (uint64_t at = l->first; at < l->end; at++)
		if (entry_at(l, at)->share && entry_at(l, at)->what == SVC_SHARED_DROP)
			let_go(entry_at(l, at)->share);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct shared **slots = l->ranks[k].slots;
		for (uint32_t i = 0; slots && i < SVC_SHARE_SLOTS; i++)
			if (slots[i])
				let_go(slots[i]);
		free(slots);
	}
	free(l->log);
}

bool shares_drop(struct comms *s, struct session *c, uint32_t region, uint32_t request_id)
{
	const struct mapping *r = &c->mappings[region];
	struct region_shares *of = r->shares;
	struct shared *share, *next;
	DL_FOREACH_SAFE (of->all, share, next) {
		drop(share);
		if (passed(share->comm, share->position, true))
			share_free(share);
	}
	if (!of->all)
		return false;
	of->request_id = request_id;
	of->until_ns = clock_now() + r->wait_ms * UINT64_C(1000000);
	deadlines_add(&s->unshares, &of->deadline, of->until_ns); /* it has room */
	loop_deadline(s->loop, of->until_ns);
	return true;
}

void shares_region_gone(struct comms *s, struct mapping *r)
{
	struct shared *share, *next;
	if (!r->shares)
		return;
	DL_FOREACH_SAFE (r->shares->all, share, next) {
		drop(share);
		share_free(share);
	}
	deadlines_remove(&s->unshares, &r->shares->deadline);
	free(r->shares);
	r->shares = NULL;
}

/* Returns how much longer the client waits; 0: it has waited long enough. */
static uint32_t wait_left_ms(const struct region_shares *of, uint64_t now)
{
	const uint64_t left = of->until_ns > now ? of->until_ns - now : 0;
	return of->all || of->later ? 0 : 1 + (uint32_t)(left / 1000000);
}

static void say_mapped(const struct region_shares *of)
{
	const struct session *c = of->session, *other;
	const struct mapping *r = &c->mappings[of->region];
	const struct shared *share = of->all;
	other = share ? behind(share->comm, share->position, true) : NULL;
	log_info("session %u (%s, pid %d): %" PRIu64 " MiB of gpu%d that it frees stay allocated "
		 "until pid %d has unmapped them%s",
		 c->id, c->name, c->pid, (r->bytes + MIB - 1) / MIB, r->device,
		 other ? other->pid : of->later_pid,
		 other ? "" : "; the driver does that only while no kernel of that pid runs");
}

uint64_t shares_expire(struct comms *s, uint64_t now)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	struct deadline *d;
	while ((d = deadlines_first(&s->unshares)) && d->at_ns <= now) {
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		deadlines_remove(&s->unshares, d);
		struct region_shares *of =
			(struct region_shares *)((char *)d -
						 offsetof(struct region_shares, deadline));
		const uint32_t left_ms = wait_left_ms(of, now);
		if (!left_ms && (of->all || of->later))
			say_mapped(of);
		memory_unshared(s->memory, of->session, of->request_id, of->region, left_ms);
	}
	return d ? d->at_ns : 0;
}

/* ---- Requests ---- */

/* The communicator of this handle, if the session takes part in an epoch with a log. NULL: an error
 * was sent. */
static struct communicator *epoch_of(struct session *c, unsigned opcode, uint32_t request_id,
				     uint32_t handle, uint32_t *rank)
{
	int32_t at = -1;
	struct communicator *m = comm_of_handle(c, handle, &at);
	if (!m) {
		session_error(c, opcode, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", handle);
		return NULL;
	}
	*rank = (uint32_t)at;
	if (m->peer && takes_part(m, *rank))
		return m;
	session_error(c, opcode, request_id, NCCLSVC_STALE_EPOCH,
		      "communicator %s has no epoch whose members all have staging memory",
		      m->label);
	return NULL;
}

/* NULL: an error was sent. */
static const struct mapping *region_of(struct session *c, uint32_t request_id, uint32_t region,
				       int32_t device)
{
	const struct mapping *r = region < c->nmappings ? &c->mappings[region] : NULL;
	if (!r || !r->used || r->leaving) {
		session_error(c, SVC_SHARE, request_id, NCCLSVC_NOT_FOUND,
			      "there is no region %u in this session", region);
		return NULL;
	}
	if (r->kind != SVC_REGION_MEMFD && r->device == device &&
	    (r->absent || (!r->pending && r->address)))
		return r;
	session_error(c, SVC_SHARE, request_id, NCCLSVC_INVALID_ARGUMENT,
		      "region %u is not memory of device %d, or is being imported", region, device);
	return NULL;
}

/* The owner may reuse the slot once it has deleted the region, even if the scheduler has not
 * confirmed the deletion yet. */
static bool slot_free(const struct shared *share)
{
	return !share || share->of->session->mappings[share->of->region].leaving;
}

/* Checks the slot, the number and the limits. False: an error was sent. */
static bool may_share(struct session *c, uint32_t request_id, const struct mapping *region,
		      const struct share_rank *rank, const struct svc_share *r)
{
	if (r->slot >= SVC_SHARE_SLOTS || (rank->slots && !slot_free(rank->slots[r->slot]))) {
		session_error(c, SVC_SHARE, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "slot %u is in use, or not less than %d", r->slot, SVC_SHARE_SLOTS);
		return false;
	}
	if (rank->again ? r->number <= rank->number : r->number != rank->number + 1) {
		session_error(c, SVC_SHARE, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "this member's next share has the number %u, not %u",
			      rank->number + 1, r->number);
		return false;
	}
	if (region->shares && region->shares->n >= REGION_SHARES) {
		session_error(c, SVC_SHARE, request_id, NCCLSVC_LIMIT,
			      "a region has at most %d shares", REGION_SHARES);
		return false;
	}
	if (rank->entries + rank->live + 2 <= SVC_SHARE_LOG)
		return true;
	session_error(c, SVC_SHARE, request_id, NCCLSVC_LIMIT,
		      "not all members have read this member's last %d shares", SVC_SHARE_LOG);
	return false;
}

static struct region_shares *region_shares(struct comms *s, struct session *c, uint32_t region)
{
	struct mapping *r = &c->mappings[region];
	if (r->shares || deadlines_reserve(&s->unshares, s->sessions->nregions))
		return r->shares;
	r->shares = calloc(1, sizeof(*r->shares));
	if (r->shares)
		*r->shares = (struct region_shares){.session = c, .region = region};
	return r->shares;
}

static struct shared **slots_of(struct share_rank *rank)
{
	if (!rank->slots)
		rank->slots = calloc(SVC_SHARE_SLOTS, sizeof(struct shared *));
	return rank->slots;
}

/* False: there is no memory for it. */
static bool add(struct communicator *m, uint32_t rank, struct session *c, const struct svc_share *r)
{
	struct peer_shares *l = &m->peer->shares;
	struct region_shares *of = region_shares(m->comms, c, r->region);
	struct shared **slots = slots_of(&l->ranks[rank]);
	if (slots && slots[r->slot])
		drop(slots[r->slot]);
	struct shared *share = of && slots && log_reserve(m, l) ? calloc(1, sizeof(*share)) : NULL;
	if (!share)
		return false;
	*share = (struct shared){
		.of = of, .comm = m, .rank = rank, .slot = r->slot, .number = r->number};
	DL_APPEND(of->all, share);
	of->n++;
	slots[r->slot] = share;
	l->ranks[rank].number = r->number;
	l->ranks[rank].live++;
	append(share, SVC_SHARED_MAP);
	return true;
}

/* The member has said again what it shares, and how many shares it has had. */
static bool count(struct communicator *m, uint32_t rank, uint32_t number)
{
	struct peer_shares *l = &m->peer->shares;
	if (!log_reserve(m, l))
		return false;
	l->ranks[rank].number = number;
	append_entry(
		m, &(struct share_entry){.what = SVC_SHARED_COUNT, .rank = rank, .number = number});
	return true;
}

void shares_restart(struct communicator *m)
{
	shares_end(m);
	m->peer->shares = (struct peer_shares){0};
	for (uint32_t k = 0; k < m->nranks; k++) {
		m->peer->shares.ranks[k].again = true;
		atomic_store(&peer_control_of(m->peer->base, k)->shares, 0);
	}
}

void shares_begin_again(struct peer_shares *l, uint32_t nranks)
{
	for (uint32_t k = 0; k < nranks; k++)
		l->ranks[k] =
			(struct share_rank){.again = true, .asked = true}; /* they have imports */
}

/* False: an error was sent. */
static bool may_say_again(struct session *c, uint32_t request_id, const struct share_rank *rank,
			  const struct svc_share *r)
{
	if (rank->again && (r->region || (!r->slot && r->number >= rank->number)))
		return true;
	session_error(c, SVC_SHARE, request_id, NCCLSVC_INVALID_ARGUMENT,
		      "the epoch continues none, this member has new shares already, or the "
		      "number is too low");
	return false;
}

void shares_add(struct session *c, uint32_t request_id, const struct svc_share *request)
{
	uint32_t k;
	struct svc_share own = *request;
	const struct svc_share *r = &own;
	const bool again = own.slot & SVC_SHARE_AGAIN, counts = again && !own.region;
	own.slot &= ~SVC_SHARE_AGAIN;
	struct communicator *m = epoch_of(c, SVC_SHARE, request_id, r->comm, &k);
	struct share_rank *rank = m ? &m->peer->shares.ranks[k] : NULL;
	if (!rank || (again && !may_say_again(c, request_id, rank, r)))
		return;
	rank->again = again && !counts;
	const struct mapping *region =
		counts ? NULL : region_of(c, request_id, r->region, m->members[k].device);
	if (!counts && (!region || !may_share(c, request_id, region, rank, r)))
		return;
	if (counts ? count(m, k, r->number) : add(m, k, c, r))
		session_reply(c, SVC_SHARE, request_id, NULL, 0, NULL, 0);
	else
		session_error(c, SVC_SHARE, request_id, NCCLSVC_NO_MEMORY,
			      "the daemon has no memory for a share");
}

static struct svc_shared_reply reply_of(const struct share_entry *e)
{
	struct svc_shared_reply reply = {
		.what = e->what, .rank = (int32_t)e->rank, .slot = e->slot, .number = e->number};
	if (e->what != SVC_SHARED_MAP)
		return reply;
	if (!e->share) {
		reply.what = SVC_SHARED_GONE;
		return reply;
	}
	const struct region_shares *of = e->share->of;
	const struct mapping *r = &of->session->mappings[of->region];
	reply.bytes = r->bytes;
	reply.base = r->base_there;
	reply.kind = r->kind;
	reply.parts = gpu_region_parts(r);
	memcpy(reply.handle, r->handle, sizeof(reply.handle));
	return reply;
}

void shares_read(struct session *c, uint32_t request_id, const struct svc_shared *r)
{
	uint32_t k;
	struct communicator *m = epoch_of(c, SVC_SHARED, request_id, r->comm, &k);
	if (!m)
		return;
	struct peer_shares *l = &m->peer->shares;
	struct share_rank *rank = &l->ranks[k];
	if (r->later > 1) {
		session_error(c, SVC_SHARED, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "`later` is %u, not 0 or 1", r->later);
		return;
	}
	if (r->position < rank->position || r->position > l->end) {
		session_error(c, SVC_SHARED, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the next position is %llu to %llu, not %llu",
			      (unsigned long long)rank->position, (unsigned long long)l->end,
			      (unsigned long long)r->position);
		return;
	}
	const uint64_t before = rank->position;
	struct svc_shared_reply reply = {0};
	rank->asked = true;
	rank->position = r->position;
	settle(m, before, r->position, r->later ? c : NULL);
	if (r->position < l->first) /* its own, as it has not passed it */
		reply = (struct svc_shared_reply){.what = SVC_SHARED_GONE, .rank = (int32_t)k};
	else if (r->position < l->end)
		reply = reply_of(entry_at(l, r->position));
	session_reply(c, SVC_SHARED, request_id, &reply, sizeof(reply), NULL, 0);
	shares_expire(m->comms, clock_now()); /* rather than at the loop's next turn */
}

void shares_part(struct session *c, uint32_t request_id, const struct svc_shared_part *r)
{
	uint32_t rank;
	const struct mapping *part = NULL;
	const struct communicator *m = epoch_of(c, SVC_SHARED_PART, request_id, r->comm, &rank);
	if (!m)
		return;
	const struct peer_shares *l = &m->peer->shares;
	const bool known = r->position >= l->first && r->position < l->end;
	const struct share_entry *e = known ? entry_at(l, r->position) : NULL;
	if (e && e->what == SVC_SHARED_MAP && e->share) {
		const struct region_shares *of = e->share->of;
		part = gpu_region_part(of->session, &of->session->mappings[of->region], r->part);
	}
	if (!part) {
		session_error(c, SVC_SHARED_PART, request_id, NCCLSVC_NOT_FOUND,
			      "no memory is shared at position %llu, or it has no part %u",
			      (unsigned long long)r->position, r->part);
		return;
	}
	const struct svc_shared_part_reply reply = {.bytes = part->bytes};
	session_reply(c, SVC_SHARED_PART, request_id, &reply, sizeof(reply), &part->fd, 1);
}
