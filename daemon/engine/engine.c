/* SPDX-License-Identifier: Apache-2.0
 * The engine's thread: it takes commands, polls the rings of busy sessions, and sleeps when none
 * is. */
#include "engine.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "state.h"

#define EPOLL_COMMANDS	UINT64_MAX /* else the session's slot */
#define EPOLL_EVENTS	64
#define ROUNDS_PER_CLOCK 8
#define ROUNDS_PER_LOOK 16     /* polls of the rings between looks at the doorbells */
#define HELPER_SPIN_NS  200000 /* how long to wait awake for a helper's last chunk */

uint64_t engine_clock(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

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

static bool grow(void **array, uint32_t *room, uint32_t used, size_t size)
{
	if (used < *room)
		return true;
	uint32_t more = *room ? *room * 2 : 64;
	void *p = realloc(*array, more * size);
	if (!p)
		return false;
	*array = p;
	*room = more;
	return true;
}

static void engine_command(struct executor *x, const struct command *c)
{
	struct engine *e = (struct engine *)x;
	pthread_mutex_lock(&e->lock);
	/* A lost command would leave both sides in disagreement for good. */
	if (!grow((void **)&e->commands, &e->commands_room, e->ncommands, sizeof(*c)))
		abort();
	e->commands[e->ncommands++] = *c;
	pthread_mutex_unlock(&e->lock);
	atomic_store(&e->commands_waiting, true);
	wake_engine(e);
}

void engine_event(struct engine *e, const struct event *event)
{
	pthread_mutex_lock(&e->lock);
	if (!grow((void **)&e->events, &e->events_room, e->nevents, sizeof(*event)))
		abort();
	e->events[e->nevents++] = *event;
	pthread_mutex_unlock(&e->lock);
	e->notify(e->notify_arg);
}

static bool engine_next_event(struct executor *x, struct event *event)
{
	struct engine *e = (struct engine *)x;
	bool any = false;
	pthread_mutex_lock(&e->lock);
	if (e->events_read < e->nevents) {
		*event = e->events[e->events_read++];
		any = true;
	}
	if (e->events_read == e->nevents)
		e->events_read = e->nevents = 0;
	pthread_mutex_unlock(&e->lock);
	return any;
}

static struct failure engine_last_failure(struct executor *x)
{
	struct engine *e = (struct engine *)x;
	pthread_mutex_lock(&e->lock);
	struct failure f = e->failure;
	pthread_mutex_unlock(&e->lock);
	return f;
}

static const struct task_table *engine_table(const struct executor *x)
{
	return &((const struct engine *)x)->table;
}

/* ---- Tasks ---- */

struct task *task_alloc(struct engine *e, struct session *s)
{
	uint32_t slot;
	if (e->nfree)
		slot = e->free_slots[--e->nfree];
	else if (e->fresh < e->table.size)
		slot = e->fresh++;
	else
		return NULL;
	struct task *t = &e->tasks[slot];
	memset(t, 0, offsetof(struct task, end)); /* what follows is set before it is read */
	t->slot = slot;
	t->uid = ++e->uids;
	t->session = s;
	t->submitted_ns = e->now;
	s->tasks++;
	table_count(&e->table.pending, 1);
	return t;
}

void task_free(struct engine *e, struct task *t)
{
	t->session->tasks--;
	if (t->published)
		table_clear(&e->table, t->slot);
	t->uid = 0;
	e->free_slots[e->nfree++] = t->slot;
	table_count(&e->table.pending, -1);
}

/* Most tasks are over at once: only those that wait are worth showing. */
static void publish_tasks(struct engine *e)
{
	for (uint32_t i = 0; i < e->nunpublished; i++) {
		struct task *t = &e->tasks[e->unpublished[i]];
		if (t->uid && t->comm && !t->published)
			order_publish(e, t);
	}
	e->nunpublished = 0;
}

void engine_publish_later(struct engine *e, struct task *t)
{
	const uint32_t room = sizeof(e->unpublished) / sizeof(e->unpublished[0]);
	if (e->nunpublished == room)
		publish_tasks(e);
	e->unpublished[e->nunpublished++] = t->slot;
}

/* ---- Sessions ---- */

/* Spinning clients need a core each, beside ours. */
static void advise_spin(struct engine *e, struct session *changed)
{
	struct session *s;
	bool crowded = e->nactive + 1 > e->cores;
	uint32_t spin_ns = crowded ? 0 : (uint32_t)e->spin_ns;
	if (crowded == e->crowded) {
		atomic_store_explicit(&changed->ring->spin_ns, spin_ns, memory_order_relaxed);
		return;
	}
	e->crowded = crowded;
	for (s = e->active; s; s = s->next_active)
		atomic_store_explicit(&s->ring->spin_ns, spin_ns, memory_order_relaxed);
}

void engine_session_active(struct engine *e, struct session *s)
{
	s->active_ns = e->now;
	if (s->active || !s->ring || s->broken)
		return;
	s->active = true;
	e->nactive++;
	atomic_store(&s->ring->asleep, 0);
	DL_APPEND2(e->active, s, prev_active, next_active);
	advise_spin(e, s);
}

void engine_session_idle(struct engine *e, struct session *s)
{
	if (!s->active)
		return;
	DL_DELETE2(e->active, s, prev_active, next_active);
	s->active = false;
	e->nactive--;
	advise_spin(e, s);
	/* Either the client sees the flag, or we see its record or its signal: both are seq_cst. */
	atomic_store(&s->ring->asleep, 1);
	uint64_t number = __atomic_load_n(&svc_record_slot(s->ring, s->entries, s->next)->number,
					  __ATOMIC_SEQ_CST);
	if (number == s->next && !s->broken)
		engine_session_active(e, s);
	if (s->inputs)
		order_check_inputs(e);
}

static int add_session(struct engine *e, const struct command *c)
{
	struct session *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->slot = c->session;
	s->id = c->session_add.id;
	s->pid = c->session_add.pid;
	s->uid = c->session_add.uid;
	s->fd = c->session_add.fd;
	s->counts = c->session_add.counts;
	s->doorbell = s->completion = -1;
	s->next = 1;
	e->sessions[s->slot] = s;
	return 0;
}

static int add_ring(struct engine *e, struct session *s, const struct command *c)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = s->slot};
	s->busy = calloc(c->ring.entries, 1);
	if (!s->busy)
		return -ENOMEM;
	if (epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, c->ring.doorbell, &ev) < 0)
		return -errno;
	s->entries = c->ring.entries;
	s->doorbell = c->ring.doorbell;
	s->completion = c->ring.completion;
	atomic_store(&c->ring.ring->asleep, 1);
	s->ring = c->ring.ring;
	/* The client may have been quicker than this command. */
	engine_session_active(e, s);
	return 0;
}

static void try_free_session(struct engine *e, struct session *s)
{
	if (!s->leaving || s->tasks || s->dirty)
		return;
	e->sessions[s->slot] = NULL;
	engine_event(e, &(struct event){.kind = EVENT_SESSION_GONE, .session = s->slot});
	free(s->handles);
	free(s->regions);
	free(s->busy);
	free(s);
}

static void remove_session(struct engine *e, struct session *s)
{
	s->broken = true;
	s->leaving = true;
	intake_drop_group(e, s);
	if (s->active)
		engine_session_idle(e, s);
	if (s->ring)
		epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, s->doorbell, NULL);
	e->leaving++;
}

static int add_region(struct session *s, const struct command *c)
{
	uint32_t i = c->region.region;
	if (i >= s->nregions) {
		uint32_t n = i + 16;
		struct region *r = realloc(s->regions, n * sizeof(*r));
		if (!r)
			return -ENOMEM;
		memset(r + s->nregions, 0, (n - s->nregions) * sizeof(*r));
		s->regions = r;
		s->nregions = n;
	}
	s->regions[i] = (struct region){.base = c->region.base, .bytes = c->region.bytes};
	return 0;
}

static void remove_region(struct engine *e, struct session *s, const struct command *c)
{
	struct region *r = &s->regions[c->region.region];
	struct event ev = {.kind = EVENT_REGION_GONE,
			   .session = s->slot,
			   .region = {c->region.region, c->region.serial}};
	/* A group that is not closed yet holds no pins. */
	if (r->pins || s->group)
		ev.kind = EVENT_REGION_BUSY;
	else
		*r = (struct region){0};
	engine_event(e, &ev);
}

/* ---- Communicators ---- */

static int set_handle(struct session *s, uint32_t handle, struct comm *c, int32_t rank)
{
	if (handle >= s->nhandles) {
		uint32_t n = handle + 4;
		struct handle *h = realloc(s->handles, n * sizeof(*h));
		if (!h)
			return -ENOMEM;
		memset(h + s->nhandles, 0, (n - s->nhandles) * sizeof(*h));
		s->handles = h;
		s->nhandles = n;
	}
	s->handles[handle] = (struct handle){.comm = c, .rank = rank, .known = true};
	return 0;
}

static int start_epoch(struct engine *e, const struct command *cmd)
{
	uint32_t n = cmd->epoch_start.nranks;
	struct comm *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->members = calloc(n, sizeof(*c->members));
	c->collective = calloc(n, sizeof(*c->collective));
	if (!c->members || !c->collective)
		return -ENOMEM;
	c->slot = cmd->epoch_start.comm;
	c->nranks = n;
	c->epoch = cmd->epoch_start.epoch;
	c->uid = cmd->epoch_start.uid;
	c->board = cmd->epoch_start.board;
	for (uint32_t k = 0; k < n; k++) {
		const struct epoch_member *em = &cmd->epoch_start.members[k];
		struct member *m = &c->members[k];
		m->comm = c;
		m->session = e->sessions[em->session];
		m->handle = em->handle;
		m->pid = m->session->pid;
		if (set_handle(m->session, em->handle, c, (int32_t)k))
			return -ENOMEM;
	}
	free(cmd->epoch_start.members);
	e->comms[c->slot] = c;
	return 0;
}

static void cancel(struct engine *e, const struct command *c)
{
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	struct event ev = {.kind = EVENT_CANCELLED,
			   .cancelled = {.asker = c->cancel.asker,
					 .serial = c->cancel.serial,
					 .result = NCCLSVC_NOT_FOUND}};
	st.pid_a = c->cancel.pid;
	for (uint32_t i = 0; i < e->fresh; i++) {
		struct task *t = &e->tasks[i];
		if (!t->uid || !t->comm || t->place == IN_GROUP)
			continue;
		if (c->cancel.kind == SVC_CANCEL_TASK ? t->uid != c->cancel.id
						      : t->comm->slot != c->cancel.id)
			continue;
		if (c->cancel.uid && c->cancel.uid != t->session->uid) {
			ev.cancelled.result = NCCLSVC_PERMISSION;
			continue;
		}
		ev.cancelled.result = NCCLSVC_OK;
		if (t->place == RUNNING || t->ghost)
			continue;
		ev.cancelled.count++;
		order_fail(e, t, &st);
	}
	engine_event(e, &ev);
}

/* ---- Commands ---- */

static void run_command(struct engine *e, const struct command *c)
{
	struct session *s = c->session < e->config.sessions_max ? e->sessions[c->session] : NULL;
	int error = 0;
	switch (c->kind) {
	case COMMAND_SESSION_ADD:
		error = add_session(e, c);
		break;
	case COMMAND_SESSION_RING:
		error = add_ring(e, s, c);
		break;
	case COMMAND_SESSION_DEL:
		remove_session(e, s);
		break;
	case COMMAND_REGION_ADD:
		error = add_region(s, c);
		break;
	case COMMAND_REGION_DEL:
		remove_region(e, s, c);
		break;
	case COMMAND_EPOCH_START:
		error = start_epoch(e, c);
		break;
	case COMMAND_EPOCH_END:
		order_run_ready(e); /* none may point to a communicator that goes */
		order_end_epoch(e, e->comms[c->epoch_end.comm], c->epoch_end.result,
				c->epoch_end.rank, c->epoch_end.pid);
		break;
	case COMMAND_MEMBER_LEFT:
		order_run_ready(e);
		order_member_left(e, e->comms[c->left.comm], c->left.rank);
		break;
	case COMMAND_TASK:
		intake_socket(e, s, c->task.serial, &c->task.record);
		break;
	case COMMAND_CANCEL:
		cancel(e, c);
		break;
	case COMMAND_DRAIN:
		e->draining = true;
		break;
	case COMMAND_PING:
		engine_event(e, &(struct event){.kind = EVENT_PONG});
		break;
	case COMMAND_STOP:
		e->stop = true;
		break;
	}
	/* Small allocations only: without them nothing can be kept consistent. */
	if (error)
		abort();
}

void engine_run_commands(struct engine *e)
{
	/* A record that is checked while its command runs may ask for the commands behind it. */
	struct command c;
	while (atomic_exchange(&e->commands_waiting, false)) {
		for (;;) {
			pthread_mutex_lock(&e->lock);
			bool any = e->commands_read < e->ncommands;
			if (any)
				c = e->commands[e->commands_read++];
			else
				e->commands_read = e->ncommands = 0;
			pthread_mutex_unlock(&e->lock);
			if (!any)
				break;
			run_command(e, &c);
		}
	}
}

/* ---- The loop ---- */

static void free_leaving(struct engine *e)
{
	if (!e->leaving)
		return;
	e->leaving = 0;
	for (uint32_t i = 0; i < e->config.sessions_max; i++) {
		struct session *s = e->sessions[i];
		if (s && s->leaving) {
			e->leaving++;
			try_free_session(e, s);
			e->leaving -= !e->sessions[i];
		}
	}
}

static bool collect_jobs(struct engine *e)
{
	bool any = false;
	struct job *job;
	while (e->jobs && (job = pool_collect(e->pool))) {
		e->jobs--;
		e->now = engine_clock();
		order_finish(e, (struct work *)job);
		any = true;
	}
	return any;
}

/* Looks at the doorbells and the command eventfd, waiting up to timeout (epoll's). */
static void look(struct engine *e, int timeout)
{
	struct epoll_event events[EPOLL_EVENTS];
	uint64_t count;
	int n = epoll_wait(e->epoll_fd, events, EPOLL_EVENTS, timeout);
	if (timeout)
		e->now = engine_clock();
	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 == EPOLL_COMMANDS) {
			if (read(e->wake_fd, &count, sizeof(count)) < 0)
				continue;
			continue;
		}
		struct session *s = e->sessions[events[i].data.u64];
		if (!s || s->leaving)
			continue;
		if (read(s->doorbell, &count, sizeof(count)) < 0 && errno != EAGAIN)
			continue;
		engine_session_active(e, s);
	}
}

static int sleep_ms(const struct engine *e)
{
	const struct deadline *d = deadlines_first(&e->deadlines);
	if (!d)
		return -1;
	if (d->at_ns <= e->now)
		return 0;
	uint64_t ms = (d->at_ns - e->now + 999999) / 1000000;
	return ms > 60000 ? 60000 : (int)ms;
}

static void fall_asleep(struct engine *e)
{
	atomic_store(&e->asleep, true);
	/* Either they see the flag and write the eventfd, or we see what they left. */
	if (!atomic_load(&e->commands_waiting) && !collect_jobs(e) && !e->ready && !e->active &&
	    !e->dirty)
		look(e, sleep_ms(e));
	atomic_store(&e->asleep, false);
}

static bool poll_rings(struct engine *e)
{
	bool any = false;
	struct session *s, *next;
	for (s = e->active; s; s = next) {
		next = s->next_active;
		if (intake_ring(e, s)) {
			any = true;
			order_run_ready(e);
			complete_flush(e);
		} else if (s->broken || e->now - s->active_ns > e->spin_ns) {
			engine_session_idle(e, s);
		}
	}
	return any;
}

static void finish_drain(struct engine *e)
{
	if (!e->draining || e->drained || e->live)
		return;
	e->drained = true;
	engine_event(e, &(struct event){.kind = EVENT_DRAINED});
}

static void *engine_main(void *arg)
{
	struct engine *e = arg;
	unsigned rounds = 0;
	while (!e->stop) {
		/* Whoever takes a record looks at the clock; without any, now and then is enough. */
		if (rounds % ROUNDS_PER_CLOCK == 0)
			e->now = engine_clock();
		bool busy = atomic_load_explicit(&e->commands_waiting, memory_order_acquire);
		if (busy)
			engine_run_commands(e);
		busy |= poll_rings(e);
		if (e->inputs)
			order_check_inputs(e);
		if (deadlines_first(&e->deadlines))
			order_expire(e);
		order_run_ready(e);
		complete_flush(e);
		free_leaving(e);
		finish_drain(e);
		if (e->jobs)
			busy |= pool_help(e->pool) | collect_jobs(e);
		if (busy) {
			rounds = 0;
			e->busy_ns = e->now;
			continue;
		}
		if (e->nunpublished)
			publish_tasks(e);
		if (!e->active && !(e->jobs && e->now - e->busy_ns < HELPER_SPIN_NS))
			fall_asleep(e);
		else if (rounds % ROUNDS_PER_LOOK == ROUNDS_PER_LOOK - 1)
			look(e, 0);
		rounds++;
	}
	return NULL;
}

static void engine_free(struct engine *e)
{
	if (e->pool)
		pool_destroy(e->pool);
	for (uint32_t i = 0; e->sessions && i < e->config.sessions_max; i++)
		if (e->sessions[i]) {
			free(e->sessions[i]->handles);
			free(e->sessions[i]->regions);
			free(e->sessions[i]->busy);
			free(e->sessions[i]);
		}
	for (uint32_t i = 0; e->comms && i < e->config.comms_max; i++)
		if (e->comms[i]) {
			free(e->comms[i]->members);
			free(e->comms[i]->collective);
			free(e->comms[i]->spare);
			free(e->comms[i]);
		}
	if (e->wake_fd >= 0)
		close(e->wake_fd);
	if (e->epoll_fd >= 0)
		close(e->epoll_fd);
	deadlines_fini(&e->deadlines);
	table_fini(&e->table);
	pthread_mutex_destroy(&e->lock);
	free(e->sessions);
	free(e->comms);
	free(e->tasks);
	free(e->free_slots);
	free(e->commands);
	free(e->events);
	free(e);
}

static void engine_destroy(struct executor *x)
{
	struct engine *e = (struct engine *)x;
	engine_command(x, &(struct command){.kind = COMMAND_STOP});
	pthread_join(e->thread, NULL);
	/* Jobs still hold memory that is about to be unmapped. */
	while (e->jobs) {
		struct job *job = pool_collect(e->pool);
		if (job) {
			free(job);
			e->jobs--;
		} else if (!pool_help(e->pool)) {
			sched_yield();
		}
	}
	engine_free(e);
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
	e->ready_end = &e->ready;
	e->executor = (struct executor){engine_command,	     engine_next_event, engine_table,
					engine_last_failure, engine_destroy,	config->threads};
	pthread_mutex_init(&e->lock, NULL);
	/* Polling pays only if clients have a core left to run on. */
	cpu_set_t cpus;
	e->cores = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
	e->spin_ns = config->spin_us >= 0 ? (uint64_t)config->spin_us * 1000
		     : e->cores > 1	  ? 50000
					  : 0;
	e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	e->sessions = calloc(config->sessions_max, sizeof(*e->sessions));
	e->comms = calloc(config->comms_max, sizeof(*e->comms));
	e->tasks = calloc(config->tasks_max, sizeof(*e->tasks));
	e->free_slots = calloc(config->tasks_max, sizeof(*e->free_slots));
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = EPOLL_COMMANDS};
	if (e->epoll_fd < 0 || e->wake_fd < 0 || !e->sessions || !e->comms || !e->tasks ||
	    !e->free_slots || table_init(&e->table, config->tasks_max) ||
	    epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, e->wake_fd, &ev) < 0 ||
	    !(e->pool = pool_create(config->threads - 1, wake_engine, e))) {
		engine_free(e);
		return NULL;
	}
	sigfillset(&all); /* signals are the supervisor's */
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
