/* SPDX-License-Identifier: Apache-2.0
 * A node's scheduler. Its thread never starts: node_turn does what daemon/sched/loop.c does in its
 * rounds, until there is nothing left to do. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "account/task_table.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/timings.h"
#include "deadlocks.h"
#include "proto/fdio.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/commands.h"
#include "sched/internode/internode_comm.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/launch.h"
#include "sched/queue/complete.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"
#include "transport/transports.h"

#define TURN_ROUNDS   10000
#define SESSIONS      (COMMS_MAX * RANKS_MAX)
#define REGION	      1
#define REGION_FLOATS 8192

struct node nodes[NODES_MAX];
uint32_t node_now;

static struct member_progress progress[NODES_MAX][COMMS_MAX][RANKS_MAX];
static struct session_counts counts[SESSIONS];
static float memory[SESSIONS][2 * REGION_FLOATS];

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
	program_told((uint32_t)sock, h->serial, &st);
	return 0;
}

bool node_lives(int node)
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
	detector_round(sched);
	return busy || sched->ready;
}

static void take_event(uint32_t node, const struct event *event)
{
	if (event->kind == EVENT_EPOCH_GONE)
		nodes[node].gone[event->epoch.comm] = true;
	if (event->kind != EVENT_INTERNODE_FAILED)
		return;
	trace(node, "gives communicator %u up: %d", event->internode.comm, event->internode.result);
	if (profile_undisturbed() ||
	    (!profile.dies && event->internode.result != NCCLSVC_CANCELLED))
		fail("node %u gives communicator %u up with %d", node, event->internode.comm,
		     event->internode.result);
	program_end_comm(event->internode.comm);
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

/* ---- Beginning and end ---- */

static void notify(void *arg)
{
	(void)arg;
}

static void begin_node(uint32_t node)
{
	const struct scheduler_config config = {.threads = 1,
						.tasks_max = 1024,
						.user_tasks_max = 1024,
						.sessions_max = SESSIONS,
						.comms_max = COMMS_MAX,
						.mpi = &channel_api,
						.node = node,
						.nodes = nnodes,
						.transports = transports};
	nodes[node] = (struct node){.scheduler = scheduler_create(&config, notify, NULL)};
	if (!nodes[node].scheduler)
		abort();
	nodes[node].alive = true;
}

static void begin_session(uint32_t node, uint32_t session, int32_t pid)
{
	node_command(node, &(struct command){.kind = COMMAND_SESSION_ADD,
					     .session = session,
					     .session_add = {.id = session + 1,
							     .pid = pid,
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

void nodes_begin(void)
{
	memset(progress, 0, sizeof(progress));
	for (uint32_t k = 0; k < nnodes; k++)
		begin_node(k);
	for (uint32_t i = 0; i < ncomms; i++)
		for (uint32_t k = 0; k < comms[i].nranks; k++)
			begin_session(comms[i].node_of[k], i * RANKS_MAX + k, (int32_t)k + 100);
}

/* Begins the communicator's epoch on that node. */
void node_comm_begin(uint32_t node, uint32_t comm)
{
	const struct comm_plan *p = &comms[comm];
	struct epoch_member *members = make(p->nranks * sizeof(*members));
	for (uint32_t k = 0; k < p->nranks; k++)
		members[k] = (struct epoch_member){
			.session = p->node_of[k] == node ? comm * RANKS_MAX + k : EPOCH_ELSEWHERE,
			.handle = 1,
			.device = -1,
			.pid = (int32_t)k + 100,
			.node = p->node_of[k]};
	node_command(node, &(struct command){.kind = COMMAND_EPOCH_START,
					     .epoch_start = {.comm = comm,
							     .nranks = p->nranks,
							     .epoch = 1,
							     .uid = comm + 1,
							     .members = members,
							     .progress = progress[node][comm],
							     .transport = TRANSPORT_INTERNODE,
							     .internode_id = p->id}});
}

void nodes_end(void)
{
	for (uint32_t k = 0; k < nnodes; k++) {
		node_now = k;
		nodes[k].alive = false;
		scheduler_destroy(nodes[k].scheduler);
	}
}

/* A task's record, for its session. */
struct svc_record node_record(const struct task_plan *t)
{
	const uint64_t bytes = t->count * sizeof(float);
	return (struct svc_record){.comm = 1,
				   .epoch = 1,
				   .op = t->op,
				   .type = NCCLSVC_FLOAT32,
				   .peer = t->peer,
				   .count = t->count,
				   .src_region = t->op == NCCLSVC_RECV ? 0 : REGION,
				   .dst_region = t->op == NCCLSVC_SEND ? 0 : REGION,
				   .dst_offset = t->op == NCCLSVC_RECV ? 0 : bytes,
				   .timeout_ns = t->timeout_ns};
}
