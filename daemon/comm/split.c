/* SPDX-License-Identifier: Apache-2.0
 * SPLIT: all members name a colour and a key; those of one colour get a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/loop.h"
#include "base/timings.h"
#include "comm.h"
#include "coord/messages.h"
#include "coord/split.h"
#include "remote.h"
#include "report.h"
#include "server/server_state.h"

void comm_split_refused(struct communicator *m, int result, const char *text)
{
	struct split_request *split = m->split;
	if (!split)
		return;
	report_request(m, "SPLIT", result, text);
	m->split = NULL; /* an answer may end a session, and come back here */
	m->splitting = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (split[k].here && m->seats[k].client)
			client_error(m->seats[k].client, SVC_SPLIT, split[k].serial, result, "%s",
				     text);
	free(split);
}

void comm_split_failed(struct communicator *m, int result, int32_t rank)
{
	struct rank_names missing = {0};
	const struct split_request *split = m->split;
	char text[SVC_TEXT_BYTES];
	if (!split)
		return;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!split[k].here)
			rank_names_add(&missing, k);
	if (rank >= 0)
		snprintf(text, sizeof(text),
			 "rank %d (pid %d) of communicator %s went before the split was done", rank,
			 m->seats[rank].pid, m->label);
	else if (result == NCCLSVC_TIMEOUT && !m->server->cluster)
		snprintf(text, sizeof(text),
			 "of communicator %s, these ranks had not asked for the split by the "
			 "deadline: %s",
			 m->label, rank_names_text(&missing));
	else
		comm_blameless_text(m, result, text);
	comm_split_refused(m, result, text);
}

uint64_t comm_split_expire(struct communicator *m, uint64_t now)
{
	uint64_t next = 0;
	for (uint32_t k = 0; m->split && k < m->nranks; k++) {
		uint64_t at = m->split[k].here ? m->split[k].deadline_ns : 0;
		if (at && at <= now && m->server->cluster && !m->split[k].overdue) {
			/* Its home knows who is missing; it answers soon, if it lives. */
			m->split[k].overdue = true;
			at = m->split[k].deadline_ns = now + NODE_ANSWER_NS;
			remote_split(m, k, true);
		}
		if (at && at <= now) {
			comm_split_failed(m, NCCLSVC_TIMEOUT, -1);
			return 0;
		}
		if (at && (!next || at < next))
			next = at;
	}
	return next;
}

/* One colour's communicator, from order[0..n). NULL: over a limit, or out of memory. */
static struct communicator *make_part(struct server *s, struct communicator *m,
				      const struct split_order *order, uint32_t n, char *text)
{
	uint8_t id[NCCLSVC_ID_BYTES];
	struct communicator *part =
		comm_random_id(id) ? NULL : comm_create(s, id, n, m->account, text);
	if (!part)
		return NULL;
	snprintf(part->label, sizeof(part->label), "split of %llu", (unsigned long long)m->uid);
	part->cuda = m->cuda;
	part->reply_opcode = SVC_SPLIT;
	for (uint32_t k = 0; k < n; k++) {
		const struct seat *from = &m->seats[order[k].rank];
		uint32_t handle = comm_new_handle(from->client, part, (int32_t)k);
		if (!handle) {
			snprintf(text, SVC_TEXT_BYTES, "a session has at most %d communicators",
				 SVC_SESSION_COMMS - 1);
			comm_discard(s, part);
			return NULL;
		}
		part->seats[k] = (struct seat){
			.state = NCCLSVC_MEMBER_JOINING,
			.client = from->client,
			.handle = handle,
			.serial = m->split[order[k].rank].serial,
			.deadline_ns = m->split[order[k].rank].deadline_ns,
			.since_ns = clock_now(),
			.pid = from->pid,
			.device = from->device,
			.fresh = true,
		};
		part->occupied++;
		part->joining++;
	}
	comm_event(part, NCCLSVC_CAUSE_JOINED);
	return part;
}

/* Makes every part before anything is answered, so that a lack of something fails all alike.
 * Returns how many there are, or -1. */
static int make_parts(struct server *s, struct communicator *m, struct split_order *order,
		      struct communicator **parts, char *text)
{
	int made = 0;
	uint32_t n = m->nranks;
	for (uint32_t k = 0; k < n; k++)
		order[k] = (struct split_order){m->split[k].colour, m->split[k].key, k};
	split_sort(order, n);
	for (uint32_t lo = 0, hi; lo < n; lo = hi) {
		for (hi = lo + 1; hi < n && order[hi].colour == order[lo].colour; hi++)
			;
		if (order[lo].colour < 0)
			continue;
		parts[made] = make_part(s, m, order + lo, hi - lo, text);
		if (!parts[made]) {
			while (made)
				comm_discard(s, parts[--made]);
			return -1;
		}
		made++;
	}
	return made;
}

static void finish_split(struct server *s, struct communicator *m)
{
	uint32_t n = m->nranks;
	struct split_order *order = calloc(n, sizeof(*order));
	struct communicator **parts = calloc(n, sizeof(*parts));
	char text[SVC_TEXT_BYTES] = "the daemon has no memory for a split";
	int made = order && parts ? make_parts(s, m, order, parts, text) : -1;
	struct split_request *split = m->split;
	m->split = NULL;
	m->splitting = 0;
	for (uint32_t k = 0; k < n; k++) {
		struct client *c = m->seats[k].client;
		const struct svc_join_reply none = {0};
		if (made < 0 && c)
			client_error(c, SVC_SPLIT, split[k].serial, NCCLSVC_LIMIT, "%s", text);
		else if (split[k].colour < 0 && c)
			client_reply(c, SVC_SPLIT, split[k].serial, &none, sizeof(none), NULL, 0);
	}
	for (int i = 0; i < made; i++) {
		/* An answer that failed has ended its session, a member of another part */
		if (parts[i]->joining == parts[i]->nranks)
			comm_try_start(s, parts[i]);
		else
			comm_abandon(parts[i]);
	}
	free(split);
	free(order);
	free(parts);
}

void comm_split(struct client *c, uint32_t serial, const struct svc_split *r)
{
	struct communicator *m = NULL;
	if (r->comm && r->comm < c->nmemberships)
		m = c->memberships[r->comm].comm;
	if (!m) {
		client_error(c, SVC_SPLIT, serial, NCCLSVC_NOT_FOUND,
			     "there is no communicator %u in this session", r->comm);
		return;
	}
	int32_t rank = c->memberships[r->comm].rank;
	if (r->reserved || r->timeout_ns > SVC_TIMEOUT_MAX_NS) {
		client_error(c, SVC_SPLIT, serial, NCCLSVC_INVALID_ARGUMENT,
			     "the timeout is out of range, or a reserved field is not zero");
		return;
	}
	if (!epoch_runs(&m->life) || m->occupied + m->remote != m->nranks) {
		client_error(c, SVC_SPLIT, serial, NCCLSVC_STALE_EPOCH,
			     "communicator %s lacks members: rejoin it first", m->label);
		return;
	}
	if (!m->split)
		m->split = calloc(m->nranks, sizeof(*m->split));
	if (!m->split) {
		client_error(c, SVC_SPLIT, serial, NCCLSVC_NO_MEMORY, "out of memory");
		return;
	}
	if (m->split[rank].here) {
		client_error(c, SVC_SPLIT, serial, NCCLSVC_BUSY,
			     "rank %d has asked for this split already", rank);
		return;
	}
	m->split[rank] = (struct split_request){
		.here = true,
		.colour = r->colour,
		.key = r->key,
		.serial = serial,
		.deadline_ns = r->timeout_ns ? clock_now() + r->timeout_ns : 0,
	};
	if (r->timeout_ns)
		loop_deadline(&c->server->loop, m->split[rank].deadline_ns);
	if (c->server->cluster)
		remote_split(m, (uint32_t)rank, false);
	else if (++m->splitting == m->nranks)
		finish_split(c->server, m);
}

/* ---- With other nodes: the home decides ---- */

/* Seats one member in its part, and joins it. False: over a limit. */
static bool join_part(struct server *s, struct communicator *m, uint32_t rank,
		      const struct split_request *r, const struct control_part *p, char *text)
{
	struct communicator *part = NULL;
	HASH_FIND(hh, s->comms, p->id, sizeof(p->id), part);
	if (!part)
		part = comm_create(s, p->id, p->nranks, m->account, text);
	if (!part || part->nranks != p->nranks)
		return false;
	const struct seat *from = &m->seats[rank];
	uint32_t handle = comm_new_handle(from->client, part, (int32_t)p->rank);
	if (!handle) {
		snprintf(text, SVC_TEXT_BYTES, "a session has at most %d communicators",
			 SVC_SESSION_COMMS - 1);
		comm_event(part, NCCLSVC_CAUSE_START_FAILED);
		return false;
	}
	snprintf(part->label, sizeof(part->label), "split of %llu", (unsigned long long)m->uid);
	part->cuda = m->cuda;
	part->reply_opcode = SVC_SPLIT;
	part->seats[p->rank] = (struct seat){
		.state = NCCLSVC_MEMBER_JOINING,
		.client = from->client,
		.handle = handle,
		.serial = r->serial,
		.deadline_ns = r->deadline_ns,
		.since_ns = clock_now(),
		.pid = from->pid,
		.device = from->device,
		.node = -1,
		.fresh = true,
	};
	part->occupied++;
	part->joining++;
	comm_event(part, NCCLSVC_CAUSE_JOINED);
	remote_join(part, p->rank);
	return true;
}

void comm_split_parts(struct communicator *m, const struct control_parts *p)
{
	struct server *s = m->server;
	struct split_request *split = m->split;
	const struct svc_join_reply none = {0};
	char text[SVC_TEXT_BYTES] = "another node names the part with other ranks";
	if (!split)
		return;
	m->split = NULL;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct client *c = m->seats[k].client;
		const struct control_part *part = &p->parts[k].part;
		bool sound = part->nranks <= SVC_HOST_RANKS_MAX &&
			     (!part->nranks || part->rank < part->nranks);
		if (!split[k].here || !c || !sound)
			continue;
		if (!part->nranks)
			client_reply(c, SVC_SPLIT, split[k].serial, &none, sizeof(none), NULL, 0);
		else if (!join_part(s, m, k, &split[k], part, text))
			client_error(c, SVC_SPLIT, split[k].serial, NCCLSVC_LIMIT, "%s", text);
	}
	free(split);
}
