/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf overlap: a training step, kernels that fill the GPU beside AllReduces. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "crews_cuda.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "stat.h"

#define DEFAULT_ITERS 20
#define DEFAULT_BYTES (64 << 20)
#define KERNELS	      20 /* in a step: another stream's work fits in between them */
#define FIRST_SPINS   20000
#define WARMUP	      3

enum side { SERVICE, NCCL, SIDES };
enum part { COMPUTE, COMM, BOTH, PARTS };

static const char *const side_names[SIDES] = {"service", "nccl"};

struct times {
	double *whole, *comm; /* ms, one for each round */
};

struct bench {
	const struct options *options;
	struct crew crews[SIDES];
	unsigned sides;
	uint64_t iters, bytes;
	uint32_t spins;
	struct times times[SIDES][PARTS];
};

static double comm_ms(const struct crew *crew)
{
	double sum = 0;
	for (uint32_t i = 0; i < crew->n; i++)
		sum += (double)crew->members[i].reply.comm_ns;
	return sum / crew->n / 1e6;
}

static bool step(struct bench *b, enum side side, enum part part, double *whole_ms)
{
	static const uint8_t parts[PARTS] = {STEP_COMPUTE, STEP_COMM, STEP_COMPUTE | STEP_COMM};
	struct job job = {.kind = JOB_STEP,
			  .parts = parts[part],
			  .iters = b->iters,
			  .warmup = WARMUP,
			  .kernels = KERNELS,
			  .spins = b->spins,
			  .work = work_all_reduce(b->options, b->bytes)};
	if (!crew_do(&b->crews[side], &job))
		return false;
	*whole_ms = crew_ns(&b->crews[side], 1) / 1e6;
	return true;
}

/* How long a kernel must be for the step to take --compute-ms. Both sides then do the same. */
static bool calibrate(struct bench *b)
{
	double ms;
	b->spins = FIRST_SPINS;
	if (!step(b, SERVICE, COMPUTE, &ms)) /* compiles it */
		return false;
	for (int i = 0; i < 2; i++) {
		if (!step(b, SERVICE, COMPUTE, &ms))
			return false;
		double spins = b->spins * b->options->compute_ms / (ms > 0 ? ms : 1);
		b->spins = spins < 1 ? 1 : spins > 1e9 ? 1000000000 : (uint32_t)spins;
	}
	return true;
}

static bool allocate(struct bench *b)
{
	size_t n = b->options->rounds;
	bool good = true;
	for (int side = 0; side < SIDES; side++) {
		for (int part = 0; part < PARTS; part++) {
			struct times *t = &b->times[side][part];
			good &= (t->whole = calloc(n, sizeof(double))) != NULL;
			good &= (t->comm = calloc(n, sizeof(double))) != NULL;
		}
	}
	if (!good)
		complain("out of memory");
	return good;
}

static bool do_round(struct bench *b, unsigned round)
{
	for (unsigned i = 0; i < b->sides; i++) {
		enum side side = (enum side)((round + i) % b->sides);
		for (int part = 0; part < PARTS; part++) {
			struct times *t = &b->times[side][part];
			if (!step(b, side, (enum part)part, &t->whole[round]))
				return false;
			t->comm[round] = comm_ms(&b->crews[side]);
		}
	}
	return true;
}

static bool measure(struct bench *b, const char *socket)
{
	if (!allocate(b) ||
	    !crews_start_cuda(&b->crews[SERVICE], &b->crews[NCCL], b->options, socket, b->bytes))
		return false;
	double ms;
	if (!calibrate(b) || (b->sides > NCCL && !step(b, NCCL, COMPUTE, &ms)))
		return false;
	for (unsigned round = 0; round < b->options->rounds; round++) {
		if (caught_signal() || !do_round(b, round))
			return false;
	}
	return true;
}

static bool show_side(struct bench *b, enum side side, bool table, double base_ms, json_t *rows)
{
	unsigned n = b->options->rounds;
	struct times *t = b->times[side];
	double compute = median(t[COMPUTE].whole, n), comm = median(t[COMM].whole, n);
	double both = median(t[BOTH].whole, n), ends = median(t[BOTH].comm, n);
	char ratio[16] = "n/a";
	if (base_ms > 0)
		snprintf(ratio, sizeof(ratio), "%.2f", both / base_ms);
	if (table)
		printf("  %8s  %11.2f  %8.2f  %15.2f  %14.2f  %6s\n", side_names[side], compute,
		       comm, ends, both, ratio);
	json_t *row =
		json_pack("{s:s, s:f, s:f, s:f, s:f, s:o}", "path", side_names[side], "compute_ms",
			  compute, "comm_ms", comm, "both_comm_ms", ends, "both_ms", both, "ratio",
			  base_ms > 0 ? json_real(both / base_ms) : json_null());
	return json_array_append_new(rows, row) == 0;
}

static bool show(struct bench *b)
{
	const struct options *o = b->options;
	bool table = !o->json || o->json_path, good = true;
	double base_ms = b->sides > NCCL ? median(b->times[NCCL][BOTH].whole, o->rounds) : 0;
	json_t *json = report_json_new(o), *rows = json_object_get(json, "rows");
	if (table) {
		report_header(o, "compute and communication in one step");
		printf("# %u kernels that fill the GPU, beside %" PRIu64 " AllReduces of %" PRIu64
		       " B on another stream; %u ranks\n",
		       KERNELS, b->iters, b->bytes, o->ranks);
		printf("# median of %u rounds, in turn; ratio of whole steps\n#\n", o->rounds);
		printf("# %8s  %11s  %8s  %15s  %14s  %6s\n", "", "compute(ms)", "comm(ms)",
		       "both: comm(ms)", "both: all(ms)", "ratio");
	}
	for (unsigned side = 0; good && side < b->sides; side++)
		good = show_side(b, (enum side)side, table, base_ms, rows);
	if (good)
		good = json_object_set_new(json, "baseline",
					   b->sides > NCCL ? json_string(b->crews[NCCL].library)
							   : json_null()) == 0;
	return report_json_finish(o, json, good);
}

int overlap_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .sides = o->baseline ? SIDES : NCCL,
			  .iters = o->iters_given ? o->iters : DEFAULT_ITERS,
			  .bytes = o->bytes_given ? o->min_bytes : DEFAULT_BYTES};
	bool good = measure(&b, socket) && show(&b);
	for (int side = 0; side < SIDES; side++) {
		crew_stop(&b.crews[side]);
		for (int part = 0; part < PARTS; part++) {
			free(b.times[side][part].whole);
			free(b.times[side][part].comm);
		}
	}
	return good ? EXIT_GOOD : EXIT_ERROR;
}
