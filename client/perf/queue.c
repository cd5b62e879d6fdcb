/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ncclsvc.h"
#include "process.h"
#include "service.h"

#define RING_ENTRIES 1024
#define TASKS_EACH   1000 /* in the ring of a session */
#define COMMS_MAX    ((QUEUED_MAX + TASKS_EACH - 1) / TASKS_EACH)

enum { QUEUER, LISTER, HELPERS };

/* ---- In the two processes ---- */

struct helper {
	const struct options *options;
	const char *socket;
	ncclsvc_session *sessions[COMMS_MAX];
	unsigned n;
	uint64_t lists, list_ns; /* how often, and how long in all */
};

static unsigned comms_of(const struct options *o)
{
	return (o->queued + TASKS_EACH - 1) / TASKS_EACH;
}

/* Joins a session of its own to communicator i. */
static ncclsvc_result join(struct helper *h, const struct command *command, unsigned i, int rank,
			   ncclsvc_session *session, ncclsvc_comm **comm)
{
	ncclsvc_unique_id id;
	memcpy(id.bytes, command->id, sizeof(id.bytes));
	id.bytes[0] ^= (uint8_t)i;
	id.bytes[1] ^= (uint8_t)(i >> 8);
	return ncclsvc_comm_join(session, &id, 2, rank, h->options->timeout_ms, comm);
}

static ncclsvc_result open_session(struct helper *h, unsigned ring)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = h->socket,
				   .name = "ncclsvc-perf",
				   .ring_entries = ring,
				   .no_ring = ring == 0,
				   .timeout_ms = h->options->timeout_ms};
	ncclsvc_result result = ncclsvc_open(&options, &h->sessions[h->n]);
	h->n += !result;
	return result;
}

static ncclsvc_result submit(ncclsvc_session *session, ncclsvc_comm *comm, uint64_t n)
{
	void *buffer;
	ncclsvc_result result = ncclsvc_mem_alloc(session, 4096, &buffer);
	for (uint64_t i = 0; i < n && !result; i++)
		result = ncclsvc_all_reduce(buffer, buffer, 1, NCCLSVC_UINT64, NCCLSVC_SUM, comm,
					    NULL);
	return result;
}

/* Rank 0 of every communicator, in a session of its own. */
static ncclsvc_result queue_tasks(struct helper *h, const struct command *command)
{
	uint64_t left = h->options->queued;
	ncclsvc_result result = NCCLSVC_OK;
	for (unsigned i = 0; left && !result; i++) {
		ncclsvc_comm *comm;
		const uint64_t n = left < TASKS_EACH ? left : TASKS_EACH;
		result = open_session(h, RING_ENTRIES);
		if (!result)
			result = join(h, command, i, 0, h->sessions[i], &comm);
		if (!result)
			result = submit(h->sessions[i], comm, n);
		left -= n;
	}
	return result;
}

static ncclsvc_result list_once(struct helper *h, struct reply *reply)
{
	ncclsvc_task_info *list;
	size_t n;
	uint64_t start = perf_now_ns();
	ncclsvc_result result = ncclsvc_list_tasks(h->sessions[0], &list, &n);
	uint64_t took = perf_now_ns() - start;
	if (result)
		return result;
	ncclsvc_list_free(list);
	h->lists++;
	h->list_ns += took;
	reply->elapsed_ns = h->list_ns / h->lists;
	reply->worst_ns = took > reply->worst_ns ? took : reply->worst_ns;
	reply->listed = n;
	return NCCLSVC_OK;
}

/* Rank 1 of every communicator, in one session. Returns when all tasks are queued. */
static ncclsvc_result keep_waiting(struct helper *h, const struct command *command,
				   struct reply *reply)
{
	ncclsvc_comm *comm;
	uint64_t end = perf_now_ns() + (uint64_t)h->options->timeout_ms * 1000000;
	ncclsvc_result result = open_session(h, 0);
	for (unsigned i = 0; i < comms_of(h->options) && !result; i++)
		result = join(h, command, i, 1, h->sessions[0], &comm);
	while (!result && reply->listed < h->options->queued) {
		sleep_ms(10);
		result = perf_now_ns() < end ? list_once(h, reply) : NCCLSVC_TIMEOUT;
	}
	return result;
}

/* Once a second, until there is another command. */
static ncclsvc_result list_on(struct helper *h, int fd, struct reply *reply)
{
	struct pollfd next = {.fd = fd, .events = POLLIN};
	ncclsvc_result result;
	h->lists = h->list_ns = 0;
	do
		result = list_once(h, reply);
	while (!result && poll(&next, 1, 1000) == 0);
	return result;
}

static ncclsvc_result drain(struct helper *h)
{
	while (h->n > 0)
		ncclsvc_close(h->sessions[--h->n]);
	return NCCLSVC_OK;
}

static int helper_main(void *arg, uint32_t who, int fd)
{
	const struct queue *q = arg;
	struct helper h = {.options = q->options, .socket = q->socket};
	struct reply reply = {0};
	struct command command;
	ncclsvc_result result = NCCLSVC_OK;
	while (message_send(fd, &reply, sizeof(reply))) {
		reply = (struct reply){0};
		if (h.n && who == LISTER)
			result = list_on(&h, fd, &reply);
		if (!command_receive(fd, &command) || command.kind == COMMAND_QUIT)
			break;
		if (!result && command.kind == COMMAND_DRAIN)
			result = drain(&h);
		else if (!result)
			result = who == QUEUER ? queue_tasks(&h, &command)
					       : keep_waiting(&h, &command, &reply);
		if (result)
			service_explain(&reply, result);
	}
	(void)drain(&h);
	return 0;
}

/* ---- In the process that measures ---- */

bool queue_start(struct queue *q, const struct options *o, const char *socket)
{
	q->options = o;
	q->socket = socket;
	return ranks_fork(&q->ranks, "helper", HELPERS, helper_main, q, o->timeout_ms);
}

bool queue_fill(struct queue *q)
{
	struct command command = {.kind = COMMAND_QUEUE};
	return ranks_new_id(command.id) && ranks_do(&q->ranks, &command);
}

bool queue_drain(struct queue *q)
{
	struct command command = {.kind = COMMAND_DRAIN};
	/* First the one that lists: its last list is as long as the others. */
	ranks_tell(&q->ranks, LISTER, 1, &command);
	if (!ranks_collect(&q->ranks))
		return false;
	ranks_tell(&q->ranks, QUEUER, 1, &command);
	if (!ranks_collect(&q->ranks))
		return false;
	const struct reply *reply = &q->ranks.members[LISTER].reply;
	q->list_ms = (double)reply->elapsed_ns / 1e6;
	q->list_worst_ms = fmax(q->list_worst_ms, (double)reply->worst_ns / 1e6);
	q->listed = reply->listed;
	return true;
}

void queue_stop(struct queue *q)
{
	ranks_stop(&q->ranks);
}
