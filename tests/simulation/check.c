/* SPDX-License-Identifier: Apache-2.0
 * The invariants that must hold, whatever happens. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "coord/plan.h"
#include "gpu/nccl_comm.h"
#include "proto/names.h"
#include "simulation.h"

char failure[512];

void fail(const char *format, ...)
{
	va_list args;
	if (failure[0] || nodes_ended)
		return;
	va_start(args, format);
	vsnprintf(failure, sizeof(failure), format, args);
	va_end(args);
	trace(-1, "FAILURE: %s", failure);
}

/* ---- Observations ---- */

struct seen_epoch {
	struct seen_epoch *prev, *next;
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, nranks;
	uint64_t internode_id;
	int32_t pids[RANKS_MAX];
	uint32_t nodes[RANKS_MAX];
	uint64_t nccl_id;
	uint8_t unique[NCCLSVC_ID_BYTES];
	bool started[NODES_MAX]; /* on that node */
};

struct seen_number {
	struct seen_number *prev, *next;
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t node, epoch;
};

struct seen_part {
	struct seen_part *prev, *next;
	uint8_t id[NCCLSVC_ID_BYTES];
	int32_t colour, key;
	uint32_t old, rank;
};

struct seen_plan {
	struct seen_plan *prev, *next;
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, number;
	uint64_t uid;
};

/* An NCCL communicator that spans nodes. */
struct seen_creation {
	struct seen_creation *prev, *next;
	uint64_t nccl_id;
	uint8_t unique[NCCLSVC_ID_BYTES];
};

static struct seen_creation *creations;
static struct seen_epoch *epochs;
static struct seen_number *numbers;
static struct seen_part *parts;
static struct seen_plan *plans;

#define FORGET(list, type)                                                                         \
	do {                                                                                       \
		struct type *one_, *next_;                                                         \
		DL_FOREACH_SAFE (list, one_, next_)                                                \
			free(one_);                                                                \
		(list) = NULL;                                                                     \
	} while (0)

void check_begin(void)
{
	failure[0] = '\0';
}

void check_end(void)
{
	FORGET(epochs, seen_epoch);
	FORGET(numbers, seen_number);
	FORGET(parts, seen_part);
	FORGET(plans, seen_plan);
	FORGET(creations, seen_creation);
}

static void *make(size_t size)
{
	void *p = calloc(1, size);
	if (!p)
		abort();
	return p;
}

static bool same_id(const uint8_t *a, const uint8_t *b)
{
	return !memcmp(a, b, NCCLSVC_ID_BYTES);
}

/* Epoch numbers restart once a communicator is completely forgotten, or its rendezvous' daemon is
 * restarted. Returns whether the former cannot have happened. */
static bool never_forgets(void)
{
	return profile.keep >= 1000 && clock_now() < 2000 * S;
}

static bool all_live(void)
{
	if (links_lost_any())
		return false;
	for (uint32_t n = 0; n < nnodes; n++)
		if (!nodes[n].alive)
			return false;
	return true;
}

/* Returns whether a node that started the epoch is alive; otherwise no node remembers the epoch. */
static bool somebody_lives(const struct seen_epoch *e)
{
	for (uint32_t n = 0; n < nnodes; n++)
		if (nodes[n].alive && e->started[n])
			return true;
	return false;
}

static struct seen_epoch *epoch_seen(const uint8_t *id, uint32_t epoch, uint64_t internode_id)
{
	struct seen_epoch *e;
	DL_FOREACH (epochs, e)
		if (same_id(e->id, id) && e->epoch == epoch && somebody_lives(e) &&
		    ((never_forgets() && all_live()) ||
		     (internode_id && e->internode_id == internode_id)))
			return e;
	return NULL;
}

void check_restarted(uint32_t node)
{
	struct seen_epoch *e;
	DL_FOREACH (epochs, e)
		e->started[node] = false;
}

/* ---- Epochs ---- */

static void check_number(uint32_t node, const uint8_t *id, uint32_t epoch)
{
	struct seen_number *s;
	DL_FOREACH (numbers, s)
		if (same_id(s->id, id) && s->node == node)
			break;
	if (s && s->epoch >= epoch && never_forgets() && (!standalone || all_live()))
		fail("node %u starts epoch %u of %02x%02x after epoch %u", node, epoch, id[0],
		     id[1], s->epoch);
	if (!s) {
		s = make(sizeof(*s));
		s->node = node;
		memcpy(s->id, id, sizeof(s->id));
		DL_APPEND(numbers, s);
	}
	s->epoch = epoch;
}

static struct seen_epoch *note_epoch(const struct communicator *m, const struct command *c)
{
	struct seen_epoch *e = make(sizeof(*e));
	memcpy(e->id, m->id, sizeof(e->id));
	e->epoch = c->epoch_start.epoch;
	e->nranks = c->epoch_start.nranks;
	e->internode_id = c->epoch_start.internode_id;
	for (uint32_t k = 0; k < e->nranks; k++) {
		e->pids[k] = c->epoch_start.members[k].pid;
		e->nodes[k] = c->epoch_start.members[k].node;
	}
	if (m->nccl_comm) {
		e->nccl_id = m->nccl_comm->nccl_id;
		memcpy(e->unique, m->nccl_comm->id, sizeof(e->unique));
	}
	DL_APPEND(epochs, e);
	return e;
}

static void compare_epoch(uint32_t node, const struct seen_epoch *e, const struct communicator *m,
			  const struct command *c)
{
	if (e->internode_id != c->epoch_start.internode_id)
		fail("node %u starts a different epoch %u of %02x%02x than other nodes", node,
		     e->epoch, e->id[0], e->id[1]);
	for (uint32_t k = 0; k < e->nranks; k++) {
		const struct epoch_member *w = &c->epoch_start.members[k];
		if (w->pid != e->pids[k] || w->node != e->nodes[k])
			fail("epoch %u of %02x%02x: rank %u is pid %d of node %u on node %u, and "
			     "pid %d of node %u elsewhere",
			     e->epoch, e->id[0], e->id[1], k, w->pid, w->node, node, e->pids[k],
			     e->nodes[k]);
	}
	if (m->nccl_comm && (m->nccl_comm->nccl_id != e->nccl_id ||
			     memcmp(m->nccl_comm->id, e->unique, sizeof(e->unique)) != 0))
		fail("epoch %u of %02x%02x: node %u has a different NCCL communicator than other "
		     "nodes",
		     e->epoch, e->id[0], e->id[1], node);
}

/* Checks that no other epoch on any node uses m's NCCL communicator. */
static void check_alone(const struct communicator *m, uint32_t epoch)
{
	const struct communicator *other, *next;
	for (uint32_t n = 0; n < nnodes; n++) {
		if (!nodes[n].alive)
			continue;
		HASH_ITER (hh, nodes[n].comms.comms, other, next) {
			if (!other->nccl_comm || !epoch_held(&other->life) ||
			    memcmp(other->nccl_comm->id, m->nccl_comm->id, NCCLSVC_ID_BYTES) != 0)
				continue;
			if (!same_id(other->id, m->id) || other->epoch != epoch)
				fail("epochs %u of %02x%02x and %u of %02x%02x use one NCCL "
				     "communicator",
				     epoch, m->id[0], m->id[1], other->epoch, other->id[0],
				     other->id[1]);
		}
	}
}

void check_start(uint32_t node, const struct command *c)
{
	const struct communicator *m = nodes[node].comms.comm_by_slot[c->epoch_start.comm];
	struct seen_epoch *e = epoch_seen(m->id, c->epoch_start.epoch, c->epoch_start.internode_id);
	trace((int)node, "starts epoch %u of %02x%02x", c->epoch_start.epoch, m->id[0], m->id[1]);
	check_number(node, m->id, c->epoch_start.epoch);
	if (e)
		compare_epoch(node, e, m, c);
	else
		e = note_epoch(m, c);
	e->started[node] = true;
	if (c->epoch_start.transport != TRANSPORT_NCCL)
		return;
	if (!m->nccl_comm || !m->nccl_comm->ready)
		fail("node %u starts epoch %u of %02x%02x without an NCCL communicator", node,
		     c->epoch_start.epoch, m->id[0], m->id[1]);
	else
		check_alone(m, c->epoch_start.epoch);
}

/* ---- Answers ---- */

void check_joined(const struct trainer *t, const struct request *r, const struct svc_join_reply *j)
{
	const struct seen_epoch *e;
	if (!same_id(r->id, j->id) || (uint32_t)j->rank != r->rank ||
	    (uint32_t)j->nranks != r->nranks)
		fail("pid %d asked for rank %u and got rank %d", t->session.pid, r->rank, j->rank);
	DL_FOREACH (epochs, e)
		if (same_id(e->id, j->id) && e->epoch == j->epoch &&
		    e->pids[j->rank] == t->session.pid)
			return;
	fail("pid %d is in epoch %u of %02x%02x, where another is rank %d", t->session.pid,
	     j->epoch, j->id[0], j->id[1], j->rank);
}

/* Orders by key, then by old rank. */
static bool comes_before(const struct seen_part *a, const struct seen_part *b)
{
	return a->key != b->key ? a->key < b->key : a->old < b->old;
}

void check_part(const struct trainer *t, const struct request *r, const struct svc_join_reply *j)
{
	struct seen_part *p = make(sizeof(*p));
	const struct seen_part *other;
	*p = (struct seen_part){
		.colour = r->colour, .key = r->key, .old = r->rank, .rank = (uint32_t)j->rank};
	if (!j->comm != (r->colour < 0))
		fail("pid %d: SPLIT with colour %d has handle %u", t->session.pid, r->colour,
		     j->comm);
	if (!j->comm) {
		free(p);
		return;
	}
	memcpy(p->id, j->id, sizeof(p->id));
	DL_FOREACH (parts, other) {
		if (!same_id(other->id, p->id))
			continue;
		if (other->colour != p->colour || other->rank == p->rank ||
		    comes_before(p, other) != (p->rank < other->rank))
			fail("a SPLIT's part has ranks %u (colour %d, key %d, rank %u before) and "
			     "%u (colour %d, key %d, rank %u before)",
			     p->rank, p->colour, p->key, p->old, other->rank, other->colour,
			     other->key, other->old);
	}
	DL_APPEND(parts, p);
}

/* The end of an epoch that an event blames on a rank. */
struct blame {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch, rank;
	int32_t pid, listener, reason;
};

static void check_blame(void *arg)
{
	const struct blame *b = arg;
	const struct seen_epoch *e;
	DL_FOREACH (epochs, e) {
		if (!same_id(e->id, b->id) || e->epoch != b->epoch || e->pids[b->rank] != b->pid)
			continue;
		const struct trainer *who = trainer_of_pid(b->pid);
		if (who && trainer_is_in(who, e->id, e->epoch, b->rank))
			fail("pid %d is notified that rank %u (%s) has ended epoch %u of %02x%02x, "
			     "but that rank is still in it",
			     b->listener, b->rank, svc_result_name(b->reason), e->epoch, e->id[0],
			     e->id[1]);
	}
}

void check_event(const struct trainer *t, const struct belief *b, const struct svc_event_comm *ev)
{
	const bool node = ev->status.field == NCCLSVC_FIELD_NODE;
	if (node && nodes[ev->status.value_a].alive && !links_lost((uint32_t)ev->status.value_a))
		fail("pid %d is notified that node %u is gone, but it is alive", t->session.pid,
		     (unsigned)ev->status.value_a);
	if (ev->rank >= (int32_t)b->nranks)
		fail("pid %d is notified of rank %d, but there are only %u ranks", t->session.pid,
		     ev->rank, b->nranks);
	if (ev->rank < 0 || ev->rank >= (int32_t)b->nranks || node)
		return;
	struct blame *blame = make(sizeof(*blame));
	*blame = (struct blame){.epoch = b->epoch,
				.rank = (uint32_t)ev->rank,
				.pid = ev->pid,
				.listener = t->session.pid,
				.reason = ev->reason};
	memcpy(blame->id, b->id, sizeof(blame->id));
	at(clock_now(), -1, check_blame, blame); /* the blamed rank may be about to learn it too */
}

/* Returns whether a JOIN of that rank has waited long enough for every node to know, still has
 * time left, and is not about to receive a START. (The epoch of that START may have ended
 * again.) */
static bool has_waited(const uint8_t *id, uint32_t nranks, uint32_t rank)
{
	const uint64_t known = 4 * profile.delay + 10 * MS;
	for (uint32_t n = 0; n < nnodes; n++)
		for (uint32_t k = 0; nodes[n].alive && k < TRAINERS_MAX; k++) {
			const struct trainer *t = nodes[n].trainers[k];
			const struct request *r = t ? trainer_request(t, ASK_JOIN, id, rank) : NULL;
			const struct communicator *m = NULL;
			if ((r && r->deadline && r->deadline <= clock_now()) ||
			    channel_brings_answer(n, id))
				continue;
			if (r)
				HASH_FIND(hh, nodes[n].comms.comms, id, NCCLSVC_ID_BYTES, m);
			if (m && m->nranks == nranks && r->since + known < clock_now() &&
			    m->life.state == NCCLSVC_EPOCH_FORMING &&
			    m->life.since_ns + known < clock_now())
				return true;
		}
	return false;
}

/* Checks that the ranks named by a JOIN's TIMEOUT are missing. */
static void check_missing(const struct trainer *t, const struct request *r, const char *text)
{
	const char *list = strstr(text, "deadline: ");
	if (!strstr(text, "not joined by") || !list)
		return;
	list += strlen("deadline: ");
	while (*list >= '0' && *list <= '9') {
		char *end;
		const uint32_t rank = (uint32_t)strtoul(list, &end, 10);
		if (rank >= r->nranks)
			fail("pid %d: rank %u is reported missing, but there are only %u ranks",
			     t->session.pid, rank, r->nranks);
		else if (has_waited(r->id, r->nranks, rank))
			fail("pid %d: rank %u of %02x%02x is reported missing, but it waits",
			     t->session.pid, rank, r->id[0], r->id[1]);
		list = !strncmp(end, ", ", 2) ? end + 2 : end;
	}
}

void check_error(const struct trainer *t, const struct request *r, int result, const char *text)
{
	if (strstr(text, "could not begin on"))
		return; /* another node's scheduler has ended the epoch with TIMEOUT */
	if (result == NCCLSVC_TIMEOUT && !r->deadline && r->kind == ASK_JOIN)
		fail("pid %d: a JOIN without a deadline ends with TIMEOUT", t->session.pid);
	if (result == NCCLSVC_TIMEOUT && r->deadline && clock_now() < r->deadline &&
	    r->kind == ASK_JOIN)
		fail("pid %d: a JOIN ends with TIMEOUT before its deadline", t->session.pid);
	if (result == NCCLSVC_PEER_GONE && r->kind == ASK_JOIN && !r->cuda && !t->fail_fast &&
	    !strstr(text, "gather"))
		fail("pid %d: a JOIN that does not fail fast ends with PEER_GONE", t->session.pid);
	/* When an epoch was about to begin on GPUs, or on nodes that connect to each other, or the
	 * gathering node was lost, all ranks join again: skip the check. */
	if (result == NCCLSVC_TIMEOUT && r->kind == ASK_JOIN && !r->cuda && !standalone &&
	    all_live())
		check_missing(t, r, text);
}

void check_plan(uint32_t node, const struct communicator *m, const struct plan *p)
{
	struct seen_plan *s;
	trace((int)node, "plan %u is in force in epoch %u of %02x%02x", p->number, m->epoch,
	      m->id[0], m->id[1]);
	DL_FOREACH (plans, s)
		if (same_id(s->id, m->id) && s->epoch == m->epoch && s->number == p->number)
			break;
	if (s && s->uid != p->uid && never_forgets() && all_live())
		fail("epoch %u of %02x%02x: plan %u of node %u differs from other nodes'", m->epoch,
		     m->id[0], m->id[1], p->number, node);
	if (s)
		return;
	s = make(sizeof(*s));
	memcpy(s->id, m->id, sizeof(s->id));
	s->epoch = m->epoch;
	s->number = p->number;
	s->uid = p->uid;
	DL_APPEND(plans, s);
}

void check_creation(uint32_t node, const struct creation *k)
{
	struct nccl_comm *p;
	struct seen_creation *s;
	DL_SEARCH_SCALAR(nodes[node].gpus.nccl_comms, p, number, k->number);
	if (!p || !k->nccl_id)
		return;
	DL_SEARCH_SCALAR(creations, s, nccl_id, k->nccl_id);
	if (s && !same_id(s->unique, p->id))
		fail("node %u makes its part of NCCL communicator %#llx with a different id", node,
		     (unsigned long long)k->nccl_id);
	if (s)
		return;
	s = make(sizeof(*s));
	s->nccl_id = k->nccl_id;
	memcpy(s->unique, p->id, sizeof(s->unique));
	DL_APPEND(creations, s);
}

/* ---- At rest ---- */

/* Returns whether a member of r's epoch has not made the same request. */
static bool waits_for_somebody(const struct trainer *t, const struct request *r)
{
	const struct seen_epoch *e;
	DL_FOREACH (epochs, e) {
		if (!same_id(e->id, r->id) || e->epoch != r->epoch ||
		    e->pids[r->rank] != t->session.pid)
			continue;
		for (uint32_t k = 0; k < e->nranks; k++) {
			const struct trainer *who = trainer_of_pid(e->pids[k]);
			if (who && trainer_is_in(who, e->id, e->epoch, k) &&
			    !trainer_request(who, r->kind, e->id, k))
				return true;
		}
	}
	return false;
}

static void check_waiting(const struct trainer *t)
{
	const struct request *r;
	DL_FOREACH (t->requests, r) {
		const bool may_wait =
			!r->deadline &&
			(r->kind == ASK_JOIN || ((r->kind == ASK_SPLIT || r->kind == ASK_PLAN) &&
						 waits_for_somebody(t, r)));
		if (!may_wait)
			fail("pid %d (node %u) waits for ever: request %u (kind %d) on %02x%02x as "
			     "rank %u, epoch %u%s",
			     t->session.pid, t->node, r->request_id, r->kind, r->id[0], r->id[1],
			     r->rank, r->epoch, r->deadline ? ", with a deadline" : "");
	}
}

void check_rest(void)
{
	for (uint32_t n = 0; n < nnodes; n++)
		for (uint32_t k = 0; nodes[n].alive && k < TRAINERS_MAX; k++)
			if (nodes[n].trainers[k])
				check_waiting(nodes[n].trainers[k]);
}

/* coord's names begin with the communicator's id. */
static void check_left(uint32_t node, const char *what, const void *left)
{
	const uint8_t *id = left;
	if (left)
		fail("%s (%02x%02x) remains on node %u after all trainers have gone", what, id[0],
		     id[1], node);
}

void check_empty(void)
{
	for (uint32_t n = 0; n < nnodes; n++) {
		const struct comms *s = &nodes[n].comms;
		if (!nodes[n].alive)
			continue;
		check_left(n, "a rendezvous", s->coord.rendezvous);
		check_left(n, "a coordinator", s->coord.coordinators);
		check_left(n, "an NCCL communicator of several nodes", s->coord.shared);
		check_left(n, "a barrier", s->coord.barriers);
		check_left(n, "a plan", s->plans);
		check_left(n, "a message to itself", s->own_messages);
		check_left(n, "an NCCL communicator", nodes[n].gpus.nccl_comms);
		check_left(n, "an epoch", nodes[n].scheduler.running);
		check_left(n, "an account", nodes[n].accounts.by_tenant);
		check_left(n, "a communicator", s->comms);
	}
}
