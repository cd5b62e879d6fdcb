/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf start: how long a new process takes until its first AllReduce is done. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "crews_cuda.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "stat.h"

#define DEFAULT_BYTES 1024

enum side { SERVICE, NCCL, SIDES };

static const char *const side_names[SIDES] = {"service", "nccl"};

struct bench {
	const struct options *options;
	const char *socket;
	unsigned sides;
	uint64_t bytes;
	char library[JOB_TEXT_BYTES];
	double first_ms[SIDES]; /* nothing is warm yet */
	double *ms[SIDES];	/* one for each round */
};

/* New processes with contexts and buffers; then the clock. */
static bool start_once(struct bench *b, enum side side, double *ms)
{
	const struct options *o = b->options;
	struct work work = work_all_reduce(o, b->bytes);
	struct crew crew = {0};
	bool good =
		side == NCCL ? crew_cuda_base(&crew, o) : crew_cuda_service(&crew, o, b->socket);
	good = good && crew_buffers(&crew, b->bytes) && crew_init(&crew, &work);
	if (good) {
		*ms = crew_ns(&crew, 1) / 1e6;
		if (side == NCCL)
			snprintf(b->library, sizeof(b->library), "%s", crew.library);
	}
	crew_stop(&crew);
	return good;
}

static bool measure(struct bench *b)
{
	for (unsigned side = 0; side < b->sides; side++) {
		b->ms[side] = calloc(b->options->rounds, sizeof(double));
		if (!b->ms[side]) {
			complain("out of memory");
			return false;
		}
		if (!start_once(b, (enum side)side, &b->first_ms[side]))
			return false;
	}
	for (unsigned round = 0; round < b->options->rounds; round++) {
		for (unsigned i = 0; i < b->sides; i++) {
			enum side side = (enum side)((round + i) % b->sides);
			if (caught_signal() || !start_once(b, side, &b->ms[side][round]))
				return false;
		}
	}
	return true;
}

static bool show(struct bench *b)
{
	const struct options *o = b->options;
	bool table = !o->json || o->json_path, good = true;
	double base_ms = b->sides > NCCL ? median(b->ms[NCCL], o->rounds) : 0;
	json_t *json = report_json_new(o), *rows = json_object_get(json, "rows");
	if (table) {
		report_header(o, "start of a process");
		printf("# %u ranks; from a CUDA context to the end of a first AllReduce of %" PRIu64
		       " B\n",
		       o->ranks, b->bytes);
		printf("# new processes each time: first, before anything was warm, and the median "
		       "of %u rounds after it\n#\n",
		       o->rounds);
		printf("# %8s  %9s  %9s  %6s\n", "", "first(ms)", "start(ms)", "ratio");
	}
	for (unsigned side = 0; good && side < b->sides; side++) {
		double ms = side == NCCL ? base_ms : median(b->ms[side], o->rounds);
		char ratio[16] = "n/a";
		if (base_ms > 0)
			snprintf(ratio, sizeof(ratio), "%.3f", ms / base_ms);
		if (table)
			printf("  %8s  %9.2f  %9.2f  %6s\n", side_names[side], b->first_ms[side],
			       ms, ratio);
		json_t *row = json_pack("{s:s, s:f, s:f, s:o}", "path", side_names[side],
					"first_ms", b->first_ms[side], "start_ms", ms, "ratio",
					base_ms > 0 ? json_real(ms / base_ms) : json_null());
		good = json_array_append_new(rows, row) == 0;
	}
	if (good)
		good = json_object_set_new(json, "baseline",
					   base_ms > 0 ? json_string(b->library) : json_null()) ==
		       0;
	return report_json_finish(o, json, good);
}

int start_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .socket = socket,
			  .sides = o->baseline ? SIDES : NCCL,
			  .bytes = o->bytes_given ? o->min_bytes : DEFAULT_BYTES};
	bool good = measure(&b) && show(&b);
	for (int side = 0; side < SIDES; side++)
		free(b.ms[side]);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
