/* SPDX-License-Identifier: Apache-2.0
 * The engine's thread: it takes commands, polls the rings of busy sessions, and sleeps when none
 * is. */
#include "engine.h"
#include "base/no_memory.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "internode/sequence.h"
#include "internode/span.h"
#include "release.h"
#include "set.h"

#define EPOLL_COMMANDS		UINT64_MAX /* else the session's slot */
#define EPOLL_EVENTS		64
#define ROUNDS_PER_CLOCK	4   /* without work; after work it is read at once */
#define ROUNDS_UNFLUSHED	4   /* with new records, before sleepers are woken */
#define ROUNDS_UNPUBLISHED	8   /* without any, before inspection sees a task */
#define ROUNDS_UNPUBLISHED_BUSY 256 /* the same, however much there is to do */

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

/* Commands that have run give their places back. Lock held. */
static void close_gap(struct engine *e)
{
	if (!e->commands_read || e->commands_read < e->commands_room / 2)
		return;
	e->ncommands -= e->commands_read;
	memmove(e->commands, e->commands + e->commands_read, e->ncommands * sizeof(*e->commands));
	e->commands_read = 0;
}

static void engine_command(struct executor *x, const struct command *c)
{
	struct engine *e = (struct engine *)x;
	pthread_mutex_lock(&e->lock);
	if (e->ncommands == e->commands_room)
		close_gap(e);
	/* A lost command would leave both sides in disagreement for good. */
	if (!grow((void **)&e->commands, &e->commands_room, e->ncommands, sizeof(*c)))
		no_memory("a command to the engine");
	e->commands[e->ncommands++] = *c;
	atomic_fetch_add(&e->commands_queued, 1);
	pthread_mutex_unlock(&e->lock);
	wake_engine(e);
}

bool engine_next_command(struct engine *e, struct command *c)
{
	pthread_mutex_lock(&e->lock);
	bool any = e->commands_read < e->ncommands;
	if (any)
		*c = e->commands[e->commands_read];
	pthread_mutex_unlock(&e->lock);
	return any;
}

void engine_command_done(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	if (++e->commands_read == e->ncommands)
		e->commands_read = e->ncommands = 0;
	pthread_mutex_unlock(&e->lock);
	e->commands_run++;
}

void engine_event(struct engine *e, const struct event *event)
{
	pthread_mutex_lock(&e->lock);
	if (!grow((void **)&e->events, &e->events_room, e->nevents, sizeof(*event)))
		no_memory("an event of the engine");
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
	table_clear(&e->table, t->slot);
}

void task_free(struct engine *e, struct task *t)
{
	t->session->tasks--;
	t->session->user->tasks--;
	if (t->published)
		unpublish_task(e, t);
	t->uid = 0;
	t->next = e->free;
	e->free = t;
	table_count(&e->table.pending, -1);
}

/* Most tasks are over at once: only those that wait are worth showing, and have a deadline. */
static void publish_tasks(struct engine *e)
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
		publish_tasks(e);
	e->unpublished[e->nunpublished].task = t;
	e->unpublished[e->nunpublished++].uid = t->uid;
}

/* ---- The loop ---- */

static void free_leaving(struct engine *e)
{
	struct session **at = &e->leaving, *next;
	while (*at) {
		next = (*at)->next_leaving;
		if (engine_let_session_go(e, *at))
			*at = next;
		else
			at = &(*at)->next_leaving;
	}
}

static bool collect_jobs(struct engine *e)
{
	bool any = false;
	struct job *job;
	while (e->jobs && (job = pool_collect(e->pool))) {
		e->jobs--;
		e->now = clock_now();
		any = true;
		job->over(job, e);
	}
	return any;
}

static void hear(struct engine *e, const struct epoll_event *events, int n)
{
	uint64_t count;
	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 == EPOLL_COMMANDS) {
			if (read(e->wake_fd, &count, sizeof(count)) < 0)
				continue;
			continue;
		}
		struct session *s = e->sessions[events[i].data.u64];
		if (s && !s->leaving)
			engine_session_active(e, s);
	}
}

/* Looks at the doorbells and the command eventfd, waiting up to timeout (epoll's). */
static void look(struct engine *e, int timeout)
{
	struct epoll_event events[EPOLL_EVENTS];
	int n = epoll_wait(e->epoll_fd, events, EPOLL_EVENTS, timeout);
	if (timeout)
		e->now = clock_now();
	e->looked_ns = e->now;
	hear(e, events, n);
}

/* The same, with a finer timeout. */
static void look_ns(struct engine *e, uint64_t ns)
{
	struct epoll_event events[EPOLL_EVENTS];
	struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	int n = epoll_pwait2(e->epoll_fd, events, EPOLL_EVENTS, &t, NULL);
	if (n < 0 && errno != EINTR) /* an old kernel, or a filter */
		n = epoll_wait(e->epoll_fd, events, EPOLL_EVENTS, (int)(ns / 1000000) + 1);
	e->now = clock_now();
	hear(e, events, n);
}

static int sleep_ms(const struct engine *e)
{
	const struct deadline *d = deadlines_first(&e->deadlines);
	if (!d)
		return -1;
	if (d->at_ns <= e->now)
		return 0;
	uint64_t ms = (d->at_ns - e->now + 999999) / 1000000;
	return ms > ENGINE_SLEEP_MS_MAX ? ENGINE_SLEEP_MS_MAX : (int)ms;
}

/* Is something waited for that a GPU writes, or room for a set? */
static bool waits_for_gpus(const struct engine *e)
{
	return e->polled || e->gpu_inputs || e->met_new;
}

/* No interrupt tells of a counter that a GPU writes. What lasts long may be seen late. ms: at most
 * so long; negative: for ever. */
static uint64_t nap_ns(const struct engine *e, int ms)
{
	const uint64_t ns = spin_nap_ns(e->now - e->busy_ns, SPIN_NAP_SHARE);
	return ms >= 0 && (uint64_t)ms * 1000000 < ns ? (uint64_t)ms * 1000000 : ns;
}

/* Of those who will not wake us: GPUs, and other nodes. */
static uint64_t sleep_ns(struct engine *e)
{
	int ms = sleep_ms(e);
	uint64_t ns = waits_for_gpus(e) ? nap_ns(e, ms)
		      : ms < 0		? UINT64_MAX
					: (uint64_t)ms * 1000000;
	uint64_t nodes = e->config.mpi ? span_sleep_ns(e) : UINT64_MAX;
	return ns < nodes ? ns : nodes;
}

/* Sessions whose rings are polled are to ring from now on. False: one of them has a record. */
static bool sessions_idle(struct engine *e)
{
	struct user *u;
	DL_FOREACH (e->users, u) {
		while (u->active) {
			struct session *s = u->active;
			if (s->departures)
				return false;
			engine_session_idle(e, s);
			if (s->active)
				return false;
		}
	}
	return true;
}

static void fall_asleep(struct engine *e)
{
	if (!sessions_idle(e))
		return;
	publish_tasks(e);
	atomic_store(&e->asleep, true);
	/* Either they see the flag and write the eventfd, or we see what they left. */
	if (atomic_load(&e->commands_queued) == e->commands_run && !collect_jobs(e) &&
	    !(e->config.mpi && span_poll(e)) && !e->ready && !e->nactive && !e->dirty &&
	    !e->inputs_due) {
		if (waits_for_gpus(e) || e->config.mpi)
			look_ns(e, sleep_ns(e));
		else
			look(e, sleep_ms(e));
	}
	atomic_store(&e->asleep, false);
}

/* The user's next turn begins with this session. */
static void begin_with(struct user *u, struct session *s)
{
	u->active->prev_active->next_active = u->active;
	s->prev_active->next_active = NULL;
	u->active = s;
}

static bool poll_rings_of(struct engine *e, struct user *u)
{
	bool any = false;
	struct session *s, *next;
	const uint64_t enough = e->steps + STEP_SLICE;
	for (s = u->active; s; s = next) {
		next = s->next_active;
		/* Who submits together comes together. */
		if (next)
			__builtin_prefetch(svc_record_slot(next->ring, next->entries, next->next));
		uint32_t n = intake_ring(e, s);
		if (n) {
			any = true;
			order_run_ready(e);
		}
		if (s->departures)
			engine_regions_depart(e, s);
		else if (!n && (s->broken || e->now - s->active_ns > e->spin.worth_ns))
			engine_session_idle(e, s);
		if (e->steps >= enough && next) {
			begin_with(u, next);
			return true;
		}
	}
	return any;
}

static bool poll_rings(struct engine *e)
{
	bool any = false;
	struct user *u;
	DL_FOREACH (e->users, u)
		any |= poll_rings_of(e, u);
	return any;
}

/* Rings have been polled and those members had their turn that were ready when it was asked. */
static void answer_ping(struct engine *e)
{
	if (!e->pinged || e->turns < e->ping_turns)
		return;
	e->pinged = false;
	engine_event(e, &(struct event){.kind = EVENT_PONG});
}

static void finish_drain(struct engine *e)
{
	if (!e->draining || e->drained || e->live)
		return;
	e->drained = true;
	engine_event(e, &(struct event){.kind = EVENT_DRAINED});
}

/* rounds: without work, so far */
static void read_clock(struct engine *e, unsigned rounds)
{
	const uint64_t before = e->now;
	e->now = clock_now();
	if (rounds)
		spin_looked(&e->spin, e->now - before, e->now);
}

static bool poll_transports(struct engine *e)
{
	bool any = false;
	for (unsigned i = 0; i < TRANSPORTS; i++)
		if (e->polled & 1u << i)
			any |= e->config.transports[i]->poll(e);
	return any;
}

static void *engine_main(void *arg)
{
	struct engine *e = arg;
	unsigned rounds = 0, unflushed = 0, streak = 0;
	uint64_t yielded_ns = 0;
	prctl(PR_SET_TIMERSLACK, SPIN_SLACK_NS);
	while (!e->stop) {
		/* Between rounds, where nobody waits for it */
		if (rounds % ROUNDS_PER_CLOCK == 0)
			read_clock(e, rounds);
		e->round_ns = e->now;
		bool busy = engine_commands_wait(e);
		if (busy)
			engine_run_commands(e);
		bool took = poll_rings(e);
		busy |= took;
		if (e->inputs)
			order_check_inputs(e);
		if (deadlines_first(&e->deadlines))
			release_overdue(e);
		order_run_ready(e);
		busy |= e->ready || e->inputs_due;
		if (e->met_new)
			set_launch(e);
		if (e->polled)
			busy |= poll_transports(e);
		/* Who waits for other nodes looks at once; else their news can wait a little. */
		if (e->config.mpi &&
		    (e->committed || e->ops || e->now - e->heard_ns >= ENGINE_LOOK_NS))
			busy |= span_poll(e);
		/* To look for sleepers is to wait until the statuses are out. Who polls sees them
		 * without; so first see whether there is more to do. */
		unflushed = e->dirty ? unflushed + 1 : 0;
		if (unflushed && (!took || e->jobs || unflushed == ROUNDS_UNFLUSHED)) {
			complete_flush(e);
			unflushed = 0;
		}
		free_leaving(e);
		finish_drain(e);
		answer_ping(e);
		/* Busy with others, it must not forget that a deadline is to be kept. */
		if (e->nunpublished && (e->jobs || rounds >= ROUNDS_UNPUBLISHED ||
					streak % ROUNDS_UNPUBLISHED_BUSY == 0))
			publish_tasks(e);
		if (e->jobs) {
			busy |= pool_help(e->pool);
			busy |= collect_jobs(e);
		}
		/* Who is busy with some must not be deaf to others' doorbells. */
		if ((busy && e->jobs) || e->now - e->looked_ns >= ENGINE_LOOK_NS)
			look(e, 0);
		if (busy) {
			if (rounds)
				spin_waited(&e->spin, e->now - e->busy_ns);
			streak++;
			rounds = 0;
			e->busy_ns = e->now;
			continue;
		}
		if (e->now - e->busy_ns >= spin_budget_ns(&e->spin, e->now))
			fall_asleep(e);
		/* Whom we wait for may wait for this very core. */
		if (e->crowded || e->now - yielded_ns >= ENGINE_YIELD_NS) {
			sched_yield();
			yielded_ns = e->now;
		}
		rounds++;
	}
	return NULL;
}

static void engine_free(struct engine *e)
{
	struct user *u, *next;
	if (e->pool)
		pool_destroy(e->pool);
	for (uint32_t i = 0; e->sessions && i < e->config.sessions_max; i++)
		if (e->sessions[i])
			engine_free_session(e->sessions[i]);
	DL_FOREACH_SAFE (e->users, u, next)
		free(u);
	for (unsigned i = 0; i < TRANSPORTS; i++) {
		const struct transport *t = e->config.transports[i];
		if (t->finish && (e->transport_state[i] || !t->state_bytes))
			t->finish(e);
		free(e->transport_state[i]);
	}
	set_finish(e);
	for (uint32_t i = 0; e->comms && i < e->config.comms_max; i++)
		if (e->comms[i]) {
			span_free(e, e->comms[i]);
			free(e->comms[i]->members);
			free(e->comms[i]->collective);
			free(e->comms[i]);
		}
	if (e->wake_fd >= 0)
		close(e->wake_fd);
	if (e->epoll_fd >= 0)
		close(e->epoll_fd);
	span_finish_all(e);
	deadlines_fini(&e->deadlines);
	table_fini(&e->table);
	pthread_mutex_destroy(&e->lock);
	free(e->sessions);
	free(e->comms);
	free(e->tasks);
	free(e->visited);
	free(e->published);
	free(e->decided);
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
	e->executor = (struct executor){engine_command,	     engine_next_event, engine_table,
					engine_last_failure, engine_destroy,	config->threads};
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
	while (e->published_mask + 1 < config->tasks_max)
		e->published_mask = 2 * e->published_mask + 1;
	e->published = calloc(e->published_mask + 1, sizeof(*e->published));
	e->decided = calloc(e->published_mask + 1, sizeof(*e->decided));
	e->lost = calloc(config->nodes + 1, sizeof(*e->lost));
	e->sequencer =
		sequencer_create(&sequence_ops, e, config->nodes + !config->nodes, !config->node);
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = EPOLL_COMMANDS};
	if (!make_transport_states(e) || e->epoll_fd < 0 || e->wake_fd < 0 || !e->lost ||
	    !e->sequencer || !e->sessions || !e->comms || !e->tasks || !e->visited ||
	    !e->published || !e->decided || table_init(&e->table, config->tasks_max) ||
	    epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, e->wake_fd, &ev) < 0 ||
	    !(e->pool = pool_create(config->threads - 1, wake_engine, e))) {
		engine_free(e);
		return NULL;
	}
	sigfillset(&all); /* signals are the supervisor's, but for faults of this thread */
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
