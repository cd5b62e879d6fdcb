/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf cpu: the CPU time of a trainer's thread for each operation it submits. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "crews_cuda.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "stat.h"

#define DEFAULT_TASKS 200
#define DEFAULT_BYTES 1024
#define BURSTS	      25 /* in a round */

enum path { STREAM, LAST, NCCL, PATHS };

static const char *const path_names[PATHS] = {"stream", "last", "nccl"};

struct bench {
	const struct options *options;
	struct crew service, base;
	unsigned paths;
	uint64_t tasks, bytes;
	double *us[PATHS]; /* one for each round */
};

static bool do_path(struct bench *b, enum path path, unsigned round)
{
	struct crew *crew = path == NCCL ? &b->base : &b->service;
	struct job job = {.kind = JOB_BURST,
			  .sync = path == LAST ? SYNC_LAST : SYNC_STREAM,
			  .iters = b->tasks,
			  .bursts = BURSTS,
			  .work = work_all_reduce(b->options, b->bytes)};
	if (!crew_do(crew, &job))
		return false;
	b->us[path][round] = crew_ns(crew, job.iters) / 1e3;
	return true;
}

static bool measure(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	for (unsigned path = 0; path < b->paths; path++) {
		b->us[path] = calloc(o->rounds, sizeof(double));
		if (!b->us[path]) {
			complain("out of memory");
			return false;
		}
	}
	if (!crews_start_cuda(&b->service, &b->base, o, socket, b->bytes))
		return false;
	for (unsigned round = 0; round < o->rounds; round++) {
		for (unsigned i = 0; i < b->paths; i++) {
			if (!do_path(b, (enum path)((round + i) % b->paths), round))
				return false;
		}
	}
	return true;
}

static void print_row(const char *name, double us, double base_us)
{
	if (base_us > 0)
		printf("  %8s  %17.2f  %6.2f\n", name, us, us / base_us);
	else
		printf("  %8s  %17.2f  %6s\n", name, us, "n/a");
}

static bool show(struct bench *b)
{
	const struct options *o = b->options;
	bool table = !o->json || o->json_path, good = true;
	double base_us = b->paths > NCCL ? median(b->us[NCCL], o->rounds) : 0;
	json_t *json = report_json_new(o), *rows = json_object_get(json, "rows");
	if (table) {
		report_header(o, "CPU time of a submission");
		printf("# AllReduce of %" PRIu64 " B, %u ranks, %" PRIu64
		       " submitted at once; the thread's CPU time for one of them\n",
		       b->bytes, o->ranks, b->tasks);
		printf("# stream: each orders the stream; last: only the last does; median of %u "
		       "times in each of %u rounds, in turn\n#\n",
		       BURSTS, o->rounds);
		printf("# %8s  %17s  %6s\n", "path", "cpu/submit(us)", "ratio");
	}
	for (unsigned path = 0; good && path < b->paths; path++) {
		double us = path == NCCL ? base_us : median(b->us[path], o->rounds);
		if (table)
			print_row(path_names[path], us, base_us);
		json_t *row = json_pack("{s:s, s:I, s:I, s:f, s:o}", "path", path_names[path],
					"tasks", (json_int_t)b->tasks, "bytes",
					(json_int_t)b->bytes, "submit_cpu_us", us, "ratio",
					base_us > 0 ? json_real(us / base_us) : json_null());
		good = json_array_append_new(rows, row) == 0;
	}
	if (good)
		good = json_object_set_new(json, "baseline",
					   base_us > 0 ? json_string(b->base.library)
						       : json_null()) == 0;
	return report_json_finish(o, json, good);
}

int cpu_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .paths = o->baseline ? PATHS : NCCL,
			  .tasks = o->iters_given ? o->iters : DEFAULT_TASKS,
			  .bytes = o->bytes_given ? o->min_bytes : DEFAULT_BYTES};
	bool good = measure(&b, socket) && show(&b);
	crew_stop(&b.service);
	crew_stop(&b.base);
	for (int path = 0; path < PATHS; path++)
		free(b.us[path]);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
