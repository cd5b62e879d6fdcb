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

void engine_wake(void *arg)
{
	struct engine *e = arg;
	if (atomic_load(&e->asleep))
		write_eventfd(e->wake_fd);
}

/* If a command or event were lost, both sides would permanently disagree. */
void engine_command(struct executor *x, const struct command *c)
{
	struct engine *e = (struct engine *)x;
	struct queued_command *q = nofail_malloc(sizeof(*q), "a command to the engine");
	q->command = *c;
	pthread_mutex_lock(&e->lock);
	DL_APPEND(e->commands, q);
	atomic_fetch_add(&e->commands_queued, 1);
	pthread_mutex_unlock(&e->lock);
	engine_wake(e);
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

bool engine_next_event(struct executor *x, struct event *event)
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

void engine_free_queues(struct engine *e)
{
	struct queued_command *c, *next_command;
	struct queued_event *event, *next_event;
	DL_FOREACH_SAFE (e->commands, c, next_command)
		free(c);
	DL_FOREACH_SAFE (e->events, event, next_event)
		free(event);
}
