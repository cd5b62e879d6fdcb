/* SPDX-License-Identifier: Apache-2.0
 * Communicators on several nodes: messages that come in, and the end of epochs. */
#include "internode_loop.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "channel/carrier.h"
#include "deadlock.h"
#include "disseminate.h"
#include "launch.h"
#include "node_match.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/supervisor.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"
#include "sequence.h"
#include "unexpected.h"

#define MESSAGES_PER_TURN 64
#define DONE_PER_TURN	  32

/* A deadlock that this node has broken is the reason, even if another node has yet to answer. */
static const ncclsvc_status *end_of(const struct node_match *j)
{
	return j->asked && deadlock_is_cause(&j->status) ? &j->status : &j->comm->end;
}

static void end_epoch(struct scheduler *sched, struct comm *c)
{
	struct internode_comm *s = c->internode;
	struct node_match *j, *next;
	if (!s)
		return;
	HASH_ITER (hh, s->matches, j, next) {
		uint32_t n = j->key.a < 0 ? c->nranks : 2;
		for (uint32_t k = 0; j->tasks && k < n; k++) {
			struct task *t = j->tasks[k];
			if (!t)
				continue;
			node_match_release(sched, t);
			release_end(sched, t, end_of(j));
		}
		node_match_free(sched, s, j);
	}
}

/* Have all surviving nodes sent OVER? Then all know the same set of agreed operations. */
static bool all_over(const struct scheduler *sched, const struct internode_comm *s)
{
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (!s->overs[p] && !sched->internode->lost[s->nodes[p]])
			return false;
	return true;
}

static bool agreed(struct scheduler *sched, struct internode_comm *s)
{
	return internode_comm_is_sequenced(s)
		       ? !s->unled && sequence_closed(sched, s)
		       : all_over(sched, s) && !disseminate_pending(sched, s);
}

/* Then NCCL's communicator is not used again. */
static bool lacks_node(const struct scheduler *sched, const struct internode_comm *s)
{
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (sched->internode->lost[s->nodes[p]])
			return true;
	return false;
}

static void end_now(struct scheduler *sched, struct internode_comm *s, bool in_order)
{
	const bool suspended = s->end.result == EPOCH_SUSPENDED;
	s->due_ns = sched->now + (suspended ? EPOCH_HANDOVER_NS : in_order ? EPOCH_DRAIN_NS : 0);
	if (s->requested && !in_order && !(suspended && lacks_node(sched, s)))
		supervisor_event(sched, &(struct event){.kind = EVENT_EPOCH_DIRTY,
							.epoch = {s->comm->slot}});
	launch_run_ready(sched); /* members whose turn it is continue */
	release_epoch(sched, s->comm, &s->end);
}

/* True: it has ended. */
static bool try_end(struct scheduler *sched, struct internode_comm *s)
{
	bool in_order = agreed(sched, s);
	bool hopeless = s->unled && sequence_closed(sched, s);
	if (!in_order && !hopeless && sched->now < s->due_ns)
		return false;
	end_now(sched, s, in_order);
	return true;
}

/* Tells the other nodes that the epoch is over here. If it is suspended, a daemon may be about to
 * exit, and stays until the other nodes have finished the epoch. */
static void say_over(struct scheduler *sched, struct internode_comm *s, bool suspended)
{
	const struct operation_key key = {-1, -1, s->comm->collectives, suspended};
	for (uint32_t p = 0; p < s->nnodes; p++) {
		if (p == s->me || sched->internode->lost[s->nodes[p]])
			continue;
		internode_comm_send(sched, s, p, INTERNODE_OVER, &key, "", 0, NULL, 0);
		sched->internode->need_us[s->nodes[p]] += suspended;
	}
}

bool internode_comm_begin_end(struct scheduler *sched, struct comm *c, const ncclsvc_status *end)
{
	struct internode_comm *s = c->internode;
	const bool suspended = end->result == EPOCH_SUSPENDED;
	if (!s)
		return false;
	if (s->over)
		return true;
	disseminate_over(sched, s);
	say_over(sched, s, suspended);
	if (internode_comm_is_sequenced(s)) {
		if (sched->sets->changed) /* matches found by now are requested first */
			launch_sets(sched);
		s->left = true;
		sequence_leave(sched, s);
	}
	s->over = true;
	s->overs[s->me] = 1 + c->collectives;
	s->end = *end;
	c->end = *end;
	c->ending = true;
	s->due_ns = sched->now + (suspended			   ? EPOCH_HANDOVER_NS
				  : internode_comm_is_sequenced(s) ? EPOCH_CLOSE_NS
								   : EPOCH_OVER_NS);
	DL_APPEND2(sched->internode->endings, s, prev_ending, next_ending);
	try_end(sched, s);
	return true;
}

static void break_off_flights(struct scheduler *sched, struct internode_comm *s)
{
	if (s->comm->transport->break_off)
		s->comm->transport->break_off(sched, s->comm, NULL);
}

/* Ends epochs that are due. */
static void check_endings(struct scheduler *sched)
{
	struct internode_comm *s, *next;
	DL_FOREACH_SAFE2 (sched->internode->endings, s, next, next_ending) {
		if (!s->comm->ended)
			try_end(sched, s);
		else if (s->comm->cleared < s->comm->nranks)
			release_epoch(sched, s->comm, &s->end);
		else if (sched->now >= s->due_ns)
			break_off_flights(sched, s);
	}
}

/* Is it about a communicator across nodes? Other messages name a request or an NCCL communicator.
 */
static bool names_comm(const struct internode_header *h)
{
	return h->kind < INTERNODE_REQUEST || h->kind == INTERNODE_CLOSED ||
	       ((h->kind == INTERNODE_REQUEST || h->kind == INTERNODE_WITHDRAW) &&
		h->key.subop != OPERATION_MAKE);
}

static void take_gone(struct scheduler *sched, uint32_t node)
{
	if (sched->internode->need_us[node])
		sched->internode->need_us[node]--;
}

void internode_comm_dispatch(struct scheduler *sched, const struct internode_header *h,
			     const char *body, int node)
{
	struct internode_comm *s;
	struct credit_note note;
	HASH_FIND(hh, sched->internode->comms, &h->internode_id, sizeof(h->internode_id), s);
	if (h->kind == INTERNODE_CREDIT) {
		if (h->bytes != sizeof(note))
			return;
		memcpy(&note, body, sizeof(note));
		if (note.tag < CARRIER_TAG_DATA)
			return;
	}
	if (h->kind == INTERNODE_GONE) {
		take_gone(sched, (uint32_t)node);
		return;
	}
	if (!s && names_comm(h) && unexpected_is_announced(sched, h->internode_id)) {
		unexpected_keep(sched, h, body, node);
		return;
	}
	if (h->kind >= INTERNODE_REQUEST) {
		sequence_take_message(sched, h, body, node);
		return;
	}
	uint32_t node_index = s ? internode_comm_node_index(s, node) : UINT32_MAX;
	if (h->kind == INTERNODE_CREDIT) {
		if (s && node_index != UINT32_MAX && s->comm->transport->credit)
			s->comm->transport->credit(sched, s, node_index, &h->key, &note);
		else
			internode_comm_refuse_credit(sched, node, note.tag);
		return;
	}
	const bool vote = h->kind == INTERNODE_FAILED || h->kind == INTERNODE_ASK ||
			  h->kind == INTERNODE_READY;
	if (s && vote && internode_comm_is_sequenced(s)) {
		if (!s->comm->ended && !node_index)
			node_match_take_decision(sched, s, h, body);
		return;
	}
	if (!s && h->kind == INTERNODE_OVER && h->key.subop)
		internode_comm_say_gone(sched, h->internode_id, (uint32_t)node);
	if (!s || node_index == UINT32_MAX || node_index == s->me)
		return;
	if (h->kind == INTERNODE_OVER) {
		s->waits[node_index] = h->key.subop;
		s->overs[node_index] = 1 + h->key.seq;
		disseminate_over(sched, s);
		if (internode_comm_is_sequenced(s) && !s->over &&
		    internode_comm_all_left(s, s->me)) /* nobody here will end it */
			internode_comm_give_up(sched, s->comm, NCCLSVC_CANCELLED, UINT32_MAX);
		node_match_node_over(sched, s->comm, node_index);
	}
	if (h->kind == INTERNODE_OVER || s->comm->ended)
		return;
	if (h->kind == INTERNODE_DEADLOCK)
		deadlock_take_message(sched, s, node_index, body, h->bytes);
	else if (h->kind == INTERNODE_VOTES || h->kind == INTERNODE_PULL)
		node_match_take_votes(sched, s, node_index, h, body);
	else
		node_match_take_message(sched, s, node_index, h, body);
}

/* Returns how many messages it held. */
static int take_packet(struct scheduler *sched, const char *at, size_t bytes, int node)
{
	struct internode_header h;
	const char *body;
	int n = 0;
	for (; (body = internode_next(&at, &bytes, &h)); n++)
		if (h.kind >= INTERNODE_READY && h.kind < INTERNODE_END)
			internode_comm_dispatch(sched, &h, body, node);
	return n;
}

/* Takes the messages that this node and its own sequencer have sent each other. */
static bool receive_own(struct scheduler *sched)
{
	struct internode_packet *p;
	bool any = false;
	for (; (p = internode_comm_take_packet(sched, sched->config.node)); any = true) {
		take_packet(sched, p->data, p->bytes, (int)p->node);
		free(p);
	}
	return any;
}

static bool receive(struct scheduler *sched)
{
	const char *packet;
	size_t bytes;
	int node, n = 0;
	while (n < MESSAGES_PER_TURN && (packet = sched->config.carrier->hear(&bytes, &node))) {
		if (!n++)
			sched->now = clock_now();
		if (!sched->internode->lost[node])
			n += take_packet(sched, packet, bytes, node);
	}
	return n > 0;
}

static bool collect(struct scheduler *sched)
{
	struct carrier_done done[DONE_PER_TURN];
	unsigned n =
		sched->internode->flights ? sched->config.carrier->poll(done, DONE_PER_TURN) : 0;
	for (unsigned i = 0; i < n; i++) {
		struct flight *f = done[i].cookie;
		sched->internode->flights--;
		f->done(sched, f, done[i].bytes, done[i].failed);
	}
	return n > 0;
}

static void report_broken(struct scheduler *sched)
{
	const struct carrier *carrier = sched->config.carrier;
	uint32_t here;
	int node;
	while (carrier->broken && (node = carrier->broken(&here)) >= 0)
		supervisor_event(sched, &(struct event){.kind = EVENT_NODE_CARRIED,
							.carried = {(uint32_t)node, here, true}});
}

bool internode_comm_poll(struct scheduler *sched)
{
	sched->internode->polled_ns = sched->now;
	bool any = receive(sched);
	any |= receive_own(sched);
	any |= collect(sched);
	report_broken(sched);
	unexpected_expire(sched);
	if (sched->internode->asked)
		node_match_expire(sched);
	disseminate_expire(sched);
	if (sched->internode->endings)
		check_endings(sched);
	if (sched->internode->comms)
		deadlock_look(sched);
	sequence_poll(sched);
	internode_comm_flush(sched);
	if (sched->internode->open)
		any = true;
	if (any)
		sched->internode->message_ns = sched->now;
	return any;
}

uint64_t internode_comm_sleep_ns(struct scheduler *sched)
{
	uint64_t quiet = sched->now - sched->internode->message_ns,
		 wished = sched->now - sequence_message_ns(sched);
	const uint64_t nap = spin_nap_ns(sched->now - sched->busy_ns, SPIN_NAP_SHARE);
	if (sched->internode->open)
		return 0;
	/* Other nodes may wait for this node even if it does not wait for them. */
	if (sequence_awaited(sched) && wished < NODES_QUIET_NS && !sched->internode->flights &&
	    !sched->internode->committed)
		return nap < NODES_NAP_NS ? nap : NODES_NAP_NS;
	/* Other nodes may still ask about epochs that have ended here. */
	if (!sched->internode->comms && !sched->internode->flights && quiet > NODES_QUIET_NS &&
	    !sequence_awaited(sched))
		return NODES_NAP_QUIET_NS;
	if (!sched->internode->flights && !sched->internode->ops && !sched->internode->committed &&
	    !sched->internode->endings && !sched->internode->late)
		return NODES_NAP_IDLE_NS;
	return nap < NODES_NAP_NS ? nap : NODES_NAP_NS;
}

bool internode_comm_ends(struct scheduler *sched)
{
	const struct internode_state *n = sched->internode;
	const struct internode_comm *s;
	bool ending = n->flights || n->open;
	DL_FOREACH2 (n->endings, s, next_ending)
		ending |= s->end.result == EPOCH_SUSPENDED;
	for (uint32_t node = 0; node < sched->config.nodes; node++)
		ending |= n->need_us[node] != 0;
	return ending && sched->now - sched->drain_ns < EPOCH_HANDOVER_NS;
}

static void lose_flights(struct scheduler *sched, struct internode_comm *s, uint32_t node_index)
{
	if (s->comm->transport->node_lost)
		s->comm->transport->node_lost(sched, s->comm, node_index);
}

void internode_comm_carry(struct scheduler *sched, const struct command *c)
{
	const uint32_t node = c->carry.node;
	const bool failed = sched->config.carrier->connect(node, c->carry.address, c->carry.bytes,
							   c->carry.here, c->carry.there);
	sched->internode->lost[node] &= failed;
	supervisor_event(sched, &(struct event){.kind = EVENT_NODE_CARRIED,
						.carried = {node, c->carry.here, failed}});
}

/* Without `disconnect` (MPI), these sends may never complete, so their memory is never freed. */
static void drop_packets(struct scheduler *sched, uint32_t node)
{
	struct internode_packet *p, *next;
	DL_FOREACH_SAFE (sched->internode->sending, p, next) {
		if (p->node != node)
			continue;
		sched->config.carrier->drop(p);
		DL_DELETE(sched->internode->sending, p);
		sched->internode->flights--;
	}
}

void internode_comm_node_lost(struct scheduler *sched, uint32_t node)
{
	struct internode_comm *s, *next_comm;
	struct internode_packet *p;
	sched->internode->lost[node] = true;
	sched->internode->need_us[node] = 0;
	while ((p = internode_comm_take_packet(sched, node)))
		free(p);
	if (!sched->config.carrier->disconnect)
		drop_packets(sched, node);
	HASH_ITER (hh, sched->internode->comms, s, next_comm) {
		uint32_t node_index = internode_comm_node_index(s, (int)node);
		if (node_index == UINT32_MAX)
			continue;
		s->waits[node_index] = false;
		lose_flights(sched, s, node_index);
	}
	sequence_node_lost(sched, node);
	if (sched->config.carrier->disconnect)
		sched->config.carrier->disconnect(node);
}

static void free_packets(struct internode_packet *list)
{
	struct internode_packet *p, *next;
	DL_FOREACH_SAFE (list, p, next)
		free(p);
}

void internode_comm_finish_all(struct scheduler *sched)
{
	struct internode_state *n = sched->internode;
	unexpected_finish(sched);
	sequence_finish(sched);
	if (!n)
		return;
	free_packets(n->sending);
	free_packets(n->open);
	free(n->newest);
	free(n->need_us);
	free(n->lost);
	free(n);
}

/* ---- For the scheduler ---- */

static void free_credits(struct scheduler *sched, struct internode_comm *s)
{
	struct credit *k, *next;
	DL_FOREACH_SAFE (s->credits, k, next) {
		internode_comm_refuse_credit(sched, (int)s->nodes[k->node], k->note.tag);
		DL_DELETE(s->credits, k);
		free(k);
	}
}

static void comm_free_nodes(struct scheduler *sched, struct comm *c)
{
	struct internode_comm *s = c->internode;
	struct node_match *j, *next;
	if (!s)
		return;
	free_credits(sched, s);
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (s->waits[p])
			internode_comm_say_gone(sched, s->id, s->nodes[p]);
	HASH_ITER (hh, s->matches, j, next)
		node_match_free(sched, s, j);
	HASH_DEL(sched->internode->comms, s);
	if (s->due_ns)
		DL_DELETE2(sched->internode->endings, s, prev_ending, next_ending);
	free(s->overs);
	free(s->waits);
	free(s->kept);
	free(s->counts);
	free(s->first);
	free(s->ranks);
	free(s->node_of);
	deadlock_free(s);
	free(s->sent);
	free(s->received);
	c->internode = NULL;
	free(s->nodes);
	free(s);
}

static void drop_request(struct scheduler *sched, const struct set_match *m)
{
	if (m->node_match && sequence_was_closed(m->comm))
		sequence_void(sched, m->request);
	else
		sequence_give_up(sched, m->request);
}

static const struct nodes_ops internode_ops = {
	.comm_free = comm_free_nodes,
	.end_epoch = end_epoch,
	.post_collective = node_match_post_collective,
	.fail_collective = node_match_fail_collective,
	.look = node_match_look,
	.voted = node_match_voted,
	.first_ns = node_match_first_ns,
	.awaited = node_match_awaited,
	.post_p2p = node_match_post_p2p,
	.ask = node_match_ask,
	.member_left = node_match_member_left,
	.drop_request = drop_request,
	.plan_begins = node_match_plan_begins,
	.plan_left = node_match_plan_left,
};

bool internode_comm_init_all(struct scheduler *sched)
{
	sched->nodes = &internode_ops;
	sched->internode = calloc(1, sizeof(*sched->internode));
	if (!sched->internode)
		return false;
	sched->internode->lost = calloc(sched->config.nodes + 1, sizeof(*sched->internode->lost));
	sched->internode->need_us =
		calloc(sched->config.nodes + 1, sizeof(*sched->internode->need_us));
	sched->internode->newest =
		calloc(sched->config.nodes + 1, sizeof(struct internode_packet *));
	return sched->internode->lost && sched->internode->need_us && sched->internode->newest &&
	       unexpected_init(sched) && sequence_init(sched);
}
