/* SPDX-License-Identifier: Apache-2.0
 * One schedule: its actions and their results, as determined by its seed. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "channel/cluster.h"
#include "simulation.h"

#define STEPS_NS	(20 * S)
/* Every deadline has passed by then. */
#define REST_NS		(STEPS_NS + 60 * S)
#define RECOVERY_ROUNDS 20
#define RECOVERY_NS	(20 * S)

struct profile profile;

static uint32_t losses, worker_losses; /* losses yet to be injected */
static bool plain;		       /* no trainer requests anything impossible */

/* ---- Nodes, trainers and communicators ---- */

static struct trainer *any_trainer(void)
{
	struct trainer *all[NODES_MAX * TRAINERS_MAX];
	uint32_t n = 0;
	for (uint32_t i = 0; i < nnodes; i++)
		for (uint32_t k = 0; nodes[i].alive && k < TRAINERS_MAX; k++)
			if (nodes[i].trainers[k])
				all[n++] = nodes[i].trainers[k];
	return n ? all[below(n)] : NULL;
}

static uint32_t any_node(void)
{
	uint32_t node = below(nnodes);
	while (!nodes[node].alive)
		node = (node + 1) % nnodes;
	return node;
}

static struct trainer *trainer_at(uint32_t node, uint32_t place)
{
	struct trainer *t = nodes[node].trainers[place];
	if (!t && (t = trainer_start(node, place)))
		t->fail_fast = chance(30);
	return t;
}

static uint32_t any_handle(const struct trainer *t)
{
	uint32_t all[HANDLES_MAX], n = 0;
	for (uint32_t h = 1; h < HANDLES_MAX; h++)
		if (t->beliefs[h].held)
			all[n++] = h;
	return n ? all[below(n)] : 0;
}

static uint64_t timeout(void)
{
	return chance(40) ? 0 : chance(50) ? between(MS, 50 * MS) : between(50 * MS, 4 * S);
}

static bool device_is_taken(const struct wanted *w, uint32_t node, uint32_t place)
{
	for (uint32_t k = 0; w->cuda && k < w->nranks; k++)
		if (w->home_node[k] == node && w->home_place[k] % GPUS_HERE == place % GPUS_HERE)
			return true;
	return false;
}

/* Picks a node and a place for the rank. Returns false if no GPU is left. */
static bool give_home(struct wanted *w, uint32_t rank)
{
	w->home_node[rank] = UINT32_MAX;
	for (uint32_t tries = 0; tries < 200; tries++) {
		const uint32_t node = any_node(), place = below(TRAINERS_MAX);
		if (device_is_taken(w, node, place))
			continue;
		w->home_node[rank] = node;
		w->home_place[rank] = place;
		return true;
	}
	return false;
}

static bool has_home(const struct wanted *w, uint32_t rank)
{
	return w->home_node[rank] != UINT32_MAX && nodes[w->home_node[rank]].alive;
}

/* Its members gather on any node that lives. */
static void make_id(struct wanted *w)
{
	do
		w->gathers = below(nnodes);
	while (!nodes[w->gathers].alive);
	for (uint32_t i = 0; i < NCCLSVC_ID_BYTES; i++)
		w->id[i] = (uint8_t)below(256);
	cluster_name_in(&nodes[w->gathers].cluster, w->id);
}

static void want(struct wanted *w)
{
	*w = (struct wanted){.cuda = chance(40) && !standalone};
	make_id(w);
	for (uint32_t k = 0; k < RANKS_MAX; k++)
		w->home_node[k] = UINT32_MAX;
	const uint32_t most =
		w->cuda && nnodes * GPUS_HERE < RANKS_MAX ? nnodes * GPUS_HERE : RANKS_MAX;
	w->nranks = 1 + below(most);
	for (uint32_t k = 0; k < w->nranks; k++)
		if (!give_home(w, k))
			w->nranks = k;
}

/* ---- Actions ---- */

/* Makes the rank's session request the rank. anew: request it even if the session is a member,
 * because another member may have left. */
static void join(struct wanted *w, uint32_t rank, uint64_t within, bool anew)
{
	struct belief *b;
	struct trainer *t = holder_of(w->id, rank, &b);
	if (!t && (has_home(w, rank) || give_home(w, rank)))
		t = trainer_at(w->home_node[rank], w->home_place[rank]);
	if (!t || trainer_request(t, ASK_JOIN, w->id, rank))
		return;
	if (b && !b->broken && !anew)
		return;
	trainer_join(t, w->id, w->nranks, rank, w->cuda, within);
}

static void do_join(void)
{
	struct wanted *w = &wanted[below(nwanted)];
	if (chance(4)) {
		struct trainer *t = any_trainer();
		const uint32_t rank = below(w->nranks);
		if (t && !plain && !trainer_request(t, ASK_JOIN, w->id, rank))
			trainer_join(t, w->id,
				     chance(80) || profile.keep >= 1000 ? w->nranks : 1 + rank,
				     rank, chance(90) == w->cuda, timeout());
		return;
	}
	if (chance(50)) {
		const uint64_t within = timeout();
		for (uint32_t k = 0; k < w->nranks; k++)
			join(w, k, within, true);
	} else {
		join(w, below(w->nranks), timeout(), true);
	}
}

/* Rejoins a communicator whose epoch is over. */
static void do_come_back(void)
{
	struct trainer *t = any_trainer();
	const uint32_t h = t ? any_handle(t) : 0;
	if (!h || !t->beliefs[h].broken ||
	    trainer_request(t, ASK_JOIN, t->beliefs[h].id, t->beliefs[h].rank))
		return;
	const struct belief b = t->beliefs[h];
	trainer_join(t, b.id, b.nranks, b.rank, b.cuda, timeout());
}

/* Calls the function for all members, or for one. */
static void each_member(void (*f)(struct trainer *t, uint32_t handle, uint64_t within))
{
	struct trainer *one = any_trainer();
	const uint32_t h = one ? any_handle(one) : 0;
	const uint64_t within = timeout();
	uint8_t id[NCCLSVC_ID_BYTES];
	if (!h)
		return;
	memcpy(id, one->beliefs[h].id, sizeof(id));
	if (chance(30)) {
		f(one, h, within);
		return;
	}
	const uint32_t missing = chance(15) ? below(RANKS_MAX) : UINT32_MAX;
	for (uint32_t rank = 0; rank < RANKS_MAX; rank++) {
		struct belief *b;
		struct trainer *t = holder_of(id, rank, &b);
		if (t && b && rank != missing)
			f(t, (uint32_t)(b - t->beliefs), chance(70) ? within : timeout());
	}
}

static void split_one(struct trainer *t, uint32_t handle, uint64_t within)
{
	uint32_t n = 0;
	for (uint32_t h = 1; h < HANDLES_MAX; h++)
		n += t->beliefs[h].held;
	if (n < HANDLES_MAX / 2)
		trainer_split(t, handle, (int32_t)below(3) - 1 + (chance(60) ? 1 : 0),
			      (int32_t)below(3), within);
}

static void commit_one(struct trainer *t, uint32_t handle, uint64_t within)
{
	trainer_commit(t, handle, chance(4), within);
}

static void do_drop(void)
{
	struct trainer *t = any_trainer();
	const uint32_t h = t ? any_handle(t) : 0;
	if (h && t->beliefs[h].plan)
		trainer_drop(t, h);
}

static void do_leave(void)
{
	struct trainer *t = any_trainer();
	const uint32_t h = t ? any_handle(t) : 0;
	if (h && !trainer_request(t, ASK_JOIN, t->beliefs[h].id, t->beliefs[h].rank))
		trainer_leave(t, h);
}

static void do_cancel(void)
{
	struct trainer *t = any_trainer();
	const struct request *r = NULL;
	if (t)
		DL_FOREACH (t->requests, r)
			if (r->kind == ASK_JOIN)
				break;
	if (r)
		trainer_cancel(t, r);
}

static void do_die(void)
{
	struct trainer *t = any_trainer();
	if (t)
		trainer_die(t);
}

static void on_restart(void *arg)
{
	node_restart(*(const uint32_t *)arg);
}

static void do_lose_node(void)
{
	uint32_t alive = 0;
	for (uint32_t i = 0; i < nnodes; i++)
		alive += nodes[i].alive;
	if (!losses || alive < 2)
		return;
	losses--;
	const uint32_t node = any_node();
	node_lose(node);
	if (standalone && chance(70)) {
		uint32_t *arg = malloc(sizeof(*arg));
		if (!arg)
			abort();
		*arg = node;
		at(clock_now() + between(MS, chance(50) ? 100 * MS : 15 * S), -1, on_restart, arg);
	}
}

static void do_cut(void)
{
	if (standalone)
		links_cut(any_node(), any_node(), between(100 * MS, 15 * S));
}

static void do_lose_worker(void)
{
	if (!worker_losses)
		return;
	worker_losses--;
	worker_lose(&nodes[any_node()].gpu[below(GPUS_HERE)]);
}

static void on_step(void *arg)
{
	const uint32_t what = below(100);
	(void)arg;
	if (what < 30)
		do_join();
	else if (what < 45)
		do_come_back();
	else if (what < 57)
		each_member(split_one);
	else if (what < 69)
		each_member(commit_one);
	else if (what < 73)
		do_drop();
	else if (what < 80)
		do_leave();
	else if (what < 85)
		do_cancel();
	else if (what < 91)
		do_die();
	else if (what < 94)
		do_lose_node();
	else if (what < 96)
		do_cut();
	else if (what < 98)
		do_lose_worker();
	else
		scheduler_fail_one(&nodes[any_node()].scheduler);
}

/* ---- Results ---- */

static bool run(const char *when, uint64_t duration)
{
	if (!time_run(duration))
		fail("%s: the schedule does not come to rest", when);
	return !failure[0];
}

/* Returns whether all ranks believe that they are in the same epoch. */
static bool runs(const struct wanted *w)
{
	uint32_t epoch = 0;
	for (uint32_t k = 0; k < w->nranks; k++) {
		struct belief *b;
		if (!holder_of(w->id, k, &b) || !b || b->broken || (epoch && b->epoch != epoch))
			return false;
		epoch = b->epoch;
	}
	return true;
}

static bool enough_gpus(const struct wanted *w)
{
	uint32_t alive = 0;
	for (uint32_t i = 0; i < nnodes; i++)
		alive += nodes[i].alive;
	return !w->cuda || w->nranks <= alive * GPUS_HERE;
}

/* Returns whether t holds the rank or waits for it, but away from the rank's home, or with wrong
 * parameters. */
static bool is_stray(const struct trainer *t, const struct wanted *w, uint32_t rank)
{
	const struct request *r = trainer_request(t, ASK_JOIN, w->id, rank);
	const bool home = t->node == w->home_node[rank] && t->place == w->home_place[rank];
	if (r && (!home || r->cuda != w->cuda || r->nranks != w->nranks))
		return true;
	for (uint32_t h = 0; h < HANDLES_MAX; h++) {
		const struct belief *b = &t->beliefs[h];
		if (b->held && b->rank == rank && !memcmp(b->id, w->id, sizeof(b->id)) &&
		    (!home || b->cuda != w->cuda || b->nranks != w->nranks))
			return true;
	}
	return false;
}

static void end_strays(const struct wanted *w, uint32_t rank)
{
	for (uint32_t i = 0; i < nnodes; i++)
		for (uint32_t k = 0; nodes[i].alive && k < TRAINERS_MAX; k++)
			if (nodes[i].trainers[k] && is_stray(nodes[i].trainers[k], w, rank))
				trainer_die(nodes[i].trainers[k]);
}

/* Makes every rank join; the communicator must then work. */
static void recover(struct wanted *w)
{
	plain = true;
	if (!nodes[w->gathers].alive)
		make_id(w);
	for (uint32_t k = 0; k < RANKS_MAX; k++)
		end_strays(w, k);
	for (uint32_t round = 0; round < RECOVERY_ROUNDS && !runs(w); round++) {
		for (uint32_t k = 0; k < w->nranks; k++)
			join(w, k, 0, 2 * round > RECOVERY_ROUNDS);
		if (!run("recovering", RECOVERY_NS))
			return;
	}
	if (!runs(w) && enough_gpus(w))
		fail("communicator %02x%02x does not run when all its ranks join", w->id[0],
		     w->id[1]);
}

static void set_the_scene(void)
{
	static const uint64_t delays[] = {MS, 5 * MS, 50 * MS, 200 * MS, 5 * S};
	profile.delay = delays[below(chance(10) ? 5 : 4)];
	profile.keep = chance(80) ? 1000 : 3;
	standalone = chance(50);
	losses = chance(50) ? 0 : 1 + below(standalone ? 6 : 3);
	worker_losses = chance(50) ? 0 : 1 + below(3);
	plain = false;
	nodes_begin(1 + below(NODES_MAX));
	nwanted = 1 + below(IDS_MAX);
	for (uint32_t i = 0; i < nwanted; i++)
		want(&wanted[i]);
	const uint32_t steps = 10 + below(80);
	const uint64_t length = between(200 * MS, STEPS_NS);
	for (uint32_t i = 0; i < steps; i++)
		at(clock_now() + between(0, length), -1, on_step, NULL);
}

void everybody_goes(void)
{
	for (uint32_t i = 0; i < nnodes; i++)
		for (uint32_t k = 0; nodes[i].alive && k < TRAINERS_MAX; k++)
			if (nodes[i].trainers[k])
				trainer_die(nodes[i].trainers[k]);
}

void schedule_begin(uint64_t seed)
{
	time_begin(seed);
	check_begin();
	channel_begin();
	workers_begin();
	trainers_begin();
}

void schedule_end(void)
{
	nodes_end();
	trainers_end();
	workers_end();
	time_end();
	channel_end();
	check_end();
}

bool schedule_run(uint64_t seed)
{
	schedule_begin(seed);
	set_the_scene();
	if (run("at first", REST_NS))
		check_rest();
	for (uint32_t i = 0; i < nwanted && !failure[0]; i++)
		recover(&wanted[i]);
	if (!failure[0]) {
		everybody_goes();
		if (run("at the end", 0))
			check_empty();
	}
	schedule_end();
	return !failure[0];
}
