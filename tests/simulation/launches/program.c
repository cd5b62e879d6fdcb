/* SPDX-License-Identifier: Apache-2.0
 * Derives from the seed the nodes, the communicators, what their processes post in which task
 * groups, and what goes wrong. */
#include <string.h>

#include "base/timings.h"
#include "launches.h"

#define LOOK_NS	     (100 * MS)
#define POSTED_BY_NS (5 * S)  /* all tasks are posted, and all deadlines have passed */
#define REST_NS	     (60 * S) /* NODE_ANSWER_NS may pass many times */
#define END_NS	     (75 * S)
/* Groups of a program, each of at most 4 tasks. A process has two programs, with fewer tasks in all
 * than SVC_SOCKET_TASKS. */
#define GROUPS_MAX   15

struct profile profile;
struct task_plan tasks[TASKS_MAX];
uint32_t ntasks;

static uint32_t ngroups;
static uint32_t cut[2]; /* nodes that have lost each other; the same: none have */

bool comm_is_lost(uint32_t comm)
{
	const uint32_t leader = comms[comm].node_of[0];
	for (int i = 0; i < 2 && cut[0] != cut[1]; i++)
		if (leader == cut[i] && comm_spans(comm, cut[!i]))
			return true;
	return !nodes[leader].alive;
}

/* ---- Communicators ---- */

static void add_rank(struct comm_plan *p, uint32_t node, uint32_t process)
{
	p->node_of[p->nranks] = node;
	p->session_of[p->nranks++] = node * PROCESSES + process;
}

static void choose_comm(struct comm_plan *p, uint64_t id)
{
	uint32_t all[NODES_MAX];
	const uint32_t n = 2 + below(nnodes - 1);
	*p = (struct comm_plan){.id = id};
	for (uint32_t k = 0; k < nnodes; k++)
		all[k] = k;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t k = i + below(nnodes - i), node = all[k];
		all[k] = all[i];
		all[i] = node;
		add_rank(p, node, 0);
	}
	/* Second processes get the last ranks. */
	for (uint32_t i = 0; i < n; i++)
		if (chance(25))
			add_rank(p, all[i], 1);
}

/* ---- Programs ---- */

/* One operation of the program that all processes follow. */
struct step {
	uint32_t comm;
	bool pair;
	uint32_t a, b; /* ranks */
	uint64_t count;
};

static struct step choose_step(uint32_t first, uint32_t count)
{
	struct step s = {.comm = first + below(count)};
	const struct comm_plan *p = &comms[s.comm];
	s.pair = chance(30);
	s.count = 1 + below(1000);
	if (s.pair) {
		do {
			s.a = below(p->nranks);
			s.b = below(p->nranks);
		} while (p->node_of[s.a] == p->node_of[s.b]);
	}
	return s;
}

static void add_task(const struct step *s, uint32_t rank, uint32_t group)
{
	const struct comm_plan *p = &comms[s->comm];
	const uint8_t op = !s->pair	  ? NCCLSVC_ALL_REDUCE
			   : rank == s->a ? NCCLSVC_SEND
					  : NCCLSVC_RECV;
	const int32_t peer = !s->pair ? -1 : (int32_t)(rank == s->a ? s->b : s->a);
	const uint64_t count = s->count + (profile.strays && chance(2));
	const uint64_t timeout = profile.deadlines && chance(80) ? between(MS, 300 * MS) : 0;
	tasks[ntasks++] =
		(struct task_plan){.node = p->node_of[rank],
				   .comm = s->comm,
				   .rank = rank,
				   .session = p->session_of[rank],
				   .group = group,
				   .pair = s->pair,
				   .record = node_record(op, peer, s->comm, count, timeout)};
}

/* The session's rank in the step, or -1. */
static int rank_in(const struct step *s, uint32_t session)
{
	const struct comm_plan *p = &comms[s->comm];
	for (uint32_t k = 0; k < p->nranks; k++)
		if (p->session_of[k] == session && (!s->pair || k == s->a || k == s->b))
			return (int)k;
	return -1;
}

/* Adds what one process posts of a group of steps. */
static void add_group(const struct step *steps, uint32_t n, uint32_t session)
{
	const uint32_t group = ++ngroups;
	for (uint32_t i = 0; i < n; i++) {
		const int rank = rank_in(&steps[i], session);
		if (rank >= 0 && !(profile.strays && chance(2)))
			add_task(&steps[i], (uint32_t)rank, group);
	}
}

/* ---- Posting ---- */

static void on_cancel(void *arg)
{
	struct task_plan *t = &tasks[*(uint32_t *)arg];
	const struct task *real = nodes[t->node].alive
					  ? node_task(t->node, t->comm, t->rank, *(uint32_t *)arg)
					  : NULL;
	if (!real)
		return;
	t->cancelled = true;
	node_cancel(t->node, SVC_CANCEL_TASK, real->uid);
}

static void on_turn(void *arg)
{
	node_turn(*(uint32_t *)arg);
}

/* Posts the group that begins with that task. */
static void on_post(void *arg)
{
	const uint32_t first = *(uint32_t *)arg;
	for (uint32_t i = first; i < ntasks && tasks[i].group == tasks[first].group; i++) {
		struct task_plan *t = &tasks[i];
		const bool more = i + 1 < ntasks && tasks[i + 1].group == t->group;
		struct command c = {.kind = COMMAND_TASK,
				    .session = t->session,
				    .task = {.request_id = i, .record = t->record}};
		if (!nodes[t->node].alive)
			return;
		c.task.record.flags = more ? SVC_TASK_MORE : 0;
		t->posted = true;
		t->posted_ns = now_ns;
		if (t->record.timeout_ns)
			at_number(now_ns + t->record.timeout_ns, on_turn, t->node, 0);
		if (profile.cancels && chance(3))
			at_number(now_ns + between(0, 100 * MS), on_cancel, i, 0);
		node_command(t->node, &c);
	}
}

void program_completed(uint32_t session, uint32_t request_id, const ncclsvc_status *st)
{
	struct task_plan *t = &tasks[request_id];
	if (t->session != session || t->told)
		fail("task %u ends twice, or in another session", request_id);
	if (nodes[t->node].ends)
		return;
	trace(t->node, "rank %u of communicator %u: task %u ends with %d", t->rank, t->comm,
	      request_id, st->result);
	t->told = true;
	t->told_ns = now_ns;
	t->status = *st;
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
		at_number(time += between(0, gap), on_post, starts[i], 0);
}

/* Creates the program for communicators first .. first + count - 1. */
static void make_program(uint32_t first, uint32_t count, uint64_t time)
{
	struct step steps[GROUPS_MAX][4];
	uint32_t sizes[GROUPS_MAX], n = 1 + below(chance(70) ? 8 : GROUPS_MAX);
	const uint32_t largest = 1 + below(4);
	const uint64_t gap = chance(50) ? MS / 10 : 5 * MS;
	for (uint32_t g = 0; g < n; g++) {
		sizes[g] = 1 + below(largest);
		for (uint32_t i = 0; i < sizes[g]; i++)
			steps[g][i] = choose_step(first, count);
	}
	for (uint32_t session = 0; session < nnodes * PROCESSES; session++) {
		const uint32_t from = ntasks;
		for (uint32_t g = 0; g < n && ntasks < TASKS_MAX - 4; g++)
			add_group(steps[g], sizes[g], session);
		post_program(from, time + between(0, 5 * MS), gap);
	}
}

/* ---- Beginnings and ends ---- */

void program_event(uint32_t node, const struct event *event)
{
	const bool gives_up = event->kind == EVENT_INTERNODE_FAILED;
	if (!gives_up && event->kind != EVENT_EPOCH_DIRTY)
		return;
	const uint32_t comm = gives_up ? event->internode.comm : event->epoch.comm;
	trace(node, "%s communicator %u", gives_up ? "gives up" : "does not end in order", comm);
	if (!comm_is_lost(comm))
		fail(gives_up ? "node %u gives communicator %u up"
			      : "node %u ends communicator %u before its leader has closed it",
		     node, comm);
	program_end_comm(comm);
}

void program_round(struct scheduler *sched)
{
	(void)sched;
}

static void on_end_early(void *arg)
{
	program_end_comm(*(uint32_t *)arg);
}

static void on_death(void *arg)
{
	node_lose(*(uint32_t *)arg);
}

static void on_cut(void *arg)
{
	const uint32_t *a = arg;
	if (!nodes[a[0]].alive || !nodes[a[1]].alive)
		return;
	cut[0] = a[0];
	cut[1] = a[1];
	node_cut(a[0], a[1]);
}

static void begin_comms(uint32_t first, uint32_t count, uint64_t time)
{
	for (uint32_t i = first; i < first + count; i++)
		comm_begin(i, time, time + 20 * MS);
	make_program(first, count, time + 20 * MS);
}

/* ---- Schedules ---- */

static void choose_profile(void)
{
	mpi_delay_ns = chance(50) ? 2 * MS : 30 * MS;
	profile = (struct profile){.strays = chance(40),
				   .deadlines = chance(40),
				   .cancels = chance(25),
				   .leaves = chance(15),
				   .dies = chance(20),
				   .cuts = chance(20)};
	profile.regular = !profile.strays && !profile.deadlines && !profile.cancels &&
			  !profile.leaves && !profile.dies && !profile.cuts;
}

static void begin(uint64_t seed)
{
	schedulers_begin(seed);
	ntasks = ngroups = 0;
	cut[0] = cut[1] = 0;
}

static void begin_nodes(void)
{
	check_begin();
	nodes_begin(launch_transports, TRANSPORT_NCCL);
	memset(sequencer_held, 0, sizeof(sequencer_held));
	for (uint32_t k = 0; k < nnodes; k++) {
		node_look(k, LOOK_NS, begin_ns + POSTED_BY_NS);
		node_look(k, S, begin_ns + END_NS);
	}
}

/* Some communicators begin later, perhaps after a loss. */
static void plan_all(void)
{
	const uint32_t early = ncomms > 1 && chance(50) ? 1 + below(ncomms - 1) : ncomms;
	begin_comms(0, early, begin_ns);
	if (early < ncomms)
		begin_comms(early, ncomms - early, begin_ns + between(0, 300 * MS));
	if (profile.leaves)
		at_number(now_ns + between(0, 100 * MS), on_end_early, below(ncomms), 0);
	if (profile.dies)
		at_number(now_ns + between(0, 200 * MS), on_death, below(nnodes), 0);
	if (profile.cuts) {
		const uint32_t a = below(nnodes), b = (a + 1 + below(nnodes - 1)) % nnodes;
		at_number(now_ns + between(0, 200 * MS), on_cut, a, b);
	}
}

static bool run_to_end(void)
{
	run_until(begin_ns + REST_NS);
	if (!failure[0])
		check_rest();
	return schedulers_end(begin_ns + END_NS, check_end);
}

bool schedule_run(uint64_t seed)
{
	begin(seed);
	choose_profile();
	nnodes = 2 + below(NODES_MAX - 1);
	ncomms = 1 + below(COMMS_MAX);
	for (uint32_t i = 0; i < ncomms; i++)
		/* Names differ as if each had its own rendezvous. */
		choose_comm(&comms[i], (UINT64_C(100) + i) << 24); /* EPOCH_NUMBER_BITS */
	begin_nodes();
	plan_all();
	return run_to_end();
}
