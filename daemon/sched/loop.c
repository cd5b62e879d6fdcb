/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's thread: it runs commands, polls the rings of busy sessions, and sleeps when there
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
#include "sched/base/sched_sessions.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/internode/internode_comm.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/launch.h"
#include "sched/internode/sequence.h"
#include "sched/queue/captured_groups.h"
#include "sched/queue/complete.h"
#include "sched/queue/order.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"

#define EPOLL_EVENTS		64
#define ROUNDS_PER_CLOCK	4   /* without work; after work, the clock is read at once */
#define ROUNDS_UNFLUSHED	4   /* with new records, before sleepers are woken */
#define ROUNDS_UNPUBLISHED	8   /* without records, before inspection sees a task */
#define ROUNDS_UNPUBLISHED_BUSY 256 /* likewise, however much work there is */

static void free_leaving(struct scheduler *sched)
{
	struct sched_session **at = &sched->leaving, *next;
	while (*at) {
		next = (*at)->next_leaving;
		if (sched_session_release(sched, *at))
			*at = next;
		else
			at = &(*at)->next_leaving;
	}
}

static bool collect_jobs(struct scheduler *sched)
{
	bool any = false;
	struct job *job;
	while (sched->jobs && (job = pool_collect(sched->pool))) {
		sched->jobs--;
		sched->now = clock_now();
		any = true;
		job->done(job, sched);
	}
	return any;
}

static void handle(struct scheduler *sched, const struct epoll_event *events, int n)
{
	uint64_t count;
	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 == SCHEDULER_WAKES) {
			if (read(sched->wake_fd, &count, sizeof(count)) < 0)
				continue;
			continue;
		}
		struct sched_session *s = sched->sessions[events[i].data.u64];
		if (s && !s->leaving)
			sched_session_active(sched, s);
	}
}

/* Polls the doorbells and the command eventfd, waiting up to timeout (as in epoll). */
static void look(struct scheduler *sched, int timeout)
{
	struct epoll_event events[EPOLL_EVENTS];
	int n = epoll_wait(sched->epoll_fd, events, EPOLL_EVENTS, timeout);
	if (timeout)
		sched->now = clock_now();
	sched->looked_ns = sched->now;
	handle(sched, events, n);
}

/* Likewise, with a finer timeout. */
static void look_ns(struct scheduler *sched, uint64_t ns)
{
	struct epoll_event events[EPOLL_EVENTS];
	struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	int n = epoll_pwait2(sched->epoll_fd, events, EPOLL_EVENTS, &t, NULL);
	if (n < 0 && errno != EINTR) /* an old kernel, or a seccomp filter */
		n = epoll_wait(sched->epoll_fd, events, EPOLL_EVENTS, (int)(ns / 1000000) + 1);
	sched->now = clock_now();
	handle(sched, events, n);
}

static int sleep_ms(const struct scheduler *sched)
{
	const struct deadline *d = deadlines_first(&sched->deadlines);
	if (!d)
		return -1;
	if (d->at_ns <= sched->now)
		return 0;
	uint64_t ms = (d->at_ns - sched->now + 999999) / 1000000;
	return ms > SCHEDULER_SLEEP_MS_MAX ? SCHEDULER_SLEEP_MS_MAX : (int)ms;
}

/* Does the scheduler wait for a word that a GPU writes, or for room for a set? */
static bool waits_for_gpus(const struct scheduler *sched)
{
	return sched->polled || sched->gpu_inputs || sched->sets->changed ||
	       sched->captured_sessions;
}

/* There is no interrupt for a counter that a GPU writes. The end of a long operation may be noticed
 * late. ms: the maximum; negative: forever. */
static uint64_t nap_ns(const struct scheduler *sched, int ms)
{
	uint64_t ns = spin_nap_ns(sched->now - sched->busy_ns, SPIN_NAP_SHARE);
	/* A graph that has started one operation waits until the next one is noticed. */
	if (sched->captured_sessions && sched->now - sched->captured_ns < CAPTURED_EXPECTED_NS)
		ns = SPIN_NAP_MIN_NS;
	return ms >= 0 && (uint64_t)ms * 1000000 < ns ? (uint64_t)ms * 1000000 : ns;
}

/* For events without a wake-up: from GPUs, and from other nodes. */
static uint64_t sleep_ns(struct scheduler *sched)
{
	int ms = sleep_ms(sched);
	uint64_t ns = waits_for_gpus(sched) ? nap_ns(sched, ms)
		      : ms < 0		    ? UINT64_MAX
					    : (uint64_t)ms * 1000000;
	uint64_t nodes = sched->config.carrier ? internode_comm_sleep_ns(sched) : UINT64_MAX;
	return ns < nodes ? ns : nodes;
}

/* Sessions whose rings were polled must ring from now on. False: one of them has a record. */
static bool sessions_idle(struct scheduler *sched)
{
	struct user *u;
	DL_FOREACH (sched->users, u) {
		while (u->active) {
			struct sched_session *s = u->active;
			if (s->departures)
				return false;
			sched_session_idle(sched, s);
			if (s->active)
				return false;
		}
	}
	return true;
}

static void fall_asleep(struct scheduler *sched)
{
	if (!sessions_idle(sched))
		return;
	tasks_publish(sched);
	atomic_store(&sched->asleep, true);
	/* Either the other side sees the flag and writes the eventfd, or this thread sees its data.
	 */
	if (atomic_load(&sched->commands_queued) == sched->commands_run && !collect_jobs(sched) &&
	    !(sched->config.carrier && internode_comm_poll(sched)) && !sched->ready &&
	    !sched->nactive && !sched->dirty && !sched->inputs_due) {
		if (waits_for_gpus(sched) || sched->config.carrier)
			look_ns(sched, sleep_ns(sched));
		else
			look(sched, sleep_ms(sched));
	}
	atomic_store(&sched->asleep, false);
}

/* The user's next turn begins with this session. */
static void begin_with(struct user *u, struct sched_session *s)
{
	u->active->prev_active->next_active = u->active;
	s->prev_active->next_active = NULL;
	u->active = s;
}

static bool poll_rings_of(struct scheduler *sched, struct user *u)
{
	bool any = false;
	struct sched_session *s, *next;
	const uint64_t enough = sched->steps + STEP_SLICE;
	for (s = u->active; s; s = next) {
		next = s->next_active;
		/* Sessions that submit together are kept together. */
		if (next)
			__builtin_prefetch(svc_record_slot(next->ring, next->entries, next->next));
		uint32_t n = ingest_ring(sched, s);
		if (n) {
			any = true;
			launch_run_ready(sched);
		}
		if (s->departures)
			regions_depart(sched, s);
		else if (!n && (s->broken || sched->now - s->active_ns > sched->spin.worth_ns))
			sched_session_idle(sched, s);
		if (sched->steps >= enough && next) {
			begin_with(u, next);
			return true;
		}
	}
	return any;
}

static bool poll_rings(struct scheduler *sched)
{
	bool any = false;
	struct user *u;
	DL_FOREACH (sched->users, u)
		any |= poll_rings_of(sched, u);
	return any;
}

/* All rings have been polled, and all members that were ready at the ping have had their turn. */
static void answer_ping(struct scheduler *sched)
{
	if (!sched->pinged || sched->turns < sched->ping_turns)
		return;
	sched->pinged = false;
	supervisor_event(sched, &(struct event){.kind = EVENT_PONG});
}

static bool runs_on_gpus(struct scheduler *sched)
{
	for (unsigned i = 0; i < TRANSPORTS; i++)
		if (sched->polled & 1u << i && sched->config.transports[i]->runs &&
		    sched->config.transports[i]->runs(sched))
			return true;
	return false;
}

/* An epoch across nodes is cut where nothing runs, if possible: a launched operation may be behind
 * one on its stream that is not launched, and would never complete. */
static void become_quiet(struct scheduler *sched)
{
	if (!sched->draining || sched->quiet)
		return;
	const bool runs =
		runs_on_gpus(sched) || (sched->config.carrier && sequence_launches(sched));
	if (runs && sched->now - sched->drain_ns < EPOCH_SUSPEND_NS)
		return;
	sched->quiet = true;
	supervisor_event(sched, &(struct event){.kind = EVENT_QUIET});
}

/* Nothing runs, and all tasks that are left are of sessions that submit them to the next daemon. */
static bool rest_survives(struct scheduler *sched)
{
	if (sched->jobs || runs_on_gpus(sched))
		return false;
	for (uint32_t i = 0; i < sched->config.sessions_max; i++) {
		const struct sched_session *s = sched->sessions[i];
		if (s && s->tasks && !s->resumes)
			return false;
	}
	return true;
}

static void finish_drain(struct scheduler *sched)
{
	if (!sched->finishing || sched->drained || (sched->live && !rest_survives(sched)) ||
	    (sched->config.carrier && internode_comm_ends(sched)))
		return;
	sched->drained = true;
	supervisor_event(sched, &(struct event){.kind = EVENT_DRAINED});
}

/* rounds: without work, so far */
static void read_clock(struct scheduler *sched, unsigned rounds)
{
	const uint64_t before = sched->now;
	sched->now = clock_now();
	if (rounds)
		spin_looked(&sched->spin, sched->now - before, sched->now);
}

static bool poll_transports(struct scheduler *sched)
{
	bool any = false;
	for (unsigned i = 0; i < TRANSPORTS; i++)
		if (sched->polled & 1u << i)
			any |= sched->config.transports[i]->poll(sched);
	return any;
}

/* The counts that one round leaves for the next. */
struct rounds {
	unsigned idle; /* rounds without work, so far */
	unsigned unflushed, streak;
};

/* True: there was work, or there is more. */
static bool do_round(struct scheduler *sched, struct rounds *r)
{
	/* Between rounds, where no task waits for it */
	if (r->idle % ROUNDS_PER_CLOCK == 0)
		read_clock(sched, r->idle);
	sched->round_ns = sched->now;
	bool busy = supervisor_commands_wait(sched);
	if (busy)
		commands_run_some(sched);
	bool took = poll_rings(sched);
	busy |= took;
	if (sched->captured_sessions)
		busy |= captured_groups_poll(sched);
	if (sched->inputs)
		order_check_inputs(sched);
	if (deadlines_first(&sched->deadlines))
		release_overdue(sched);
	launch_run_ready(sched);
	busy |= sched->ready || sched->inputs_due;
	if (sched->sets->changed)
		launch_sets(sched);
	if (sched->polled)
		busy |= poll_transports(sched);
	/* While tasks wait for other nodes, poll at once; otherwise their messages can wait a
	 * little. */
	if (sched->config.carrier &&
	    (sched->internode->committed || sched->internode->ops || sched->internode->open ||
	     sched->now - sched->internode->polled_ns >= SCHEDULER_LOOK_NS))
		busy |= internode_comm_poll(sched);
	/* Checking for sleepers means waiting until the statuses are visible. Polling clients see
	 * them anyway, so first check whether there is more work. */
	r->unflushed = sched->dirty ? r->unflushed + 1 : 0;
	if (r->unflushed && (!took || sched->jobs || r->unflushed == ROUNDS_UNFLUSHED)) {
		complete_flush(sched);
		r->unflushed = 0;
	}
	free_leaving(sched);
	become_quiet(sched);
	finish_drain(sched);
	answer_ping(sched);
	/* While busy with some sessions, it must still keep deadlines. */
	if (sched->nunpublished && (sched->jobs || r->idle >= ROUNDS_UNPUBLISHED ||
				    r->streak % ROUNDS_UNPUBLISHED_BUSY == 0))
		tasks_publish(sched);
	if (sched->jobs) {
		busy |= pool_help(sched->pool);
		busy |= collect_jobs(sched);
	}
	/* While busy with some sessions, it must still poll the others' doorbells. */
	if ((busy && sched->jobs) || sched->now - sched->looked_ns >= SCHEDULER_LOOK_NS)
		look(sched, 0);
	return busy;
}

void *scheduler_main(void *arg)
{
	struct scheduler *sched = arg;
	struct rounds r = {0};
	uint64_t yielded_ns = 0;
	prctl(PR_SET_TIMERSLACK, SPIN_SLACK_NS);
	while (!sched->stop) {
		if (do_round(sched, &r)) {
			if (r.idle)
				spin_waited(&sched->spin, sched->now - sched->busy_ns);
			r.streak++;
			r.idle = 0;
			sched->busy_ns = sched->now;
			continue;
		}
		if (sched->now - sched->busy_ns >= spin_budget_ns(&sched->spin, sched->now))
			fall_asleep(sched);
		/* The thread that this one waits for may need this core. */
		if (sched->crowded || sched->now - yielded_ns >= SCHEDULER_YIELD_NS) {
			sched_yield();
			yielded_ns = sched->now;
		}
		r.idle++;
	}
	return NULL;
}

void scheduler_settle(struct scheduler *sched)
{
	struct rounds r = {0};
	do {
		look(sched, 0);
		while (do_round(sched, &r))
			;
	} while (!sessions_idle(sched) && !sched->stop);
	complete_flush(sched);
	tasks_publish(sched);
}
