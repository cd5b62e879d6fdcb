/* SPDX-License-Identifier: Apache-2.0
 * The engine's start and stop, its queues to and from the supervisor, and the memory of tasks.
 */
#include "sched/api/engine.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "base/log.h"
#include "base/nofail.h"
#include "sched/base/comm.h"
#include "sched/base/sessions.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/internode/internode_comm.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/sequence.h"
#include "sched/internode/unexpected.h"
#include "sched/queue/set.h"
#include "sched/queue/trigger.h"

static const struct task_table *engine_table(const struct executor *x)
{
	return &((const struct engine *)x)->table;
}

/* ---- Start and stop ---- */

static void engine_free(struct engine *e)
{
	struct user *u, *next;
	for (uint32_t i = 0; e->sessions && i < e->config.sessions_max; i++)
		if (e->sessions[i]) {
			triggers_free(e, e->sessions[i]);
			engine_free_session(e->sessions[i]);
		}
	DL_FOREACH_SAFE (e->users, u, next) {
		if (u->pool)
			pool_destroy(u->pool);
		free(u);
	}
	if (e->pool)
		pool_destroy(e->pool);
	for (unsigned i = 0; i < TRANSPORTS; i++) {
		const struct transport *t = e->config.transports[i];
		if (t->finish && (e->transport_state[i] || !t->state_bytes))
			t->finish(e);
		free(e->transport_state[i]);
	}
	set_finish(e);
	for (uint32_t i = 0; e->comms && i < e->config.comms_max; i++)
		if (e->comms[i])
			comm_free(e, e->comms[i]);
	if (e->wake_fd >= 0)
		close(e->wake_fd);
	if (e->epoll_fd >= 0)
		close(e->epoll_fd);
	internode_comm_finish_all(e);
	deadlines_fini(&e->deadlines);
	table_fini(&e->table);
	pthread_mutex_destroy(&e->lock);
	free(e->sessions);
	free(e->comms);
	free(e->tasks);
	free(e->visited);
	free(e->published);
	free(e->decided);
	engine_free_queues(e);
	free(e);
}

static void engine_destroy(struct executor *x)
{
	struct engine *e = (struct engine *)x;
	engine_command(x, &(struct command){.kind = COMMAND_STOP});
	pthread_join(e->thread, NULL);
	/* Jobs still use memory that is about to be unmapped. */
	while (e->jobs) {
		if (pool_collect(e->pool))
			e->jobs--;
		else if (!pool_help(e->pool))
			sched_yield();
	}
	engine_free(e);
}

static bool make_transport_states(struct engine *e)
{
	for (unsigned i = 0; i < TRANSPORTS; i++) {
		const size_t bytes = e->config.transports[i]->state_bytes;
		if (bytes && !(e->transport_state[i] = calloc(1, bytes)))
			return false;
	}
	return true;
}

uint64_t engine_bytes(const struct engine_config *c)
{
	const struct engine *e = NULL;
	pthread_attr_t attr;
	size_t stack = 0;
	if (!pthread_getattr_default_np(&attr)) {
		pthread_attr_getstacksize(&attr, &stack);
		pthread_attr_destroy(&attr);
	}
	const uint64_t each_task = sizeof(*e->tasks) + sizeof(*e->visited) +
				   (c->mpi ? sizeof(*e->granted) : 0) + table_bytes_each();
	const uint64_t each_published = sizeof(*e->published) + sizeof(*e->decided);
	return c->tasks_max * each_task +
	       (tasks_published_mask(c->tasks_max) + UINT64_C(1)) * each_published +
	       c->sessions_max * sizeof(*e->sessions) + c->comms_max * sizeof(*e->comms) +
	       c->threads * (uint64_t)stack;
}

struct executor *engine_create(const struct engine_config *config, executor_notify *notify,
			       void *arg)
{
	sigset_t all, old;
	struct engine *e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	e->config = *config;
	e->nodes = &internode_ops;
	e->notify = notify;
	e->notify_arg = arg;
	e->executor = (struct executor){engine_command, engine_next_event, engine_table,
					engine_destroy, config->threads};
	pthread_mutex_init(&e->lock, NULL);
	cpu_set_t cpus;
	e->cores = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
	spin_init(&e->spin, config->spin_us, e->cores);
	e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	e->sessions = calloc(config->sessions_max, sizeof(*e->sessions));
	e->comms = calloc(config->comms_max, sizeof(*e->comms));
	e->tasks = calloc(config->tasks_max, sizeof(*e->tasks));
	e->visited = calloc(config->tasks_max, sizeof(*e->visited));
	e->published_mask = tasks_published_mask(config->tasks_max);
	e->published = calloc(e->published_mask + 1, sizeof(*e->published));
	e->decided = calloc(e->published_mask + 1, sizeof(*e->decided));
	e->lost = calloc(config->nodes + 1, sizeof(*e->lost));
	if (config->mpi)
		e->granted = calloc(config->tasks_max, sizeof(*e->granted));
	e->sequencer =
		sequencer_create(&sequence_ops, e, config->nodes + !config->nodes, !config->node);
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = ENGINE_WAKES};
	if (!make_transport_states(e) || e->epoll_fd < 0 || e->wake_fd < 0 || !e->lost ||
	    !unexpected_init(e) || !e->sequencer || (config->mpi && !e->granted) || !e->sessions ||
	    !e->comms || !e->tasks || !e->visited || !e->published || !e->decided ||
	    table_init(&e->table, config->tasks_max) ||
	    epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, e->wake_fd, &ev) < 0 ||
	    !(e->pool = pool_create(config->threads - 1, engine_wake, e))) {
		engine_free(e);
		return NULL;
	}
	sigfillset(&all); /* the supervisor handles signals, except this thread's faults */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int error = pthread_create(&e->thread, NULL, engine_main, e);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error) {
		engine_free(e);
		errno = error;
		return NULL;
	}
	return &e->executor;
}
