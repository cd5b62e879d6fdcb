/* SPDX-License-Identifier: Apache-2.0
 * Many waiting tasks that are listed, as load beside the measured operations. */
#ifndef PERF_QUEUE_H
#define PERF_QUEUE_H

#include "options.h"
#include "perf_ranks.h"

/* A process that queues collectives on communicators where one member submits nothing, and lists
 * all tasks once a second. Zero-initialized. */
struct queue {
	const struct options *options;
	const char *socket;
	struct ranks helper;
	double list_ms, list_worst_ms;
	uint64_t listed; /* tasks in the last list */
};

/* Each complains and returns false on failure. */

/* Returns once options->queued tasks are queued. */
bool queue_start(struct queue *q, const struct options *options, const char *socket);
/* How long listing has taken so far. */
bool queue_figures(struct queue *q);
void queue_stop(struct queue *q);

#endif
