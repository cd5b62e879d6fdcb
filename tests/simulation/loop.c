/* SPDX-License-Identifier: Apache-2.0
 * Replaces daemon/base/clock.c and loop.c: deadlines in virtual time. */
#include <stdlib.h>
#include <sys/random.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/loop.h"
#include "simulation.h"

/* Replaces the system's function, so that the seed also determines ids. */
ssize_t getrandom(void *to, size_t size, unsigned flags)
{
	uint8_t *bytes = to;
	(void)flags;
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)below(256);
	return (ssize_t)size;
}

uint64_t clock_now(void)
{
	return now_ns;
}

struct timer {
	struct node_state *node;
	uint64_t number;
};

static void on_timer(void *arg)
{
	const struct timer t = *(struct timer *)arg;
	struct loop *l = &t.node->loop;
	if (t.node->timer != t.number)
		return;
	l->next_deadline_ns = 0;
	const uint64_t next_ns = l->expire(l->arg, now_ns);
	if (next_ns)
		loop_deadline(l, next_ns);
}

void loop_deadline(struct loop *l, uint64_t at_ns)
{
	struct node_state *node = l->arg;
	if (l->closing || (l->next_deadline_ns && l->next_deadline_ns <= at_ns))
		return;
	l->next_deadline_ns = at_ns;
	struct timer *t = malloc(sizeof(*t));
	if (!t)
		abort();
	*t = (struct timer){node, ++node->timer};
	/* Timers are rounded up to milliseconds and never fire immediately, as in libuv. */
	at(at_ns > now_ns ? now_ns + (at_ns - now_ns + MS - 1) / MS * MS : now_ns + 1000,
	   (int)(node - nodes), on_timer, t);
}

/* ---- Jobs ---- */

struct late_job {
	struct late_job *prev, *next;
	struct loop_job *job;
};

static struct late_job *late_jobs;

static void run(struct loop_job *job)
{
	job->run(job);
	job->done(job);
}

static void run_late(struct late_job *late)
{
	struct loop_job *job = late->job;
	DL_DELETE(late_jobs, late);
	free(late);
	run(job);
}

static void on_job(void *arg)
{
	run_late(*(struct late_job **)arg);
}

/* Runs the job at once, or after other events. */
void loop_run_job(struct loop *l, struct loop_job *job, uint64_t steps)
{
	const struct node_state *node = l->arg;
	(void)steps;
	if (chance(50)) {
		run(job);
		return;
	}
	struct late_job *late = malloc(sizeof(*late)), **arg = malloc(sizeof(*arg));
	if (!late || !arg)
		abort();
	late->job = job;
	DL_APPEND(late_jobs, late);
	*arg = late;
	at(now_ns + below(20 * MS), (int)(node - nodes), on_job, arg);
}

void jobs_end(void)
{
	while (late_jobs)
		run_late(late_jobs);
}
