/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf submit --while-listing: does a long task list, listed over and over, slow
 * submission?
 *
 * Three helpers: one queues tasks as rank 0 of two-member communicators, one is their rank 1 and
 * submits nothing, so that all of them wait; one lists. This process measures. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "crew.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "service.h"
#include "stat.h"

#define DEFAULT_SECONDS 2
#define RING_MAX	16384
#define RING_MIN	1024
#define COMMS_MAX	256

enum { QUEUER, PARTNER, LISTER, HELPERS };
enum { EMPTY, QUEUED, LISTED, PHASES };

/* The jobs of the helpers: seed is the round, iters a number of communicators or of seconds. */
enum {
	JOB_OPEN = 100, /* queuer: open sessions enough; replies with their number as `wrong` */
	JOB_FILL,	/* queuer and partner: join the communicators; queue the tasks */
	JOB_DRAIN,	/* both: leave */
	JOB_LIST,	/* lister: once a second */
};

static const char *const phase_names[PHASES] = {"nothing queued", "queued", "queued and listed"};

struct bench {
	const struct options *options;
	const char *socket;
	uint64_t seconds;
	ncclsvc_unique_id *ids; /* COMMS_MAX for each round */
	struct crew helpers;
	struct client client;
	double *one_by_one[PHASES], *pipelined[PHASES]; /* per second, for each round */
	double *list_ms;
	double list_worst_ms;
	uint64_t listed;
};

/* ---- In the helpers ---- */

struct helper {
	const struct bench *bench;
	ncclsvc_session *sessions[COMMS_MAX];
	unsigned n;
	uint32_t ring;
};

static ncclsvc_result open_session(const struct helper *h, uint32_t ring, ncclsvc_session **session)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = h->bench->socket,
				   .name = "ncclsvc-perf",
				   .ring_entries = ring,
				   .no_ring = ring == 0,
				   .timeout_ms = h->bench->options->timeout_ms};
	return ncclsvc_open(&options, session);
}

static void close_sessions(struct helper *h)
{
	while (h->n > 0)
		ncclsvc_close(h->sessions[--h->n]);
}

/* Tasks one session takes: its ring, less a little. */
static uint64_t tasks_each(const struct helper *h)
{
	return h->ring - 16;
}

/* Sessions for all tasks, with rings as large as the daemon grants. */
static ncclsvc_result open_for_all(struct helper *h)
{
	uint64_t queued = h->bench->options->queued;
	ncclsvc_result result;
	for (h->ring = RING_MAX; (result = open_session(h, h->ring, &h->sessions[0]));
	     h->ring /= 2) {
		if (result == NCCLSVC_DAEMON_LOST || h->ring <= RING_MIN)
			return result;
	}
	for (h->n = 1; h->n < COMMS_MAX && h->n * tasks_each(h) < queued; h->n++) {
		if ((result = open_session(h, h->ring, &h->sessions[h->n])))
			return result;
	}
	return h->n * tasks_each(h) < queued ? NCCLSVC_LIMIT : NCCLSVC_OK;
}

static ncclsvc_result queue(ncclsvc_session *session, ncclsvc_comm *comm, uint64_t n)
{
	void *buffer;
	ncclsvc_result result = ncclsvc_mem_alloc(session, 4096, &buffer);
	for (uint64_t i = 0; i < n && !result; i++)
		result = ncclsvc_all_reduce(buffer, buffer, 1, NCCLSVC_UINT64, NCCLSVC_SUM, comm,
					    NULL);
	return result;
}

/* Rank 0 of every communicator. */
static ncclsvc_result fill(struct helper *h, const ncclsvc_unique_id *ids)
{
	uint64_t left = h->bench->options->queued;
	ncclsvc_result result = NCCLSVC_OK;
	for (unsigned i = 0; i < h->n && !result; i++) {
		ncclsvc_comm *comm;
		uint64_t n = left < tasks_each(h) ? left : tasks_each(h);
		result = ncclsvc_comm_join(h->sessions[i], &ids[i], 2, 0,
					   h->bench->options->timeout_ms, &comm);
		if (!result)
			result = queue(h->sessions[i], comm, n);
		left -= n;
	}
	return result;
}

/* Rank 1 of every communicator: one session, and no task. */
static ncclsvc_result accompany(struct helper *h, const ncclsvc_unique_id *ids, uint64_t comms)
{
	ncclsvc_result result = open_session(h, 0, &h->sessions[0]);
	h->n = result ? 0 : 1;
	for (uint64_t i = 0; i < comms && !result; i++) {
		ncclsvc_comm *comm;
		result = ncclsvc_comm_join(h->sessions[0], &ids[i], 2, 1,
					   h->bench->options->timeout_ms, &comm);
	}
	return result;
}

static ncclsvc_result list_for(struct helper *h, uint64_t seconds, struct job_reply *reply)
{
	uint64_t next = perf_now_ns();
	for (uint64_t i = 0; i < seconds; i++) {
		ncclsvc_task_info *list;
		size_t n;
		uint64_t start = perf_now_ns();
		ncclsvc_result result = ncclsvc_list_tasks(h->sessions[0], &list, &n);
		uint64_t took = perf_now_ns() - start;
		if (result)
			return result;
		ncclsvc_list_free(list);
		reply->elapsed_ns += took;
		reply->worst_ns = took > reply->worst_ns ? took : reply->worst_ns;
		reply->wrong = n; /* how long the list was */
		next += UINT64_C(1000000000);
		uint64_t now = perf_now_ns();
		if (now < next)
			sleep_ms((unsigned)((next - now) / 1000000));
	}
	return NCCLSVC_OK;
}

static ncclsvc_result perform(struct helper *h, uint32_t who, const struct job *job,
			      struct job_reply *reply)
{
	const ncclsvc_unique_id *ids = &h->bench->ids[job->seed * COMMS_MAX];
	ncclsvc_result result;
	switch (job->kind) {
	case JOB_OPEN:
		result = open_for_all(h);
		reply->wrong = h->n;
		return result;
	case JOB_FILL:
		return who == QUEUER ? fill(h, ids) : accompany(h, ids, job->iters);
	case JOB_DRAIN:
		close_sessions(h);
		return NCCLSVC_OK;
	case JOB_LIST:
		return list_for(h, job->iters, reply);
	}
	return NCCLSVC_INVALID_ARGUMENT;
}

static int helper_main(void *arg, uint32_t who, int fd)
{
	struct helper h = {.bench = arg};
	struct job_reply reply = {0};
	struct job job;
	ncclsvc_result result = NCCLSVC_OK;
	if (who == LISTER && !(result = open_session(&h, 0, &h.sessions[0])))
		h.n = 1;
	do {
		if (result)
			service_explain(&reply, result);
		if (!job_send(fd, &reply, sizeof(reply)) || !job_receive(fd, &job))
			break;
		reply = (struct job_reply){0};
		if (job.kind != JOB_QUIT)
			result = perform(&h, who, &job, &reply);
	} while (job.kind != JOB_QUIT);
	close_sessions(&h);
	return 0;
}

/* ---- In the process that measures ---- */

static bool measure_phase(struct bench *b, int phase, unsigned round)
{
	struct job list = {.kind = JOB_LIST, .seed = round, .iters = 2 * b->seconds};
	uint64_t each = b->seconds * UINT64_C(1000000000), done, start;
	if (phase == LISTED)
		crew_tell(&b->helpers, LISTER, 1, &list);
	start = perf_now_ns();
	if (!client_one_by_one(&b->client, UINT64_MAX, start + each, NULL, &done))
		return false;
	b->one_by_one[phase][round] = (double)done * 1e9 / (double)(perf_now_ns() - start);
	start = perf_now_ns();
	if (!client_pipeline(&b->client, UINT64_MAX, start + each, &done))
		return false;
	b->pipelined[phase][round] = (double)done * 1e9 / (double)(perf_now_ns() - start);
	if (phase != LISTED)
		return true;
	if (!crew_collect(&b->helpers))
		return false;
	const struct job_reply *reply = &b->helpers.members[LISTER].reply;
	double worst_ms = (double)reply->worst_ns / 1e6;
	b->list_ms[round] = (double)reply->elapsed_ns / 1e6 / (double)list.iters;
	b->list_worst_ms = worst_ms > b->list_worst_ms ? worst_ms : b->list_worst_ms;
	b->listed = reply->wrong;
	if (b->listed >= b->options->queued)
		return true;
	complain("%" PRIu64 " tasks were listed, and %u are queued", b->listed, b->options->queued);
	return false;
}

static bool do_round(struct bench *b, unsigned round)
{
	struct job open = {.kind = JOB_OPEN, .seed = round};
	struct job fill = {.kind = JOB_FILL, .seed = round};
	struct job drain = {.kind = JOB_DRAIN, .seed = round};
	if (!measure_phase(b, EMPTY, round))
		return false;
	crew_tell(&b->helpers, QUEUER, 1, &open);
	if (!crew_collect(&b->helpers))
		return false;
	fill.iters = b->helpers.members[QUEUER].reply.wrong;
	crew_tell(&b->helpers, QUEUER, 2, &fill);
	if (!crew_collect(&b->helpers) || !measure_phase(b, QUEUED, round) ||
	    !measure_phase(b, LISTED, round))
		return false;
	crew_tell(&b->helpers, QUEUER, 2, &drain);
	return crew_collect(&b->helpers);
}

static bool allocate(struct bench *b)
{
	size_t rounds = b->options->rounds;
	bool good = true;
	for (int phase = 0; phase < PHASES; phase++) {
		good &= (b->one_by_one[phase] = calloc(rounds, sizeof(double))) != NULL;
		good &= (b->pipelined[phase] = calloc(rounds, sizeof(double))) != NULL;
	}
	good &= (b->list_ms = calloc(rounds, sizeof(double))) != NULL;
	good &= (b->ids = calloc(rounds * COMMS_MAX, sizeof(*b->ids))) != NULL;
	for (size_t i = 0; good && i < rounds * COMMS_MAX; i++)
		good = ncclsvc_unique_id_create(&b->ids[i]) == NCCLSVC_OK;
	if (!good)
		complain("out of memory");
	return good;
}

static double slower(const double rate[PHASES], int phase)
{
	return (1 - rate[phase] / rate[EMPTY]) * 100;
}

static int show(struct bench *b)
{
	const struct options *o = b->options;
	double one[PHASES], many[PHASES], list_ms = median(b->list_ms, o->rounds);
	json_t *json = report_json_new(o), *rows = json_object_get(json, "rows");
	bool good = rows != NULL, table = !o->json || o->json_path;
	if (table) {
		report_header(o, "submissions beside a long task list");
		printf("# %" PRIu64 " s each, %u rounds; rates per second\n#\n", b->seconds,
		       o->rounds);
		printf("# %18s  %12s  %8s  %12s  %8s\n", "", "one by one", "slower", "pipelined",
		       "slower");
	}
	for (int phase = 0; phase < PHASES; phase++) {
		one[phase] = median(b->one_by_one[phase], o->rounds);
		many[phase] = median(b->pipelined[phase], o->rounds);
		if (table)
			printf("  %18s  %12.0f  %7.1f%%  %12.0f  %7.1f%%\n", phase_names[phase],
			       one[phase], slower(one, phase), many[phase], slower(many, phase));
		json_t *row = json_pack("{s:s, s:f, s:f, s:f, s:f}", "phase", phase_names[phase],
					"rate", one[phase], "slower_percent", slower(one, phase),
					"pipelined_rate", many[phase], "pipelined_slower_percent",
					slower(many, phase));
		good = good && json_array_append_new(rows, row) == 0;
	}
	if (table)
		printf("# %" PRIu64 " tasks listed in %.1f ms, %.1f ms at worst\n", b->listed,
		       list_ms, b->list_worst_ms);
	good = good &&
	       json_object_set_new(json, "listed", json_integer((json_int_t)b->listed)) == 0 &&
	       json_object_set_new(json, "list_ms", json_real(list_ms)) == 0 &&
	       json_object_set_new(json, "list_worst_ms", json_real(b->list_worst_ms)) == 0;
	return report_json_finish(o, json, good) ? EXIT_GOOD : EXIT_ERROR;
}

int listing_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .socket = socket,
			  .seconds = o->seconds ? o->seconds : DEFAULT_SECONDS};
	bool good = allocate(&b) && crew_fork(&b.helpers, "helper", HELPERS, helper_main, &b,
					      o->timeout_ms + (int)b.seconds * 2000);
	good = good && client_open(&b.client, o, socket, o->no_ring);
	for (unsigned round = 0; good && round < o->rounds; round++)
		good = do_round(&b, round);
	int status = good ? show(&b) : EXIT_ERROR;
	client_close(&b.client);
	crew_stop(&b.helpers);
	for (int phase = 0; phase < PHASES; phase++) {
		free(b.one_by_one[phase]);
		free(b.pipelined[phase]);
	}
	free(b.list_ms);
	free(b.ids);
	return status;
}
