/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf sessions: many sessions attach and leave repeatedly, and the daemon's use of memory
 * and files is measured. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "child_process.h"
#include "modes.h"
#include "perf_output.h"
#include "rank_command.h"
#include "service.h"

#define FDS_EACH  6 /* per session in this process, at most */
#define SETTLE_MS 200

/* The daemon process's resources, as the kernel counts them. */
struct usage {
	int64_t rss, anon, shmem; /* bytes resident */
	int64_t fds;		  /* -1: not accessible to this user */
};

struct bench {
	const struct options *options;
	const char *socket;
	unsigned n;
	ncclsvc_session *watcher; /* queries the daemon */
	ncclsvc_session **sessions;
	pid_t pid;
	uint32_t others;	  /* other sessions, including the watcher's */
	struct usage first, last; /* at the ends of rounds */
};

static int64_t count_fds(pid_t pid)
{
	char path[64];
	int64_t n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *d = opendir(path);
	if (!d)
		return -1;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static bool read_usage(pid_t pid, struct usage *u)
{
	char path[64], line[256];
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	*u = (struct usage){.rss = -1, .fds = count_fds(pid)};
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "VmRSS: %" SCNd64, &u->rss) == 1)
			u->rss *= 1024;
		else if (sscanf(line, "RssAnon: %" SCNd64, &u->anon) == 1)
			u->anon *= 1024;
		else if (sscanf(line, "RssShmem: %" SCNd64, &u->shmem) == 1)
			u->shmem *= 1024;
	}
	if (f)
		fclose(f);
	if (u->rss < 0)
		complain("can't read %s of the daemon: %s", path, strerror(errno));
	return u->rss >= 0;
}

static ncclsvc_result open_session(const struct bench *b, bool no_ring, ncclsvc_session **session)
{
	const struct service_options service = {
		.socket = b->socket, .no_ring = no_ring, .timeout_ms = b->options->timeout_ms};
	return service_open(&service, session);
}

static bool raise_fd_limit(unsigned sessions)
{
	struct rlimit limit;
	const rlim_t need = 64 + (rlim_t)sessions * FDS_EACH;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= need)
		return true;
	limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
	setrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur >= need)
		return true;
	complain("%u sessions need %llu files; the limit is %llu (ulimit -Hn)", sessions,
		 (unsigned long long)need, (unsigned long long)limit.rlim_max);
	return false;
}

/* Waits until the daemon has that many sessions, and a little longer for its cleanup. */
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

static const struct column columns[] = {
	{"round", "", "round", 5, 0, 0},
	{"open", "(us)", "open_us", 10, 1, 0},
	{"close", "(us)", "close_us", 10, 1, 0},
	{"each", "(B)", "bytes_each", 10, 0, 0},
	{"ring", "(B)", "ring_bytes_each", 10, 0, 0},
	{"rss before", "(B)", "rss_before", 13, 0, 0},
	{"during", "(B)", "rss_during", 12, 0, 0},
	{"after", "(B)", "rss_after", 12, 0, 0},
	{"fds before", "", "fds_before", 12, 0, 0},
	{"during", "", "fds_during", 8, 0, 0},
	{"after", "", "fds_after", 8, 0, 0},
};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static bool do_round(struct bench *b, struct report *r, unsigned round)
{
	struct usage before, during, *after = &b->last;
	if (!read_usage(b->pid, &before))
		return false;
	uint64_t start = perf_now_ns();
	if (!open_all(b))
		return false;
	double open_us = (double)(perf_now_ns() - start) / 1e3 / b->n;
	if (!wait_for_sessions(b, b->others + b->n) || !read_usage(b->pid, &during))
		return false;
	start = perf_now_ns();
	close_all(b);
	double close_us = (double)(perf_now_ns() - start) / 1e3 / b->n;
	if (!wait_for_sessions(b, b->others) || !read_usage(b->pid, after))
		return false;
	report_row(r, columns, COLUMNS,
		   (struct value[COLUMNS]){
			   NUMBER(round + 1),
			   NUMBER(open_us),
			   NUMBER(close_us),
			   NUMBER((during.anon - before.anon) / b->n),
			   NUMBER((during.shmem - before.shmem) / b->n),
			   NUMBER(before.rss),
			   NUMBER(during.rss),
			   NUMBER(after->rss),
			   NUMBER(before.fds),
			   NUMBER(during.fds),
			   NUMBER(after->fds),
		   });
	if (round == 0)
		b->first = *after;
	return true;
}

static bool attach(struct bench *b)
{
	ncclsvc_daemon_info info;
	b->sessions = calloc(b->n, sizeof(*b->sessions));
	if (!b->sessions) {
		complain("out of memory");
		return false;
	}
	if (!raise_fd_limit(b->n))
		return false;
	if (open_session(b, true, &b->watcher) || ncclsvc_daemon(b->watcher, &info))
		return complain_of("can't attach");
	b->pid = info.pid;
	b->others = info.sessions;
	return true;
}

static bool measure(struct bench *b)
{
	struct report r;
	bool good = true;
	report_begin(&r, b->options, "sessions");
	report_note(&r,
		    "%u sessions attach and leave; each: what one adds to the daemon, beside the "
		    "ring and of the ring",
		    b->n);
	report_titles(&r, columns, COLUMNS);
	for (unsigned round = 0; good && round < b->options->rounds; round++)
		good = do_round(b, &r, round);
	if (good) {
		const int64_t bytes = b->last.anon - b->first.anon,
			      fds = b->last.fds - b->first.fds;
		report_note(&r,
			    "growth from the first round's end to the last's: %" PRId64
			    " bytes, %" PRId64 " fds",
			    bytes, fds);
		report_set(&r, "growth_bytes", json_integer(bytes));
		report_set(&r, "growth_fds", json_integer(fds));
	}
	return report_end(&r, good);
}

int sessions_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o, .socket = socket, .n = o->count};
	bool good = attach(&b) && measure(&b);
	if (b.sessions)
		close_all(&b);
	ncclsvc_close(b.watcher);
	free(b.sessions);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
