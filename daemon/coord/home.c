/* SPDX-License-Identifier: Apache-2.0
 * The home of a communicator: the one node that knows, of all its ranks, who has joined. It checks
 * what only can be checked there, and starts the epochs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "gathering.h"
#include "missing.h"
#include "plan.h"
#include "split.h"

#define GATHERINGS_MAX SVC_COMMS_MAX

/* Any node that lives can be a home: the next one, if the id's own is gone. */
uint32_t home_of(const struct cluster *c, const uint8_t *id)
{
	uint64_t word;
	memcpy(&word, id, sizeof(word));
	uint32_t node = (uint32_t)(word % c->n);
	while (c->nodes[node].gone)
		node = (node + 1) % c->n;
	return node;
}

struct gathering *home_find(struct cluster *c, const uint8_t *id)
{
	struct gathering *g;
	HASH_FIND(hh, c->gatherings, id, sizeof(g->id), g);
	return g;
}

static void forget(struct cluster *c, struct gathering *g)
{
	HASH_DEL(c->gatherings, g);
	home_plan_forget(g);
	free(g->seats);
	free(g->split);
	free(g);
}

static struct gathering *create(struct cluster *c, const struct control_join *m)
{
	struct gathering *g =
		HASH_COUNT(c->gatherings) < GATHERINGS_MAX ? calloc(1, sizeof(*g)) : NULL;
	struct gathered_seat *seats = calloc(m->nranks, sizeof(*seats));
	if (!g || !seats) {
		free(g);
		free(seats);
		return NULL;
	}
	memcpy(g->id, m->id, sizeof(g->id));
	g->nranks = m->nranks;
	g->seats = seats;
	g->since_ns = clock_now();
	g->number = c->callbacks->number(c);
	HASH_ADD(hh, c->gatherings, id, sizeof(g->id), g);
	return g;
}

void home_tell_nodes(struct cluster *c, const struct gathering *g, enum control_kind kind,
		     const void *body, size_t size)
{
	bool told[CLUSTER_NODES_MAX] = {false};
	for (uint32_t k = 0; k < g->nranks; k++) {
		const struct gathered_seat *s = &g->seats[k];
		if (s->state == SEAT_FREE || told[s->node])
			continue;
		told[s->node] = true;
		link_send(c, s->node, kind, body, size);
	}
}

static void free_seat(struct gathering *g, struct gathered_seat *s)
{
	if (s->state == SEAT_FREE)
		return;
	if (s->state == SEAT_JOINING)
		g->joining--;
	s->state = SEAT_FREE;
	if (!--g->held)
		g->idle_ns = clock_now();
}

static void note_refusal(struct gathering *g, int32_t rank, int32_t pid, const char *text)
{
	g->refused = (struct refusal){.rank = rank, .pid = pid};
	memcpy(g->refused.text, text, sizeof(g->refused.text));
}

void home_refused(struct cluster *c, const struct control_refuse *m)
{
	struct gathering *g = home_find(c, m->id);
	if (g)
		note_refusal(g, (int32_t)m->rank, m->pid, m->text);
}

static void begin_attempt(struct gathering *g)
{
	g->refused.pid = 0;
	for (uint32_t k = 0; k < g->nranks; k++)
		g->seats[k].late = false;
}

/* m->pid 0: a JOIN that was taken, and fails. */
__attribute__((format(printf, 6, 7))) static void refuse(struct cluster *c, uint32_t node,
							 struct gathering *g,
							 const struct control_join *m, int result,
							 const char *format, ...)
{
	struct control_refuse r = {
		.rank = m->rank, .session = m->session, .serial = m->serial, .result = result};
	va_list args;
	memcpy(r.id, m->id, sizeof(r.id));
	va_start(args, format);
	vsnprintf(r.text, sizeof(r.text), format, args);
	va_end(args);
	if (g && g->uid == m->uid && m->pid)
		note_refusal(g, (int32_t)m->rank, m->pid, r.text);
	link_send(c, node, CONTROL_REFUSE, &r, sizeof(r));
}

/* The SPLIT that is under way cannot be: its members are told. */
static void fail_split(struct cluster *c, struct gathering *g, int result, const char *text)
{
	struct control_split_failed m = {.epoch = g->epoch, .result = result};
	if (!g->split)
		return;
	memcpy(m.id, g->id, sizeof(m.id));
	snprintf(m.text, sizeof(m.text), "%s", text);
	home_tell_nodes(c, g, CONTROL_SPLIT_FAILED, &m, sizeof(m));
	free(g->split);
	g->split = NULL;
	g->splitting = 0;
}

/* The epoch is over, for whatever reason: members must join again. */
static void end_epoch(struct gathering *g)
{
	g->running = false;
	free(g->split); /* the members' nodes know why */
	g->split = NULL;
	g->splitting = 0;
	home_plan_forget(g);
	for (uint32_t k = 0; k < g->nranks; k++)
		if (g->seats[k].state == SEAT_JOINED)
			g->seats[k].state = SEAT_BROKEN;
}

static void start(struct cluster *c, struct gathering *g)
{
	size_t size = sizeof(struct control_start) + g->nranks * sizeof(struct control_member);
	struct control_start *m = calloc(1, size);
	if (!m) {
		log_error("communicator %s: out of memory", g->label);
		return;
	}
	memcpy(m->id, g->id, sizeof(m->id));
	m->epoch = ++g->epoch;
	m->nranks = g->nranks;
	m->span = ((uint64_t)c->me + 1) << 48 | ++c->spans;
	for (uint32_t k = 0; k < g->nranks; k++) {
		struct gathered_seat *s = &g->seats[k];
		s->state = SEAT_JOINED;
		m->members[k] = (struct control_member){s->node, s->session, s->pid, s->device};
	}
	g->joining = 0;
	g->running = true;
	g->plan_round = 0;
	home_tell_nodes(c, g, CONTROL_START, m, size);
	free(m);
}

/* Who asks for a seat that is held? */
static bool may_sit(struct cluster *c, uint32_t from, struct gathering *g,
		    const struct control_join *m)
{
	struct gathered_seat *s = &g->seats[m->rank];
	bool same = s->node == from && s->session == m->session;
	if (s->state == SEAT_JOINED && same && m->epoch >= g->epoch)
		end_epoch(g); /* its node knew before */
	if (s->state == SEAT_FREE || (s->state == SEAT_BROKEN && same))
		return true;
	refuse(c, from, g, m, NCCLSVC_RANK_TAKEN,
	       "rank %u of communicator %s is held by pid %d, session %u of node %u (%s)", m->rank,
	       g->label, s->pid, s->session, s->node, c->nodes[s->node].card.host);
	return false;
}

static const char *transport_name(uint32_t transport)
{
	return transport == NCCLSVC_TRANSPORT_MPI ? "MPI" : "NCCL";
}

/* The gathering that a JOIN is for, made if need be; NULL after it was refused. */
static struct gathering *gathering_for(struct cluster *c, uint32_t from,
				       const struct control_join *m)
{
	struct gathering *g = home_find(c, m->id);
	if (g && g->held && g->uid != m->uid && !(m->world && !g->held)) {
		refuse(c, from, g, m, NCCLSVC_PERMISSION, "communicator %s belongs to user %u",
		       g->label, g->uid);
		return NULL;
	}
	if (g && g->nranks != m->nranks) {
		if (g->held) {
			refuse(c, from, g, m, NCCLSVC_MISMATCH,
			       "nranks differs: rank %u (pid %d, node %u) says %u, the members of "
			       "communicator %s said %u",
			       m->rank, m->pid, from, m->nranks, g->label, g->nranks);
			return NULL;
		}
		forget(c, g);
		g = NULL;
	}
	if (!g && !(g = create(c, m))) {
		refuse(c, from, NULL, m, NCCLSVC_LIMIT, "node %u can't gather more communicators",
		       c->me);
		return NULL;
	}
	if (!g->held) {
		g->uid = m->uid;
		g->cuda = m->cuda;
		g->transport = m->transport;
		memcpy(g->label, m->label, sizeof(g->label));
		g->label[sizeof(g->label) - 1] = '\0';
	}
	if (g->epoch < m->epoch)
		g->epoch = m->epoch; /* another home, which is gone, has counted so far */
	if (g->cuda != m->cuda) {
		refuse(c, from, g, m, NCCLSVC_MISMATCH,
		       "rank %u (pid %d, node %u) joins with %s, the members of communicator %s "
		       "did with %s",
		       m->rank, m->pid, from, m->cuda ? "a GPU" : "host memory", g->label,
		       g->cuda ? "GPUs" : "host memory");
		return NULL;
	}
	if (g->cuda && g->transport != m->transport) {
		uint32_t k = 0;
		while (g->seats[k].state == SEAT_FREE)
			k++;
		refuse(c, from, g, m, NCCLSVC_MISMATCH,
		       "device memory is carried by %s on node %u (rank %u, pid %d), and by %s on "
		       "node %u (rank %u): set transport alike on all nodes",
		       transport_name(m->transport), from, m->rank, m->pid,
		       transport_name(g->transport), g->seats[k].node, k);
		return NULL;
	}
	return g;
}

void home_join(struct cluster *c, uint32_t from, const struct control_join *m)
{
	struct gathering *g = gathering_for(c, from, m);
	if (!g || !may_sit(c, from, g, m))
		return;
	struct gathered_seat *s = &g->seats[m->rank];
	/* Someone left while the others went on: a newcomer needs an epoch with all of them. */
	if (g->running) {
		struct control_break b = {.epoch = g->epoch,
					  .result = NCCLSVC_PEER_GONE,
					  .rank = (int32_t)m->rank,
					  .pid = s->pid,
					  .node = -1};
		memcpy(b.id, g->id, sizeof(b.id));
		home_tell_nodes(c, g, CONTROL_BREAK, &b, sizeof(b));
		end_epoch(g);
	}
	if (!g->joining)
		begin_attempt(g);
	if (g->refused.rank == (int32_t)m->rank)
		g->refused.pid = 0;
	if (s->state == SEAT_FREE)
		g->held++;
	*s = (struct gathered_seat){.state = SEAT_JOINING,
				    .node = from,
				    .session = m->session,
				    .serial = m->serial,
				    .pid = m->pid,
				    .device = m->device,
				    .split = m->split,
				    .since_ns = clock_now()};
	if (++g->joining == g->nranks)
		start(c, g);
}

static void refuse_late(struct cluster *c, struct gathering *g, uint32_t rank)
{
	struct gathered_seat *s = &g->seats[rank];
	struct absent_ranks absent = {0};
	struct control_join m = {.rank = rank, .session = s->session, .serial = s->serial};
	char text[SVC_TEXT_BYTES];
	for (uint32_t k = 0; k < g->nranks; k++)
		if (g->seats[k].state != SEAT_JOINING)
			absent_add(&absent, k, g->seats[k].late);
	absent_text(&absent, g->label, rank, &g->refused, text);
	memcpy(m.id, g->id, sizeof(m.id));
	refuse(c, s->node, g, &m, NCCLSVC_TIMEOUT, "%s", text);
	s->late = true;
}

void home_unjoin(struct cluster *c, uint32_t from, const struct control_unjoin *m)
{
	struct gathering *g = home_find(c, m->id);
	if (!g || m->rank >= g->nranks)
		return;
	struct gathered_seat *s = &g->seats[m->rank];
	bool joining = s->state == SEAT_JOINING, split = s->split;
	if (s->node != from || s->session != m->session || s->state == SEAT_FREE)
		return;
	if (s->state == SEAT_JOINED && m->why == UNJOIN_LATE)
		return; /* it has begun meanwhile */
	if (s->state == SEAT_JOINED)
		end_epoch(g); /* its node knew before: who broke it may tell us later */
	if (m->why == UNJOIN_LATE && joining)
		refuse_late(c, g, m->rank);
	if (m->why == UNJOIN_LATE && !joining)
		return;
	free_seat(g, s);
	/* Nobody else can ever take a seat of a split that has not begun. */
	for (uint32_t k = 0; joining && split && k < g->nranks; k++) {
		struct gathered_seat *other = &g->seats[k];
		struct control_join j = {
			.rank = k, .session = other->session, .serial = other->serial};
		if (other->state != SEAT_JOINING)
			continue;
		memcpy(j.id, g->id, sizeof(j.id));
		if (m->why == UNJOIN_LATE)
			refuse(c, other->node, g, &j, NCCLSVC_TIMEOUT,
			       "the split was not done by rank %u's deadline", m->rank);
		else
			refuse(c, other->node, g, &j, NCCLSVC_PEER_GONE,
			       "a member went before the split was done");
		free_seat(g, other);
	}
}

void home_broken(struct cluster *c, uint32_t from, const struct control_break *m)
{
	struct gathering *g = home_find(c, m->id);
	(void)from;
	if (!g || m->epoch != g->epoch)
		return;
	if (g->running)
		end_epoch(g);
	if (m->result == NCCLSVC_PEER_GONE && m->node < 0 && m->rank >= 0 &&
	    (uint32_t)m->rank < g->nranks && g->seats[m->rank].state == SEAT_BROKEN &&
	    g->seats[m->rank].node == from)
		free_seat(g, &g->seats[m->rank]);
}

void home_left(struct cluster *c, uint32_t from, const struct control_break *m)
{
	struct gathering *g = home_find(c, m->id);
	if (!g || m->epoch != g->epoch || m->rank < 0 || (uint32_t)m->rank >= g->nranks)
		return;
	if (g->seats[m->rank].node != from || g->seats[m->rank].state == SEAT_JOINING)
		return;
	char text[SVC_TEXT_BYTES];
	snprintf(text, sizeof(text), PLAN_GONE_TEXT, m->rank, g->seats[m->rank].pid, g->label);
	free_seat(g, &g->seats[m->rank]);
	fail_split(c, g, NCCLSVC_PEER_GONE, "a member left before the split was done");
	home_plan_refuse(c, g, NCCLSVC_PEER_GONE, text);
	if (!g->held)
		g->running = false;
}

/* ---- SPLIT ---- */

/* All have asked: who joins what now? The parts' homes take it from there. */
static void finish_split(struct cluster *c, struct gathering *g)
{
	const uint32_t n = g->nranks;
	size_t size = sizeof(struct control_parts) + n * sizeof(struct control_part_of);
	struct control_parts *m = calloc(1, size);
	struct split_order *order = calloc(n, sizeof(*order));
	bool good = m && order;
	for (uint32_t k = 0; good && k < n; k++)
		order[k] = (struct split_order){g->split[k].colour, g->split[k].key, k};
	if (good)
		split_sort(order, n);
	for (uint32_t lo = 0, hi; good && lo < n; lo = hi) {
		uint8_t id[NCCLSVC_ID_BYTES];
		for (hi = lo + 1; hi < n && order[hi].colour == order[lo].colour; hi++)
			;
		good = !comm_random_id(id);
		for (uint32_t i = lo; i < hi; i++) {
			struct control_part_of *p = &m->parts[order[i].rank];
			p->rank = order[i].rank;
			memcpy(p->part.id, id, sizeof(id));
			p->part.nranks = order[i].colour < 0 ? 0 : hi - lo;
			p->part.rank = i - lo;
		}
	}
	if (good) {
		memcpy(m->id, g->id, sizeof(m->id));
		m->epoch = g->epoch;
		m->count = n;
		home_tell_nodes(c, g, CONTROL_PARTS, m, size);
		free(g->split);
		g->split = NULL;
		g->splitting = 0;
	} else {
		fail_split(c, g, NCCLSVC_NO_MEMORY, "out of memory");
	}
	free(order);
	free(m);
}

void home_split(struct cluster *c, uint32_t from, const struct control_split *m)
{
	struct gathering *g = home_find(c, m->id);
	struct control_split_failed failed = {.epoch = m->epoch, .result = NCCLSVC_STALE_EPOCH};
	if (!g || !g->running || m->epoch != g->epoch || g->held != g->nranks ||
	    m->rank >= g->nranks || g->seats[m->rank].node != from) {
		memcpy(failed.id, m->id, sizeof(failed.id));
		snprintf(failed.text, sizeof(failed.text), HOME_STALE_TEXT);
		link_send(c, from, CONTROL_SPLIT_FAILED, &failed, sizeof(failed));
		return;
	}
	if (!g->split)
		g->split = calloc(g->nranks, sizeof(*g->split));
	if (!g->split || g->split[m->rank].here)
		return; /* its node checks; out of memory, the deadline tells */
	g->split[m->rank] = (struct asked_split){true, m->colour, m->key};
	if (++g->splitting == g->nranks)
		finish_split(c, g);
}

void home_split_late(struct cluster *c, uint32_t from, const struct control_split *m)
{
	struct gathering *g = home_find(c, m->id);
	struct rank_names missing = {0};
	char text[SVC_TEXT_BYTES];
	(void)from;
	if (!g || !g->split || m->epoch != g->epoch)
		return;
	for (uint32_t k = 0; k < g->nranks; k++)
		if (!g->split[k].here)
			rank_names_add(&missing, k);
	snprintf(text, sizeof(text),
		 "of communicator %s, these ranks had not asked for the split by the deadline: %s",
		 g->label, rank_names_text(&missing));
	fail_split(c, g, NCCLSVC_TIMEOUT, text);
}

/* ---- Inspection ---- */

static void describe_seat(const struct cluster *c, const struct gathered_seat *s,
			  ncclsvc_member_info *i)
{
	if (s->state == SEAT_FREE)
		return;
	i->state = s->state == SEAT_BROKEN ? NCCLSVC_MEMBER_BROKEN : NCCLSVC_MEMBER_JOINING;
	i->pid = s->pid;
	i->device = s->device;
	i->elsewhere = s->node == c->me ? 0 : s->node + 1;
	if (s->state == SEAT_JOINING)
		i->waiting_ns = clock_now() - s->since_ns;
}

struct home_view home_look(struct cluster *c, const uint8_t *id)
{
	const uint32_t home = home_of(c, id);
	return (struct home_view){home, home == c->me ? home_find(c, id) : NULL};
}

void home_describe(const struct cluster *c, const struct home_view *v, ncclsvc_member_info *i)
{
	if (v->gathering && (uint32_t)i->rank < v->gathering->nranks) {
		describe_seat(c, &v->gathering->seats[i->rank], i);
	} else if (v->home != c->me && i->state != NCCLSVC_MEMBER_DEAD) {
		i->state = NCCLSVC_MEMBER_UNKNOWN;
		i->elsewhere = v->home + 1;
	}
}

/* ---- The end ---- */

void home_node_lost(struct cluster *c, uint32_t node)
{
	struct gathering *g, *next;
	HASH_ITER (hh, c->gatherings, g, next) {
		bool member = false;
		for (uint32_t k = 0; k < g->nranks; k++)
			member |= g->seats[k].state != SEAT_FREE && g->seats[k].node == node;
		if (!member)
			continue;
		/* The members' nodes have noticed it themselves. */
		if (g->running)
			end_epoch(g);
		for (uint32_t k = 0; k < g->nranks; k++)
			if (g->seats[k].node == node)
				free_seat(g, &g->seats[k]);
	}
}

void home_expire(struct cluster *c, uint64_t now, uint64_t keep_ns)
{
	struct gathering *g, *next;
	HASH_ITER (hh, c->gatherings, g, next)
		if (!g->held && now - g->idle_ns >= keep_ns)
			forget(c, g);
}

void home_free(struct cluster *c)
{
	struct gathering *g, *next;
	HASH_ITER (hh, c->gatherings, g, next)
		forget(c, g);
}
