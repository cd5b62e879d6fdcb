/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/timings.h"
#include "channel/link.h"
#include "coord/messages.h"
#include "list_parts.h"
#include "names.h"

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

void relay_forget(struct server *s, struct client *c)
{
	if (!c->relayed.number)
		return;
	deadlines_remove(&s->relayed, &c->relayed.deadline);
	c->account->relayed--;
	c->relayed.number = 0;
}

static void end(struct server *s, struct client *c, int result, const char *why)
{
	const uint32_t node = c->relayed.node, serial = c->relayed.serial;
	relay_forget(s, c);
	client_error(c, SVC_LIST, serial, result, "node %u (%s) %s", node, host_of(s, node), why);
}

static void begin(struct server *s, struct client *c, uint32_t serial, const struct svc_list *m)
{
	const uint32_t node = m->node - 1;
	const struct node *n = &s->cluster->nodes[node];
	const uint64_t now = clock_now();
	const uint64_t until = (n->heard_ns < now ? n->heard_ns : now) + NODE_LIST_NS;
	struct control_list ask = {.slot = c->slot,
				   .what = m->what,
				   .uid = c->uid,
				   .admin = c->admin,
				   .from = m->from};
	if (deadlines_add(&s->relayed, &c->relayed.deadline, until)) {
		client_error(c, SVC_LIST, serial, NCCLSVC_NO_MEMORY, "out of memory");
		return;
	}
	c->nrelayed += 1 + (c->nrelayed == UINT32_MAX);
	ask.number = c->relayed.number = c->nrelayed;
	c->relayed.node = node;
	c->relayed.what = m->what;
	c->relayed.serial = serial;
	c->account->relayed++;
	if (n->gone)
		end(s, c, NCCLSVC_PEER_GONE, "has gone");
	else if (until <= now)
		end(s, c, NCCLSVC_TIMEOUT, "does not answer");
	else
		link_send(s->cluster, node, CONTROL_LIST, &ask, sizeof(ask));
	loop_deadline(&s->loop, until);
}

bool relay_takes(struct server *s, struct client *c, uint32_t serial, const struct svc_list *m)
{
	if (!m->node || (s->cluster && m->node - 1 == s->cluster->me))
		return false;
	if (!s->cluster || m->node > s->cluster->n)
		client_error(c, SVC_LIST, serial, NCCLSVC_INVALID_ARGUMENT, "there is no node %u",
			     m->node - 1);
	else if (c->relayed.number || c->account->relayed >= RELAYED_MAX)
		client_error(c, SVC_LIST, serial, NCCLSVC_BUSY,
			     "%u requests of this user to other nodes are under way",
			     c->account->relayed);
	else
		begin(s, c, serial, m);
	return true;
}

static bool is_whole(const struct client *c, const struct svc_list_reply *r, size_t size)
{
	const size_t most = SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header);
	return size >= sizeof(*r) && size <= most && r->what == c->relayed.what && r->record_size &&
	       r->record_size <= most && r->count <= most &&
	       size - sizeof(*r) == (size_t)r->count * r->record_size;
}

static void on_listed(struct server *s, uint32_t from, const struct control_listed *m, size_t size)
{
	struct client *c = m->slot < SVC_SESSIONS_MAX ? s->sessions.by_slot[m->slot] : NULL;
	if (!c || !m->number || c->relayed.number != m->number || c->relayed.node != from)
		return; /* it is no longer waited for */
	const struct svc_list_reply *r = (const struct svc_list_reply *)(m + 1);
	if (m->result) {
		end(s, c, m->result, svc_result_name(m->result));
		return;
	}
	if (!is_whole(c, r, size - sizeof(*m))) {
		end(s, c, NCCLSVC_PROTOCOL, "has sent a list that is malformed");
		return;
	}
	const uint32_t serial = c->relayed.serial;
	relay_forget(s, c);
	client_reply(c, SVC_LIST, serial, r, size - sizeof(*m), NULL, 0);
}

void relay_node_lost(struct server *s, uint32_t node)
{
	for (uint32_t i = s->relayed.n; i > 0; i--) {
		/* Removal moves elements of the heap forward as well as back: begin again. */
		struct client *c = (struct client *)((char *)s->relayed.heap[i] -
						     offsetof(struct client, relayed.deadline));
		if (c->relayed.node != node)
			continue;
		end(s, c, NCCLSVC_PEER_GONE, "has gone");
		i = s->relayed.n + 1;
	}
}

uint64_t relay_expire(struct server *s, uint64_t now)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	struct deadline *d;
	while ((d = deadlines_first(&s->relayed)) && d->at_ns <= now) {
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		end(s, (struct client *)((char *)d - offsetof(struct client, relayed.deadline)),
		    NCCLSVC_TIMEOUT, "does not answer");
	}
	return d ? d->at_ns : 0;
}

/* ---- The node that is asked ---- */

static void on_list(struct server *s, uint32_t from, const struct control_list *m)
{
	const struct client asker = {.uid = m->uid, .admin = m->admin == 1};
	struct chunk p;
	struct answer a;
	size_t size = 0;
	a.head = (struct control_listed){.slot = m->slot, .number = m->number};
	if (link_is_full(s->cluster, from)) {
		a.head.result = NCCLSVC_BUSY;
	} else if (s->config->access == CONFIG_ACCESS_OWNER && !client_allows(&asker, geteuid())) {
		a.head.result = NCCLSVC_PERMISSION;
	} else if (!list_chunk_make(s, &p, &asker, true, m->what, m->from)) {
		a.head.result = NCCLSVC_INVALID_ARGUMENT;
	} else {
		size = chunk_bytes(&p);
		memcpy(a.body, &p.reply, size);
	}
	link_send(s->cluster, from, CONTROL_LISTED, &a, sizeof(a.head) + size);
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
