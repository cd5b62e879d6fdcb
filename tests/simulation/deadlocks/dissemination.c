/* SPDX-License-Identifier: Apache-2.0
 * Collectives on many nodes, one rank on each, whose votes nodes pass on: how many messages that
 * takes, whether all nodes know who is missing, and whether all come to the same end although
 * deadlines pass, ranks leave, nodes fall silent, or the epoch ends meanwhile. */
#include <stdio.h>

#include "deadlocks.h"

#define COLLECTIVES 4
#define SEEDS	    100
#define FEW	    5 /* the fewest nodes that pass votes on */
#define MANY	    20
#define POSTED_NS   (20 * MS)		   /* after the beginning, all but late ranks post */
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

/* Each collective ends in the same way on all ranks, except perhaps on those that have left. */
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

/* ---- Values ---- */

static float value(uint32_t rank, uint32_t i)
{
	return (float)(rank * 7 + i % 5 + 1);
}

static float due_of(uint8_t op, uint32_t root, uint32_t count, uint32_t i)
{
	float sum = 0;
	if (op == NCCLSVC_BROADCAST)
		return value(root, i);
	if (op == NCCLSVC_ALL_GATHER)
		return value(i / count, i % count);
	for (uint32_t k = 0; k < nranks; k++)
		sum += value(k, i);
	return sum;
}

/* Some counts are too large to be passed on, and some votes do not fit into one message. */
static void values(uint64_t seed, uint32_t n)
{
	static const uint8_t ops[] = {NCCLSVC_ALL_REDUCE, NCCLSVC_BROADCAST, NCCLSVC_ALL_GATHER};
	const uint8_t op = ops[seed % 3];
	begin(seed, seed % 10 ? n : 64, 1);
	const uint32_t root = below(nranks), count = 1 + below(chance(80) ? 128 : 1500);
	const uint32_t results = op == NCCLSVC_ALL_GATHER ? nranks * (count % 128 + 1) : count;
	for (uint32_t i = 0; i < nplans; i++) {
		plans[i].op = op;
		plans[i].peer = op == NCCLSVC_BROADCAST ? (int32_t)root : -1;
		plans[i].count = op == NCCLSVC_ALL_GATHER ? count % 128 + 1 : count;
		plans[i].late_ns = chance(20) ? between(0, 20 * MS) : 0;
		for (uint32_t k = 0; k < count || k < 128; k++)
			session_memory(plans[i].rank, false)[k] = value(plans[i].rank, k);
	}
	post();
	run_until(begin_ns + S);
	all_succeed();
	for (uint32_t k = 0; k < nranks; k++)
		for (uint32_t i = 0; i < results; i++)
			if (session_memory(k, true)[i] !=
			    due_of(op, root, results / (op == NCCLSVC_ALL_GATHER ? nranks : 1), i))
				fail("rank %u: value %u of operation %u is %f", k, i, op,
				     (double)session_memory(k, true)[i]);
	schedule_end();
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

static void on_lost(void *arg)
{
	const uint32_t *a = arg;
	nodes[a[0]].lost[a[1]] = true;
	node_command(a[0], &(struct command){.kind = COMMAND_NODE_LOST, .node = {a[1]}});
	end_node(a[0], NCCLSVC_PEER_GONE);
}

/* As the supervisors do it. */
static void leave(uint32_t rank, uint32_t n)
{
	comms[0].gone[rank] = true;
	for (uint32_t k = 0; k < n; k++)
		if (k != rank)
			at_number(now_ns + between(0, profile.delay), on_left, k, rank);
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

/* A rank leaves before the last one has posted its collective, and long before all messages have
 * arrived. */
static void a_rank_leaves_early(uint64_t seed, uint32_t n)
{
	begin(seed, n, 1);
	profile.leaves = true;
	profile.delay = chance(50) ? MS : 200 * MS;
	plans[n - 1].late_ns = between(0, profile.delay);
	post();
	run_until(begin_ns + POSTED_NS + between(0, 5 * MS));
	leave((uint32_t)seed % (n - 1), n);
	run_until(begin_ns + 2 * S);
	all_agree(1);
	schedule_end();
}

/* A node falls silent after its vote is known everywhere; later votes may have to pass it. */
static void a_node_is_lost(uint64_t seed, uint32_t n)
{
	const uint32_t lost = (uint32_t)seed % (n - 1);
	begin(seed, n, 1);
	profile.dies = profile.ends = true;
	plans[n - 1].late_ns = 400 * MS;
	post();
	run_until(begin_ns + LATE_NS);
	comms[0].ending = comms[0].gone[lost] = true;
	nodes[lost].alive = false;
	mpi_lose(lost);
	run_until(begin_ns + POSTED_NS + 500 * MS);
	for (uint32_t k = 0; k < n; k++)
		if (k != lost)
			at_number(now_ns + between(0, 3 * MS), on_lost, k, lost);
	run_until(begin_ns + S);
	for (uint32_t i = 0; i < ntasks; i++)
		if (tasks[i].rank != lost && (!tasks[i].ended || tasks[i].status.result))
			fail("rank %u loses a result that others have", tasks[i].rank);
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

/* One node's messages do not arrive, at all nodes or at one. Nodes that have asked it name it. */
static void a_node_is_silent(uint64_t seed, uint32_t n)
{
	const uint32_t silent = (uint32_t)seed % n;
	begin(seed, n, 1);
	for (uint32_t i = 0; i < nplans; i++)
		plans[i].timeout_ns = between(50 * MS, 100 * MS);
	post();
	profile.silent = 1 + silent;
	profile.dies = true; /* it may succeed alone */
	const bool all = chance(50);
	const uint32_t next = (silent + (1u << below(log2_of(n)))) % n;
	for (uint32_t k = 0; k < n; k++)
		if (all || k == next)
			mpi_delay(silent, k, 6 * S);
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
	from_seeds("values", values);
	from_seeds("a rank is missing", a_rank_is_missing);
	from_seeds("ranks leave", ranks_leave);
	from_seeds("a rank leaves early", a_rank_leaves_early);
	from_seeds("a node is lost", a_node_is_lost);
	from_seeds("deadlines pass", deadlines_pass);
	from_seeds("a node is silent", a_node_is_silent);
	from_seeds("the epoch ends", the_epoch_ends);
	if (failure[0])
		printf("fails: %s\n", failure);
	return failure[0] != 0;
}
