/* SPDX-License-Identifier: Apache-2.0
 * The engine's thread: it runs commands, polls the rings of busy sessions, and sleeps when there
 * are none.
 */
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "commands.h"
#include "ingest.h"
#include "sched/base/sessions.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/internode/internode_comm.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/launch.h"
#include "sched/queue/complete.h"
#include "sched/queue/order.h"
#include "sched/queue/release.h"
#include "sched/queue/trigger.h"

#define EPOLL_EVENTS		64
#define ROUNDS_PER_CLOCK	4   /* without work; after work, the clock is read at once */
#define ROUNDS_UNFLUSHED	4   /* with new records, before sleepers are woken */
#define ROUNDS_UNPUBLISHED	8   /* without records, before inspection sees a task */
#define ROUNDS_UNPUBLISHED_BUSY 256 /* likewise, however much work there is */

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

static void handle(struct engine *e, const struct epoll_event *events, int n)
{
	uint64_t count;
	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 == ENGINE_WAKES) {
			if (read(e->wake_fd, &count, sizeof(count)) < 0)
				continue;
			continue;
		}
		struct session *s = e->sessions[events[i].data.u64];
		if (s && !s->leaving)
			engine_session_active(e, s);
	}
}

/* Polls the doorbells and the command eventfd, waiting up to timeout (as in epoll). */
static void look(struct engine *e, int timeout)
{
	struct epoll_event events[EPOLL_EVENTS];
	int n = epoll_wait(e->epoll_fd, events, EPOLL_EVENTS, timeout);
	if (timeout)
		e->now = clock_now();
	e->looked_ns = e->now;
	handle(e, events, n);
}

/* Likewise, with a finer timeout. */
static void look_ns(struct engine *e, uint64_t ns)
{
	struct epoll_event events[EPOLL_EVENTS];
	struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	int n = epoll_pwait2(e->epoll_fd, events, EPOLL_EVENTS, &t, NULL);
	if (n < 0 && errno != EINTR) /* an old kernel, or a seccomp filter */
		n = epoll_wait(e->epoll_fd, events, EPOLL_EVENTS, (int)(ns / 1000000) + 1);
	e->now = clock_now();
	handle(e, events, n);
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

/* Does the engine wait for a word that a GPU writes, or for room for a set? */
static bool waits_for_gpus(const struct engine *e)
{
	return e->polled || e->gpu_inputs || e->matched_new || e->triggering;
}

/* There is no interrupt for a counter that a GPU writes. The end of a long operation may be noticed
 * late. ms: the maximum; negative: forever. */
static uint64_t nap_ns(const struct engine *e, int ms)
{
	uint64_t ns = spin_nap_ns(e->now - e->busy_ns, SPIN_NAP_SHARE);
	/* A graph that has started one operation waits until the next one is noticed. */
	if (e->triggering && e->now - e->triggered_ns < TRIGGERS_EXPECTED_NS)
		ns = SPIN_NAP_MIN_NS;
	return ms >= 0 && (uint64_t)ms * 1000000 < ns ? (uint64_t)ms * 1000000 : ns;
}

/* For events without a wake-up: from GPUs, and from other nodes. */
static uint64_t sleep_ns(struct engine *e)
{
	int ms = sleep_ms(e);
	uint64_t ns = waits_for_gpus(e) ? nap_ns(e, ms)
		      : ms < 0		? UINT64_MAX
					: (uint64_t)ms * 1000000;
	uint64_t nodes = e->config.mpi ? internode_comm_sleep_ns(e) : UINT64_MAX;
	return ns < nodes ? ns : nodes;
}

/* Sessions whose rings were polled must ring from now on. False: one of them has a record. */
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
	engine_publish(e);
	atomic_store(&e->asleep, true);
	/* Either the other side sees the flag and writes the eventfd, or this thread sees its data.
	 */
	if (atomic_load(&e->commands_queued) == e->commands_run && !collect_jobs(e) &&
	    !(e->config.mpi && internode_comm_poll(e)) && !e->ready && !e->nactive && !e->dirty &&
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
		/* Sessions that submit together are kept together. */
		if (next)
			__builtin_prefetch(svc_record_slot(next->ring, next->entries, next->next));
		uint32_t n = ingest_ring(e, s);
		if (n) {
			any = true;
			launch_run_ready(e);
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

/* All rings have been polled, and all members that were ready at the ping have had their turn. */
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

/* The counts that one round leaves for the next. */
struct rounds {
	unsigned idle; /* rounds without work, so far */
	unsigned unflushed, streak;
};

/* True: there was work, or there is more. */
static bool do_round(struct engine *e, struct rounds *r)
{
	/* Between rounds, where no task waits for it */
	if (r->idle % ROUNDS_PER_CLOCK == 0)
		read_clock(e, r->idle);
	e->round_ns = e->now;
	bool busy = engine_commands_wait(e);
	if (busy)
		engine_run_commands(e);
	bool took = poll_rings(e);
	busy |= took;
	if (e->triggering)
		busy |= triggers_poll(e);
	if (e->inputs)
		order_check_inputs(e);
	if (deadlines_first(&e->deadlines))
		release_overdue(e);
	launch_run_ready(e);
	busy |= e->ready || e->inputs_due;
	if (e->matched_new)
		launch_sets(e);
	if (e->polled)
		busy |= poll_transports(e);
	/* While tasks wait for other nodes, poll at once; otherwise their messages can wait a
	 * little. */
	if (e->config.mpi && (e->committed || e->ops || e->now - e->listened_ns >= ENGINE_LOOK_NS))
		busy |= internode_comm_poll(e);
	/* Checking for sleepers means waiting until the statuses are visible. Polling clients see
	 * them anyway, so first check whether there is more work. */
	r->unflushed = e->dirty ? r->unflushed + 1 : 0;
	if (r->unflushed && (!took || e->jobs || r->unflushed == ROUNDS_UNFLUSHED)) {
		complete_flush(e);
		r->unflushed = 0;
	}
	free_leaving(e);
	finish_drain(e);
	answer_ping(e);
	/* While busy with some sessions, it must still keep deadlines. */
	if (e->nunpublished &&
	    (e->jobs || r->idle >= ROUNDS_UNPUBLISHED || r->streak % ROUNDS_UNPUBLISHED_BUSY == 0))
		engine_publish(e);
	if (e->jobs) {
		busy |= pool_help(e->pool);
		busy |= collect_jobs(e);
	}
	/* While busy with some sessions, it must still poll the others' doorbells. */
	if ((busy && e->jobs) || e->now - e->looked_ns >= ENGINE_LOOK_NS)
		look(e, 0);
	return busy;
}

void *engine_main(void *arg)
{
	struct engine *e = arg;
	struct rounds r = {0};
	uint64_t yielded_ns = 0;
	prctl(PR_SET_TIMERSLACK, SPIN_SLACK_NS);
	while (!e->stop) {
		if (do_round(e, &r)) {
			if (r.idle)
				spin_waited(&e->spin, e->now - e->busy_ns);
			r.streak++;
			r.idle = 0;
			e->busy_ns = e->now;
			continue;
		}
		if (e->now - e->busy_ns >= spin_budget_ns(&e->spin, e->now))
			fall_asleep(e);
		/* The thread that this one waits for may need this core. */
		if (e->crowded || e->now - yielded_ns >= ENGINE_YIELD_NS) {
			sched_yield();
			yielded_ns = e->now;
		}
		r.idle++;
	}
	return NULL;
}

void engine_settle(struct engine *e)
{
	struct rounds r = {0};
	do {
		look(e, 0);
		while (do_round(e, &r))
			;
	} while (!sessions_idle(e) && !e->stop);
	complete_flush(e);
	engine_publish(e);
}
