/* SPDX-License-Identifier: Apache-2.0
 * Measures how messages, bytes and time per node grow with the size of a communicator. Each node is
 * a standalone daemon with one rank; each message takes up to 1 ms. Fails if a node exceeds the
 * limits in `phases`.
 *
 * Usage: simulation_growth [MAX_NODES] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "simulation.h"

#define SMALLEST 4
#define STEP	 4
#define ROUNDS	 1000

bool tracing;
unsigned planted;

static uint8_t id[NCCLSVC_ID_BYTES] = {7};
static struct trainer *trainers[NODES_MAX];

/* How many trainers are members; planned: and have a plan. */
static uint32_t count(bool planned)
{
	uint32_t found = 0;
	for (uint32_t k = 0; k < nnodes; k++)
		for (uint32_t h = 0; trainers[k] && h < HANDLES_MAX; h++) {
			const struct belief *b = &trainers[k]->beliefs[h];
			found += b->held && !b->broken && !memcmp(b->id, id, sizeof(id)) &&
				 (!planned || b->plan);
		}
	return found;
}

/* Parts of a SPLIT. */
static uint32_t count_parts(void)
{
	uint32_t found = 0;
	for (uint32_t k = 0; k < nnodes; k++)
		for (uint32_t h = 0; h < HANDLES_MAX; h++) {
			const struct belief *b = &trainers[k]->beliefs[h];
			found += b->held && !b->broken && memcmp(b->id, id, sizeof(id)) != 0;
		}
	return found;
}

static uint32_t alive(void)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < nnodes; k++)
		n += trainers[k] && nodes[k].alive;
	return n;
}

static void join(void)
{
	for (uint32_t k = 0; k < nnodes; k++) {
		if (!trainers[k])
			trainers[k] = trainer_start(k, 0);
		trainer_join(trainers[k], id, nnodes, k, false, 0);
	}
}

static bool has_joined(void)
{
	return count(false) == nnodes;
}

static uint32_t handle_of(const struct trainer *t)
{
	uint32_t h = 0;
	while (!t->beliefs[h].held || t->beliefs[h].broken ||
	       memcmp(t->beliefs[h].id, id, sizeof(id)) != 0)
		h++;
	return h;
}

static void commit(void)
{
	for (uint32_t k = 0; k < nnodes; k++)
		while (!trainer_request(trainers[k], ASK_PLAN, id, k) &&
		       !trainers[k]->beliefs[handle_of(trainers[k])].plan)
			trainer_commit(trainers[k], handle_of(trainers[k]), false, 0);
}

static bool has_committed(void)
{
	return count(true) == nnodes;
}

static void split(void)
{
	for (uint32_t k = 0; k < nnodes; k++)
		trainer_split(trainers[k], handle_of(trainers[k]), k % 2, 0, 0);
}

static bool has_split(void)
{
	return count_parts() == nnodes;
}

static void kill_trainer(void)
{
	trainer_die(trainers[1]);
	trainers[1] = NULL;
}

static void lose_a_node(void)
{
	node_lose(1);
}

static bool has_ended(void)
{
	return count(false) <= nnodes - alive();
}

/* Limits on the messages that a node sends and receives: `mean` on average, and `most` times the
 * number of nodes on the busiest node. */
static const struct phase {
	const char *name;
	void (*begin)(void);
	bool (*is_over)(void);
	double mean, most;
} phases[] = {
	{"JOIN", join, has_joined, 4, 2},
	{"plan commit", commit, has_committed, 4, 2},
	{"SPLIT in 2", split, has_split, 8, 4},
	{"a rank dies", kill_trainer, has_ended, 6, 2},
	{"JOIN again", join, has_joined, 4, 2},
	/* All nodes are connected to it, notice it at about the same time, and tell each other. */
	{"a node dies", lose_a_node, has_ended, 2 * NODES_MAX, 5},
};
#define PHASES (sizeof(phases) / sizeof(phases[0]))

struct measured {
	double messages, most_messages, most_bytes, ms;
};

static struct measured measure(const struct phase *p)
{
	struct measured m = {0};
	const uint64_t begun = clock_now();
	uint64_t all = 0;
	memset(traffic, 0, sizeof(traffic));
	p->begin();
	for (int i = 0; i < ROUNDS && !p->is_over() && !failure[0]; i++)
		if (!time_run(MS))
			fail("too many messages");
	m.ms = (double)(clock_now() - begun) / (double)MS;
	if (!p->is_over())
		fail("%s is not over after %.0f ms", p->name, m.ms);
	time_run(5 * S); /* what follows */
	for (uint32_t k = 0; k < nnodes; k++) {
		const struct traffic *t = &traffic[k];
		all += t->sent + t->received;
		if (t->sent + t->received > m.most_messages)
			m.most_messages = t->sent + t->received;
		if ((double)t->bytes > m.most_bytes)
			m.most_bytes = (double)t->bytes;
	}
	m.messages = (double)all / nnodes;
	if (m.messages > p->mean || m.most_messages > p->most * nnodes)
		fail("%s: more messages than expected", p->name);
	return m;
}

static void run(uint32_t n)
{
	schedule_begin(1);
	profile = (struct profile){.delay = MS, .keep = 1000};
	standalone = true;
	memset(trainers, 0, sizeof(trainers));
	nodes_begin(n);
	cluster_name_in(&nodes[0].cluster, id);
	for (size_t i = 0; i < PHASES && !failure[0]; i++) {
		const struct measured m = measure(&phases[i]);
		printf("%6u  %-12s  %10.1f  %10.0f  %12.0f  %8.0f\n", n, phases[i].name, m.messages,
		       m.most_messages, m.most_bytes, m.ms);
		fflush(stdout);
	}
	schedule_end();
}

int main(int argc, char **argv)
{
	const uint32_t most = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : NODES_MAX;
	printf("%6s  %-12s  %10s  %10s  %12s  %8s\n", "nodes", "what", "messages", "most",
	       "most bytes", "ms");
	for (uint32_t n = SMALLEST; n <= most && n <= NODES_MAX && !failure[0]; n *= STEP)
		run(n);
	if (failure[0])
		printf("fails: %s\n", failure);
	return failure[0] != 0;
}
