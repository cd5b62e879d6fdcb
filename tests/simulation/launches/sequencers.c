/* SPDX-License-Identifier: Apache-2.0
 * The daemon's own sequencers, one on each node. Their allocations are counted: malloc and its
 * relatives are wrapped (meson.build), and count while a sequencer runs. */
#include <stdlib.h>
#include <string.h>

#include "launches.h"

static int64_t held[NODES_MAX];
static int inside = -1; /* the node whose sequencer runs; -1: none */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);

static void count(int64_t by)
{
	if (inside >= 0)
		held[inside] += by;
}

void *__wrap_malloc(size_t size)
{
	count(1);
	return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	count(1);
	return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
	count(!p);
	return __real_realloc(p, size);
}

void __wrap_free(void *p)
{
	count(-(p != NULL));
	__real_free(p);
}

/* ---- Sent messages ---- */

/* Sends the message that f fills in. */
static void say(struct message *m, uint64_t internode_id, const struct operation_key *key)
{
	m->internode_id = internode_id;
	if (key)
		m->key = *key;
	channel_send(m);
}

static void tell_launch(void *arg, uint32_t to, uint64_t number, uint64_t grant)
{
	const uint32_t me = *(uint32_t *)arg;
	inside = -1;
	struct message *m = message_make(me, to, LAUNCH, 0);
	m->number = number;
	m->grant = grant;
	say(m, 0, NULL);
	inside = (int)me;
}

static void tell_failed(void *arg, uint32_t to, uint64_t internode_id,
			const struct operation_key *key, const struct failed_note *note)
{
	const uint32_t me = *(uint32_t *)arg;
	inside = -1;
	struct message *m = message_make(me, to, FAILED, 0);
	m->note = *note;
	say(m, internode_id, key);
	inside = (int)me;
}

static void tell_ask(void *arg, uint32_t to, uint64_t internode_id, const struct operation_key *key,
		     const ncclsvc_status *why)
{
	const uint32_t me = *(uint32_t *)arg;
	inside = -1;
	struct message *m = message_make(me, to, ASK, 0);
	m->note.status = *why;
	say(m, internode_id, key);
	inside = (int)me;
}

static void tell_closed(void *arg, uint32_t to, uint64_t internode_id)
{
	const uint32_t me = *(uint32_t *)arg;
	inside = -1;
	say(message_make(me, to, CLOSED, 0), internode_id, NULL);
	inside = (int)me;
}

static void tell_waiting(void *arg, uint32_t to, uint64_t internode_id,
			 const struct operation_key *key, const uint32_t *places, uint32_t n)
{
	(void)arg;
	(void)to;
	(void)internode_id;
	(void)key;
	if (!n || places[n - 1] >= nnodes)
		fail("WAITING names %u nodes", n);
}

static void tell_goes_on(void *arg, uint32_t to)
{
	const uint32_t me = *(uint32_t *)arg;
	inside = -1;
	say(message_make(me, to, GOES_ON, 0), 0, NULL);
	inside = (int)me;
}

static const struct sequencer_ops ops = {tell_launch, tell_failed,  tell_ask,
					 tell_closed, tell_waiting, tell_goes_on};

/* ---- Received messages ---- */

void sequencers_begin(void)
{
	static uint32_t numbers[NODES_MAX];
	for (uint32_t k = 0; k < nnodes; k++) {
		numbers[k] = k;
		nodes[k].sequencer = sequencer_create(&ops, &numbers[k], nnodes, !k);
		if (!nodes[k].sequencer)
			abort();
		held[k] = 0;
	}
}

static void take_granted(struct sequencer *q, const struct message *m)
{
	struct grant grants[TASKS_MAX];
	for (uint32_t i = 0; i < m->n; i++)
		grants[i] = (struct grant){m->entries[i].record.number, m->entries[i].internode_id,
					   m->entries[i].key};
	sequencer_report(q, m->from, grants, m->n, m->more);
}

void sequencers_receive(uint32_t node, const struct message *m)
{
	struct sequencer *q = nodes[node].sequencer;
	inside = (int)node;
	if (m->kind == REQUEST)
		sequencer_request(q, now_ns, m->from, m->number, m->more, m->entries, m->n);
	else if (m->kind == WITHDRAW)
		sequencer_withdraw(q, now_ns, m->from, m->internode_id, &m->key, m->number,
				   &m->note, m->nodes, m->n);
	else if (m->kind == GRANTED)
		take_granted(q, m);
	else
		sequencer_leave(q, m->from, m->internode_id, m->nodes, m->n);
	inside = -1;
}

void sequencers_lose(uint32_t node, uint32_t lost, bool succeeds)
{
	inside = (int)node;
	sequencer_lose_node(nodes[node].sequencer, lost, succeeds);
	inside = -1;
}

void sequencers_look(uint32_t node)
{
	inside = (int)node;
	sequencer_look(nodes[node].sequencer, now_ns);
	inside = -1;
}

int64_t sequencers_held(uint32_t node)
{
	return held[node];
}

void sequencers_end(void)
{
	for (uint32_t k = 0; k < nnodes; k++)
		sequencer_free(nodes[k].sequencer);
}
