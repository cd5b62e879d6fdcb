/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "channel/link.h"
#include "coord/list_messages.h"
#include "coord/messages.h"
#include "list_parts.h"
#include "proto/names.h"

#define RELAYED_MAX 16 /* requests of one user */

struct answer {
	struct control_listed head;
	_Alignas(8) char body[SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header)];
};

_Static_assert(offsetof(struct answer, body) == sizeof(struct control_listed), "one message");
_Static_assert(sizeof(struct answer) <= CONTROL_BODY_MAX, "an answer fits a message");

static const char *host_of(const struct server *s, uint32_t node)
{
	return s->cluster->nodes[node].info.host;
}

/* ---- The client's node ---- */

void relay_forget(struct server *s, struct session *c)
{
	if (!c->relayed.number)
		return;
	deadlines_remove(&s->relay.waiting, &c->relayed.deadline);
	c->account->relayed--;
	c->relayed.number = 0;
}

static void end(struct server *s, struct session *c, int result, const char *why)
{
	const uint32_t node = c->relayed.node, request_id = c->relayed.request_id;
	relay_forget(s, c);
	session_error(c, SVC_LIST, request_id, result, "node %u (%s) %s", node, host_of(s, node),
		      why);
}

static void begin(struct server *s, struct session *c, uint32_t request_id,
		  const struct svc_list *m)
{
	const uint32_t node = m->node - 1;
	const struct node *n = &s->cluster->nodes[node];
	const uint64_t now = clock_now();
	const uint64_t until = (n->last_seen_ns < now ? n->last_seen_ns : now) + NODE_LIST_NS;
	struct control_list ask = {.slot = c->slot,
				   .what = m->what,
				   .uid = c->uid,
				   .admin = c->admin,
				   .confined = c->account->tenant.confined,
				   .from = m->from};
	if (deadlines_add(&s->relay.waiting, &c->relayed.deadline, until)) {
		session_error(c, SVC_LIST, request_id, NCCLSVC_NO_MEMORY, "out of memory");
		return;
	}
	c->nrelayed += 1 + (c->nrelayed == UINT32_MAX);
	ask.number = c->relayed.number = c->nrelayed;
	c->relayed.node = node;
	c->relayed.what = m->what;
	c->relayed.request_id = request_id;
	c->account->relayed++;
	if (n->gone)
		end(s, c, NCCLSVC_PEER_GONE, "has gone");
	else if (until <= now)
		end(s, c, NCCLSVC_TIMEOUT, "does not answer");
	else
		link_send(s->cluster, node, CONTROL_LIST, &ask, sizeof(ask));
	loop_deadline(&s->loop, until);
}

bool relay_takes(struct server *s, struct session *c, uint32_t request_id, const struct svc_list *m)
{
	if (!m->node || (s->cluster && m->node - 1 == s->cluster->me))
		return false;
	if (!s->cluster || m->node > s->cluster->n)
		session_error(c, SVC_LIST, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "there is no node %u", m->node - 1);
	else if (c->relayed.number || c->account->relayed >= RELAYED_MAX)
		session_error(c, SVC_LIST, request_id, NCCLSVC_BUSY,
			      "%u requests of this user to other nodes are under way",
			      c->account->relayed);
	else
		begin(s, c, request_id, m);
	return true;
}

static bool is_whole(const struct session *c, const struct svc_list_reply *r, size_t size)
{
	const size_t most = SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header);
	return size >= sizeof(*r) && size <= most && r->what == c->relayed.what && r->record_size &&
	       r->record_size <= most && r->count <= most &&
	       size - sizeof(*r) == (size_t)r->count * r->record_size;
}

static void on_listed(struct server *s, uint32_t from, const struct control_listed *m, size_t size)
{
	struct session *c = m->slot < SVC_SESSIONS_MAX ? s->sessions.by_slot[m->slot] : NULL;
	if (!c || !m->number || c->relayed.number != m->number || c->relayed.node != from)
		return; /* it is no longer waited for */
	const struct svc_list_reply *r = (const struct svc_list_reply *)(m + 1);
	if (m->result < 0) {
		char why[64];
		snprintf(why, sizeof(why), "answers %s", svc_result_name(m->result));
		end(s, c, m->result, why);
		return;
	}
	if (m->result || !is_whole(c, r, size - sizeof(*m))) {
		end(s, c, NCCLSVC_PROTOCOL, "has sent a list that is malformed");
		return;
	}
	const uint32_t request_id = c->relayed.request_id;
	relay_forget(s, c);
	session_reply(c, SVC_LIST, request_id, r, size - sizeof(*m), NULL, 0);
}

/* Ends the requests that wait for the lost node's answer. Its own requests stay until their turn;
 * their answers are dropped. */
void relay_node_lost(struct server *s, uint32_t node)
{
	struct session *c;
	DL_FOREACH (s->sessions.all, c)
		if (c->relayed.number && c->relayed.node == node)
			end(s, c, NCCLSVC_PEER_GONE, "has gone");
}

static uint64_t expire_relayed(struct server *s, uint64_t now)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	struct deadline *d;
	while ((d = deadlines_first(&s->relay.waiting)) && d->at_ns <= now) {
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		end(s, (struct session *)((char *)d - offsetof(struct session, relayed.deadline)),
		    NCCLSVC_TIMEOUT, "does not answer");
	}
	return d ? d->at_ns : 0;
}

/* ---- The node that is asked ---- */

struct asked {
	struct asked *prev, *next;
	uint32_t from;
	struct control_list list;
};

static void answer(struct server *s, uint32_t from, const struct control_list *m)
{
	/* No tenant of this node is the asker's own, if the asker is in a pod or container. */
	struct account account = {.tenant = {m->uid, m->confined == 1, "on another node"}};
	const struct session asker = {.uid = m->uid, .admin = m->admin == 1, .account = &account};
	struct chunk p;
	struct answer a;
	size_t size = 0;
	a.head = (struct control_listed){.slot = m->slot, .number = m->number};
	if (link_is_full(s->cluster, from)) {
		a.head.result = NCCLSVC_BUSY;
	} else if (s->config->access == CONFIG_ACCESS_OWNER && !asker.admin &&
		   m->uid != geteuid()) {
		a.head.result = NCCLSVC_PERMISSION;
	} else if (!list_chunk_make(s, &p, &asker, true, m->what, m->from)) {
		a.head.result = NCCLSVC_INVALID_ARGUMENT;
	} else {
		size = chunk_bytes(&p);
		memcpy(a.body, &p.reply, size);
	}
	link_send(s->cluster, from, CONTROL_LISTED, &a, sizeof(a.head) + size);
}

/* At once, or with the deadlines if this turn of the loop has spent its time for that. */
static void on_list(struct server *s, uint32_t from, const struct control_list *m)
{
	struct relay *r = &s->relay;
	const uint64_t begin = clock_now();
	if (r->turn != s->sessions.turn) {
		r->turn = s->sessions.turn;
		r->turn_ns = 0;
	}
	struct asked *a = r->asked || r->turn_ns > OWN_TURN_NS ? malloc(sizeof(*a)) : NULL;
	if (!a) {
		answer(s, from, m);
		r->turn_ns += clock_now() - begin;
		return;
	}
	a->from = from;
	a->list = *m;
	DL_APPEND(r->asked, a);
	loop_deadline(&s->loop, begin);
}

static void drop(struct relay *r, struct asked *a)
{
	DL_DELETE(r->asked, a);
	free(a);
}

/* Returns when to call it next; 0: nothing is left. */
static uint64_t answer_rest(struct server *s)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	for (struct asked *a; (a = s->relay.asked);) {
		const uint64_t now = clock_now();
		if (now > until)
			return now;
		answer(s, a->from, &a->list);
		drop(&s->relay, a);
	}
	return 0;
}

uint64_t relay_expire(struct server *s, uint64_t now)
{
	const uint64_t rest = answer_rest(s);
	return earlier(expire_relayed(s, now), rest);
}

void relay_free(struct server *s)
{
	struct asked *a, *next;
	DL_FOREACH_SAFE (s->relay.asked, a, next)
		drop(&s->relay, a);
	deadlines_fini(&s->relay.waiting);
}

void relay_handle(struct server *s, uint32_t from, unsigned kind, const void *body, size_t size)
{
	if (s->loop.closing)
		return;
	if (kind == CONTROL_LIST && size == sizeof(struct control_list))
		on_list(s, from, body);
	else if (kind == CONTROL_LISTED && size >= sizeof(struct control_listed))
		on_listed(s, from, body, size);
	else
		log_warning("node %u (%s) has sent a message about a list that this daemon does "
			    "not know, which is ignored: all daemons must be of one version",
			    from, host_of(s, from));
}
