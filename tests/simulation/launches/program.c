/* SPDX-License-Identifier: Apache-2.0
 * Derives from the seed the nodes, the communicators, what their processes post in which task
 * groups, and what goes wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/timings.h"
#include "launches.h"

#define LOOK_NS	     (100 * MS)
#define POSTED_BY_NS (1 * S)  /* all tasks are posted, and all deadlines have passed */
#define REST_NS	     (60 * S) /* NODE_ANSWER_NS may pass many times */
#define END_NS	     (75 * S)

struct profile profile;
struct comm_plan comms[COMMS_MAX];
uint32_t ncomms, nnodes;
struct task tasks[TASKS_MAX];
uint32_t ntasks;

static uint64_t begin_ns;
static uint32_t ngroups;
static bool ending[COMMS_MAX];

void trace(uint32_t node, const char *format, ...)
{
	va_list args;
	if (!tracing)
		return;
	printf("%10.3f ms  node %u ", (double)(now_ns - begin_ns) / 1e6, node);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

bool same_key(const struct operation_key *a, const struct operation_key *b)
{
	return operation_same(a, b);
}

/* ---- Communicators ---- */

static void choose_comm(struct comm_plan *p, uint64_t id)
{
	uint32_t all[NODES_MAX];
	memset(p, 0, sizeof(*p));
	p->id = id;
	p->nnodes = 2 + below(nnodes - 1);
	for (uint32_t k = 0; k < nnodes; k++)
		all[k] = k;
	for (uint32_t i = 0; i < p->nnodes; i++) {
		const uint32_t k = i + below(nnodes - i);
		p->nodes[i] = all[k];
		all[k] = all[i];
	}
	/* Ranks are assigned node by node; second processes get the last ones. */
	for (uint32_t i = 0; i < p->nnodes; i++) {
		p->process_of[p->nranks] = 0;
		p->place_of[p->nranks++] = i;
	}
	for (uint32_t i = 0; i < p->nnodes; i++)
		if (chance(25)) {
			p->process_of[p->nranks] = 1;
			p->place_of[p->nranks++] = i;
		}
}

/* ---- Programs ---- */

/* One operation of the program that all processes follow. */
struct step {
	uint32_t comm;
	bool pair;
	uint32_t a, b; /* ranks */
	struct svc_record record;
};

static struct step choose_step(uint32_t first, uint32_t count)
{
	struct step s = {.comm = first + below(count)};
	const struct comm_plan *p = &comms[s.comm];
	s.pair = chance(30);
	s.record = (struct svc_record){.op = NCCLSVC_ALL_REDUCE,
				       .type = NCCLSVC_FLOAT32,
				       .count = 1 + below(1000),
				       .peer = -1};
	if (s.pair) {
		do {
			s.a = below(p->nranks);
			s.b = below(p->nranks);
		} while (p->place_of[s.a] == p->place_of[s.b]);
		s.record.op = NCCLSVC_SEND;
	}
	return s;
}

static void add_task(const struct step *s, uint32_t rank, uint32_t group)
{
	const struct comm_plan *p = &comms[s->comm];
	struct task *t = &tasks[ntasks++];
	*t = (struct task){.node = p->nodes[p->place_of[rank]],
			   .comm = s->comm,
			   .rank = rank,
			   .process = p->process_of[rank],
			   .group = group,
			   .pair = s->pair,
			   .sends = s->pair && rank == s->a,
			   .peer = s->pair ? (rank == s->a ? s->b : s->a) : 0,
			   .record = s->record};
	if (s->pair && !t->sends)
		t->record.op = NCCLSVC_RECV;
	if (profile.strays && chance(2))
		t->record.count++;
	if (profile.deadlines && chance(80))
		t->deadline = between(MS, 300 * MS);
}

/* The process's rank in the step, or -1. */
static int rank_in(const struct step *s, uint32_t node, uint32_t process)
{
	const struct comm_plan *p = &comms[s->comm];
	for (uint32_t k = 0; k < p->nranks; k++)
		if (p->nodes[p->place_of[k]] == node && p->process_of[k] == process &&
		    (!s->pair || k == s->a || k == s->b))
			return (int)k;
	return -1;
}

/* Adds what one process posts of a group of steps. */
static void add_group(const struct step *steps, uint32_t n, uint32_t node, uint32_t process)
{
	const uint32_t group = ++ngroups;
	for (uint32_t i = 0; i < n; i++) {
		const int rank = rank_in(&steps[i], node, process);
		if (rank >= 0 && !(profile.strays && chance(2)))
			add_task(&steps[i], (uint32_t)rank, group);
	}
}

/* ---- Posting ---- */

static void on_deadline(void *arg)
{
	struct task *t = *(struct task **)arg;
	const ncclsvc_status st = {.result = NCCLSVC_TIMEOUT, .rank_a = -1, .rank_b = -1};
	if (!nodes[t->node].alive)
		return;
	order_fail(t, &st);
	node_launch(&nodes[t->node]);
}

static void on_cancel(void *arg)
{
	struct task *t = *(struct task **)arg;
	const ncclsvc_status st = {.result = NCCLSVC_CANCELLED, .rank_a = -1, .rank_b = -1};
	if (!nodes[t->node].alive)
		return;
	order_fail(t, &st);
	node_launch(&nodes[t->node]);
}

static void at_for(uint64_t time, void (*f)(void *arg), struct task *t)
{
	struct task **arg = make(sizeof(struct task *));
	*arg = t;
	at(time, -1, f, arg);
}

/* Posts the group that begins with that task. */
static void on_post(void *arg)
{
	struct task *first = *(struct task **)arg, *end = first, *last = NULL;
	if (!nodes[first->node].alive)
		return;
	for (; end < tasks + ntasks && end->group == first->group; end++) {
		order_post(end);
		if (end->place != IN_QUEUE)
			continue;
		if (end->deadline)
			at_for(now_ns + end->deadline, on_deadline, end);
		if (profile.cancels && chance(3))
			at_for(now_ns + between(0, 100 * MS), on_cancel, end);
		if (last)
			last->next_in_group = end;
		else
			first = end;
		last = end;
	}
	if (last && last != first)
		last->next_in_group = first;
	node_launch(&nodes[first->node]);
}

/* Posts the program of one process, group by group; strays swap two of them. */
static void post_program(uint32_t from, uint64_t time, uint64_t gap)
{
	uint32_t starts[TASKS_MAX], n = 0;
	for (uint32_t i = from; i < ntasks; i++)
		if (i == from || tasks[i].group != tasks[i - 1].group)
			starts[n++] = i;
	for (uint32_t i = 0; profile.strays && i + 1 < n; i++)
		if (chance(3)) {
			const uint32_t other = starts[i + 1];
			starts[i + 1] = starts[i];
			starts[i] = other;
		}
	for (uint32_t i = 0; i < n; i++)
		at_for(time += between(0, gap), on_post, &tasks[starts[i]]);
}

/* Creates the program for communicators first .. first + count - 1. */
static void make_program(uint32_t first, uint32_t count, uint64_t time)
{
	struct step steps[64][4];
	uint32_t sizes[64], n = 1 + below(chance(70) ? 8 : 40);
	const uint32_t largest = 1 + below(4);
	const uint64_t gap = chance(50) ? MS / 10 : 5 * MS;
	for (uint32_t g = 0; g < n; g++) {
		sizes[g] = 1 + below(largest);
		for (uint32_t i = 0; i < sizes[g]; i++)
			steps[g][i] = choose_step(first, count);
	}
	for (uint32_t node = 0; node < nnodes; node++)
		for (uint32_t process = 0; process < PROCESSES; process++) {
			const uint32_t from = ntasks;
			for (uint32_t g = 0; g < n && ntasks < TASKS_MAX - 4; g++)
				add_group(steps[g], sizes[g], node, process);
			post_program(from, time + between(0, 5 * MS), gap);
		}
}

/* ---- Beginnings and ends ---- */

struct on_node {
	uint32_t node, what;
};

static void at_node(uint64_t time, void (*f)(void *arg), uint32_t node, uint32_t what)
{
	struct on_node *o = make(sizeof(*o));
	*o = (struct on_node){node, what};
	at(time, -1, f, o);
}

static void on_begin(void *arg)
{
	const struct on_node *o = arg;
	node_comm_begin(o->node, o->what);
	node_launch(&nodes[o->node]);
}

static void on_comm_look(void *arg)
{
	const struct on_node *o = arg;
	if (!nodes[o->node].alive)
		return;
	node_comm_look(&nodes[o->node].comms[o->what]);
	node_launch(&nodes[o->node]);
}

static void on_end(void *arg)
{
	const struct on_node *o = arg;
	node_comm_end(o->node, o->what);
	at_node(now_ns + EPOCH_CLOSE_NS, on_comm_look, o->node, o->what);
}

void program_end_comm(uint32_t comm)
{
	const struct comm_plan *p = &comms[comm];
	if (ending[comm])
		return;
	ending[comm] = true;
	for (uint32_t i = 0; i < p->nnodes; i++)
		at_node(now_ns + between(0, 50 * MS), on_end, p->nodes[i], comm);
}

static void on_end_early(void *arg)
{
	program_end_comm(((struct on_node *)arg)->what);
}

static void on_learn_loss(void *arg)
{
	const struct on_node *o = arg;
	node_learn_loss(o->node, o->what);
}

static void on_death(void *arg)
{
	const uint32_t lost = ((struct on_node *)arg)->node;
	trace(lost, "is lost");
	for (uint32_t k = 0; k < nnodes; k++)
		sequencer_died |= nodes[k].alive && sequencer_of(&nodes[k]) == lost;
	nodes[lost].alive = false;
	channel_lose(lost);
	for (uint32_t k = 0; k < nnodes; k++)
		if (k != lost)
			at_node(now_ns + between(MS, 150 * MS), on_learn_loss, k, lost);
}

static void on_look(void *arg)
{
	const uint32_t node = ((struct on_node *)arg)->node;
	if (!nodes[node].alive)
		return;
	sequencers_look(node);
	if (now_ns < begin_ns + END_NS)
		at_node(now_ns + LOOK_NS, on_look, node, 0);
}

static void begin_comms(uint32_t first, uint32_t count, uint64_t time)
{
	for (uint32_t i = first; i < first + count; i++)
		for (uint32_t p = 0; p < comms[i].nnodes; p++)
			at_node(time + between(0, 20 * MS), on_begin, comms[i].nodes[p], i);
	make_program(first, count, time + 20 * MS);
}

/* ---- Schedules ---- */

static void choose_profile(void)
{
	profile = (struct profile){.delay = chance(50) ? 2 * MS : 30 * MS,
				   .strays = chance(40),
				   .deadlines = chance(40),
				   .cancels = chance(25),
				   .leaves = chance(15),
				   .dies = chance(20)};
	profile.regular = !profile.strays && !profile.deadlines && !profile.cancels &&
			  !profile.leaves && !profile.dies;
}

static void begin(uint64_t seed)
{
	time_begin(seed);
	begin_ns = now_ns;
	failure[0] = 0;
	ntasks = ngroups = 0;
	memset(ending, 0, sizeof(ending));
}

static void begin_nodes(void)
{
	channel_begin();
	check_begin();
	nodes_begin(nnodes);
	for (uint32_t k = 0; k < nnodes; k++)
		for (uint32_t i = 0; i < ncomms; i++) {
			struct local_comm *s = &nodes[k].comms[i];
			s->plan = &comms[i];
			s->index = i;
			s->node = k;
		}
	sequencers_begin();
}

/* Some communicators begin later, perhaps after a loss. */
static void plan_all(void)
{
	const uint32_t early = ncomms > 1 && chance(50) ? 1 + below(ncomms - 1) : ncomms;
	begin_comms(0, early, begin_ns);
	if (early < ncomms)
		begin_comms(early, ncomms - early, begin_ns + between(0, 300 * MS));
	for (uint32_t k = 0; k < nnodes; k++)
		at_node(now_ns + between(0, LOOK_NS), on_look, k, 0);
	if (profile.leaves)
		at_node(now_ns + between(0, 100 * MS), on_end_early, 0, below(ncomms));
	if (profile.dies)
		at_node(now_ns + between(0, 200 * MS), on_death, chance(40) ? 0 : below(nnodes), 0);
}

static void run_until(uint64_t time)
{
	if (!time_run(time - now_ns))
		fail("the schedule does not come to rest");
}

static bool run_to_end(void)
{
	run_until(begin_ns + REST_NS);
	if (!failure[0])
		check_rest();
	for (uint32_t i = 0; i < ncomms; i++)
		program_end_comm(i);
	if (!failure[0])
		run_until(begin_ns + END_NS);
	if (!failure[0])
		check_end();
	nodes_end();
	sequencers_end();
	time_end();
	return !failure[0];
}

bool schedule_run(uint64_t seed)
{
	begin(seed);
	choose_profile();
	nnodes = 2 + below(NODES_MAX - 1);
	ncomms = 1 + below(COMMS_MAX);
	for (uint32_t i = 0; i < ncomms; i++)
		choose_comm(&comms[i], 100 + i);
	begin_nodes();
	plan_all();
	return run_to_end();
}

/* ---- A circle ---- */

static void circle_post(uint32_t node, uint32_t comm, uint32_t group)
{
	const struct step s = {
		.comm = comm,
		.record = {
			.op = NCCLSVC_ALL_REDUCE, .type = NCCLSVC_FLOAT32, .count = 8, .peer = -1}};
	add_task(&s, node, group);
	tasks[ntasks - 1].deadline = 100 * MS;
	if (ntasks == 1 || tasks[ntasks - 2].group != group)
		at_for(begin_ns + (20 + group) * MS, on_post, &tasks[ntasks - 1]);
}

/* Node 0 has the first operations of both communicators in one group, and then the second ones;
 * node 1 has the first of one communicator together with the second of the other. */
static void circle_plan(void)
{
	profile = (struct profile){.delay = 2 * MS};
	nnodes = ncomms = 2;
	for (uint32_t i = 0; i < ncomms; i++)
		comms[i] = (struct comm_plan){.id = 100 + i,
					      .nnodes = 2,
					      .nodes = {0, 1},
					      .nranks = 2,
					      .place_of = {0, 1}};
	begin_nodes();
	for (uint32_t i = 0; i < ncomms; i++)
		for (uint32_t node = 0; node < nnodes; node++)
			at_node(begin_ns, on_begin, node, i);
	circle_post(0, 0, 1);
	circle_post(0, 1, 1);
	circle_post(0, 0, 2);
	circle_post(0, 1, 2);
	circle_post(1, 1, 3);
	circle_post(1, 0, 4);
	circle_post(1, 1, 4);
	circle_post(1, 0, 5);
	for (uint32_t node = 0; node < nnodes; node++)
		at_node(begin_ns, on_look, node, 0);
}

bool circle_run(uint64_t seed)
{
	uint32_t overdue = 0, in_groups = 0;
	begin(seed);
	circle_plan();
	if (!run_to_end())
		return false;
	for (uint32_t i = 0; i < ntasks; i++) {
		overdue += tasks[i].status.result == NCCLSVC_TIMEOUT;
		in_groups += tasks[i].status.field == NCCLSVC_FIELD_GROUP;
	}
	if (!overdue || !in_groups)
		fail("deadlines have ended %u tasks, %u of them because of their groups", overdue,
		     in_groups);
	return !failure[0];
}
