/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf sessions: many attach and leave, over and over; what the daemon keeps of them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "client.h"
#include "job.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "usage.h"

#define DEFAULT_COUNT 1000
#define FDS_EACH      6 /* of a session in this process, at most */
#define SETTLE_MS     200

struct bench {
	const struct options *options;
	const char *socket;
	unsigned n;
	ncclsvc_session *watcher; /* asks the daemon how it is */
	ncclsvc_session **sessions;
	pid_t pid;
	uint32_t others; /* sessions that are not ours, the watcher's included */
	bool table;
	json_t *rows;
};

static ncclsvc_result open_session(const struct bench *b, bool no_ring, ncclsvc_session **session)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = b->socket,
				   .name = "ncclsvc-perf",
				   .no_ring = no_ring,
				   .timeout_ms = b->options->timeout_ms};
	return ncclsvc_open(&options, session);
}

static bool raise_fd_limit(unsigned sessions)
{
	struct rlimit limit;
	rlim_t need = 64 + (rlim_t)sessions * FDS_EACH;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < need) {
		limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
		setrlimit(RLIMIT_NOFILE, &limit);
		if (limit.rlim_cur < need) {
			complain("%u sessions need %llu files; the limit is %llu (ulimit -Hn)",
				 sessions, (unsigned long long)need,
				 (unsigned long long)limit.rlim_max);
			return false;
		}
	}
	return true;
}

/* Waits until the daemon has that many sessions, and a little for it to tidy up. */
static bool wait_for_sessions(const struct bench *b, uint32_t n)
{
	uint64_t end = perf_now_ns() + (uint64_t)b->options->timeout_ms * 1000000;
	ncclsvc_daemon_info info;
	for (;;) {
		if (ncclsvc_daemon(b->watcher, &info))
			return complain_of("can't ask the daemon");
		if (info.sessions == n)
			break;
		if (caught_signal())
			return false;
		if (perf_now_ns() >= end) {
			complain("the daemon has %u sessions, expected %u", info.sessions, n);
			return false;
		}
		sleep_ms(5);
	}
	sleep_ms(SETTLE_MS);
	return true;
}

static void close_all(struct bench *b)
{
	for (unsigned i = 0; i < b->n; i++) {
		ncclsvc_close(b->sessions[i]);
		b->sessions[i] = NULL;
	}
}

static bool open_all(struct bench *b)
{
	for (unsigned i = 0; i < b->n && !caught_signal(); i++) {
		if (open_session(b, b->options->no_ring, &b->sessions[i])) {
			complain("session %u of %u: %s", i + 1, b->n, ncclsvc_last_error());
			return false;
		}
	}
	return !caught_signal();
}

static bool add_row(struct bench *b, unsigned round, const struct usage *before,
		    const struct usage *during, const struct usage *after, double open_us,
		    double close_us)
{
	int64_t n = b->n;
	int64_t anon = (during->anon - before->anon) / n;
	int64_t shared = (during->shmem - before->shmem) / n;
	if (b->table) {
		printf("  %5u  %8.1f  %9.1f  %10" PRId64 "  %8" PRId64 "  %8" PRId64 "  %8" PRId64
		       "  %8" PRId64 "  %6" PRId64 "  %6" PRId64 "  %6" PRId64 "\n",
		       round + 1, open_us, close_us, anon, shared, before->rss >> 10,
		       during->rss >> 10, after->rss >> 10, before->fds, during->fds, after->fds);
		fflush(stdout);
	}
	json_t *row = json_pack(
		"{s:i, s:i, s:f, s:f, s:I, s:I, s:[III], s:[III], s:[III], s:[III]}", "round",
		(int)round + 1, "sessions", (int)n, "open_us", open_us, "close_us", close_us,
		"bytes_each", (json_int_t)anon, "ring_bytes_each", (json_int_t)shared, "rss",
		(json_int_t)before->rss, (json_int_t)during->rss, (json_int_t)after->rss, "pss",
		(json_int_t)before->pss, (json_int_t)during->pss, (json_int_t)after->pss, "anon",
		(json_int_t)before->anon, (json_int_t)during->anon, (json_int_t)after->anon, "fds",
		(json_int_t)before->fds, (json_int_t)during->fds, (json_int_t)after->fds);
	if (json_array_append_new(b->rows, row) == 0)
		return true;
	complain("out of memory");
	return false;
}

static bool do_round(struct bench *b, unsigned round, struct usage *after)
{
	struct usage before, during;
	if (!usage_read(b->pid, &before))
		return false;
	uint64_t start = perf_now_ns();
	if (!open_all(b))
		return false;
	double open_us = (double)(perf_now_ns() - start) / 1e3 / b->n;
	if (!wait_for_sessions(b, b->others + b->n) || !usage_read(b->pid, &during))
		return false;
	start = perf_now_ns();
	close_all(b);
	double close_us = (double)(perf_now_ns() - start) / 1e3 / b->n;
	return wait_for_sessions(b, b->others) && usage_read(b->pid, after) &&
	       add_row(b, round, &before, &during, after, open_us, close_us);
}

static bool do_rounds(struct bench *b, int64_t *growth, int64_t *fd_growth)
{
	struct usage first = {0}, after = {0};
	for (unsigned round = 0; round < b->options->rounds; round++) {
		if (!do_round(b, round, &after))
			return false;
		if (round == 0)
			first = after;
	}
	*growth = after.anon - first.anon;
	*fd_growth = after.fds - first.fds;
	return true;
}

static bool start(struct bench *b)
{
	ncclsvc_daemon_info info;
	b->sessions = calloc(b->n, sizeof(*b->sessions));
	if (!b->sessions || !raise_fd_limit(b->n))
		return false;
	if (open_session(b, true, &b->watcher) || ncclsvc_daemon(b->watcher, &info))
		return complain_of("can't attach");
	b->pid = info.pid;
	b->others = info.sessions;
	if (b->table) {
		report_header(b->options, "sessions");
		printf("# %u sessions attach and leave; each: what one adds to the daemon, beside "
		       "the ring and of the ring\n#\n",
		       b->n);
		printf("# %5s  %8s  %9s  %10s  %8s  %28s  %22s\n", "", "open", "close", "each",
		       "ring", "daemon's RSS (KiB)", "daemon's fds");
		printf("# %5s  %8s  %9s  %10s  %8s  %8s  %8s  %8s  %6s  %6s  %6s\n", "round",
		       "(us)", "(us)", "(B)", "(B)", "before", "during", "after", "before",
		       "during", "after");
	}
	return true;
}

int sessions_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .socket = socket,
			  .n = o->count ? o->count : DEFAULT_COUNT,
			  .table = !o->json || o->json_path};
	json_t *json = report_json_new(o);
	int64_t growth, fd_growth;
	b.rows = json_object_get(json, "rows");
	bool good = b.rows && start(&b) && do_rounds(&b, &growth, &fd_growth);
	if (good && b.table)
		printf("# growth from the first round's end to the last's: %" PRId64
		       " bytes, %" PRId64 " fds\n",
		       growth, fd_growth);
	if (good && o->json)
		good = json_object_set_new(json, "growth_bytes", json_integer(growth)) == 0 &&
		       json_object_set_new(json, "growth_fds", json_integer(fd_growth)) == 0 &&
		       report_json_write(o, json);
	if (b.sessions)
		close_all(&b);
	ncclsvc_close(b.watcher);
	free(b.sessions);
	json_decref(json);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
