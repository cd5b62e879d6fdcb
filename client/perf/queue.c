/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "child_process.h"
#include "ncclsvc.h"

#define RING_ENTRIES 1024
#define TASKS_EACH   1000 /* tasks in a session's ring */
#define COMMS_MAX    ((QUEUED_MAX + TASKS_EACH - 1) / TASKS_EACH)

/* ---- In the helper ---- */

struct helper {
	const struct queue *queue;
	unsigned n;			      /* communicators of two members */
	ncclsvc_unique_id ids[COMMS_MAX];     /* their ids */
	ncclsvc_session *sessions[COMMS_MAX]; /* sessions of their ranks 0 */
	ncclsvc_session *absent;	      /* session of all their ranks 1 */
	ncclsvc_result absent_result;
	uint64_t lists, list_ns; /* number of lists, and their total time */
	struct reply reply;
};

static ncclsvc_result open_session(const struct helper *h, unsigned ring, ncclsvc_session **session)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = h->queue->socket,
				   .name = "ncclsvc-perf",
				   .ring_entries = ring,
				   .no_ring = ring == 0,
				   .timeout_ms = h->queue->options->timeout_ms};
	return ncclsvc_open(&options, session);
}

/* The thread of the ranks 1, which join but submit nothing. */
static void *stay_absent(void *arg)
{
	struct helper *h = arg;
	ncclsvc_comm *comm;
	ncclsvc_result result = open_session(h, 0, &h->absent);
	for (unsigned i = 0; i < h->n && !result; i++)
		result = ncclsvc_comm_join(h->absent, &h->ids[i], 2, 1,
					   h->queue->options->timeout_ms, &comm);
	h->absent_result = result;
	return NULL;
}

static ncclsvc_result queue_some(struct helper *h, unsigned i, uint64_t n)
{
	ncclsvc_comm *comm;
	void *buffer;
	ncclsvc_result result = open_session(h, RING_ENTRIES, &h->sessions[i]);
	if (!result)
		result = ncclsvc_comm_join(h->sessions[i], &h->ids[i], 2, 0,
					   h->queue->options->timeout_ms, &comm);
	if (!result)
		result = ncclsvc_mem_alloc(h->sessions[i], 4096, &buffer);
	for (uint64_t k = 0; k < n && !result; k++)
		result = ncclsvc_all_reduce(buffer, buffer, 1, NCCLSVC_UINT64, NCCLSVC_SUM, comm,
					    NULL);
	return result;
}

/* Joins both ranks of each communicator, and queues the tasks. */
static ncclsvc_result queue_all(struct helper *h)
{
	uint64_t left = h->queue->options->queued;
	ncclsvc_result result = NCCLSVC_OK;
	pthread_t thread;
	h->n = (unsigned)((left + TASKS_EACH - 1) / TASKS_EACH);
	for (unsigned i = 0; i < h->n && !result; i++)
		result = ncclsvc_unique_id_create(&h->ids[i]);
	if (result)
		return result;
	if (pthread_create(&thread, NULL, stay_absent, h))
		return NCCLSVC_NO_MEMORY;
	for (unsigned i = 0; i < h->n && !result; i++, left -= TASKS_EACH)
		result = queue_some(h, i, left < TASKS_EACH ? left : TASKS_EACH);
	pthread_join(thread, NULL);
	return result ? result : h->absent_result;
}

static ncclsvc_result list_once(struct helper *h)
{
	ncclsvc_task_info *list;
	size_t n;
	uint64_t start = perf_now_ns();
	ncclsvc_result result = ncclsvc_list_tasks(h->absent, &list, &n);
	uint64_t took = perf_now_ns() - start;
	if (result)
		return result;
	ncclsvc_list_free(list);
	h->lists++;
	h->list_ns += took;
	h->reply.elapsed_ns = h->list_ns / h->lists;
	h->reply.worst_ns = took > h->reply.worst_ns ? took : h->reply.worst_ns;
	h->reply.listed = n;
	return NCCLSVC_OK;
}

/* Lists until the daemon has seen all queued tasks. */
static ncclsvc_result list_until_all(struct helper *h)
{
	const struct options *o = h->queue->options;
	const uint64_t end = perf_now_ns() + (uint64_t)o->timeout_ms * 1000000;
	ncclsvc_result result = NCCLSVC_OK;
	while (!result && h->reply.listed < o->queued) {
		sleep_ms(10);
		result = perf_now_ns() < end ? list_once(h) : NCCLSVC_TIMEOUT;
	}
	h->reply = (struct reply){0};
	h->lists = h->list_ns = 0;
	return result;
}

/* Lists once a second until a command arrives. */
static ncclsvc_result list_on(struct helper *h, int fd)
{
	struct pollfd next = {.fd = fd, .events = POLLIN};
	ncclsvc_result result;
	do
		result = list_once(h);
	while (!result && poll(&next, 1, 1000) == 0);
	return result;
}

static int helper_main(void *arg, uint32_t member, int fd)
{
	static struct helper h;
	struct command command;
	(void)member;
	h.queue = arg;
	ncclsvc_result result = queue_all(&h);
	if (!result)
		result = list_until_all(&h);
	do {
		if (result)
			service_explain(&h.reply, result);
		if (!message_send(fd, &h.reply, sizeof(h.reply)))
			break;
		if (!result)
			result = list_on(&h, fd);
	} while (command_receive(fd, &command) && command.kind == COMMAND_FIGURES);
	ncclsvc_close(h.absent);
	for (unsigned i = 0; i < h.n; i++)
		ncclsvc_close(h.sessions[i]);
	return result ? 1 : 0;
}

/* ---- In the measuring process ---- */

bool queue_start(struct queue *q, const struct options *o, const char *socket)
{
	q->options = o;
	q->socket = socket;
	return ranks_fork(&q->helper, "helper", 1, helper_main, q, o->timeout_ms);
}

bool queue_figures(struct queue *q)
{
	const struct command command = {.kind = COMMAND_FIGURES};
	if (!ranks_do(&q->helper, &command))
		return false;
	const struct reply *reply = &q->helper.members[0].reply;
	q->list_ms = (double)reply->elapsed_ns / 1e6;
	q->list_worst_ms = (double)reply->worst_ns / 1e6;
	q->listed = reply->listed;
	return true;
}

void queue_stop(struct queue *q)
{
	ranks_stop(&q->helper);
}
