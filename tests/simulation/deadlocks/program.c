/* SPDX-License-Identifier: Apache-2.0
 * Derives from the seed the nodes, the communicators, what their ranks post, and what goes wrong.
 */
#include <string.h>

#include "base/timings.h"
#include "deadlocks.h"
#include "transport/transports.h"

#ifndef NODES /* meson.build sets both for wider ones */
#define NODES 4
#define RANKS 6
#endif
#define COMMS	  2
#define STEPS_MAX 24
#define POST_NS	  (20 * MS) /* by then, epochs have begun */
#define REST_NS	  (9 * S)
#define END_NS	  (13 * S)

struct profile profile;
struct task_plan tasks[TASKS_MAX];
uint32_t ntasks;

static uint32_t ngroups;

static uint32_t node_of(const struct task_plan *t)
{
	return comms[t->comm].node_of[t->rank];
}

/* ---- Programs ---- */

/* One operation of the program that all ranks follow. */
struct step {
	uint32_t a, b; /* a == b: a collective */
};

static struct step choose_step(const struct comm_plan *p)
{
	struct step s = {0};
	if (chance(60)) {
		s.a = below(p->nranks);
		s.b = (s.a + 1 + below(p->nranks - 1)) % p->nranks;
	}
	return s;
}

/* Some counts are too large for a vote. Tasks that may match have equal counts. */
static uint64_t count_of(uint32_t comm, const struct step *s)
{
	return (s->a + s->b + comm) % 4 ? 8 : 4000;
}

static void add_task(uint32_t comm, uint32_t rank, const struct step *s)
{
	const bool pair = s->a != s->b;
	tasks[ntasks++] = (struct task_plan){
		.comm = comm,
		.rank = rank,
		.group = ngroups,
		.op = pair ? (rank == s->a ? NCCLSVC_SEND : NCCLSVC_RECV) : NCCLSVC_ALL_REDUCE,
		.peer = pair ? (int32_t)(rank == s->a ? s->b : s->a) : -1,
		.count = pair ? count_of(comm, s) : 8,
		.timeout_ns = profile.deadlines && chance(80) ? between(MS, 300 * MS) : 0};
}

/* All send before they receive, or the reverse, in a ring. */
static uint32_t choose_ring(const struct comm_plan *p, struct step *steps)
{
	for (uint32_t k = 0; k < p->nranks; k++)
		steps[k] = (struct step){k, (k + 1) % p->nranks};
	return p->nranks;
}

/* Adds one rank's part of the n steps as one group. */
static void add_group(uint32_t comm, uint32_t rank, const struct step *steps, uint32_t n)
{
	ngroups++;
	for (uint32_t i = 0; i < n; i++) {
		const struct step *s = &steps[i];
		if (s->a != s->b && s->a != rank && s->b != rank)
			continue;
		if (profile.strays && chance(4))
			continue;
		add_task(comm, rank, s);
		if (profile.strays && chance(1))
			add_task(comm, rank, s);
	}
}

static void swap(uint32_t *a, uint32_t *b)
{
	const uint32_t kept = *a;
	*a = *b;
	*b = kept;
}

/* Numbers each rank's tasks with the same op and peer. */
static void number_tasks(uint32_t first)
{
	for (uint32_t i = first; i < ntasks; i++)
		for (uint32_t k = first; k < i; k++)
			tasks[i].nth +=
				tasks[k].op == tasks[i].op && tasks[k].peer == tasks[i].peer;
}

static void make_program(uint32_t comm)
{
	const struct comm_plan *p = &comms[comm];
	struct step steps[STEPS_MAX + RANKS_MAX];
	uint32_t starts[STEPS_MAX + RANKS_MAX + 1], n = 1 + below(STEPS_MAX), ngroup = 0;
	for (uint32_t i = 0; i < n; i++)
		steps[i] = choose_step(p);
	const bool ring = profile.strays && chance(50);
	const uint32_t before = n;
	if (ring)
		n += choose_ring(p, steps + n);
	const uint32_t largest = 1 + below(3);
	for (uint32_t i = 0; i < n;) {
		const uint32_t size = i < before ? 1 + below(largest) : 1;
		starts[ngroup++] = i;
		i = i < before && i + size > before ? before : i + size;
	}
	for (uint32_t k = 0; k < p->nranks; k++) {
		const uint32_t first = ntasks;
		uint32_t order[STEPS_MAX + RANKS_MAX];
		for (uint32_t i = 0; i < ngroup; i++)
			order[i] = i;
		for (uint32_t i = 0; i + 1 < ngroup; i++)
			if (profile.strays && chance(starts[i] >= before ? 30 : 3))
				swap(&order[i], &order[i + 1]);
		for (uint32_t i = 0; i < ngroup; i++) {
			const uint32_t from = starts[order[i]];
			const uint32_t to = order[i] + 1 < ngroup ? starts[order[i] + 1] : n;
			add_group(comm, k, steps + from, to - from);
		}
		number_tasks(first);
	}
}

/* ---- Posting ---- */

static void on_cancel(void *arg)
{
	const uint32_t number = *(uint32_t *)arg;
	const struct task_plan *plan = &tasks[number];
	const struct node *n = &nodes[node_of(plan)];
	if (!n->alive || n->gone[plan->comm] || comms[plan->comm].gone[plan->rank])
		return;
	if (chance(5)) {
		node_cancel(node_of(plan), SVC_CANCEL_COMM, plan->comm);
		return;
	}
	const struct task *t = node_task(node_of(plan), plan->comm, plan->rank, number);
	if (t)
		node_cancel(node_of(plan), SVC_CANCEL_TASK, t->uid);
}

/* Posts the group that begins with that task. */
static void on_post(void *arg)
{
	const uint32_t first = *(uint32_t *)arg;
	uint32_t end = first + 1;
	const struct comm_plan *p = &comms[tasks[first].comm];
	if (!nodes[node_of(&tasks[first])].alive || p->gone[tasks[first].rank])
		return;
	while (end < ntasks && tasks[end].group == tasks[first].group)
		end++;
	for (uint32_t i = first; i < end; i++) {
		struct task_plan *t = &tasks[i];
		struct command c = {.kind = COMMAND_TASK,
				    .session = p->session_of[t->rank],
				    .task = {.request_id = i,
					     .record = node_record(t->op, t->peer, t->comm,
								   t->count, t->timeout_ns)}};
		c.task.record.flags = i + 1 < end ? SVC_TASK_MORE : 0;
		t->posted = true;
		t->posted_ns = now_ns;
		trace(node_of(t), "rank %u of communicator %u posts task %u: %u, peer %d", t->rank,
		      t->comm, i, t->op, t->peer);
		node_command(node_of(t), &c);
		if (profile.cancels && chance(6))
			at_number(now_ns + between(0, 150 * MS), on_cancel, i, 0);
	}
}

void program_completed(uint32_t session, uint32_t request_id, const ncclsvc_status *st)
{
	struct task_plan *t = &tasks[request_id];
	if (comms[t->comm].session_of[t->rank] != session) {
		fail("task %u ends in another session", request_id);
		return;
	}
	trace(node_of(t), "rank %u of communicator %u: task %u ends with %d, field %d", t->rank,
	      t->comm, request_id, st->result, st->field);
	if (!nodes[node_of(t)].alive || nodes[node_of(t)].ends)
		return;
	t->status = *st;
	t->ended_ns = now_ns;
	check_completed(t);
	t->ended = true;
}

static void post_program(uint32_t comm)
{
	static const uint64_t gaps[] = {MS / 10, 5 * MS, 60 * MS};
	const uint64_t gap = gaps[below(3)];
	uint64_t time = 0;
	for (uint32_t i = 0; i < ntasks; i++) {
		if (tasks[i].comm != comm)
			continue;
		const bool another = !i || tasks[i].comm != tasks[i - 1].comm ||
				     tasks[i].rank != tasks[i - 1].rank;
		if (another)
			time = begin_ns + POST_NS + between(0, 5 * MS);
		if (another || tasks[i].group != tasks[i - 1].group)
			at_number(time += between(0, gap), on_post, i, 0);
	}
}

/* ---- Beginnings and ends ---- */

void program_event(uint32_t node, const struct event *event)
{
	if (event->kind != EVENT_INTERNODE_FAILED)
		return;
	trace(node, "gives communicator %u up: %d", event->internode.comm, event->internode.result);
	if (profile.silent && event->internode.node != (int32_t)profile.silent - 1 &&
	    node != profile.silent - 1)
		fail("node %u names node %d, not the silent one", node, event->internode.node);
	if (profile.silent) {
		program_end_comm(event->internode.comm);
		return;
	}
	if (profile_undisturbed() ||
	    (!profile.dies && event->internode.result != NCCLSVC_CANCELLED))
		fail("node %u gives communicator %u up with %d", node, event->internode.comm,
		     event->internode.result);
	program_end_comm(event->internode.comm);
}

bool program_message(struct internode_header *h, void *body, uint64_t *when)
{
	(void)h;
	(void)body;
	(void)when;
	return true;
}

static void on_end_early(void *arg)
{
	program_end_comm(*(uint32_t *)arg);
}

static void on_leave(void *arg)
{
	const uint32_t *a = arg;
	const uint32_t node = comms[a[0]].node_of[a[1]];
	if (nodes[node].gone[a[0]])
		return;
	trace(node, "rank %u of communicator %u leaves", a[1], a[0]);
	comms[a[0]].gone[a[1]] = true;
	node_command(node,
		     &(struct command){.kind = COMMAND_MEMBER_LEFT, .left = {a[0], (int32_t)a[1]}});
}

static void on_death(void *arg)
{
	node_lose(*(uint32_t *)arg);
}

/* ---- Schedules ---- */

static void choose_profile(void)
{
	static const uint64_t delays[] = {2 * MS, 20 * MS, 200 * MS};
	profile = (struct profile){.delay = delays[below(3)],
				   .strays = chance(60),
				   .deadlines = chance(20),
				   .cancels = chance(20),
				   .ends = chance(10),
				   .leaves = chance(10),
				   .dies = chance(10)};
	mpi_delay_ns = profile.delay;
}

/* Chooses a communicator with ranks on at least two nodes. */
static void choose_comm(uint32_t comm)
{
	struct comm_plan *p = &comms[comm];
	*p = (struct comm_plan){.id = 100 + comm, .nranks = 2 + below(RANKS - 1)};
	for (uint32_t k = 0; k < p->nranks; k++) {
		p->session_of[k] = comm * RANKS + k;
		p->node_of[k] = below(nnodes);
	}
	if (!memcmp(p->node_of, p->node_of + 1, (p->nranks - 1) * sizeof(p->node_of[0])))
		p->node_of[1] = (p->node_of[0] + 1) % nnodes;
}

static void begin_comm(uint32_t comm)
{
	comm_begin(comm, begin_ns, begin_ns + POST_NS / 4);
}

static void begin_looks(void)
{
	for (uint32_t k = 0; k < nnodes; k++)
		node_look(k, DEADLOCK_LOOK_NS, begin_ns + END_NS);
}

static void plan_comm(uint32_t comm)
{
	begin_comm(comm);
	make_program(comm);
}

static void plan_all(void)
{
	for (uint32_t i = 0; i < ncomms; i++)
		plan_comm(i);
	for (uint32_t i = 0; i < ncomms; i++)
		post_program(i);
	begin_looks();
	const uint32_t comm = below(ncomms);
	if (profile.ends)
		at_number(begin_ns + between(POST_NS, 500 * MS), on_end_early, comm, 0);
	if (profile.leaves)
		at_number(begin_ns + between(POST_NS, 500 * MS), on_leave, comm,
			  below(comms[comm].nranks));
	if (profile.dies)
		at_number(begin_ns + between(POST_NS, 500 * MS), on_death, below(nnodes), 0);
}

void schedule_begin(uint64_t seed)
{
	schedulers_begin(seed);
	ntasks = ngroups = 0;
}

bool schedule_end(void)
{
	return schedulers_end(begin_ns + END_NS, check_end);
}

void schedule_post(const struct comm_plan *comm, const struct task_plan *plans, uint32_t n)
{
	ncomms = 1;
	comms[0] = *comm;
	nnodes = 0;
	mpi_delay_ns = profile.delay;
	for (uint32_t k = 0; k < comm->nranks; k++)
		comms[0].session_of[k] = k;
	for (uint32_t k = 0; k < comm->nranks; k++)
		nnodes = comm->node_of[k] < nnodes ? nnodes : comm->node_of[k] + 1;
	nodes_begin(transports, TRANSPORT_INTERNODE);
	for (uint32_t i = 0; i < n; i++) {
		tasks[ntasks] = plans[i];
		tasks[ntasks++].group = ++ngroups;
	}
	begin_comm(0);
	begin_looks();
	for (uint32_t i = 0; i < n; i++)
		at_number(begin_ns + POST_NS + plans[i].late_ns, on_post, i, 0);
}

void schedule_play(const struct comm_plan *comm, const struct task_plan *plans, uint32_t n)
{
	schedule_post(comm, plans, n);
	run_until(begin_ns + REST_NS);
}

bool schedule_run(uint64_t seed)
{
	schedule_begin(seed);
	choose_profile();
	nnodes = 2 + below(NODES - 1);
	ncomms = 1 + below(COMMS);
	for (uint32_t i = 0; i < ncomms; i++)
		choose_comm(i);
	nodes_begin(transports, TRANSPORT_INTERNODE);
	plan_all();
	expect_all();
	run_until(begin_ns + REST_NS);
	if (!failure[0])
		check_rest();
	return schedule_end();
}
