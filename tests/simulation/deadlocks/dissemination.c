/* SPDX-License-Identifier: Apache-2.0
 * Collectives on many nodes, one rank on each, whose votes nodes pass on: how many messages that
 * takes, whether all nodes know who is missing, and whether all come to the same end although
 * deadlines pass, ranks leave, nodes fall silent, or the epoch ends meanwhile. */
#include <stdio.h>

#include "deadlocks.h"

#define COLLECTIVES 4
#define SEEDS	    100
#define FEW	    5 /* nodes, of those that pass votes on */
#define MANY	    20
#define POSTED_NS   (20 * MS)		  /* after the beginning, all but late ranks post */
#define LATE_NS	    (POSTED_NS + 300 * MS) /* after the beginning, all nodes know what was posted */

bool tracing;
unsigned planted;

static uint32_t log2_of(uint32_t n)
{
	uint32_t steps = 0;
	while (1u << steps < n)
		steps++;
	return steps;
}

#define NEVER UINT64_MAX

static struct task_plan plans[TASKS_MAX];
static uint32_t nranks, nplans;

/* Plans these collectives of n ranks, rank by rank. */
static void begin(uint64_t seed, uint32_t n, uint32_t collectives)
{
	schedule_begin(seed);
	profile = (struct profile){.delay = MS};
	nranks = n;
	nplans = 0;
	for (uint32_t k = 0; k < n; k++)
		for (uint32_t i = 0; i < collectives; i++)
			plans[nplans++] = (struct task_plan){
				.rank = k, .op = NCCLSVC_ALL_REDUCE, .peer = -1, .count = 8};
}

static void post(void)
{
	struct comm_plan comm = {.id = 100, .nranks = nranks};
	uint32_t n = 0;
	for (uint32_t k = 0; k < nranks; k++)
		comm.node_of[k] = k;
	for (uint32_t i = 0; i < nplans; i++)
		if (plans[i].late_ns != NEVER)
			plans[n++] = plans[i];
	schedule_post(&comm, plans, n);
}

static void all_succeed(void)
{
	for (uint32_t i = 0; i < ntasks; i++)
		if (!tasks[i].ended || tasks[i].status.result)
			fail("rank %u: a collective %s", tasks[i].rank,
			     tasks[i].ended ? "fails" : "does not end");
}

/* Each collective ends in the same way on all ranks, but perhaps those that have left. */
static void all_agree(uint32_t collectives)
{
	for (uint32_t i = 0; i < ntasks; i++) {
		const struct task_plan *first =
			&tasks[(nranks - 1) * collectives + i % collectives];
		const struct task_plan *t = &tasks[i];
		if (comms[0].gone[t->rank])
			continue;
		if (!t->ended)
			fail("rank %u: a collective does not end", t->rank);
		else if (t->status.result != first->status.result)
			fail("a collective ends with %d on rank %u, but with %d on rank %u",
			     t->status.result, t->rank, first->status.result, first->rank);
	}
}

/* ---- Messages ---- */

/* Returns how many messages the busiest node sends for each. Each step may be sent in two parts. */
static double messages(uint32_t n)
{
	uint64_t most = 0;
	begin(n, n, COLLECTIVES);
	post();
	run_until(begin_ns + S);
	all_succeed();
	for (uint32_t k = 0; k < n; k++) {
		const uint64_t sent = nodes[k].scheduler->table.messages;
		most = sent > most ? sent : most;
	}
	if (most > (uint64_t)2 * COLLECTIVES * log2_of(n))
		fail("a node sends %d messages for %d collectives", (int)most, COLLECTIVES);
	schedule_end();
	return (double)most / COLLECTIVES;
}

/* ---- Who is missing ---- */

static bool is_known(uint32_t node, uint32_t rank)
{
	const struct comm *c = nodes[node].scheduler->comms[0];
	return atomic_load(&c->members[rank].progress->collectives) == 1;
}

static void a_rank_is_missing(uint64_t seed, uint32_t n)
{
	const uint32_t missing = (uint32_t)seed % n;
	begin(seed, n, 1);
	plans[missing].late_ns = NEVER;
	post();
	run_until(begin_ns + LATE_NS);
	for (uint32_t k = 0; k < n; k++)
		for (uint32_t rank = 0; rank < n; rank++)
			if (is_known(k, rank) != (rank != missing))
				fail("node %u does not know whether rank %u has posted", k, rank);
	schedule_end();
}

/* ---- Ranks that leave ---- */

static void on_left(void *arg)
{
	const uint32_t *a = arg;
	const struct command left = {.kind = COMMAND_MEMBER_LEFT, .left = {0, (int32_t)a[1]}};
	if (!nodes[a[0]].gone[0])
		node_command(a[0], &left);
}

static void end_node(uint32_t node, int result)
{
	const ncclsvc_status st = {.result = result, .rank_a = -1, .rank_b = -1};
	node_command(node, &(struct command){.kind = COMMAND_EPOCH_END,
					     .epoch_end = {.status = st, .later = st}});
}

/* As the supervisors do it. */
static void leave(uint32_t rank, uint32_t n)
{
	comms[0].gone[rank] = true;
	for (uint32_t k = 0; k < n; k++)
		if (k != rank)
			at_number(now_ns + between(0, MS), on_left, k, rank);
	on_left((uint32_t[]){rank, rank});
	end_node(rank, NCCLSVC_CANCELLED);
}

/* Each rank leaves as soon as its collectives have ended. */
static void ranks_leave(uint64_t seed, uint32_t n)
{
	begin(seed, n, COLLECTIVES);
	post();
	while (now_ns < begin_ns + S && !failure[0]) {
		run_until(now_ns + MS / 10);
		for (uint32_t k = 0; k < n; k++)
			if (!comms[0].gone[k] && tasks[(k + 1) * COLLECTIVES - 1].ended)
				leave(k, n);
	}
	all_succeed();
	schedule_end();
}

/* A rank leaves before the last one has posted its collective. */
static void a_rank_leaves_early(uint64_t seed, uint32_t n)
{
	begin(seed, n, 1);
	plans[n - 1].late_ns = 500 * MS;
	post();
	profile.leaves = true;
	run_until(begin_ns + LATE_NS);
	leave((uint32_t)seed % (n - 1), n);
	run_until(begin_ns + S);
	all_agree(1);
	schedule_end();
}

/* ---- Deadlines, and the end of the epoch ---- */

static void deadlines_pass(uint64_t seed, uint32_t n)
{
	begin(seed, n, 1);
	for (uint32_t i = 0; i < nplans; i++) {
		plans[i].late_ns = chance(50) ? between(0, 20 * MS) : 0;
		plans[i].timeout_ns = chance(30) ? between(MS / 100, 12 * MS) : 5 * S;
	}
	post();
	profile.deadlines = true;
	run_until(begin_ns + 9 * S);
	all_agree(1);
	schedule_end();
}

/* One node's messages do not arrive, so the others, which have asked it, name it. */
static void a_node_is_silent(uint64_t seed, uint32_t n)
{
	const uint32_t silent = (uint32_t)seed % n;
	begin(seed, n, 1);
	for (uint32_t i = 0; i < nplans; i++)
		plans[i].timeout_ns = between(50 * MS, 100 * MS);
	post();
	profile.silent = 1 + silent;
	profile.dies = true; /* it may succeed alone */
	for (uint32_t k = 0; k < n; k++)
		mpi_delay(silent, k, 20 * S);
	run_until(begin_ns + 9 * S);
	if (!comms[0].ending)
		fail("nobody names node %u", silent);
	schedule_end();
}

static void on_end_node(void *arg)
{
	end_node(*(uint32_t *)arg, NCCLSVC_PEER_GONE);
}

static void the_epoch_ends(uint64_t seed, uint32_t n)
{
	begin(seed, n, COLLECTIVES);
	post();
	profile.ends = comms[0].ending = true;
	const uint64_t end = begin_ns + POSTED_NS + between(0, 6 * MS);
	for (uint32_t k = 0; k < n; k++)
		at_number(end + between(0, 3 * MS), on_end_node, k, 0);
	run_until(begin_ns + S);
	all_agree(COLLECTIVES);
	schedule_end();
}

static void from_seeds(const char *what, void (*run)(uint64_t seed, uint32_t n))
{
	for (uint64_t seed = 1; seed <= SEEDS && !failure[0]; seed++) {
		run(seed, FEW + (uint32_t)seed % (MANY - FEW));
		if (failure[0])
			printf("%s: seed %d: ", what, (int)seed);
	}
}

int main(void)
{
	printf("%6s  %24s\n", "nodes", "messages of the busiest");
	for (uint32_t n = 2; n <= NODES_MAX && !failure[0]; n *= 2)
		printf("%6u  %24.1f\n", n, messages(n));
	from_seeds("a rank is missing", a_rank_is_missing);
	from_seeds("ranks leave", ranks_leave);
	from_seeds("a rank leaves early", a_rank_leaves_early);
	from_seeds("deadlines pass", deadlines_pass);
	from_seeds("a node is silent", a_node_is_silent);
	from_seeds("the epoch ends", the_epoch_ends);
	if (failure[0])
		printf("fails: %s\n", failure);
	return failure[0] != 0;
}
