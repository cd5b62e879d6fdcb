/* SPDX-License-Identifier: Apache-2.0
 * The nodes' schedulers, and their supervisors' commands. The schedulers' threads never start:
 * node_turn does what daemon/sched/loop.c does in its rounds, until there is nothing left to do. */
#include "schedulers.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "account/task_table.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/timings.h"
#include "proto/fdio.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/commands.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/launch.h"
#include "sched/queue/complete.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"

#define TURN_ROUNDS   10000
#define REGION	      1
#define REGION_FLOATS 8192

struct comm_plan comms[COMMS_MAX];
uint32_t ncomms, nnodes;
struct node nodes[NODES_MAX];
uint32_t node_now;
uint64_t begin_ns;
bool failures_ignored;
char failure[512];

static enum transport_kind transport;
static struct member_progress progress[NODES_MAX][COMMS_MAX][RANKS_MAX];
static struct session_counts counts[SESSIONS_MAX];
static float memory[SESSIONS_MAX][2 * REGION_FLOATS];

void *make(size_t size)
{
	void *p = calloc(1, size);
	if (!p)
		abort();
	return p;
}

void fail(const char *format, ...)
{
	va_list args;
	if (failure[0] || failures_ignored)
		return;
	va_start(args, format);
	vsnprintf(failure, sizeof(failure), format, args);
	va_end(args);
}

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

void at_number(uint64_t time, void (*f)(void *arg), uint32_t number, uint32_t other)
{
	uint32_t *arg = make(2 * sizeof(*arg));
	arg[0] = number;
	arg[1] = other;
	at(time, -1, f, arg);
}

/* ---- Replaces the system ---- */

uint64_t clock_now(void)
{
	return now_ns;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg),
			  void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_svc_send(int sock, const void *message, size_t length, const int *fds, unsigned nfds,
		    int flags);

/* The scheduler's thread: scheduler_main is never run. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg),
			  void *arg)
{
	(void)thread;
	(void)attr;
	(void)run;
	(void)arg;
	return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
	(void)thread;
	(void)result;
	return 0;
}

/* Delivers a message to a trainer; its socket is the number of its session. */
int __wrap_svc_send(int sock, const void *message, size_t length, const int *fds, unsigned nfds,
		    int flags)
{
	const struct svc_header *h = message;
	ncclsvc_status st = {.result = h->result};
	(void)fds;
	(void)nfds;
	(void)flags;
	if (length == sizeof(*h) + sizeof(struct svc_submit_reply))
		memcpy(&st, h + 1, sizeof(st));
	program_completed((uint32_t)sock, h->request_id, &st);
	return 0;
}

uint32_t node_life(int node)
{
	return nodes[node].alive;
}

/* ---- Turns ---- */

static bool run_jobs(struct scheduler *sched)
{
	struct job *job;
	bool any = false;
	while (sched->jobs) {
		while (sched->jobs && (job = pool_collect(sched->pool))) {
			sched->jobs--;
			job->done(job, sched);
		}
		any = true;
		if (sched->jobs && !pool_help(sched->pool))
			abort();
	}
	return any;
}

static bool go_round(struct scheduler *sched)
{
	sched->now = now_ns;
	bool busy = supervisor_commands_wait(sched);
	if (busy)
		commands_run_some(sched);
	if (deadlines_first(&sched->deadlines))
		release_overdue(sched);
	launch_run_ready(sched);
	busy |= sched->ready;
	if (sched->sets->changed)
		launch_sets(sched);
	for (unsigned i = 0; i < TRANSPORTS; i++)
		if (sched->polled & 1u << i)
			busy |= sched->config.transports[i]->poll(sched);
	busy |= internode_comm_poll(sched);
	complete_flush(sched);
	tasks_publish(sched);
	busy |= run_jobs(sched);
	program_round(sched);
	return busy || sched->ready;
}

static void take_event(uint32_t node, const struct event *event)
{
	if (event->kind == EVENT_EPOCH_GONE)
		nodes[node].gone[event->epoch.comm] = true;
	program_event(node, event);
}

void node_turn(uint32_t node)
{
	struct node *n = &nodes[node];
	const uint32_t before = node_now;
	struct event event;
	uint32_t rounds = 0;
	if (n->turn || !n->alive)
		return;
	n->turn = true;
	node_now = node;
	while (go_round(n->scheduler) && !failure[0])
		if (++rounds == TURN_ROUNDS)
			fail("node %u does not come to rest", node);
	while (scheduler_next_event(n->scheduler, &event))
		take_event(node, &event);
	node_now = before;
	n->turn = false;
}

void node_command(uint32_t node, const struct command *c)
{
	if (!nodes[node].alive)
		return;
	node_now = node;
	scheduler_command(nodes[node].scheduler, c);
	node_turn(node);
}

/* ---- Beginning ---- */

static void notify(void *arg)
{
	(void)arg;
}

static void begin_node(uint32_t node, const struct transport *const *table)
{
	const struct scheduler_config config = {.threads = 1,
						.tasks_max = 1024,
						.user_tasks_max = 1024,
						.sessions_max = SESSIONS_MAX,
						.comms_max = COMMS_MAX,
						.carrier = &mpi_simulated,
						.node = node,
						.nodes = nnodes,
						.transports = table};
	nodes[node] = (struct node){.scheduler = scheduler_create(&config, notify, NULL)};
	if (!nodes[node].scheduler)
		abort();
	nodes[node].alive = true;
}

static void begin_session(uint32_t node, uint32_t session)
{
	if (nodes[node].scheduler->sessions[session])
		return;
	node_command(node, &(struct command){.kind = COMMAND_SESSION_ADD,
					     .session = session,
					     .session_add = {.id = session + 1,
							     .pid = (int32_t)session + 100,
							     .uid = 1,
							     .fd = (int)session,
							     .counts = &counts[session]}});
	node_command(node, &(struct command){.kind = COMMAND_REGION_ADD,
					     .session = session,
					     .region = {.region = REGION,
							.base = memory[session],
							.bytes = sizeof(memory[session]),
							.device = -1}});
}

float *session_memory(uint32_t session, bool result)
{
	return memory[session] + (result ? REGION_FLOATS : 0);
}

void schedulers_begin(uint64_t seed)
{
	time_begin(seed);
	begin_ns = now_ns;
	failure[0] = 0;
	failures_ignored = false;
}

void nodes_begin(const struct transport *const *table, enum transport_kind kind)
{
	mpi_begin();
	transport = kind;
	memset(progress, 0, sizeof(progress));
	for (uint32_t k = 0; k < nnodes; k++)
		begin_node(k, table);
	for (uint32_t i = 0; i < ncomms; i++)
		for (uint32_t k = 0; k < comms[i].nranks; k++)
			begin_session(comms[i].node_of[k], comms[i].session_of[k]);
}

bool comm_spans(uint32_t comm, uint32_t node)
{
	for (uint32_t k = 0; k < comms[comm].nranks; k++)
		if (comms[comm].node_of[k] == node)
			return true;
	return false;
}

static void begin_comm(uint32_t node, uint32_t comm)
{
	const struct comm_plan *p = &comms[comm];
	if (nodes[node].begun[comm])
		return;
	nodes[node].begun[comm] = true;
	struct epoch_member *members = make(p->nranks * sizeof(*members));
	for (uint32_t k = 0; k < p->nranks; k++)
		members[k] = (struct epoch_member){
			.session = p->node_of[k] == node ? p->session_of[k] : EPOCH_ELSEWHERE,
			.handle = comm + 1,
			.device = -1,
			.pid = (int32_t)p->session_of[k] + 100,
			.node = p->node_of[k]};
	node_command(node, &(struct command){.kind = COMMAND_EPOCH_START,
					     .epoch_start = {.comm = comm,
							     .nranks = p->nranks,
							     .epoch = 1,
							     .uid = comm + 1,
							     .members = members,
							     .progress = progress[node][comm],
							     .transport = transport,
							     .internode_id = p->id}});
}

static void on_begin(void *arg)
{
	const uint32_t *a = arg;
	if (nodes[a[0]].alive)
		begin_comm(a[0], a[1]);
}

void comm_begin(uint32_t comm, uint64_t from, uint64_t until)
{
	for (uint32_t k = 0; k < nnodes; k++)
		if (comm_spans(comm, k))
			at_number(between(from, until), on_begin, k, comm);
}

/* A task's record, for its session. */
struct svc_record node_record(uint8_t op, int32_t peer, uint32_t comm, uint64_t floats,
			      uint64_t timeout_ns)
{
	return (struct svc_record){.comm = comm + 1,
				   .epoch = 1,
				   .op = op,
				   .type = NCCLSVC_FLOAT32,
				   .peer = peer,
				   .count = floats,
				   .src_region = op == NCCLSVC_RECV ? 0 : REGION,
				   .dst_region = op == NCCLSVC_SEND ? 0 : REGION,
				   .dst_offset =
					   op == NCCLSVC_RECV ? 0 : REGION_FLOATS * sizeof(float),
				   .timeout_ns = timeout_ns};
}

struct task *node_task(uint32_t node, uint32_t comm, uint32_t rank, uint32_t request_id)
{
	const struct comm *c = nodes[node].scheduler->comms[comm];
	struct task *t = c ? c->members[rank].queue : NULL;
	while (t && t->request_id != request_id)
		t = t->next;
	return t;
}

void node_cancel(uint32_t node, enum svc_cancel_kind kind, uint64_t id)
{
	node_command(node,
		     &(struct command){.kind = COMMAND_CANCEL,
				       .cancel = {.kind = kind, .id = id, .uid = 1, .pid = 9}});
}

/* ---- Looks and ends ---- */

struct look {
	uint32_t node;
	uint64_t interval, until;
};

static void on_look(void *arg)
{
	const struct look *l = arg;
	node_turn(l->node);
	if (nodes[l->node].alive && now_ns < l->until)
		node_look(l->node, l->interval, l->until);
}

void node_look(uint32_t node, uint64_t interval, uint64_t until)
{
	struct look *l = make(sizeof(*l));
	*l = (struct look){node, interval, until};
	at(now_ns + interval + between(0, 2 * MS), -1, on_look, l);
}

void run_until(uint64_t time)
{
	if (!failure[0] && !time_run(time - now_ns))
		fail("the schedule does not come to rest");
}

static void on_end(void *arg)
{
	const uint32_t *a = arg;
	if (nodes[a[0]].gone[a[1]])
		return;
	trace(a[0], "is to end communicator %u", a[1]);
	if (nodes[a[0]].alive)
		begin_comm(a[0], a[1]);
	const ncclsvc_status st = {.result = NCCLSVC_PEER_GONE, .rank_a = -1, .rank_b = -1};
	node_command(a[0],
		     &(struct command){.kind = COMMAND_EPOCH_END,
				       .epoch_end = {.comm = a[1], .status = st, .later = st}});
}

void program_end_comm(uint32_t comm)
{
	if (comms[comm].ending)
		return;
	comms[comm].ending = true;
	for (uint32_t k = 0; k < nnodes; k++)
		if (comm_spans(comm, k))
			at_number(now_ns + between(0, 50 * MS), on_end, k, comm);
}

static void on_learn_loss(void *arg)
{
	const uint32_t *a = arg;
	if (!nodes[a[0]].alive)
		return;
	nodes[a[0]].lost[a[1]] = true;
	node_command(a[0], &(struct command){.kind = COMMAND_NODE_LOST, .node = {a[1]}});
	for (uint32_t i = 0; i < ncomms; i++)
		if (comm_spans(i, a[0]) && comm_spans(i, a[1]))
			program_end_comm(i);
}

void node_lose(uint32_t lost)
{
	trace(lost, "is lost");
	nodes[lost].alive = false;
	mpi_lose(lost);
	for (uint32_t k = 0; k < nnodes; k++)
		if (k != lost)
			at_number(now_ns + between(MS, 150 * MS), on_learn_loss, k, lost);
}

void node_cut(uint32_t a, uint32_t b)
{
	trace(a, "and node %u lose each other", b);
	mpi_cut(a, b);
	at_number(now_ns + between(MS, 150 * MS), on_learn_loss, a, b);
	at_number(now_ns + between(MS, 150 * MS), on_learn_loss, b, a);
}

/* Frees lost nodes' memory too: each learns that the others are lost, and ends its epochs. */
static void end_lost(uint32_t k)
{
	nodes[k].alive = nodes[k].ends = true;
	for (uint32_t i = 0; i < nnodes; i++)
		if (i != k)
			at_number(now_ns, on_learn_loss, k, i);
	for (uint32_t i = 0; i < ncomms; i++)
		if (comm_spans(i, k))
			at_number(now_ns + MS, on_end, k, i);
	node_look(k, DEADLOCK_LOOK_NS, now_ns + 100 * DEADLOCK_LOOK_NS);
	run_until(now_ns + 101 * DEADLOCK_LOOK_NS);
}

static void check_empty(uint32_t node)
{
	const struct scheduler *sched = nodes[node].scheduler;
	if (nodes[node].alive && (sched->internode->comms || sched->live ||
				  sched->internode->committed || sched->internode->ops))
		fail("node %u still has %u communicators, %d tasks and %u that wait for peers "
		     "after all have ended",
		     node, HASH_COUNT(sched->internode->comms), (int)sched->live,
		     sched->internode->committed);
}

/* A failed schedule also runs to its end, which frees everything. */
bool schedulers_end(uint64_t end_ns, void (*check)(void))
{
	char first[sizeof(failure)];
	memcpy(first, failure, sizeof(first));
	failure[0] = 0;
	failures_ignored = first[0];
	for (uint32_t i = 0; i < ncomms; i++)
		program_end_comm(i);
	run_until(end_ns);
	check();
	for (uint32_t k = 0; k < nnodes; k++)
		check_empty(k);
	if (!first[0])
		memcpy(first, failure, sizeof(first));
	failure[0] = 0;
	failures_ignored = true;
	for (uint32_t k = 0; k < nnodes && !failure[0]; k++)
		if (!nodes[k].alive)
			end_lost(k);
	for (uint32_t k = 0; k < nnodes; k++) {
		node_now = k;
		nodes[k].alive = false;
		scheduler_destroy(nodes[k].scheduler);
	}
	mpi_end();
	time_end();
	memcpy(failure, first, sizeof(first));
	return !failure[0];
}
