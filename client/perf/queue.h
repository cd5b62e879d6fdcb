/* SPDX-License-Identifier: Apache-2.0
 * Many tasks that wait, and are listed: what operations are measured beside. */
#ifndef PERF_QUEUE_H
#define PERF_QUEUE_H

#include "options.h"
#include "ranks.h"

/* A process that queues collectives of communicators of which one member submits nothing, and lists
 * all tasks once a second. Zero at first. */
struct queue {
	const struct options *options;
	const char *socket;
	struct ranks helper;
	double list_ms, list_worst_ms;
	uint64_t listed; /* tasks in the last list */
};

/* Each complains and returns false on failure. */

/* Returns when options->queued tasks are queued. */
bool queue_start(struct queue *q, const struct options *options, const char *socket);
/* How long listing took until now. */
bool queue_figures(struct queue *q);
void queue_stop(struct queue *q);

#endif
