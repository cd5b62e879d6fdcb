/* SPDX-License-Identifier: Apache-2.0
 * What this node tells a communicator's home and the other members' nodes, and what it does when
 * they tell it something. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/no_memory.h"
#include "base/timings.h"
#include "comm.h"
#include "coord/home.h"
#include "coord/registrar.h"
#include "gpu/gpu.h"
#include "gpus.h"
#include "names.h"
#include "remote.h"
#include "server/server_state.h"

static struct cluster *cluster_of(const struct communicator *m)
{
	return m->server->cluster;
}

/* To all nodes of the epoch but this one, and to the home. */
static void tell_epoch(struct communicator *m, enum control_kind kind, const void *body,
		       size_t size)
{
	struct cluster *c = cluster_of(m);
	bool told[CLUSTER_NODES_MAX] = {false};
	uint32_t home = home_of(c, m->id);
	told[c->me] = true;
	for (uint32_t k = 0; k < m->nranks; k++) {
		int32_t node = m->seats[k].node;
		if (node < 0 || told[node])
			continue;
		told[node] = true;
		link_send(c, (uint32_t)node, kind, body, size);
	}
	if (!told[home] || home == c->me)
		link_send(c, home, kind, body, size);
}

void remote_join(struct communicator *m, uint32_t rank)
{
	struct cluster *c = cluster_of(m);
	const struct seat *seat = &m->seats[rank];
	struct control_join j = {
		.nranks = m->nranks,
		.rank = rank,
		.pid = seat->pid,
		.uid = m->owner,
		.session = seat->client->id,
		.cuda = m->cuda,
		.device = seat->device,
		.epoch = epoch_runs(&m->life) ? 0 : m->epoch,
		.world = m->world,
		.split = m->reply_opcode == SVC_SPLIT,
		.serial = seat->serial,
		.transport =
			m->server->gpus.staging ? NCCLSVC_TRANSPORT_MPI : NCCLSVC_TRANSPORT_NCCL,
	};
	memcpy(j.id, m->id, sizeof(j.id));
	memcpy(j.label, m->label, sizeof(j.label));
	link_send(c, home_of(c, m->id), CONTROL_JOIN, &j, sizeof(j));
}

void remote_refused(struct communicator *m, int result)
{
	struct cluster *c = cluster_of(m);
	struct control_refuse r = {
		.rank = (uint32_t)m->refused.rank, .result = result, .pid = m->refused.pid};
	memcpy(r.id, m->id, sizeof(r.id));
	memcpy(r.text, m->refused.text, sizeof(r.text));
	link_send(c, home_of(c, m->id), CONTROL_REFUSED, &r, sizeof(r));
}

void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, bool late)
{
	struct cluster *c = cluster_of(m);
	struct control_unjoin u = {
		.rank = rank, .session = session, .why = late ? UNJOIN_LATE : UNJOIN_GONE};
	memcpy(u.id, m->id, sizeof(u.id));
	link_send(c, home_of(c, m->id), CONTROL_UNJOIN, &u, sizeof(u));
}

void remote_break(struct communicator *m, int result, int32_t rank, int32_t node)
{
	struct control_break b = {
		.epoch = m->epoch,
		.result = result,
		.rank = rank,
		.pid = rank >= 0 ? m->seats[rank].pid : 0,
		.node = node,
	};
	memcpy(b.id, m->id, sizeof(b.id));
	tell_epoch(m, CONTROL_BREAK, &b, sizeof(b));
}

void remote_not_begun(struct communicator *m, int result, int32_t rank, bool all)
{
	struct cluster *c = cluster_of(m);
	const uint32_t home = home_of(c, m->id);
	bool told[CLUSTER_NODES_MAX] = {false};
	struct control_break b = {
		.epoch = m->start->epoch,
		.result = result,
		.rank = rank,
		.pid = rank >= 0 ? m->seats[rank].pid : 0,
		.node = -1,
	};
	memcpy(b.id, m->id, sizeof(b.id));
	told[c->me] = told[home] = true;
	link_send(c, home, CONTROL_BREAK, &b, sizeof(b));
	for (uint32_t k = 0; all && k < m->nranks; k++) {
		const uint32_t node = m->start->members[k].node;
		if (!told[node])
			link_send(c, node, CONTROL_BREAK, &b, sizeof(b));
		told[node] = true;
	}
}

void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again)
{
	struct cluster *c = cluster_of(m);
	const size_t size =
		sizeof(struct control_nccl_ready) + m->nranks * sizeof(struct control_gpu);
	struct control_nccl_ready *r = calloc(1, size);
	if (!r)
		no_memory("the start of a communicator across nodes"); /* the other nodes would wait
									  for ever */
	memcpy(r->id, m->id, sizeof(r->id));
	r->epoch = m->start->epoch;
	r->nranks = m->nranks;
	r->result = result;
	r->rank = rank;
	r->again = again;
	for (uint32_t k = 0; k < m->nranks; k++)
		r->gpus[k] = (struct control_gpu){m->start->members[k].node,
						  m->start->members[k].device};
	link_send(c, registrar_of(c), CONTROL_NCCL_READY, r, size);
	free(r);
}

void remote_left(struct communicator *m, int32_t rank)
{
	struct control_break b = {.epoch = m->epoch,
				  .result = NCCLSVC_PEER_GONE,
				  .rank = rank,
				  .pid = m->seats[rank].pid,
				  .node = -1};
	memcpy(b.id, m->id, sizeof(b.id));
	tell_epoch(m, CONTROL_LEFT, &b, sizeof(b));
}

void remote_split(struct communicator *m, uint32_t rank, bool late)
{
	struct cluster *c = cluster_of(m);
	struct control_split s = {.epoch = m->epoch,
				  .rank = rank,
				  .colour = m->split[rank].colour,
				  .key = m->split[rank].key};
	memcpy(s.id, m->id, sizeof(s.id));
	link_send(c, home_of(c, m->id), late ? CONTROL_SPLIT_LATE : CONTROL_SPLIT, &s, sizeof(s));
}

/* ---- What others tell ---- */

struct communicator *remote_find(struct cluster *c, const uint8_t *id)
{
	struct communicator *m;
	HASH_FIND(hh, c->server->comms, id, NCCLSVC_ID_BYTES, m);
	return m;
}

static void on_refuse(struct cluster *c, const struct control_refuse *r)
{
	struct communicator *m = remote_find(c, r->id);
	if (!m || r->rank >= m->nranks)
		return;
	struct seat *seat = &m->seats[r->rank];
	if (seat->state == NCCLSVC_MEMBER_JOINING && seat->client &&
	    seat->client->id == r->session && seat->serial == r->serial)
		comm_refuse_join(m, r->rank, r->result, r->text);
}

static void on_start(struct cluster *c, const struct control_start *s, size_t size)
{
	if (s->nranks > SVC_HOST_RANKS_MAX ||
	    size != sizeof(*s) + s->nranks * sizeof(struct control_member))
		return;
	for (uint32_t k = 0; k < s->nranks; k++)
		if (s->members[k].node >= c->n)
			return;
	struct communicator *m = remote_find(c, s->id);
	if (m && m->nranks == s->nranks) {
		comm_gathered(m, s);
		return;
	}
	/* Its last member here has gone, and it was forgotten: the others must not wait. */
	struct control_break b = {.epoch = s->epoch, .result = NCCLSVC_PEER_GONE, .node = -1};
	memcpy(b.id, s->id, sizeof(b.id));
	for (uint32_t k = s->nranks; k-- > 0;) {
		if (s->members[k].node != c->me)
			continue;
		b.rank = (int32_t)k;
		b.pid = s->members[k].pid;
	}
	for (uint32_t node = 0; node < c->n; node++)
		if (node != c->me)
			link_send(c, node, CONTROL_BREAK, &b, sizeof(b));
	link_send(c, c->me, CONTROL_BREAK, &b, sizeof(b));
}

static void on_break(struct cluster *c, uint32_t from, const struct control_break *b)
{
	char text[SVC_TEXT_BYTES];
	if (home_of(c, b->id) == c->me)
		home_broken(c, from, b);
	struct communicator *m = remote_find(c, b->id);
	if (!m || b->rank >= (int32_t)m->nranks || b->node >= (int32_t)c->n)
		return;
	/* It may come before the epoch could begin here: then it ends as soon as it has begun. */
	if (m->start && m->start->epoch == b->epoch && m->cuda && nodes_across(m)) {
		snprintf(text, sizeof(text), "the epoch could not begin on node %u (%s): %s", from,
			 c->nodes[from].card.host, svc_result_name(b->result));
		comm_not_begun(m, NCCLSVC_CAUSE_START_FAILED, b->result, text);
	} else if (m->start && m->start->epoch == b->epoch) {
		if (!m->start_break && (m->start_break = malloc(sizeof(*b))))
			*m->start_break = *b;
	} else if (m->epoch == b->epoch) {
		comm_broken_elsewhere(m, b);
	}
}

static void on_left(struct cluster *c, uint32_t from, const struct control_break *b)
{
	if (home_of(c, b->id) == c->me)
		home_left(c, from, b);
	struct communicator *m = remote_find(c, b->id);
	if (m && m->epoch == b->epoch && b->rank >= 0 && b->rank < (int32_t)m->nranks)
		comm_left_elsewhere(m, b->rank);
}

static void on_split_failed(struct cluster *c, const struct control_split_failed *f)
{
	struct communicator *m = remote_find(c, f->id);
	if (!m || m->epoch != f->epoch)
		return;
	comm_split_refused(m, f->result, f->text);
	if (f->result == NCCLSVC_STALE_EPOCH)
		comm_home_forgot(m);
}

static void on_parts(struct cluster *c, const struct control_parts *p, size_t size)
{
	struct communicator *m = remote_find(c, p->id);
	if (p->count > SVC_HOST_RANKS_MAX || size != sizeof(*p) + p->count * sizeof(p->parts[0]))
		return;
	if (m && m->epoch == p->epoch && m->nranks == p->count)
		comm_split_parts(m, p);
}

static void on_nccl_ready(struct cluster *c, uint32_t from, const struct control_nccl_ready *r,
			  size_t size)
{
	if (!r->nranks || r->nranks > SVC_HOST_RANKS_MAX || r->rank >= (int32_t)r->nranks ||
	    size != sizeof(*r) + r->nranks * sizeof(r->gpus[0]))
		return;
	for (uint32_t k = 0; k < r->nranks; k++)
		if (r->gpus[k].node >= c->n)
			return;
	registrar_ready(c, from, r);
}

/* The registrar asks, or rank 0's node answers. */
static void on_nccl_id(struct cluster *c, uint32_t from, const struct control_nccl_id *m)
{
	static const uint8_t none[sizeof(m->unique)];
	if (m->result || memcmp(m->unique, none, sizeof(none)) != 0)
		registrar_id(c, from, m);
	else
		nodes_make_id(c, m);
}

static bool text_ends(const char *text, size_t size)
{
	return memchr(text, '\0', size) != NULL;
}

/* True if the body has the length that this kind has, at least. */
static bool fits(enum control_kind kind, const void *body, size_t size)
{
	static const size_t sizes[CONTROL_END] = {
		[CONTROL_JOIN] = sizeof(struct control_join),
		[CONTROL_UNJOIN] = sizeof(struct control_unjoin),
		[CONTROL_REFUSE] = sizeof(struct control_refuse),
		[CONTROL_REFUSED] = sizeof(struct control_refuse),
		[CONTROL_START] = sizeof(struct control_start),
		[CONTROL_BREAK] = sizeof(struct control_break),
		[CONTROL_LEFT] = sizeof(struct control_break),
		[CONTROL_SPLIT] = sizeof(struct control_split),
		[CONTROL_SPLIT_LATE] = sizeof(struct control_split),
		[CONTROL_SPLIT_FAILED] = sizeof(struct control_split_failed),
		[CONTROL_PARTS] = sizeof(struct control_parts),
		[CONTROL_NCCL_READY] = sizeof(struct control_nccl_ready),
		[CONTROL_NCCL_ID] = sizeof(struct control_nccl_id),
		[CONTROL_NCCL_USE] = sizeof(struct control_nccl_use),
		[CONTROL_NCCL_FREE] = sizeof(struct control_nccl_free),
		[CONTROL_NCCL_DROP] = sizeof(struct control_nccl_drop),
	};
	if (kind >= CONTROL_PLAN && kind < CONTROL_END)
		return remote_plan_fits(kind, body, size);
	if (kind >= CONTROL_END || size < sizes[kind])
		return false;
	if (kind == CONTROL_REFUSE || kind == CONTROL_REFUSED) {
		const struct control_refuse *r = body;
		return text_ends(r->text, sizeof(r->text));
	}
	if (kind == CONTROL_SPLIT_FAILED) {
		const struct control_split_failed *f = body;
		return text_ends(f->text, sizeof(f->text));
	}
	if (kind == CONTROL_JOIN) {
		const struct control_join *j = body;
		return j->nranks >= 1 && j->nranks <= SVC_HOST_RANKS_MAX && j->rank < j->nranks;
	}
	return true;
}

void remote_handle(struct cluster *c, uint32_t from, enum control_kind kind, const void *body,
		   size_t size)
{
	if (!c->server || c->closing)
		return;
	if (!fits(kind, body, size)) {
		log_warning("node %u sends a message that breaks the protocol", from);
		return;
	}
	switch (kind) {
	case CONTROL_BYE:
		c->nodes[from].left = true;
		break;
	case CONTROL_JOIN:
		home_join(c, from, body);
		break;
	case CONTROL_UNJOIN:
		home_unjoin(c, from, body);
		break;
	case CONTROL_REFUSE:
		on_refuse(c, body);
		break;
	case CONTROL_REFUSED:
		home_refused(c, body);
		break;
	case CONTROL_START:
		on_start(c, body, size);
		break;
	case CONTROL_BREAK:
		on_break(c, from, body);
		break;
	case CONTROL_LEFT:
		on_left(c, from, body);
		break;
	case CONTROL_SPLIT:
		home_split(c, from, body);
		break;
	case CONTROL_SPLIT_LATE:
		home_split_late(c, from, body);
		break;
	case CONTROL_SPLIT_FAILED:
		on_split_failed(c, body);
		break;
	case CONTROL_PARTS:
		on_parts(c, body, size);
		break;
	case CONTROL_NCCL_READY:
		on_nccl_ready(c, from, body, size);
		break;
	case CONTROL_NCCL_ID:
		on_nccl_id(c, from, body);
		break;
	case CONTROL_NCCL_USE:
		nodes_use(c, body);
		break;
	case CONTROL_NCCL_FREE:
		registrar_free(c, from, body);
		break;
	case CONTROL_NCCL_DROP:
		nodes_drop(c, body);
		break;
	case CONTROL_PLAN:
	case CONTROL_PLAN_LATE:
	case CONTROL_PLAN_VERDICT:
	case CONTROL_PLAN_LEFT:
	case CONTROL_PLAN_GONE:
		remote_plan_handle(c, from, kind, body);
		break;
	default:
		break;
	}
}

/* JOINs that wait at a home that is gone are asked for again, at the next one. It knows nothing of
 * the epoch, though, and cannot take over what waited there. */
static void home_lost(struct cluster *c, struct communicator *m, uint32_t lost)
{
	static const char why[] = "the node that gathered the members' requests is gone: rejoin "
				  "the communicator";
	const bool asked = m->split || m->commits;
	uint64_t word;
	memcpy(&word, m->id, sizeof(word));
	uint32_t node = (uint32_t)(word % c->n);
	while (c->nodes[node].gone && node != lost)
		node = (node + 1) % c->n;
	if (node != lost)
		return;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->seats[k].client && m->seats[k].state == NCCLSVC_MEMBER_JOINING && !m->start)
			remote_join(m, k);
	comm_split_refused(m, NCCLSVC_PEER_GONE, why);
	plan_commit_refused(m, NCCLSVC_PEER_GONE, why);
	if (asked)
		comm_span_failed(c->server, m->slot, m->epoch, NCCLSVC_PEER_GONE, (int32_t)lost);
}

void remote_node_lost(struct cluster *c, uint32_t node)
{
	struct server *s = c->server;
	struct communicator *m, *next;
	executor_command(s->executor, &(struct command){.kind = COMMAND_NODE_LOST, .node = {node}});
	home_node_lost(c, node);
	registrar_node_lost(c, node);
	nodes_registrar_lost(c, node);
	HASH_ITER (hh, s->comms, m, next) {
		comm_node_lost(m, node);
		home_lost(c, m, node);
	}
}
