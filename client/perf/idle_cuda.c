/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf idle --device cuda: the CPU time of the daemon and its workers while GPU ranks do
 * nothing, and while they run small AllReduces one after the other. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cores.h"
#include "crews_cuda.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "usage.h"

#define DEFAULT_SECONDS 10
#define SETTLE_MS	1000 /* for the work of joining to be over */
#define BYTES		1024
#define PROBE		1000 /* operations that tell how many fill the time */

enum phase { IDLE, BUSY, PHASES };

static const char *const phase_names[PHASES] = {"idle", "busy"};

struct process {
	struct usage before, after;
};

struct bench {
	const struct options *options;
	uint64_t seconds;
	struct crew crew;
	struct cores cores;
	struct process *processes; /* [cores.n] */
	bool table;
	json_t *rows;
};

static bool find_processes(struct bench *b, const char *socket)
{
	if (!cores_add_daemons(&b->cores, b->options, socket))
		return false;
	b->processes = calloc(b->cores.n, sizeof(*b->processes));
	if (!b->processes)
		complain("out of memory");
	return b->processes;
}

static bool run(struct bench *b, uint64_t iters, double *seconds)
{
	struct job job = {.kind = JOB_TIME,
			  .sync = SYNC_EACH,
			  .iters = iters,
			  .work = work_all_reduce(b->options, BYTES)};
	if (!crew_do(&b->crew, &job))
		return false;
	*seconds = crew_ns(&b->crew, 1) / 1e9;
	return true;
}

static bool read_all(struct bench *b, bool after)
{
	for (size_t i = 0; i < b->cores.n; i++) {
		struct process *p = &b->processes[i];
		if (!usage_read(b->cores.processes[i].pid, after ? &p->after : &p->before))
			return false;
	}
	return true;
}

static bool show(struct bench *b, enum phase phase, double seconds, double tasks)
{
	for (size_t i = 0; i < b->cores.n; i++) {
		const struct process *p = &b->processes[i];
		const int device = b->cores.processes[i].device;
		char name[32] = "supervisor";
		if (device >= 0)
			snprintf(name, sizeof(name), "worker %d", device);
		bool exact = p->before.run_ns >= 0 && p->after.run_ns >= 0;
		int64_t ns = exact ? p->after.run_ns - p->before.run_ns
				   : p->after.cpu_ns - p->before.cpu_ns;
		int64_t switches = p->after.switches - p->before.switches;
		double percent = (double)ns / 1e7 / seconds;
		if (b->table)
			printf("  %5s  %10s  %12.3f  %8.2f  %12" PRId64 "  %12.0f\n",
			       phase_names[phase], name, (double)ns / 1e6, percent, switches,
			       tasks / seconds);
		json_t *row = json_pack("{s:s, s:s, s:f, s:f, s:f, s:I, s:f}", "phase",
					phase_names[phase], "process", name, "seconds", seconds,
					"cpu_ms", (double)ns / 1e6, "cpu_percent", percent,
					"switches", (json_int_t)switches, "rate", tasks / seconds);
		if (json_array_append_new(b->rows, row) < 0) {
			complain("out of memory");
			return false;
		}
	}
	return true;
}

static bool be_idle(struct bench *b)
{
	sleep_ms(SETTLE_MS);
	uint64_t start = perf_now_ns();
	if (!read_all(b, false))
		return false;
	while (perf_now_ns() - start < b->seconds * UINT64_C(1000000000)) {
		if (caught_signal())
			return false;
		sleep_ms(50);
	}
	return read_all(b, true) && show(b, IDLE, (double)(perf_now_ns() - start) / 1e9, 0);
}

static bool be_busy(struct bench *b)
{
	double seconds;
	if (!run(b, PROBE, &seconds))
		return false;
	uint64_t iters = (uint64_t)(PROBE * (double)b->seconds / (seconds > 0 ? seconds : 1)) + 1;
	return read_all(b, false) && run(b, iters, &seconds) && read_all(b, true) &&
	       show(b, BUSY, seconds, (double)iters);
}

int idle_cuda_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .seconds = o->seconds ? o->seconds : DEFAULT_SECONDS,
			  .table = !o->json || o->json_path};
	json_t *json = report_json_new(o);
	struct work work = work_all_reduce(o, BYTES);
	b.rows = json_object_get(json, "rows");
	bool good = b.rows && crew_cuda_service(&b.crew, o, socket);
	b.crew.timeout_ms += (int)b.seconds * 2000;
	good = good && crew_init(&b.crew, NULL) && crew_buffers(&b.crew, BYTES) &&
	       find_processes(&b, socket);
	if (good && b.table) {
		report_header(o, "the daemon's CPU time");
		printf("# idle: %u ranks that have joined and do nothing; busy: one AllReduce of "
		       "%d B after the other, %s\n#\n",
		       o->ranks, BYTES, "each synchronised");
		printf("# %5s  %10s  %12s  %8s  %12s  %12s\n", "", "process", "cpu(ms)", "cpu(%)",
		       "switches", "tasks(/s)");
	}
	struct job first = {.kind = JOB_TIME, .sync = SYNC_EACH, .iters = 1, .work = work};
	good = good && crew_do(&b.crew, &first) && be_idle(&b) && be_busy(&b);
	if (good && o->json)
		good = report_json_write(o, json);
	crew_stop(&b.crew);
	cores_free(&b.cores);
	free(b.processes);
	json_decref(json);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
