/* SPDX-License-Identifier: Apache-2.0
 * SPLIT: all members name a colour and a key; those of one colour get a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/loop.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "coord/messages.h"
#include "remote.h"
#include "report.h"

void comm_split_refused(struct communicator *m, int result, const char *text)
{
	struct split_request *split = m->split;
	if (!split)
		return;
	report_request(m, "SPLIT", result, text);
	m->split = NULL; /* an answer may end a session, and come back here */
	for (uint32_t k = 0; k < m->nranks; k++)
		if (split[k].here && m->members[k].client)
			client_error(m->members[k].client, SVC_SPLIT, split[k].serial, result, "%s",
				     text);
	free(split);
}

void comm_split_failed(struct communicator *m, int result, int32_t rank)
{
	char text[SVC_TEXT_BYTES];
	if (!m->split)
		return;
	if (rank >= 0)
		snprintf(text, sizeof(text),
			 "rank %d (pid %d) of communicator %s went before the split was done", rank,
			 m->members[rank].pid, m->label);
	else
		comm_blameless_text(m, result, m->coordinator, text);
	comm_split_refused(m, result, text);
}

uint64_t comm_split_expire(struct communicator *m, uint64_t now)
{
	uint64_t next = 0;
	for (uint32_t k = 0; m->split && k < m->nranks; k++) {
		uint64_t at = m->split[k].here ? m->split[k].deadline_ns : 0;
		if (at && at <= now && !m->split[k].overdue) {
			/* The coordinator knows which ranks are missing: its answer comes soon. */
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

void comm_split(struct comms *s, struct client *c, uint32_t serial, const struct svc_split *r)
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
	if (!comm_is_whole(m)) {
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
		loop_deadline(s->loop, m->split[rank].deadline_ns);
	remote_split(m, (uint32_t)rank, false);
}

/* ---- What comes of it ---- */

/* Takes one member's slot in its part, and joins it. False: over a limit. */
static bool join_part(struct comms *s, struct communicator *m, uint32_t rank,
		      const struct split_request *r, const struct control_part *p, char *text)
{
	struct communicator *part = remote_find(s, p->id);
	if (!part)
		part = comm_create(s, p->id, p->nranks, m->account, text);
	if (!part || part->nranks != p->nranks)
		return false;
	const struct member *from = &m->members[rank];
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
	part->members[p->rank] = (struct member){
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

/* One by one: an answer that fails may end its session, and with it other members. */
void comm_split_parts(struct communicator *m, const struct control_parts *p)
{
	struct comms *s = m->comms;
	struct split_request *split = m->split;
	const struct svc_join_reply none = {0};
	if (!split)
		return;
	m->split = NULL;
	for (uint32_t k = 0; k < m->nranks; k++) {
		char text[SVC_TEXT_BYTES] = "another communicator has the part's name";
		struct client *c = m->members[k].client;
		const struct control_part *part = &p->parts[k].part;
		if (!split[k].here || !c)
			continue;
		if (!part->nranks) {
			client_reply(c, SVC_SPLIT, split[k].serial, &none, sizeof(none), NULL, 0);
		} else if (!join_part(s, m, k, &split[k], part, text)) {
			remote_part_refused(m, k, part, text);
			client_error(c, SVC_SPLIT, split[k].serial, NCCLSVC_LIMIT, "%s", text);
		}
	}
	free(split);
}
