/* SPDX-License-Identifier: Apache-2.0
 * The engine's start and stop, its queues to and from the supervisor, and the memory of tasks.
 */
#include "engine.h"

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
#include "internode/internode_comm.h"
#include "internode/sequence.h"
#include "internode/unexpected.h"
#include "pending.h"
#include "set.h"
#include "streams/trigger.h"

#define HOLE_BYTES ((uint64_t)64 << 20) /* takes long enough to punch that other users wait */

static void write_eventfd(int fd)
{
	const uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));
	(void)n; /* it fails only when the counter is full, and then it is readable */
}

static void wake_engine(void *arg)
{
	struct engine *e = arg;
	if (atomic_load(&e->asleep))
		write_eventfd(e->wake_fd);
}

/* ---- Queues to and from the supervisor ---- */

struct queued_command {
	struct queued_command *prev, *next;
	struct command command;
};

struct queued_event {
	struct queued_event *prev, *next;
	struct event event;
};

/* If a command or event were lost, both sides would permanently disagree. */
static void engine_command(struct executor *x, const struct command *c)
{
	struct engine *e = (struct engine *)x;
	struct queued_command *q = nofail_malloc(sizeof(*q), "a command to the engine");
	q->command = *c;
	pthread_mutex_lock(&e->lock);
	DL_APPEND(e->commands, q);
	atomic_fetch_add(&e->commands_queued, 1);
	pthread_mutex_unlock(&e->lock);
	wake_engine(e);
}

bool engine_next_command(struct engine *e, struct command *c)
{
	pthread_mutex_lock(&e->lock);
	const struct queued_command *first = e->commands;
	pthread_mutex_unlock(&e->lock);
	if (first)
		*c = first->command;
	return first;
}

void engine_command_done(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	struct queued_command *first = e->commands;
	DL_DELETE(e->commands, first);
	pthread_mutex_unlock(&e->lock);
	free(first);
	e->commands_run++;
}

void engine_event(struct engine *e, const struct event *event)
{
	struct queued_event *q = nofail_malloc(sizeof(*q), "an event of the engine");
	q->event = *event;
	pthread_mutex_lock(&e->lock);
	DL_APPEND(e->events, q);
	pthread_mutex_unlock(&e->lock);
	e->notify(e->notify_arg);
}

static bool engine_next_event(struct executor *x, struct event *event)
{
	struct engine *e = (struct engine *)x;
	pthread_mutex_lock(&e->lock);
	struct queued_event *first = e->events;
	if (first)
		DL_DELETE(e->events, first);
	pthread_mutex_unlock(&e->lock);
	if (first)
		*event = first->event;
	free(first);
	return first;
}

static void free_queues(struct engine *e)
{
	struct queued_command *c, *next_command;
	struct queued_event *event, *next_event;
	DL_FOREACH_SAFE (e->commands, c, next_command)
		free(c);
	DL_FOREACH_SAFE (e->events, event, next_event)
		free(event);
}

static const struct task_table *engine_table(const struct executor *x)
{
	return &((const struct engine *)x)->table;
}

/* ---- Tasks ---- */

struct task *task_alloc(struct engine *e, struct session *s)
{
	struct task *t = e->free;
	if (s->user->tasks >= e->config.user_tasks_max)
		return NULL;
	if (t)
		e->free = t->next;
	else if (e->fresh < e->table.size)
		t = &e->tasks[e->fresh++];
	else
		return NULL;
	memset(t, 0, offsetof(struct task, uid));
	t->uid = ++e->uids;
	t->session = s;
	t->submitted_ns = e->now;
	s->tasks++;
	s->user->tasks++;
	table_count(&e->table.pending, 1);
	return t;
}

static struct task **published_place(const struct engine *e, uint64_t uid)
{
	return &e->published[uid & e->published_mask];
}

struct task *task_find(const struct engine *e, uint64_t uid)
{
	struct task *t = *published_place(e, uid);
	while (t && t->uid != uid)
		t = t->next_published;
	return t;
}

static void publish_task(struct engine *e, struct task *t)
{
	struct task **at = published_place(e, t->uid);
	t->next_published = *at;
	*at = t;
	order_publish(e, t);
}

static void unpublish_task(struct engine *e, struct task *t)
{
	struct task **at = published_place(e, t->uid);
	while (*at != t)
		at = &(*at)->next_published;
	*at = t->next_published;
	pending_hide(t);
	table_clear(&e->table, t->slot);
}

void task_free(struct engine *e, struct task *t)
{
	t->session->tasks--;
	t->session->user->tasks--;
	if (t->triggered)
		trigger_task_over(t);
	if (t->published)
		unpublish_task(e, t);
	t->uid = 0;
	t->next = e->free;
	e->free = t;
	table_count(&e->table.pending, -1);
}

/* Most tasks end at once, so only waiting tasks are shown, and have a deadline. */
void engine_publish(struct engine *e)
{
	for (uint32_t i = 0; i < e->nunpublished; i++) {
		struct task *t = e->unpublished[i].task;
		if (t->uid == e->unpublished[i].uid && t->comm && !t->published)
			publish_task(e, t);
	}
	e->nunpublished = 0;
}

void engine_publish_later(struct engine *e, struct task *t)
{
	const uint32_t room = sizeof(e->unpublished) / sizeof(e->unpublished[0]);
	if (e->nunpublished == room)
		engine_publish(e);
	e->unpublished[e->nunpublished].task = t;
	e->unpublished[e->nunpublished++].uid = t->uid;
}

/* ---- A user's own threads ---- */

static struct pool *pool_of(struct engine *e, struct user *u)
{
	if (u->pool || u->pool_failed)
		return u->pool;
	u->pool = pool_create_beside(e->pool, e->config.threads > 1 ? e->config.threads - 1 : 1);
	u->pool_failed = !u->pool;
	if (u->pool_failed)
		log_warning("no threads or memory for separate helper threads of user %u, who can "
			    "delay others by punching holes into shared memory",
			    u->uid);
	return u->pool;
}

struct pool *engine_own_pool(struct engine *e, struct task *const *tasks, uint32_t n)
{
	struct user *most = NULL;
	if (!e->users->next)
		return NULL;
	for (uint32_t k = 0; k < n; k++) {
		struct user *u = tasks[k] ? tasks[k]->session->user : NULL;
		if (u && u->file_bytes > HOLE_BYTES && (!most || u->file_bytes > most->file_bytes))
			most = u;
	}
	return most ? pool_of(e, most) : NULL;
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
		if (e->comms[i]) {
			internode_comm_free(e, e->comms[i]);
			pending_end(e->comms[i]);
			free(e->comms[i]->members);
			free(e->comms[i]->collective);
			free(e->comms[i]);
		}
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
	free_queues(e);
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

static uint32_t published_mask(uint32_t tasks_max)
{
	uint32_t mask = 0;
	while (mask + 1 < tasks_max)
		mask = 2 * mask + 1;
	return mask;
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
	       (published_mask(c->tasks_max) + UINT64_C(1)) * each_published +
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
	e->published_mask = published_mask(config->tasks_max);
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
	    !(e->pool = pool_create(config->threads - 1, wake_engine, e))) {
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
