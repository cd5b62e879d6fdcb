/* SPDX-License-Identifier: Apache-2.0
 * The channels between nodes, and from a node to itself. Messages arrive late, but in order. Some
 * of a lost node's messages still arrive. */
#include <stdlib.h>
#include <string.h>

#include "launches.h"

static uint64_t last[NODES_MAX][NODES_MAX];  /* arrival time of the last message */
static uint64_t until[NODES_MAX][NODES_MAX]; /* for a lost node: later messages are lost too */

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
		[PLANT_OVERTAKE] = "a LAUNCH overtakes another",
		[PLANT_STATUS] = "one node is told another status",
		[PLANT_MISSING] = "a node names a rank that has posted it",
		[PLANT_NO_NEW_REQUEST] = "what was voided is not requested again",
		[PLANT_NO_GROUP] = "a node requests a part of a group",
		[PLANT_LATE_WITHDRAW] = "a node withdraws as missing what it has requested",
	};
	return names[p];
}

const struct simulated simulated = {
	.about = "Runs schedules of launches on GPUs of several nodes",
	.plants = PLANTS,
	.plant_name = plant_name,
	.circle_run = circle_run,
};

bool plant_now(enum plant p)
{
	return planted == p && chance(10);
}

void channel_begin(void)
{
	memset(last, 0, sizeof(last));
	memset(until, 0, sizeof(until));
}

void channel_lose(uint32_t node)
{
	for (uint32_t k = 0; k < nnodes; k++)
		until[node][k] = now_ns + between(0, profile.delay);
}

void *make(size_t size)
{
	void *p = calloc(1, size);
	if (!p)
		abort();
	return p;
}

struct message *message_make(uint32_t from, uint32_t to, enum message_kind kind, uint32_t nentries)
{
	struct message *m = make(sizeof(*m) + nentries * sizeof(m->entries[0]));
	m->from = from;
	m->to = to;
	m->kind = kind;
	m->n = nentries;
	return m;
}

static void arrive(void *arg)
{
	const struct message *m = arg;
	const uint64_t end = until[m->from][m->to];
	if (!nodes[m->to].lost[m->from] && (!end || now_ns <= end))
		node_receive(m);
}

static bool is_lost(const struct message *m)
{
	static const enum plant loses[] = {
		[LAUNCH] = PLANT_LOSE_LAUNCH, [FAILED] = PLANT_LOSE_FAILED,
		[ASK] = PLANT_LOSE_ASK,	      [CLOSED] = PLANT_LOSE_CLOSED,
		[LEAVE] = PLANT_LOSE_LEAVE,   [WITHDRAW] = PLANT_LOSE_WITHDRAW,
		[REQUEST] = PLANT_NONE,	      [OVER] = PLANT_NONE,
		[GRANTED] = PLANT_NONE,	      [GOES_ON] = PLANT_NONE,
	};
	return loses[m->kind] && plant_now(loses[m->kind]);
}

void channel_send(struct message *m)
{
	uint64_t *to = &last[m->from][m->to];
	uint64_t when = now_ns + (chance(70) ? between(1000, MS) : between(1000, profile.delay));
	if (m->kind == LAUNCH)
		trace(m->from, "tells node %u to launch request %d, grant %d", m->to,
		      (int)m->number, (int)m->grant);
	if (!nodes[m->from].alive || is_lost(m)) {
		free(m);
		return;
	}
	if (m->kind == FAILED && plant_now(PLANT_STATUS))
		m->note.status.result = NCCLSVC_PROTOCOL;
	const bool overtakes = m->kind == LAUNCH && plant_now(PLANT_OVERTAKE);
	if (when <= *to && !overtakes)
		when = *to + 1;
	if (when > *to)
		*to = when;
	at(when, (int)m->to, arrive, m);
}
