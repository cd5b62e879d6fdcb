/* SPDX-License-Identifier: Apache-2.0
 * What this node tells those who decide for all nodes, on this node or another, and the other
 * members' nodes; and what it does when they tell it something. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "coord/nccl_pool.h"
#include "coord/rendezvous.h"
#include "gpu/gpu.h"
#include "gpus.h"
#include "names.h"
#include "remote.h"

/* ---- This node's coordinator ---- */

struct own_message {
	struct own_message *prev, *next;
	enum control_kind kind;
	size_t size;
	_Alignas(8) char body[];
};

void remote_handle_own(struct comms *s)
{
	/* Those that come meanwhile are this turn's too. */
	while (s->own_messages) {
		struct own_message *m = s->own_messages;
		DL_DELETE(s->own_messages, m);
		remote_handle(s, s->coord.me, m->kind, m->body, m->size);
		free(m);
	}
}

static void on_own(uv_async_t *async)
{
	remote_handle_own(async->data);
}

/* To this node: handled soon, not at once, since the sender may be in the middle of something. */
static void send_own(struct comms *s, enum control_kind kind, const void *body, size_t size)
{
	struct own_message *m = malloc(sizeof(*m) + size);
	if (!m)
		no_memory("a message of this node to itself");
	m->kind = kind;
	m->size = size;
	memcpy(m->body, body, size);
	DL_APPEND(s->own_messages, m);
	uv_async_send(&s->own);
}

void remote_send(struct comms *s, uint32_t node, enum control_kind kind, const void *body,
		 size_t size)
{
	if (s->loop->closing)
		return;
	if (node == s->coord.me)
		send_own(s, kind, body, size);
	else
		link_send(s->cluster, node, kind, body, size);
}

static void op_send(void *arg, uint32_t node, enum control_kind kind, const void *body, size_t size)
{
	remote_send(arg, node, kind, body, size);
}

static bool op_gone(void *arg, uint32_t node)
{
	const struct comms *s = arg;
	return s->cluster && s->cluster->nodes[node].gone;
}

static const char *op_host(void *arg, uint32_t node)
{
	const struct comms *s = arg;
	return s->cluster ? s->cluster->nodes[node].info.host : "this one";
}

static uint64_t op_now(void *arg)
{
	(void)arg;
	return clock_now();
}

static void op_deadline(void *arg, uint64_t at_ns)
{
	struct comms *s = arg;
	loop_deadline(s->loop, at_ns);
}

static int op_random_id(void *arg, uint8_t id[NCCLSVC_ID_BYTES])
{
	(void)arg;
	return coord_random_id(id);
}

static void op_make_nccl_id(void *arg, const uint8_t *id, uint32_t epoch, int32_t device)
{
	nodes_make_id(arg, id, epoch, device);
}

static uint64_t op_new_uid(void *arg)
{
	struct comms *s = arg;
	return ++s->last_comm;
}

void remote_start(struct comms *s)
{
	static const struct coord_ops ops = {
		.send = op_send,
		.gone = op_gone,
		.host = op_host,
		.now_ns = op_now,
		.deadline = op_deadline,
		.random_id = op_random_id,
		.make_nccl_id = op_make_nccl_id,
		.new_uid = op_new_uid,
	};
	coord_init(&s->coord, &ops, s, s->cluster ? s->cluster->me : 0,
		   s->cluster ? s->cluster->n : 1);
	s->coord.keep_ns = (uint64_t)s->config->comm_idle_seconds * 1000000000;
	s->own.data = s;
	uv_async_init(s->loop->uv, &s->own, on_own);
	s->loop->handles++;
}

static void on_own_closed(uv_handle_t *handle)
{
	struct comms *s = handle->data;
	s->loop->handles--;
}

void remote_close(struct comms *s)
{
	uv_close((uv_handle_t *)&s->own, on_own_closed);
}

void remote_free(struct comms *s)
{
	struct own_message *m, *next;
	DL_FOREACH_SAFE (s->own_messages, m, next)
		free(m);
	s->own_messages = NULL;
	coord_free(&s->coord);
}

/* ---- What this node tells ---- */

static uint32_t rendezvous_of_comm(const struct communicator *m)
{
	return rendezvous_of(&m->comms->coord, m->id);
}

static void tell_rendezvous(const struct communicator *m, enum control_kind kind, const void *body,
			    size_t size)
{
	remote_send(m->comms, rendezvous_of_comm(m), kind, body, size);
}

/* To all nodes of the epoch, its coordinator's too, and to the rendezvous. */
static void tell_epoch(struct communicator *m, enum control_kind kind, const void *body,
		       size_t size)
{
	struct comms *s = m->comms;
	const uint32_t others[] = {m->coordinator, rendezvous_of_comm(m)};
	bool told[CLUSTER_NODES_MAX] = {false};
	bool here = false;
	for (uint32_t k = 0; k < m->nranks + 2; k++) {
		const int32_t node =
			k < m->nranks ? m->members[k].node : (int32_t)others[k - m->nranks];
		if (node < 0 || told[node])
			continue;
		told[node] = true;
		if ((uint32_t)node != s->coord.me)
			remote_send(s, (uint32_t)node, kind, body, size);
		else
			here = true;
	}
	if (here)
		remote_send(s, s->coord.me, kind, body, size);
}

void remote_fill_epoch(struct control_epoch *of, const struct communicator *m)
{
	memcpy(of->id, m->id, sizeof(of->id));
	memcpy(of->label, m->label, sizeof(of->label));
	of->epoch = m->epoch;
	of->nranks = m->nranks;
}

void remote_join(struct communicator *m, uint32_t rank)
{
	const struct member *member = &m->members[rank];
	struct control_join j = {
		.nranks = m->nranks,
		.rank = rank,
		.pid = member->pid,
		.uid = m->owner,
		.session = member->client->id,
		.cuda = m->cuda,
		.device = member->device,
		.epoch = epoch_runs(&m->life) ? 0 : m->epoch,
		.world = m->world,
		.split = m->reply_opcode == SVC_SPLIT,
		.serial = member->serial,
		.transport =
			m->comms->gpus->staging ? NCCLSVC_TRANSPORT_MPI : NCCLSVC_TRANSPORT_NCCL,
	};
	memcpy(j.id, m->id, sizeof(j.id));
	memcpy(j.label, m->label, sizeof(j.label));
	tell_rendezvous(m, CONTROL_JOIN, &j, sizeof(j));
}

void remote_refused(struct communicator *m, int result)
{
	struct control_refuse r = {
		.rank = (uint32_t)m->refused.rank, .result = result, .pid = m->refused.pid};
	memcpy(r.id, m->id, sizeof(r.id));
	memcpy(r.text, m->refused.text, sizeof(r.text));
	tell_rendezvous(m, CONTROL_REFUSED, &r, sizeof(r));
}

void remote_part_refused(struct communicator *m, uint32_t rank, const struct control_part *part,
			 const char *text)
{
	struct control_refuse r = {.rank = part->rank,
				   .result = NCCLSVC_LIMIT,
				   .pid = m->members[rank].pid,
				   .nranks = part->nranks,
				   .part = true};
	memcpy(r.id, part->id, sizeof(r.id));
	snprintf(r.text, sizeof(r.text), "%s", text);
	remote_send(m->comms, rendezvous_of(&m->comms->coord, part->id), CONTROL_REFUSED, &r,
		    sizeof(r));
}

void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, bool late)
{
	struct control_unjoin u = {
		.rank = rank, .session = session, .why = late ? UNJOIN_LATE : UNJOIN_GONE};
	memcpy(u.id, m->id, sizeof(u.id));
	tell_rendezvous(m, CONTROL_UNJOIN, &u, sizeof(u));
}

void remote_break(struct communicator *m, int result, int32_t rank, int32_t node)
{
	struct control_break b = {
		.epoch = m->epoch,
		.result = result,
		.rank = rank,
		.pid = rank >= 0 ? m->members[rank].pid : 0,
		.node = node,
	};
	memcpy(b.id, m->id, sizeof(b.id));
	tell_epoch(m, CONTROL_BREAK, &b, sizeof(b));
}

void remote_not_begun(struct communicator *m, int result, int32_t rank, bool all)
{
	struct comms *s = m->comms;
	const uint32_t first = rendezvous_of_comm(m), me = s->coord.me;
	bool told[CLUSTER_NODES_MAX] = {false};
	struct control_break b = {
		.epoch = m->start->epoch,
		.result = result,
		.rank = rank,
		.pid = rank >= 0 ? m->members[rank].pid : 0,
		.node = -1,
	};
	memcpy(b.id, m->id, sizeof(b.id));
	told[me] = told[first] = true;
	remote_send(s, first, CONTROL_BREAK, &b, sizeof(b));
	if (first != me && m->start->members[0].node == me) /* this node's coordinator */
		remote_send(s, me, CONTROL_BREAK, &b, sizeof(b));
	for (uint32_t k = 0; all && k < m->nranks; k++) {
		const uint32_t node = m->start->members[k].node;
		if (!told[node])
			remote_send(s, node, CONTROL_BREAK, &b, sizeof(b));
		told[node] = true;
	}
}

void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again)
{
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
	remote_send(m->comms, m->start->members[0].node, CONTROL_NCCL_READY, r, size);
	free(r);
}

void remote_left(struct communicator *m, int32_t rank)
{
	struct control_break b = {.epoch = m->epoch,
				  .result = NCCLSVC_PEER_GONE,
				  .rank = rank,
				  .pid = m->members[rank].pid,
				  .node = -1};
	memcpy(b.id, m->id, sizeof(b.id));
	tell_epoch(m, CONTROL_LEFT, &b, sizeof(b));
}

void remote_split(struct communicator *m, uint32_t rank, bool late)
{
	struct control_split split = {.round = m->split_round,
				      .rank = rank,
				      .colour = m->split[rank].colour,
				      .key = m->split[rank].key};
	remote_fill_epoch(&split.of, m);
	remote_send(m->comms, m->coordinator, late ? CONTROL_SPLIT_LATE : CONTROL_SPLIT, &split,
		    sizeof(split));
}

/* ---- What others tell ---- */

struct communicator *remote_find(const struct comms *s, const uint8_t *id)
{
	struct communicator *m;
	HASH_FIND(hh, s->comms, id, NCCLSVC_ID_BYTES, m);
	return m;
}

static void on_refuse(struct comms *s, const struct control_refuse *r)
{
	struct communicator *m = remote_find(s, r->id);
	if (!m || r->rank >= m->nranks)
		return;
	struct member *member = &m->members[r->rank];
	if (member->state == NCCLSVC_MEMBER_JOINING && member->client &&
	    member->client->id == r->session && member->serial == r->serial)
		comm_refuse_join(m, r->rank, r->result, r->text);
}

static void on_start(struct comms *s, const struct control_start *start)
{
	const uint32_t me = s->coord.me;
	struct communicator *m = remote_find(s, start->id);
	if (m && m->nranks == start->nranks) {
		comm_gathered(m, start);
		return;
	}
	/* Its last member here has gone, and it was forgotten: the others must not wait. */
	struct control_break b = {.epoch = start->epoch, .result = NCCLSVC_PEER_GONE, .node = -1};
	memcpy(b.id, start->id, sizeof(b.id));
	for (uint32_t k = start->nranks; k-- > 0;) {
		if (start->members[k].node != me)
			continue;
		b.rank = (int32_t)k;
		b.pid = start->members[k].pid;
	}
	for (uint32_t node = 0; node < s->coord.n; node++)
		remote_send(s, node, CONTROL_BREAK, &b, sizeof(b));
}

static void on_break(struct comms *s, uint32_t from, const struct control_break *b)
{
	char text[SVC_TEXT_BYTES];
	struct communicator *m = remote_find(s, b->id);
	if (!m || b->rank >= (int32_t)m->nranks || b->node >= (int32_t)s->coord.n)
		return;
	/* It may come before the epoch could begin here: then it ends as soon as it has begun. */
	if (m->start && m->start->epoch == b->epoch && m->cuda && nodes_across(m)) {
		snprintf(text, sizeof(text), "the epoch could not begin on node %u (%s): %s", from,
			 coord_host(&s->coord, from), svc_result_name(b->result));
		if (b->result == NCCLSVC_PEER_GONE && b->node < 0 && comm_can_wait(m))
			comm_join_again(m, -1, false);
		else
			comm_not_begun(m, NCCLSVC_CAUSE_START_FAILED, b->result, text);
	} else if (m->start && m->start->epoch == b->epoch) {
		if (!m->start_break && (m->start_break = malloc(sizeof(*b))))
			*m->start_break = *b;
	} else if (m->epoch == b->epoch) {
		comm_broken_elsewhere(m, b);
	}
}

static void on_left(struct comms *s, const struct control_break *b)
{
	struct communicator *m = remote_find(s, b->id);
	if (m && m->epoch == b->epoch && b->rank >= 0 && b->rank < (int32_t)m->nranks)
		comm_left_elsewhere(m, b->rank);
}

static void on_split_failed(struct comms *s, const struct control_split_failed *f)
{
	struct communicator *m = remote_find(s, f->id);
	if (!m || m->epoch != f->epoch || m->split_round != f->round)
		return;
	m->split_round++;
	comm_split_refused(m, f->result, f->text);
}

static void on_parts(struct comms *s, const struct control_parts *p)
{
	struct communicator *m = remote_find(s, p->id);
	if (!m || m->epoch != p->epoch || m->split_round != p->round || m->nranks != p->count)
		return;
	m->split_round++;
	comm_split_parts(m, p);
}

/* ---- Messages that overtake START, which another node sends ---- */

struct early_message {
	struct early_message *prev, *next;
	uint32_t from;
	enum control_kind kind;
	bool started; /* START had come */
	_Alignas(8) char body[];
};

/* How each message about an epoch that has started begins. */
struct of_epoch {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
};

static uint32_t epoch_of(const void *body)
{
	struct of_epoch of;
	memcpy(&of, body, sizeof(of));
	return of.epoch;
}

/* The communicator, if the message is about an epoch that has not begun here. */
static struct communicator *not_begun(const struct comms *s, enum control_kind kind,
				      const void *body)
{
	struct communicator *m;
	switch (kind) {
	case CONTROL_BREAK:
	case CONTROL_LEFT:
	case CONTROL_SPLIT_FAILED:
	case CONTROL_PARTS:
	case CONTROL_PLAN_RESULT:
	case CONTROL_PLAN_GONE:
		m = remote_find(s, body);
		return m && epoch_of(body) > m->epoch ? m : NULL;
	default:
		return NULL;
	}
}

static void forget_early(struct communicator *m, uint32_t before)
{
	struct early_message *e, *next;
	DL_FOREACH_SAFE (m->early, e, next)
		if (epoch_of(e->body) < before) {
			DL_DELETE(m->early, e);
			free(e);
		}
}

void remote_forget_early(struct communicator *m)
{
	forget_early(m, UINT32_MAX);
}

static void keep_early(struct communicator *m, uint32_t from, enum control_kind kind,
		       const void *body, size_t size, bool started)
{
	struct early_message *e = malloc(sizeof(*e) + size);
	if (!e)
		no_memory("a message about an epoch that has not begun");
	e->from = from;
	e->kind = kind;
	e->started = started;
	memcpy(e->body, body, size);
	forget_early(m, epoch_of(body)); /* the START of those will not come any more */
	DL_APPEND(m->early, e);
}

static void handle(struct comms *s, uint32_t from, enum control_kind kind, const void *body);

/* False: it is to be kept. BREAK ends what is about to begin; all else waits until it has. */
static bool handle_early(struct communicator *m, struct early_message *e)
{
	struct comms *s = m->comms;
	const uint32_t epoch = epoch_of(e->body);
	const bool begun = epoch <= m->epoch, starts = m->start && m->start->epoch == epoch;
	if (!begun && !starts)
		return false;
	if (!e->started)
		coord_handle_started(&s->coord, e->kind, e->body);
	e->started = true;
	if (!begun && e->kind != CONTROL_BREAK)
		return false;
	handle(s, e->from, e->kind, e->body);
	return true;
}

void remote_handle_early(struct communicator *m)
{
	struct early_message *list = m->early, *e, *next;
	m->early = NULL;
	DL_FOREACH_SAFE (list, e, next) {
		DL_DELETE(list, e);
		if (handle_early(m, e))
			free(e);
		else
			DL_APPEND(m->early, e);
	}
}

/* False: it is not early. */
static bool take_early(struct comms *s, uint32_t from, enum control_kind kind, const void *body,
		       size_t size)
{
	struct communicator *m = not_begun(s, kind, body);
	const bool started = m && m->start && m->start->epoch == epoch_of(body);
	if (!m || (started && kind == CONTROL_BREAK))
		return false;
	coord_handle_early(&s->coord, from, kind, body);
	if (started)
		coord_handle_started(&s->coord, kind, body);
	keep_early(m, from, kind, body, size, started);
	return true;
}

void remote_handle(struct comms *s, uint32_t from, enum control_kind kind, const void *body,
		   size_t size)
{
	if (s->loop->closing)
		return;
	if (!coord_fits(&s->coord, kind, body, size)) {
		log_warning("node %u (%s) has sent a message that is not of the protocol: ignored",
			    from, op_host(s, from));
		return;
	}
	if (take_early(s, from, kind, body, size) || coord_handle(&s->coord, from, kind, body))
		return;
	handle(s, from, kind, body);
}

/* What the members of this node hear. */
static void handle(struct comms *s, uint32_t from, enum control_kind kind, const void *body)
{
	switch (kind) {
	case CONTROL_BYE:
		s->cluster->nodes[from].left = true;
		break;
	case CONTROL_REFUSE:
		on_refuse(s, body);
		break;
	case CONTROL_START:
		on_start(s, body);
		break;
	case CONTROL_BREAK:
		on_break(s, from, body);
		break;
	case CONTROL_LEFT:
		on_left(s, body);
		break;
	case CONTROL_SPLIT_FAILED:
		on_split_failed(s, body);
		break;
	case CONTROL_PARTS:
		on_parts(s, body);
		break;
	case CONTROL_NCCL_USE:
		nodes_use(s, body);
		break;
	case CONTROL_NCCL_DROP:
		nodes_drop(s, body);
		break;
	case CONTROL_PLAN_RESULT:
	case CONTROL_PLAN_GONE:
		remote_plan_handle(s, kind, body);
		break;
	default:
		break;
	}
}

/* JOINs that wait at a rendezvous whose node is gone are sent again, to the next
 * one. */
static void rendezvous_lost(struct comms *s, struct communicator *m, uint32_t lost)
{
	uint64_t word;
	memcpy(&word, m->id, sizeof(word));
	uint32_t node = (uint32_t)(word % s->coord.n);
	while (coord_is_gone(&s->coord, node) && node != lost)
		node = (node + 1) % s->coord.n;
	for (uint32_t k = 0; node == lost && k < m->nranks; k++)
		if (m->members[k].client && m->members[k].state == NCCLSVC_MEMBER_JOINING &&
		    !m->start)
			remote_join(m, k);
}

void remote_node_lost(struct comms *s, uint32_t node)
{
	struct communicator *m, *next;
	executor_command(s->executor, &(struct command){.kind = COMMAND_NODE_LOST, .node = {node}});
	coord_node_lost(&s->coord, node);
	nodes_pool_lost(s, node);
	HASH_ITER (hh, s->comms, m, next) {
		comm_node_lost(m, node);
		rendezvous_lost(s, m, node);
	}
}
