/* SPDX-License-Identifier: Apache-2.0
 * Many tasks that wait, and are listed: what a submission is measured beside. */
#ifndef PERF_QUEUE_H
#define PERF_QUEUE_H

#include "options.h"
#include "ranks.h"

/* Two processes: one queues tasks as rank 0 of communicators of two members; the other is their
 * rank 1, submits nothing, and lists all tasks once a second. */
struct queue {
	const struct options *options;
	const char *socket;
	struct ranks ranks;
	double list_ms, list_worst_ms; /* of the last time */
	uint64_t listed;	       /* tasks */
};

/* Each complains and returns false on failure. */

/* To be called before this process has a session; queue_stop is then still to be called. */
bool queue_start(struct queue *q, const struct options *options, const char *socket);
/* Queues options->queued tasks. */
bool queue_fill(struct queue *q);
/* Cancels them. */
bool queue_drain(struct queue *q);
void queue_stop(struct queue *q);

#endif
