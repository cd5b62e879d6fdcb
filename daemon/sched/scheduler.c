/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's start and stop. */
#include "sched/api/scheduler.h"

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
#include "commands.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/sched_sessions.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/internode/internode_comm.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/unexpected.h"
#include "sched/queue/captured_groups.h"
#include "sched/queue/set.h"

const struct task_table *scheduler_table(const struct scheduler *sched)
{
	return &sched->table;
}

unsigned scheduler_threads(const struct scheduler *sched)
{
	return sched->config.threads;
}

/* ---- Start and stop ---- */

static void scheduler_free(struct scheduler *sched)
{
	struct user *u, *next;
	for (uint32_t i = 0; sched->sessions && i < sched->config.sessions_max; i++)
		if (sched->sessions[i]) {
			captured_groups_drop(sched, sched->sessions[i]);
			sched_session_free(sched->sessions[i]);
		}
	DL_FOREACH_SAFE (sched->users, u, next) {
		if (u->pool)
			pool_destroy(u->pool);
		free(u);
	}
	if (sched->pool)
		pool_destroy(sched->pool);
	for (unsigned i = 0; i < TRANSPORTS; i++) {
		const struct transport *t = sched->config.transports[i];
		if (t->finish && (sched->transport_state[i] || !t->state_bytes))
			t->finish(sched);
		free(sched->transport_state[i]);
	}
	set_finish(sched);
	for (uint32_t i = 0; sched->comms && i < sched->config.comms_max; i++)
		if (sched->comms[i])
			comm_free(sched, sched->comms[i]);
	if (sched->wake_fd >= 0)
		close(sched->wake_fd);
	if (sched->epoll_fd >= 0)
		close(sched->epoll_fd);
	internode_comm_finish_all(sched);
	deadlines_fini(&sched->deadlines);
	table_fini(&sched->table);
	pthread_mutex_destroy(&sched->lock);
	free(sched->sessions);
	free(sched->comms);
	free(sched->tasks);
	commands_finish(sched);
	free(sched->published);
	free(sched->decided);
	supervisor_free_queues(sched);
	free(sched);
}

void scheduler_destroy(struct scheduler *sched)
{
	scheduler_command(sched, &(struct command){.kind = COMMAND_STOP});
	pthread_join(sched->thread, NULL);
	/* Jobs still use memory that is about to be unmapped. */
	while (sched->jobs) {
		if (pool_collect(sched->pool))
			sched->jobs--;
		else if (!pool_help(sched->pool))
			sched_yield();
	}
	scheduler_free(sched);
}

static bool make_transport_states(struct scheduler *sched)
{
	for (unsigned i = 0; i < TRANSPORTS; i++) {
		const size_t bytes = sched->config.transports[i]->state_bytes;
		if (bytes && !(sched->transport_state[i] = calloc(1, bytes)))
			return false;
	}
	return true;
}

uint64_t scheduler_bytes(const struct scheduler_config *c)
{
	const struct scheduler *sched = NULL;
	pthread_attr_t attr;
	size_t stack = 0;
	if (!pthread_getattr_default_np(&attr)) {
		pthread_attr_getstacksize(&attr, &stack);
		pthread_attr_destroy(&attr);
	}
	const uint64_t each_task =
		sizeof(*sched->tasks) + sizeof(struct task *) + table_bytes_each();
	const uint64_t each_published = sizeof(*sched->published) + sizeof(*sched->decided);
	return c->tasks_max * each_task +
	       (tasks_published_mask(c->tasks_max) + UINT64_C(1)) * each_published +
	       c->sessions_max * sizeof(*sched->sessions) + c->comms_max * sizeof(*sched->comms) +
	       c->threads * (uint64_t)stack;
}

struct scheduler *scheduler_create(const struct scheduler_config *config,
				   scheduler_notify_fn *notify, void *arg)
{
	sigset_t all, old;
	struct scheduler *sched = calloc(1, sizeof(*sched));
	if (!sched)
		return NULL;
	sched->config = *config;
	sched->notify = notify;
	sched->notify_arg = arg;
	pthread_mutex_init(&sched->lock, NULL);
	cpu_set_t cpus;
	sched->cores = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
	spin_init(&sched->spin, config->spin_us, sched->cores);
	sched->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	sched->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	sched->sessions = calloc(config->sessions_max, sizeof(*sched->sessions));
	sched->comms = calloc(config->comms_max, sizeof(*sched->comms));
	sched->tasks = calloc(config->tasks_max, sizeof(*sched->tasks));
	sched->published_mask = tasks_published_mask(config->tasks_max);
	sched->published = calloc(sched->published_mask + 1, sizeof(*sched->published));
	sched->decided = calloc(sched->published_mask + 1, sizeof(*sched->decided));
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = SCHEDULER_WAKES};
	if (!make_transport_states(sched) || sched->epoll_fd < 0 || sched->wake_fd < 0 ||
	    !internode_comm_init_all(sched) || !set_init(sched) || !commands_init(sched) ||
	    !sched->sessions || !sched->comms || !sched->tasks || !sched->published ||
	    !sched->decided || table_init(&sched->table, config->tasks_max) ||
	    epoll_ctl(sched->epoll_fd, EPOLL_CTL_ADD, sched->wake_fd, &ev) < 0 ||
	    !(sched->pool = pool_create(config->threads - 1, scheduler_wake, sched))) {
		scheduler_free(sched);
		return NULL;
	}
	sigfillset(&all); /* the supervisor handles signals, except this thread's faults */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int error = pthread_create(&sched->thread, NULL, scheduler_main, sched);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error) {
		scheduler_free(sched);
		errno = error;
		return NULL;
	}
	return sched;
}
