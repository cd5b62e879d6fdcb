/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf idle: the CPU time a daemon takes while nothing happens. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client.h"
#include "job.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "usage.h"

#define DEFAULT_SESSIONS 8
#define DEFAULT_SECONDS	 10
#define SETTLE_MS	 1000 /* for the work of attaching to be over */

static void sleep_until(uint64_t until)
{
	for (uint64_t now; (now = perf_now_ns()) < until && !caught_signal();) {
		uint64_t left_ms = (until - now) / 1000000 + 1;
		sleep_ms(left_ms < 1000 ? (unsigned)left_ms : 1000);
	}
}

static bool attach_all(struct client *clients, unsigned n, const struct options *o,
		       const char *socket)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t done;
		if (!client_open(&clients[i], o, socket, o->no_ring) ||
		    !client_one_by_one(&clients[i], 1, UINT64_MAX, NULL, &done))
			return false;
	}
	return true;
}

static bool show(const struct options *o, unsigned sessions, double seconds,
		 const struct usage *before, const struct usage *after)
{
	int64_t cpu = after->cpu_ns - before->cpu_ns, switches = after->switches - before->switches;
	int64_t run = after->run_ns < 0 || before->run_ns < 0 ? -1 : after->run_ns - before->run_ns;
	/* schedstat counts nanoseconds, stat ticks of 10 ms. */
	double cpu_ms = (double)(run >= 0 ? run : cpu) / 1e6;
	if (!o->json || o->json_path) {
		report_header(o, "idle");
		printf("# the daemon over %.1f s, %u sessions attached, each after one task\n#\n",
		       seconds, sessions);
		printf("# %10s  %12s  %14s  %12s  %8s\n", "cpu(ms)", "cpu(%)", "utime+stime(ms)",
		       "switches", "threads");
		printf("  %10.3f  %12.5f  %14.0f  %12" PRId64 "  %8u\n", cpu_ms,
		       cpu_ms / seconds / 10, (double)cpu / 1e6, switches, after->threads);
	}
	if (!o->json)
		return true;
	json_t *json = report_json_new(o);
	json_t *row = json_pack("{s:f, s:i, s:f, s:f, s:I, s:i}", "seconds", seconds, "sessions",
				(int)sessions, "cpu_ms", cpu_ms, "stat_cpu_ms", (double)cpu / 1e6,
				"switches", (json_int_t)switches, "threads", (int)after->threads);
	bool good = json_array_append_new(json_object_get(json, "rows"), row) == 0 &&
		    report_json_write(o, json);
	json_decref(json);
	return good;
}

int idle_run(const struct options *o, const char *socket)
{
	unsigned n = o->count ? o->count : DEFAULT_SESSIONS;
	uint64_t seconds = o->seconds ? o->seconds : DEFAULT_SECONDS;
	struct client *clients = calloc(n, sizeof(*clients));
	struct usage before, after;
	ncclsvc_daemon_info info;
	bool good = clients && attach_all(clients, n, o, socket);
	if (good && ncclsvc_daemon(clients[0].session, &info))
		good = complain_of("can't ask the daemon");
	if (good) {
		sleep_until(perf_now_ns() + SETTLE_MS * UINT64_C(1000000));
		good = usage_read(info.pid, &before);
	}
	if (good) {
		uint64_t start = perf_now_ns();
		sleep_until(start + seconds * UINT64_C(1000000000));
		double slept = (double)(perf_now_ns() - start) / 1e9;
		good = !caught_signal() && usage_read(info.pid, &after) &&
		       show(o, n, slept, &before, &after);
	}
	for (unsigned i = 0; clients && i < n; i++)
		client_close(&clients[i]);
	free(clients);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
