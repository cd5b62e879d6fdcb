/* SPDX-License-Identifier: Apache-2.0
 * The queues to and from the supervisor. */
#include "supervisor.h"

#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

#include "base/nofail.h"

struct queued_command {
	struct queued_command *prev, *next;
	struct command command;
};

struct queued_event {
	struct queued_event *prev, *next;
	struct event event;
};

static void write_eventfd(int fd)
{
	const uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));
	(void)n; /* it fails only when the counter is full, and then it is readable */
}

void scheduler_wake(void *arg)
{
	struct scheduler *sched = arg;
	if (atomic_load(&sched->asleep))
		write_eventfd(sched->wake_fd);
}

/* If a command or event were lost, both sides would permanently disagree. */
void scheduler_command(struct scheduler *sched, const struct command *c)
{
	struct queued_command *q = nofail_malloc(sizeof(*q), "a command to the scheduler");
	q->command = *c;
	pthread_mutex_lock(&sched->lock);
	DL_APPEND(sched->commands, q);
	atomic_fetch_add(&sched->commands_queued, 1);
	pthread_mutex_unlock(&sched->lock);
	scheduler_wake(sched);
}

bool supervisor_next_command(struct scheduler *sched, struct command *c)
{
	pthread_mutex_lock(&sched->lock);
	const struct queued_command *first = sched->commands;
	pthread_mutex_unlock(&sched->lock);
	if (first)
		*c = first->command;
	return first;
}

void supervisor_command_done(struct scheduler *sched)
{
	pthread_mutex_lock(&sched->lock);
	struct queued_command *first = sched->commands;
	DL_DELETE(sched->commands, first);
	pthread_mutex_unlock(&sched->lock);
	free(first);
	sched->commands_run++;
}

void supervisor_event(struct scheduler *sched, const struct event *event)
{
	struct queued_event *q = nofail_malloc(sizeof(*q), "an event of the scheduler");
	q->event = *event;
	pthread_mutex_lock(&sched->lock);
	DL_APPEND(sched->events, q);
	pthread_mutex_unlock(&sched->lock);
	sched->notify(sched->notify_arg);
}

bool scheduler_next_event(struct scheduler *sched, struct event *event)
{
	pthread_mutex_lock(&sched->lock);
	struct queued_event *first = sched->events;
	if (first)
		DL_DELETE(sched->events, first);
	pthread_mutex_unlock(&sched->lock);
	if (first)
		*event = first->event;
	free(first);
	return first;
}

void supervisor_free_queues(struct scheduler *sched)
{
	struct queued_command *c, *next_command;
	struct queued_event *event, *next_event;
	DL_FOREACH_SAFE (sched->commands, c, next_command)
		free(c);
	DL_FOREACH_SAFE (sched->events, event, next_event)
		free(event);
}
