/* SPDX-License-Identifier: Apache-2.0 */
#include "collective.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "crew.h"
#include "crews_cuda.h"
#include "data.h"
#include "process.h"
#include "report.h"
#include "stat.h"

struct bench {
	const struct options *options;
	struct crew service, base;
	struct cores cores, base_cores; /* empty without --every */
	struct report report;
	double *us, *base_us; /* one for each round */
	uint64_t seed;
};

static uint64_t fresh_seed(struct bench *b)
{
	b->seed = b->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return b->seed ^ perf_now_ns() << 20;
}

static bool run_round(struct crew *crew, const struct job *job, struct cores *cores, double *us)
{
	cores_start(cores);
	if (!crew_do(crew, job))
		return false;
	cores_stop(cores);
	*us = crew_ns(crew, job->iters) / 1e3;
	return true;
}

static bool run_timed(struct crew *crew, const struct job *job, double *us)
{
	if (!crew_do(crew, job))
		return false;
	*us = crew_ns(crew, job->iters) / 1e3;
	return true;
}

/* How many iterations fit into the time of a round: one cold operation, then if that was slow a
 * warm one, tell how long it takes. */
static bool fit(struct crew *crew, const struct work *w, const struct options *o, uint64_t seed,
		uint64_t *iters)
{
	struct job job = {.kind = JOB_TIME,
			  .fill = 1,
			  .sync = SYNC_EACH,
			  .iters = 1,
			  .seed = seed,
			  .work = *w};
	double round_us = o->time_cap_s * 1e6 / o->rounds, us;
	for (int attempt = 0; attempt < 2; attempt++) {
		if (!run_timed(crew, &job, &us))
			return false;
		if (us < (double)o->every_us)
			us = (double)o->every_us;
		if (us * (double)*iters <= round_us)
			return true;
		job.fill = 0;
	}
	uint64_t fitting = (uint64_t)(round_us / us);
	*iters = fitting ? fitting : 1;
	return true;
}

static bool check(struct bench *b, struct crew *crew, const struct work *w, int64_t *wrong)
{
	*wrong = 0;
	for (unsigned i = 0; i < b->options->checks; i++) {
		struct job job = {.kind = JOB_CHECK,
				  .sync = (uint8_t)b->options->sync,
				  .seed = fresh_seed(b),
				  .work = *w};
		if (!crew_do(crew, &job))
			return false;
		*wrong += (int64_t)crew_wrong(crew);
	}
	return true;
}

/* The sides take turns, and in turns go first. */
static bool run_rounds(struct bench *b, const struct work *w, const struct job *job, bool based)
{
	cores_clear(&b->cores);
	cores_clear(&b->base_cores);
	for (unsigned round = 0; round < b->options->rounds; round++) {
		report_progress(&b->report, "%s %" PRIu64 " B %s: round %u of %u",
				perf_op_name(w->op), work_bytes(w),
				w->in_place ? "in place" : "out of place", round + 1,
				b->options->rounds);
		bool base_first = round % 2;
		double *base_us = &b->base_us[round];
		if (based && base_first && !run_round(&b->base, job, &b->base_cores, base_us))
			return false;
		if (!run_round(&b->service, job, &b->cores, &b->us[round]))
			return false;
		if (based && !base_first && !run_round(&b->base, job, &b->base_cores, base_us))
			return false;
	}
	return true;
}

static bool baseline_can(const struct options *o, const struct work *w)
{
	if (o->baseline == BASELINE_MPI)
		return work_mpi_can(w);
	return o->baseline == BASELINE_NCCL && work_nccl_can(w);
}

static bool measure(struct bench *b, const struct work *w, struct figures *f)
{
	const struct options *o = b->options;
	bool based = baseline_can(o, w);
	uint64_t seed = fresh_seed(b), iters = o->iters;
	if (!fit(&b->service, w, o, seed, &iters) || (based && !fit(&b->base, w, o, seed, &iters)))
		return false;
	struct job job = {.kind = JOB_TIME,
			  .sync = (uint8_t)o->sync,
			  .iters = iters,
			  .warmup = o->warmup < iters ? o->warmup : iters,
			  .every_us = (uint32_t)o->every_us,
			  .work = *w};
	if (!run_rounds(b, w, &job, based))
		return false;
	f->measured = true;
	f->us = median(b->us, o->rounds);
	f->base_us = based ? median(b->base_us, o->rounds) : 0;
	for (int part = 0; part < CORES_PARTS; part++)
		f->cores[part] = cores_used(&b->cores, (enum cores_part)part);
	f->base_cores = cores_used(&b->base_cores, CORES_RANKS);
	f->wrong = -1;
	if (o->checks == 0)
		return true;
	int64_t base_wrong = 0;
	if (!check(b, &b->service, w, &f->wrong) || (based && !check(b, &b->base, w, &base_wrong)))
		return false;
	if (base_wrong)
		complain("the baseline itself has %" PRId64 " wrong elements", base_wrong);
	return base_wrong == 0;
}

static bool do_row(struct bench *b, struct work w)
{
	struct row row = {.work = w};
	for (int place = 0; place < 2; place++) {
		w.in_place = (uint8_t)place;
		if (place &&
		    !(work_can_be_in_place(w.op) && (!b->options->cuda || work_nccl_can(&w))))
			continue;
		if (!measure(b, &w, &row.place[place]))
			return false;
	}
	return report_row(&b->report, &row);
}

static uint64_t next_size(const struct options *o, uint64_t size)
{
	return o->step_factor ? size * o->step_factor : size + o->step_bytes;
}

/* All sizes of one type, reduction and root. */
static bool do_sizes(struct bench *b, struct work w)
{
	const struct options *o = b->options;
	if (w.op == NCCLSVC_BARRIER)
		return do_row(b, w);
	for (uint64_t size = o->min_bytes; size <= o->max_bytes; size = next_size(o, size)) {
		w.count = work_count(w.op, w.type, w.nranks, size);
		if (!do_row(b, w))
			return false;
		if (size == o->max_bytes)
			break;
	}
	return true;
}

static bool do_everything(struct bench *b)
{
	const struct options *o = b->options;
	uint32_t types = o->op == NCCLSVC_BARRIER ? 1u : o->types;
	uint32_t redops = work_reduces(o->op) ? o->redops : 1u;
	int first = o->root, last = o->root;
	if (!work_has_root(o->op)) {
		first = last = 0;
	} else if (o->root == ROOT_ALL) {
		first = 0;
		last = (int)o->ranks - 1;
	}
	for (unsigned type = 0; type < 32; type++) {
		for (unsigned redop = 0; redop < 32; redop++) {
			if (!(types >> type & 1) || !(redops >> redop & 1))
				continue;
			for (int root = first; root <= last; root++) {
				struct work w = {.op = (uint8_t)o->op,
						 .type = (uint8_t)type,
						 .redop = (uint8_t)redop,
						 .root = root,
						 .nranks = o->ranks};
				if (!do_sizes(b, w))
					return false;
			}
		}
	}
	return true;
}

/* True: the buffers of all ranks fit into the memory that is free. */
static bool enough_memory(const struct options *o)
{
	uint64_t available = 0;
	char line[256];
	FILE *f = fopen("/proc/meminfo", "re");
	while (f && !available && fgets(line, sizeof(line), f))
		sscanf(line, "MemAvailable: %" SCNu64, &available);
	if (f)
		fclose(f);
	/* A staged transfer needs the library's copies too; on a GPU there is one to check with. */
	uint64_t each = (o->cuda ? 1 : 2) * (o->max_bytes + DATA_GUARD);
	uint64_t sides = o->baseline ? 2 : 1;
	uint64_t need = each * o->ranks * (sides + o->plain_memory);
	if (!available || need / 1024 <= available)
		return true;
	complain("%u ranks with buffers of %" PRIu64 " bytes need %" PRIu64 " MiB; %" PRIu64
		 " MiB are free: make --maxbytes smaller",
		 o->ranks, o->max_bytes, need >> 20, available >> 10);
	return false;
}

static bool start_host(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	struct rank_options rank = {.socket = socket,
				    .nodes = o->nodes,
				    .no_ring = o->no_ring,
				    .plain_memory = o->plain_memory,
				    .planned = o->planned,
				    .timeout_ms = o->timeout_ms};
	struct job buffers = {.kind = JOB_BUFFERS, .bytes = o->max_bytes};
	if (!crew_start(&b->service, &rank, o->ranks) || !crew_do(&b->service, &buffers))
		return false;
	return !o->baseline ||
	       (crew_start_mpi(&b->base, o->ranks, o->timeout_ms) && crew_do(&b->base, &buffers));
}

static bool watch_cores(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	return cores_add_daemons(&b->cores, o, socket) && cores_add_ranks(&b->cores, &b->service) &&
	       cores_add_ranks(&b->base_cores, &b->base);
}

static bool start(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	b->us = calloc(o->rounds, sizeof(*b->us));
	b->base_us = calloc(o->rounds, sizeof(*b->base_us));
	if (!b->us || !b->base_us) {
		complain("out of memory");
		return false;
	}
	if (!enough_memory(o))
		return false;
	bool good = o->cuda ? crews_start_cuda(&b->service, &b->base, o, socket, o->max_bytes)
			    : start_host(b, socket);
	return good && (!o->every_given || watch_cores(b, socket));
}

int collective_run(const struct options *options, const char *socket)
{
	struct bench b = {.options = options, .seed = perf_now_ns()};
	bool good = start(&b, socket) &&
		    report_begin(&b.report, options, options->baseline ? b.base.library : NULL) &&
		    do_everything(&b) && report_end(&b.report);
	int status = !good ? EXIT_ERROR : b.report.wrong ? EXIT_WRONG : EXIT_GOOD;
	report_free(&b.report);
	crew_stop(&b.service);
	crew_stop(&b.base);
	cores_free(&b.cores);
	cores_free(&b.base_cores);
	free(b.us);
	free(b.base_us);
	return status;
}
