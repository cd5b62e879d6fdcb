/* SPDX-License-Identifier: Apache-2.0
 * Replaces NCCL's transport: launches complete by themselves, and are reported to check.c. The
 * schedulers' decisions across nodes pass through here, and mistakes can be planted in them. */
#include <utlist.h>

#include "launches.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/status.h"
#include "sched/internode/node_match.h"
#include "sched/internode/sequence.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"

#define IN_FLIGHT_MAX 3 /* per member */

static const char *plant_name(unsigned p)
{
	static const char *const names[PLANTS] = {
		[PLANT_NONE] = "none",
		[PLANT_LOSE_LAUNCH] = "a LAUNCH is lost",
		[PLANT_LOSE_FAILED] = "a FAILED is lost",
		[PLANT_LOSE_ASK] = "an ASK is lost",
		[PLANT_LOSE_CLOSED] = "a CLOSED is lost",
		[PLANT_LOSE_WITHDRAW] = "a WITHDRAW is lost",
		[PLANT_LOSE_LEAVE] = "a LEAVE is lost",
		[PLANT_LOSE_PREPARE] = "a PREPARE is lost",
		[PLANT_LOSE_PROPOSE] = "a PROPOSE is lost",
		[PLANT_PROPOSE_EARLY] = "a node proposes a time that has passed",
		[PLANT_OTHER_TIME] = "one node is told a different time",
		[PLANT_STATUS] = "one node is told another status",
		[PLANT_MISSING] = "a node names a rank that has posted it",
		[PLANT_NO_GROUP] = "a node requests a part of a group",
		[PLANT_LATE_WITHDRAW] = "a node withdraws as missing what it has requested",
	};
	return names[p];
}

const struct simulated simulated = {
	.about = "Runs schedules of launches on GPUs of several nodes",
	.plants = PLANTS,
	.plant_name = plant_name,
};

static bool plant_now(enum plant p)
{
	return planted == p && chance(10);
}

/* ---- Launches ---- */

static enum begun start(struct scheduler *sched, const struct match *m)
{
	check_posted(sched, m->comm->internode, m->at);
	return set_add(sched, m);
}

static void on_retry(void *arg)
{
	node_turn(*(uint32_t *)arg);
}

static bool has_room;

/* A queue may be full for a while. */
static enum room reserve(struct scheduler *sched, struct task *const *set, uint32_t n,
			 bool promised)
{
	for (uint32_t i = 0; i < n && !promised; i++)
		if (set[i]->member->n_in_flight >= IN_FLIGHT_MAX)
			return ROOM_HELD;
	has_room = chance(80);
	if (has_room)
		return ROOM_NOW;
	at_number(now_ns + between(1000, MS), on_retry, sched->config.node, 0);
	return ROOM_LATER;
}

static bool any_in_flight(const struct comm *c)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].in_flight)
			return true;
	return false;
}

static void land(struct scheduler *sched, struct task *t)
{
	struct comm *c = t->comm;
	t->member->n_in_flight--;
	sched->sets->changed = true;
	release_end(sched, t, c->ended ? &c->end : &status_ok);
	if (any_in_flight(c))
		return;
	c->launched = false;
	if (c->ended && !c->pending)
		comm_gone(sched, c);
}

struct landing {
	uint32_t node, comm, rank;
};

static void on_landing(void *arg)
{
	const struct landing *l = arg;
	struct scheduler *sched = nodes[l->node].scheduler;
	struct comm *c = sched->comms[l->comm];
	sched->now = now_ns;
	if (!nodes[l->node].alive || !c || !c->members[l->rank].in_flight)
		return;
	land(sched, c->members[l->rank].in_flight);
	node_turn(l->node);
}

static void launch(struct scheduler *sched, struct task *const *set, uint32_t n)
{
	const uint32_t node = sched->config.node;
	if (!has_room)
		fail("node %u launches what its queues have no room for", node);
	check_launched(node, set, n);
	const uint64_t when = now_ns + between(1000, 2 * MS);
	for (uint32_t i = 0; i < n; i++) {
		struct landing *l = make(sizeof(*l));
		*l = (struct landing){node, set[i]->comm->slot, (uint32_t)set[i]->rank};
		set[i]->comm->launched = true;
		set[i]->member->n_in_flight++;
		set_launched(sched, set[i]);
		at(when, -1, on_landing, l);
	}
}

static void epoch_end(struct scheduler *sched, struct comm *c)
{
	struct task *t;
	for (uint32_t k = 0; k < c->nranks; k++)
		DL_FOREACH (c->members[k].in_flight, t)
			release_early(sched, t, &c->end);
}

static const struct transport launch_transport = {
	.flags = TRANSPORT_GROUPS,
	.start = start,
	.reserve = reserve,
	.launch = launch,
	.epoch_end = epoch_end,
};

const struct transport *const launch_transports[TRANSPORTS] = {
	&launch_transport, &launch_transport, &launch_transport, &launch_transport};

/* ---- Messages ---- */

static enum plant loss_of(const struct internode_header *h)
{
	switch (h->kind) {
	case INTERNODE_LAUNCH:
		return PLANT_LOSE_LAUNCH;
	case INTERNODE_FAILED:
		return PLANT_LOSE_FAILED;
	case INTERNODE_ASK:
		return PLANT_LOSE_ASK;
	case INTERNODE_CLOSED:
		return PLANT_LOSE_CLOSED;
	case INTERNODE_PREPARE:
		return PLANT_LOSE_PREPARE;
	case INTERNODE_PROPOSE:
		return PLANT_LOSE_PROPOSE;
	case INTERNODE_WITHDRAW:
		return h->key.subop ? PLANT_LOSE_LEAVE : PLANT_LOSE_WITHDRAW;
	}
	return PLANT_NONE;
}

bool program_message(struct internode_header *h, void *body, uint64_t *when)
{
	(void)when;
	const enum plant loss = loss_of(h);
	if (loss && plant_now(loss))
		return false;
	if (h->kind == INTERNODE_FAILED && plant_now(PLANT_STATUS))
		((struct failed_note *)body)->status.result = NCCLSVC_PROTOCOL;
	if (h->kind == INTERNODE_PROPOSE && plant_now(PLANT_PROPOSE_EARLY))
		h->key.subop = 1;
	if (h->kind == INTERNODE_LAUNCH && plant_now(PLANT_OTHER_TIME))
		((struct launch_time *)body)->time += 1 + below(5);
	return true;
}

/* ---- Decisions ---- */

#define WRAP(name, ...)                                                                            \
	void __real_##name(__VA_ARGS__);                                                           \
	void __wrap_##name(__VA_ARGS__);                                                           \
	void __wrap_##name(__VA_ARGS__)

WRAP(node_match_take_decision, struct scheduler *sched, struct internode_comm *s,
     const struct internode_header *h, const char *body)
{
	struct failed_note note;
	if (h->kind == INTERNODE_FAILED) {
		memcpy(&note, body, sizeof(note));
		check_posted(sched, s, &h->key);
		check_failed(sched, s, &h->key, &note);
	}
	__real_node_match_take_decision(sched, s, h, body);
}

WRAP(sequence_withdraw, struct scheduler *sched, const struct internode_comm *s,
     const struct operation_key *key, const struct launch_request *r,
     const struct failed_note *note)
{
	struct failed_note sent = *note;
	if (!r) {
		check_posted(sched, s->comm->internode, key);
		check_voted_failed(sched, s->comm->internode, key, &note->status);
	}
	if (sent.status.missing_count < NCCLSVC_MISSING_SHOWN && plant_now(PLANT_MISSING))
		sent.status.missing[sent.status.missing_count++] =
			(int32_t)internode_comm_locals(s)[0];
	__real_sequence_withdraw(sched, s, key, plant_now(PLANT_LATE_WITHDRAW) ? NULL : r, &sent);
}

WRAP(set_link, struct task *first)
{
	if (!plant_now(PLANT_NO_GROUP))
		__real_set_link(first);
}
