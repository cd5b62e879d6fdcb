/* SPDX-License-Identifier: Apache-2.0
 * Past failures, step by step, each with many seeds, which determine the delays. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "simulation.h"

#define SEEDS 300

static uint8_t id[NCCLSVC_ID_BYTES] = {7};

static bool waits(const struct trainer *t, enum asking kind)
{
	const struct request *r = t->requests;
	while (r && r->kind != kind)
		r = r->next;
	return r;
}

/* The epoch in which the trainer has that rank, as far as it knows; 0: none. */
static uint32_t epoch_of(const struct trainer *t, uint32_t rank)
{
	for (uint32_t h = 0; h < HANDLES_MAX; h++)
		if (t->beliefs[h].held && !t->beliefs[h].broken && t->beliefs[h].rank == rank)
			return t->beliefs[h].epoch;
	return 0;
}

static bool is_member(const struct trainer *t, uint32_t rank)
{
	return epoch_of(t, rank);
}

static void run(uint64_t duration)
{
	if (!time_run(duration))
		fail("the schedule does not come to rest");
}

/* Both trainers join; the communicator is handle 1 of each session. */
static void join_two(struct trainer *a, struct trainer *b)
{
	trainer_join(a, id, 2, 0, false, 0);
	trainer_join(b, id, 2, 1, false, 0);
	run(S);
	if (!is_member(a, 0) || !is_member(b, 1))
		fail("two members do not get an epoch");
}

/* Retries while the commit is refused as BUSY because the connection to the coordinator is full. */
static void commit(struct trainer *t, uint64_t timeout)
{
	for (int i = 0; i < 10 && !waits(t, ASK_PLAN) && !t->beliefs[1].plan; i++)
		trainer_commit(t, 1, false, timeout);
}

/* A client requests a rank that another node's member holds, while plans are matched. */
static void rank_of_another_node_during_a_plan(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(1, 0);
	struct trainer *stray = trainer_start(0, 1);
	join_two(a, b);
	commit(a, 0);
	trainer_join(stray, id, 2, 1, false, 0);
	commit(b, 0);
	run(S);
	if (!a->beliefs[1].plan || !b->beliefs[1].plan)
		fail("the plan is not in force");
}

/* The same while an epoch is about to begin, with a deadline for the client's JOIN. */
static void rank_of_another_node_during_a_start(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(1, 0);
	struct trainer *stray = trainer_start(0, 1);
	join_two(a, b);
	trainer_die(b);
	run(5 * MS);
	b = trainer_start(1, 0);
	trainer_join(a, id, 2, 0, false, 0);
	trainer_join(b, id, 2, 1, false, 0);
	run(2 * MS);
	trainer_join(stray, id, 2, 1, false, MS);
	run(5 * S);
	if (!is_member(a, 0) || !is_member(b, 1))
		fail("the members have lost their epoch");
}

/* A client requests a rank that another node's member holds, and immediately requests a SPLIT. */
static void split_by_a_non_member(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(1, 0);
	struct trainer *stray = trainer_start(0, 1);
	join_two(a, b);
	trainer_join(stray, id, 2, 1, false, 0);
	trainer_split(stray, 1, 0, 0, 0);
	run(S);
	if (waits(stray, ASK_SPLIT))
		fail("a client that is not a member waits in SPLIT");
}

/* A plan's deadline passes before the coordinator has learned that the epoch has begun. */
static void plan_before_the_coordinator_starts(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(1, 0);
	profile.delay = 50 * MS;
	trainer_join(a, id, 2, 0, false, 0);
	trainer_join(b, id, 2, 1, false, 0);
	for (uint32_t i = 0; i < 1000 && !is_member(b, 1); i++)
		run(MS / 2);
	commit(b, MS);
	run(S);
	commit(a, 0);
	commit(b, 0);
	run(S);
	if (waits(a, ASK_PLAN) || waits(b, ASK_PLAN))
		fail("a plan waits for ever");
}

/* Starts one member on each of three nodes and lets all of them request a SPLIT, which rank 0's
 * node coordinates. Rank 0's colour is `first`; the others' is 0. */
static void split_three(struct trainer *t[3], int32_t first)
{
	for (uint32_t k = 0; k < 3; k++) {
		t[k] = trainer_start(k, 0);
		trainer_join(t[k], id, 3, k, false, 0);
	}
	run(S);
	for (uint32_t k = 0; k < 3; k++)
		trainer_split(t[k], 1, k ? 0 : first, 0, 0);
	run(between(0, 3 * MS));
}

static void no_split_waits(struct trainer *const t[3])
{
	run(5 * S);
	if (waits(t[0], ASK_SPLIT) || waits(t[1], ASK_SPLIT))
		fail("a SPLIT waits for ever");
}

/* A member dies before or after it learns which part it joins; the others must be notified. */
static void member_goes_during_a_split(void)
{
	struct trainer *t[3];
	split_three(t, 0);
	trainer_die(t[2]);
	no_split_waits(t);
}

/* The same with comm_idle_seconds = 0: a JOIN of a part may arrive after the part was refused. */
static void member_goes_during_a_split_and_nothing_is_kept(void)
{
	for (uint32_t k = 0; k < nnodes; k++)
		nodes[k].comms.coord.keep_ns = 0;
	member_goes_during_a_split();
}

/* The lost node is the rendezvous of a part; the other nodes have received different messages
 * about that part. */
static void other_node_goes_during_a_split_of_gpus(void)
{
	struct trainer *t[2] = {trainer_start(0, 0), trainer_start(2, 0)};
	for (uint32_t k = 0; k < 2; k++)
		trainer_join(t[k], id, 2, k, true, 0);
	run(10 * S);
	if (!is_member(t[0], 0) || !is_member(t[1], 1))
		return; /* NCCL fails at times */
	profile.delay = 50 * MS;
	for (uint32_t k = 0; k < 2; k++)
		trainer_split(t[k], 1, 0, 0, 0);
	run(between(0, 60 * MS));
	node_lose(1);
	run(20 * S);
	if (waits(t[0], ASK_SPLIT) || waits(t[1], ASK_SPLIT))
		fail("a SPLIT waits for ever");
	everybody_goes();
	run(0);
	check_empty();
}

static void node_goes_during_a_split(void)
{
	struct trainer *t[3];
	split_three(t, 0);
	node_lose(2);
	no_split_waits(t);
}

/* The coordinator's node is lost; the SPLIT's result may reach only some nodes. */
static void coordinator_goes_during_a_split(void)
{
	struct trainer *t[3];
	split_three(t, -1);
	node_lose(0);
	run(5 * S);
	if (waits(t[1], ASK_SPLIT) || waits(t[2], ASK_SPLIT))
		fail("a SPLIT waits for ever");
}

/* The result of a SPLIT arrives after the member's node has given that SPLIT up. It must not
 * answer the next SPLIT, which differs. */
static void result_comes_after_a_split_was_given_up(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(1, 0);
	join_two(a, b);
	profile.delay = 10 * S;
	trainer_split(b, 1, 0, 0, MS);
	trainer_split(a, 1, 0, 0, 0);
	for (uint32_t i = 0; i < 100 && waits(b, ASK_SPLIT); i++)
		run(S / 10);
	trainer_split(b, 1, -1, 0, 0); /* check.c compares the answer with the colour */
	run(60 * S);
}

/* The members keep their epoch, and nobody can join any more. The newcomer's JOIN may come before
 * its node has learned of the loss. */
static void rendezvous_is_lost(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(2, 0);
	join_two(a, b);
	profile.delay = 500 * MS;
	node_lose(id[0] % 3);
	run(between(0, 600 * MS));
	struct trainer *stray = trainer_start(chance(50) ? 0 : 2, 1);
	trainer_join(stray, id, 2, chance(50) ? 0 : 1, false, 0);
	run(10 * S);
	if (!is_member(a, 0) || !is_member(b, 1))
		fail("members have lost their epoch to a newcomer");
	if (waits(stray, ASK_JOIN))
		fail("the newcomer is not told that nobody can join");
	trainer_leave(b, 1);
	run(S);
	trainer_join(b, id, 2, 1, false, 0);
	run(S);
	if (waits(b, ASK_JOIN))
		fail("a member that has left is not told that nobody can join");
}

/* START, the rendezvous's last message, reaches only some nodes: either all members get an
 * epoch, or none does. */
static void rendezvous_is_lost_during_a_start(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(2, 0);
	trainer_join(a, id, 2, 0, false, 2 * S);
	trainer_join(b, id, 2, 1, false, 2 * S);
	run(between(0, 2 * MS));
	node_lose(id[0] % 3);
	run(between(0, 4 * MS));
	trainer_die(b);
	run(20 * S);
	if (is_member(a, 0))
		fail("a member does not learn that the other is gone");
}

/* Some members are in the epoch, others wait: all get it, or none does. */
static void rendezvous_is_lost_while_three_join(void)
{
	struct trainer *t[3];
	uint32_t members = 0;
	for (uint32_t k = 0; k < 3; k++) {
		t[k] = trainer_start(k, 0);
		trainer_join(t[k], id, 3, k, false, 0);
	}
	profile.delay = 20 * MS;
	run(between(0, 3 * MS));
	node_lose(id[0] % 4);
	run(10 * S);
	for (uint32_t k = 0; k < 3; k++) {
		members += is_member(t[k], k);
		if (waits(t[k], ASK_JOIN))
			fail("rank %u waits for ever", k);
	}
	if (members != 0 && members != 3)
		fail("%u of three members are in an epoch", members);
}

/* Trainers in no epoch join again until all are in one. */
static void all_join(struct trainer *const *t, uint32_t n)
{
	uint32_t members = 0;
	for (int i = 0; i < 20 && members < n; i++) {
		for (uint32_t k = 0; k < n; k++)
			if (!is_member(t[k], k) && !waits(t[k], ASK_JOIN))
				trainer_join(t[k], id, n, k, false, 0);
		run(10 * S);
		members = 0;
		for (uint32_t k = 0; k < n; k++)
			members += epoch_of(t[k], k) && epoch_of(t[k], k) == epoch_of(t[0], 0);
	}
	if (members < n)
		fail("%u of %u members get into one epoch", members, n);
}

/* The daemon of the rendezvous, or of a member, is restarted while an epoch begins. */
static void daemon_is_restarted(void)
{
	struct trainer *t[3];
	const uint32_t lost = below(3);
	for (uint32_t k = 0; k < 3; k++) {
		t[k] = trainer_start(k, 0);
		trainer_join(t[k], id, 3, k, false, 0);
	}
	profile.delay = 20 * MS;
	run(between(0, 60 * MS));
	node_lose(lost);
	run(between(0, 60 * MS));
	node_restart(lost);
	t[lost] = trainer_start(lost, 0);
	all_join(t, 3);
}

/* The rendezvous no longer knows the epoch that a member has left. */
static void member_returns_to_a_restarted_rendezvous(void)
{
	struct trainer *const t[] = {trainer_start(0, 0), trainer_start(0, 1)};
	join_two(t[0], t[1]);
	trainer_leave(t[0], 1);
	run(S);
	node_lose(id[0] % 3);
	run(S);
	node_restart(id[0] % 3);
	trainer_join(t[0], id, 2, 0, false, 0);
	run(S);
	if (is_member(t[1], 1))
		trainer_leave(t[1], 1);
	all_join(t, 2);
}

/* The rendezvous has lost a member's node, which another member's node still reaches. */
static void newcomer_replaces_a_node_that_is_cut_off(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(2, 0);
	join_two(a, b);
	links_cut(id[0] % 3, 2, 40 * S);
	run(15 * S);
	if (!is_member(a, 0) || !is_member(b, 1))
		fail("members that reach each other have lost their epoch");
	struct trainer *newcomer = trainer_start(id[0] % 3, 0);
	trainer_join(newcomer, id, 2, 1, false, 0);
	run(5 * S);
	if (is_member(a, 0) || is_member(b, 1))
		fail("a member is not told that its epoch is over");
	trainer_join(a, id, 2, 0, false, 0);
	run(5 * S);
	if (!is_member(a, 0) || !is_member(newcomer, 1))
		fail("the newcomer gets no epoch");
}

/* Rank 1 leaves and rank 0 dies: the epoch must end on rank 1's node too, although its GPU waits
 * for rank 0's work. */
static void last_member_elsewhere_goes(void)
{
	struct trainer *a = trainer_start(0, 0), *b = trainer_start(2, 0);
	trainer_join(a, id, 2, 0, true, 0);
	trainer_join(b, id, 2, 1, true, 0);
	run(10 * S);
	if (!is_member(a, 0) || !is_member(b, 1))
		return; /* NCCL fails at times */
	trainer_leave(b, 1);
	run(S);
	trainer_die(a);
	run(20 * S);
	if (nodes[2].scheduler.running)
		fail("an epoch never ends on a node that its members have left");
}

static const struct scenario {
	const char *name;
	uint32_t nodes;
	void (*run)(void);
	bool standalone;
} scenarios[] = {
	{"a rank of another node is asked for during a plan", 2, rank_of_another_node_during_a_plan,
	 false},
	{"a rank of another node is asked for during a start", 2,
	 rank_of_another_node_during_a_start, false},
	{"a client that is not a member requests a SPLIT", 2, split_by_a_non_member, false},
	{"a plan's deadline passes before the coordinator starts", 3,
	 plan_before_the_coordinator_starts, false},
	{"a member goes during a SPLIT", 3, member_goes_during_a_split, false},
	{"a member goes during a SPLIT, and nothing is kept", 3,
	 member_goes_during_a_split_and_nothing_is_kept, false},
	{"another node goes during a SPLIT of GPUs", 3, other_node_goes_during_a_split_of_gpus,
	 false},
	{"a node goes during a SPLIT", 3, node_goes_during_a_split, false},
	{"the coordinator goes during a SPLIT", 3, coordinator_goes_during_a_split, false},
	{"a SPLIT's result comes after it was given up", 2, result_comes_after_a_split_was_given_up,
	 false},
	{"the rendezvous is lost", 3, rendezvous_is_lost, false},
	{"the rendezvous is lost during a start", 3, rendezvous_is_lost_during_a_start, false},
	{"the rendezvous is lost while three join", 4, rendezvous_is_lost_while_three_join, false},
	{"the last member on GPUs of other nodes goes", 3, last_member_elsewhere_goes, false},
	{"a daemon is restarted", 3, daemon_is_restarted, true},
	{"a newcomer replaces a node that is cut off", 3, newcomer_replaces_a_node_that_is_cut_off,
	 true},
	{"a member returns to a restarted rendezvous", 3, member_returns_to_a_restarted_rendezvous,
	 true},
};

/* Returns a seed with which the scenario fails, or 0 if none was found. */
static uint64_t failing_seed(const struct scenario *s)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		schedule_begin(seed);
		profile = (struct profile){.delay = MS, .keep = 1000};
		standalone = s->standalone;
		nodes_begin(s->nodes);
		cluster_name_in(&nodes[id[0] % s->nodes].cluster, id);
		s->run();
		schedule_end();
		if (failure[0])
			return seed;
	}
	return 0;
}

int scenarios_run(scenario_failed *say)
{
	int result = 0;
	for (uint32_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		const uint64_t seed = failing_seed(&scenarios[i]);
		if (seed)
			say(scenarios[i].name, seed);
		result |= seed != 0;
	}
	return result;
}
