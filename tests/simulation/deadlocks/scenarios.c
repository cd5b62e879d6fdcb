/* SPDX-License-Identifier: Apache-2.0
 * Past failures, step by step, each with many seeds, because times are random. */
#include "deadlocks.h"

#define SEEDS 1000

#define COLLECTIVE(r, t)                                                                           \
	{                                                                                          \
		.rank = (r), .op = NCCLSVC_ALL_REDUCE, .peer = -1, .count = 8, .timeout_ns = (t)   \
	}
#define PAIR(r, o, p)                                                                              \
	{                                                                                          \
		.rank = (r), .op = (o), .peer = (p), .count = 8, .expected = EXPECT_DEADLOCK       \
	}
#define RECV(r, p) PAIR(r, NCCLSVC_RECV, p)
#define SEND(r, p) PAIR(r, NCCLSVC_SEND, p)
#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))

/* Whether the task has ended as it must. In no scenario do all ranks reach a collective in time, so
 * it times out, unless a deadlock is found first. */
static bool ends_well(const struct task_plan *t)
{
	if (t->peer < 0)
		return t->status.result == NCCLSVC_TIMEOUT || is_deadlock(&t->status);
	return t->expected == EXPECT_OK ? !t->status.result : is_deadlock(&t->status);
}

/* The number of collectives that the rank has posted before this one. */
static uint32_t number_of(const struct task_plan *collective)
{
	uint32_t n = 0;
	for (const struct task_plan *t = tasks; t < collective; t++)
		n += t->rank == collective->rank && t->peer < 0;
	return n;
}

/* Checks that a collective's tasks end in the same way on all ranks. */
static void members_agree(const struct task_plan *t)
{
	for (const struct task_plan *u = tasks; u < t && t->peer < 0; u++)
		if (u->peer < 0 && number_of(u) == number_of(t) &&
		    u->status.result != t->status.result)
			fail("collective %u ends with %d on rank %u, but with %d on rank %u",
			     number_of(t), u->status.result, u->rank, t->status.result, t->rank);
}

/* Checks that each task has ended as it must. */
static void all_completed(void)
{
	for (uint32_t i = 0; i < ntasks && !failure[0]; i++) {
		const struct task_plan *t = &tasks[i];
		if (!t->ended)
			fail("task %u of rank %u never ends", i, t->rank);
		else if (!ends_well(t))
			fail("task %u of rank %u ends with %d", i, t->rank, t->status.result);
		else
			members_agree(t);
	}
}

/* Rank 1's collective has failed, but still waits for rank 0 on the same node. */
static void a_failed_collective_waits(void)
{
	const struct comm_plan comm = {.id = 100, .nranks = 3, .node_of = {0, 0, 1}};
	const struct task_plan plans[] = {RECV(0, 2), COLLECTIVE(1, 50 * MS), RECV(2, 0)};
	schedule_play(&comm, plans, COUNT(plans));
	all_completed();
}

/* When all ranks wait, node 0 has failed a collective that its member has not reached yet. */
static void a_collective_has_failed_before_its_turn(void)
{
	const struct comm_plan comm = {.id = 100, .nranks = 3, .node_of = {0, 1, 1}};
	struct task_plan plans[] = {
		RECV(0, 1),
		COLLECTIVE(0, 900 * MS),
		RECV(0, 1),
		COLLECTIVE(1, 10 * MS),
		COLLECTIVE(1, 15 * MS),
		SEND(1, 0),
		RECV(1, 0),
		COLLECTIVE(2, 10 * MS),
		COLLECTIVE(2, 15 * MS),
		RECV(2, 0),
	};
	plans[0].expected = plans[5].expected = EXPECT_OK;
	schedule_play(&comm, plans, COUNT(plans));
	all_completed();
}

/* When node 0 gets the last answer, it has failed a collective, and node 2's vote on that is still
 * to come. So node 0 does not break the deadlock; the other nodes, whose members have failed, do
 * not either. A little later all ranks wait, and nothing has changed on node 0. */
static void a_failure_is_voted_on_meanwhile(void)
{
	const struct comm_plan comm = {.id = 100, .nranks = 5, .node_of = {0, 1, 1, 2, 2}};
	const struct task_plan plans[] = {RECV(0, 1), RECV(1, 0),
					  COLLECTIVE(2, between(40, 120) * MS), RECV(3, 0),
					  COLLECTIVE(4, 900 * MS)};
	mpi_delay(2, 0, between(5, 25) * MS);
	schedule_play(&comm, plans, COUNT(plans));
	all_completed();
}

static const struct scenario {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{"a failed collective waits for members of its node", a_failed_collective_waits},
	{"a collective has failed before its turn", a_collective_has_failed_before_its_turn},
	{"a failure is voted on when a deadlock is found", a_failure_is_voted_on_meanwhile},
};

/* Returns a seed with which the scenario fails, or 0 if none was found. */
static uint64_t failing_seed(const struct scenario *s)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		schedule_begin(seed);
		profile = (struct profile){.delay = MS, .strays = true, .deadlines = true};
		s->run();
		if (!schedule_end())
			return seed;
	}
	return 0;
}

int scenarios_run(scenario_failed *say)
{
	int result = 0;
	for (uint32_t i = 0; i < COUNT(scenarios); i++) {
		const uint64_t seed = failing_seed(&scenarios[i]);
		if (seed)
			say(scenarios[i].name, seed);
		result |= seed != 0;
	}
	return result;
}
