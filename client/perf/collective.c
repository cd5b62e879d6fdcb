/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf OP: measures an operation, and optionally a baseline, over a range of sizes. */
#include "collective.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "child_process.h"
#include "modes.h"

/* ---- One row ---- */

static bool count_tasks(struct ranks *ranks)
{
	const struct command command = {.kind = COMMAND_TASKS};
	return ranks_do(ranks, &command);
}

/* Runs the rounds, and finds which transport carried the service's operations. */
static bool run_rounds_and_tell(struct bench *b, const struct command *command, unsigned n)
{
	struct ranks *ranks = &b->subjects[SERVICE].ranks;
	if (!b->options->cuda)
		return turns_run(b, command, n);
	if (!count_tasks(ranks))
		return false;
	const double before = ranks_mean(ranks, REPLY(tasks));
	if (!turns_run(b, command, n) || !count_tasks(ranks))
		return false;
	/* If operations used the direct transport, the daemon has seen only the barriers before the
	 * rounds. */
	const double seen = ranks_mean(ranks, REPLY(tasks)) - before;
	const bool all = seen >= (double)(b->options->rounds * (command->iters + command->warmup));
	const bool mpi = ranks->members[0].reply.transport == NCCLSVC_TRANSPORT_MPI;
	b->transport = !all ? TEXT("peer") : TEXT(mpi ? "mpi" : "nccl");
	return true;
}

static bool check(struct bench *b, struct ranks *ranks, const struct work *w, uint64_t *wrong)
{
	*wrong = 0;
	for (unsigned i = 0; i < b->options->checks; i++) {
		struct command command = {.kind = COMMAND_CHECK,
					  .sync = (uint8_t)b->options->sync,
					  .graph = b->options->graph,
					  .seed = turns_seed(b),
					  .work = *w};
		if (!ranks_do(ranks, &command))
			return false;
		*wrong += ranks_wrong(ranks);
	}
	return true;
}

static bool check_all(struct bench *b, const struct work *w, unsigned n, struct value *wrong)
{
	uint64_t of[SUBJECTS] = {0};
	if (!b->options->checks)
		return true;
	if (b->options->baseline == BASELINE_PINGPONG)
		n = 1; /* it has no result buffer */
	for (unsigned i = 0; i < n; i++) {
		if (!check(b, &b->subjects[i].ranks, w, &of[i]))
			return false;
	}
	if (of[BASELINE]) {
		complain("the baseline itself has %" PRIu64 " wrong elements", of[BASELINE]);
		return false;
	}
	*wrong = NUMBER(of[SERVICE]);
	b->wrong += of[SERVICE];
	return true;
}

/* range: the minimum and maximum so far. */
static void widen(struct value range[2], double number)
{
	range[0] = NUMBER(fmin(range[0].number, number));
	range[1] = NUMBER(fmax(range[1].number, number));
}

static struct value median_of(struct bench *b, unsigned subject, enum measure m)
{
	return NUMBER(median(b->subjects[subject].us[m], b->options->rounds));
}

/* Must precede the medians, which sort the rounds. */
static void fill_ranges(struct bench *b, unsigned n, struct value *f)
{
	const double *us = b->subjects[SERVICE].us[MEAN], *base = b->subjects[BASELINE].us[MEAN];
	for (unsigned round = 0; round < b->options->rounds; round++) {
		widen(&f[TIME_RANGE], us[round]);
		if (n == 1)
			continue;
		widen(&f[BASE_RANGE], base[round]);
		widen(&f[RATIO_RANGE], us[round] / base[round]);
	}
}

static void fill_latencies(struct bench *b, unsigned subject, struct value *f)
{
	f[0] = median_of(b, subject, MEDIAN);
	f[1] = median_of(b, subject, P99);
}

static void fill_figures(struct bench *b, const struct work *w, unsigned n, struct value *f)
{
	const struct options *o = b->options;
	fill_ranges(b, n, f);
	const double us = median_of(b, SERVICE, MEAN).number;
	f[TIME] = NUMBER(us);
	f[ALGBW] = NUMBER(work_algbw(w, us));
	f[BUSBW] = NUMBER(work_busbw(w, us));
	for (int part = 0; part < CORES_PARTS; part++)
		f[CORES + part] =
			NUMBER(cores_used(&b->subjects[SERVICE].cores, (enum cores_part)part));
	if (o->with_cpu)
		f[CPU] = median_of(b, SERVICE, SUBMIT);
	if (o->latency)
		fill_latencies(b, SERVICE, &f[LATENCIES]);
	b->busbw_sum += f[BUSBW].number;
	b->busbw_n++;
	if (n == 1)
		return;
	f[BASE] = median_of(b, BASELINE, MEAN);
	f[RATIO] = NUMBER(us / f[BASE].number);
	f[BASE_CORES] = NUMBER(cores_used(&b->subjects[BASELINE].cores, CORES_RANKS));
	if (o->with_cpu)
		f[BASE_CPU] = median_of(b, BASELINE, SUBMIT);
	if (o->latency)
		fill_latencies(b, BASELINE, &f[BASE_LATENCIES]);
}

static bool baseline_can(const struct options *o, const struct work *w)
{
	if (o->baseline == BASELINE_MPI)
		return work_mpi_can(w);
	return o->baseline == BASELINE_PINGPONG ||
	       (o->baseline == BASELINE_NCCL && work_nccl_can(w));
}

/* Rounds up to a whole number of graphs. */
static uint64_t whole_graphs(const struct options *o, uint64_t n)
{
	return o->graph ? (n + o->graph - 1) / o->graph * o->graph : n;
}

static bool measure(struct bench *b, const struct work *w, struct value *f)
{
	const struct options *o = b->options;
	const unsigned n = baseline_can(o, w) ? SUBJECTS : 1;
	uint64_t iters = o->iters;
	for (unsigned i = 0; i < n; i++) {
		if (!turns_fit(b, &b->subjects[i].ranks, w, &iters))
			return false;
	}
	const uint64_t warmup = o->warmup < iters ? o->warmup : iters;
	struct command command = {.kind = COMMAND_TIME,
				  .sync = (uint8_t)o->sync,
				  .iters = whole_graphs(o, iters),
				  .warmup = whole_graphs(o, warmup),
				  .graph = o->graph,
				  .before = o->before,
				  .every_us = (uint32_t)o->every_us,
				  .latency = o->latency,
				  .kernels = b->spins ? TURNS_KERNELS : 0,
				  .spins = b->spins,
				  .work = *w};
	if (!run_rounds_and_tell(b, &command, n))
		return false;
	fill_figures(b, w, n, f);
	return check_all(b, w, n, &f[WRONG]);
}

static bool can_be_in_place(const struct options *o, const struct work *w)
{
	return work_can_be_in_place(w->op) && (!o->cuda || work_nccl_can(w));
}

static bool do_row(struct bench *b, struct work w)
{
	struct value figures[2][FIGURES];
	for (int place = 0; place < 2; place++) {
		w.in_place = (uint8_t)place;
		for (int f = 0; f < FIGURES; f++)
			figures[place][f] = UNKNOWN;
		if ((!place || can_be_in_place(b->options, &w)) && !measure(b, &w, figures[place]))
			return false;
	}
	collective_report_row(b, &w, figures, can_be_in_place(b->options, &w));
	collective_plot_row(b, &w, figures);
	return true;
}

/* ---- All rows ---- */

static uint64_t next_size(const struct options *o, uint64_t size)
{
	return o->step_factor ? size * o->step_factor : size + o->step_bytes;
}

/* Runs all sizes of one type, reduction and root. */
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

static bool do_roots(struct bench *b, struct work w)
{
	const struct options *o = b->options;
	const bool all = work_has_root(o->op) && o->root == ROOT_ALL;
	w.root = all || !work_has_root(o->op) ? 0 : o->root;
	if (!all)
		return do_sizes(b, w);
	for (; w.root < (int)o->ranks; w.root++) {
		if (!do_sizes(b, w))
			return false;
	}
	return true;
}

static bool do_everything(struct bench *b)
{
	const struct options *o = b->options;
	uint32_t types = o->op == NCCLSVC_BARRIER ? 1u : o->types;
	uint32_t redops = work_reduces(o->op) ? o->redops : 1u;
	for (unsigned type = 0; type < 32; type++) {
		for (unsigned redop = 0; redop < 32; redop++) {
			struct work w = {.op = (uint8_t)o->op,
					 .type = (uint8_t)type,
					 .redop = (uint8_t)redop,
					 .nranks = o->ranks};
			if (types >> type & 1 && redops >> redop & 1 && !do_roots(b, w))
				return false;
		}
	}
	return true;
}

/* ---- Start ---- */

/* Whether all ranks' buffers fit into free memory. */
static bool enough_memory(const struct options *o)
{
	uint64_t available = 0;
	char line[256];
	FILE *f = fopen("/proc/meminfo", "re");
	while (f && !available && fgets(line, sizeof(line), f))
		sscanf(line, "MemAvailable: %" SCNu64, &available);
	if (f)
		fclose(f);
	/* A GPU rank has one host buffer, for checks. */
	uint64_t each = (o->cuda ? 1 : 2) * (o->max_bytes + DATA_GUARD);
	uint64_t need = each * o->ranks * (o->baseline ? 2 : 1);
	if (!available || need / 1024 <= available)
		return true;
	complain("%u ranks with buffers of %" PRIu64 " bytes need %" PRIu64 " MiB; %" PRIu64
		 " MiB are free: make --maxbytes smaller",
		 o->ranks, o->max_bytes, need >> 20, available >> 10);
	return false;
}

static bool start_service(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	struct ranks *ranks = &b->subjects[SERVICE].ranks;
	const struct service_options service = {.socket = socket,
						.nodes = o->nodes,
						.no_ring = o->no_ring,
						.planned = o->planned,
						.lists = o->lists,
						.blocks = o->blocks,
						.copy_engines = o->copy_engines,
						.gpus = o->cuda ? o->gpus : NULL,
						.timeout_ms = o->timeout_ms};
	return ranks_start_service(ranks, &service, o->ranks) && ranks_join(ranks) &&
	       ranks_buffers(ranks, o->max_bytes);
}

static bool start_baseline(struct bench *b)
{
	const struct options *o = b->options;
	struct ranks *ranks = &b->subjects[BASELINE].ranks;
	bool good = false;
	switch (o->baseline) {
	case BASELINE_NONE:
		return true;
	case BASELINE_MPI:
		good = ranks_start_mpi(ranks, o->ranks, o->timeout_ms);
		break;
	case BASELINE_NCCL:
		good = ranks_start_nccl(ranks, o->gpus, o->ranks, o->timeout_ms) &&
		       ranks_join(ranks);
		break;
	case BASELINE_PINGPONG:
		good = ranks_start_pingpong(ranks, o->ranks, o->timeout_ms);
		break;
	}
	return good && ranks_buffers(ranks, o->max_bytes);
}

static bool watch_cores(struct bench *b, const char *socket)
{
	struct subject *s = &b->subjects[SERVICE], *base = &b->subjects[BASELINE];
	return cores_add_daemons(&s->cores, b->options, socket) &&
	       cores_add_ranks(&s->cores, &s->ranks) && cores_add_ranks(&base->cores, &base->ranks);
}

static bool start(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	if (!enough_memory(o))
		return false;
	return (!o->queued || queue_start(&b->queue, o, socket)) && start_service(b, socket) &&
	       start_baseline(b) && (!o->with_cpu || watch_cores(b, socket)) &&
	       (!o->compute_ms || turns_calibrate(b, o->compute_ms));
}

static int run(struct bench *b)
{
	collective_report_begin(b);
	if (!do_everything(b)) {
		(void)report_end(&b->report, false);
		return EXIT_ERROR;
	}
	const bool good = collective_report_end(b);
	return !collective_plot_end(b) || !good ? EXIT_ERROR : b->wrong ? EXIT_WRONG : EXIT_GOOD;
}

int collective_run(const struct options *o, const char *socket)
{
	static struct bench b;
	b.options = o;
	b.n = o->baseline ? SUBJECTS : 1;
	b.seed = perf_now_ns();
	int status = start(&b, socket) ? run(&b) : EXIT_ERROR;
	for (int i = 0; i < SUBJECTS; i++) {
		ranks_stop(&b.subjects[i].ranks);
		cores_free(&b.subjects[i].cores);
	}
	queue_stop(&b.queue);
	plot_free(&b.plot);
	return status;
}
