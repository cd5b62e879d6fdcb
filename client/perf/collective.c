/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf OP: an operation over a range of sizes, and the same by a baseline. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "modes.h"
#include "process.h"
#include "queue.h"
#include "ranks.h"
#include "report.h"

#define KERNELS	    20 /* with --compute-ms, in a round: another stream's work fits in between them */
#define FIRST_SPINS 20000

enum { SERVICE, BASELINE, SUBJECTS };

/* Of one operation, in us. */
enum measure { MEAN, SUBMIT, MEDIAN, P99, MEASURES };

/* What is measured: the service, or the baseline. */
struct subject {
	struct ranks ranks;
	struct cores cores; /* empty without --every */
	double us[MEASURES][ROUNDS_MAX];
};

struct bench {
	const struct options *options;
	struct subject subjects[SUBJECTS];
	unsigned n;	    /* subjects */
	struct queue queue; /* empty without --queued */
	struct report report;
	uint64_t seed;
	uint32_t spins; /* with --compute-ms: of a kernel */
	uint64_t wrong;
	double busbw_sum;
	unsigned busbw_n;
};

/* ---- What is printed ---- */

enum { WITH_BASELINE = 1, WITH_CPU = 2, WITH_LATENCY = 4 };

static const struct column work_columns[] = {
	{"size", "(B)", "bytes", 10, 0, 0}, {"count", "(elements)", "count", 14, 0, 0},
	{"type", "", "type", 10, 0, 0},	    {"redop", "", "redop", 8, 0, 0},
	{"root", "", "root", 8, 0, 0},	    {NULL, NULL, "op", 0, 0, 0},
};

enum figure {
	TIME,
	ALGBW,
	BUSBW,
	WRONG,
	BASE,
	RATIO,
	LATENCIES, /* median and p99 */
	BASE_LATENCIES = LATENCIES + 2,
	CORES = BASE_LATENCIES + 2, /* one for each part */
	BASE_CORES = CORES + CORES_PARTS,
	CPU,
	BASE_CPU,
	FIGURES,
};

static const struct column figure_columns[FIGURES] = {
	[TIME] = {"time", "(us)", "time_us", 9, DIGITS, 0},
	[ALGBW] = {"algbw", "(GB/s)", "algbw", 8, DIGITS, 0},
	[BUSBW] = {"busbw", "(GB/s)", "busbw", 8, DIGITS, 0},
	[WRONG] = {"#wrong", "", "wrong", 7, 0, 0},
	[BASE] = {"base", "(us)", "baseline_us", 10, DIGITS, WITH_BASELINE},
	[RATIO] = {"ratio", "", "ratio", 7, 2, WITH_BASELINE},
	[LATENCIES] = {"median", "(us)", "median_us", 9, DIGITS, WITH_LATENCY},
	[LATENCIES + 1] = {"p99", "(us)", "p99_us", 9, DIGITS, WITH_LATENCY},
	[BASE_LATENCIES] = {"base", "median", "baseline_median_us", 9, DIGITS,
			    WITH_LATENCY | WITH_BASELINE},
	[BASE_LATENCIES + 1] = {"base", "p99", "baseline_p99_us", 9, DIGITS,
				WITH_LATENCY | WITH_BASELINE},
	[CORES + CORES_DAEMON] = {"daemon", "(cores)", "daemon_cores", 9, 5, WITH_CPU},
	[CORES + CORES_WORKERS] = {"workers", "", "worker_cores", 9, 5, WITH_CPU},
	[CORES + CORES_RANKS] = {"ranks", "", "rank_cores", 9, 5, WITH_CPU},
	[BASE_CORES] = {"base", "", "baseline_cores", 9, 5, WITH_CPU | WITH_BASELINE},
	[CPU] = {"submit", "(us)", "submit_cpu_us", 8, DIGITS, WITH_CPU},
	[BASE_CPU] = {"base", "(us)", "baseline_submit_cpu_us", 8, DIGITS,
		      WITH_CPU | WITH_BASELINE},
};

#define WORK_COLUMNS (sizeof(work_columns) / sizeof(work_columns[0]))

static const char *waiting(const struct options *o)
{
	if (o->sync == SYNC_EACH)
		return o->cuda ? "synchronising after each operation"
			       : "waiting for each operation";
	if (o->cuda && o->sync == SYNC_STREAM)
		return "synchronising at the end; each operation orders the stream";
	return o->cuda ? "synchronising at the end; the last operation orders the stream"
		       : "waiting for the last operation";
}

/* Open MPI's ranks have joined when they connect: what that took is not known. */
static bool start_known(const struct subject *s)
{
	return s->ranks.start_ms > 0;
}

static void note_start(struct bench *b, const struct subject *s, const char *who)
{
	const double ms = s->ranks.start_ms, mib = s->ranks.start_bytes / (1 << 20);
	if (!start_known(s))
		return;
	if (b->options->cuda)
		report_note(&b->report,
			    "%s: %.2f ms to join and do a first operation, %.1f MiB of each GPU",
			    who, ms, mib);
	else
		report_note(&b->report, "%s: %.2f ms to join and do a first operation", who, ms);
}

static void show_head(struct bench *b)
{
	const struct options *o = b->options;
	struct report *r = &b->report;
	report_note(r, "%" PRIu64 " iterations after %" PRIu64 " warm-up, %u rounds, %s", o->iters,
		    o->warmup, o->rounds, waiting(o));
	report_note(r, "time: average over the ranks, median of the rounds");
	if (o->compute_ms)
		report_note(r,
			    "beside kernels on another stream, %u ms in each round; time: until "
			    "both are over",
			    o->compute_ms);
	if (o->every_us)
		report_note(r,
			    "every %" PRIu64 " us, if the former operation allows; time: "
			    "without the pauses",
			    o->every_us);
	if (o->with_cpu) {
		report_note(r, "cores: CPU time of all processes of that kind together, by time, "
			       "in the rounds");
		report_note(r, "submit: CPU time of a rank's thread for an operation, without the "
			       "wait at the end");
	}
	if (b->n > BASELINE)
		report_note(r, "baseline: %s, round by round in turn; ratio = time / base",
			    b->subjects[BASELINE].ranks.library);
	note_start(b, &b->subjects[SERVICE], "service");
	note_start(b, &b->subjects[BASELINE], "baseline");
	if (!r->table)
		return;
	int place = report_width(r, figure_columns, FIGURES);
	printf("#\n# %*s%*s%*s\n", report_width(r, work_columns, WORK_COLUMNS), "", place / 2 + 6,
	       "out-of-place", place, "in-place");
	for (int units = 0; units < 2; units++) {
		printf("# ");
		report_title_line(r, work_columns, WORK_COLUMNS, units);
		report_title_line(r, figure_columns, FIGURES, units);
		report_title_line(r, figure_columns, FIGURES, units);
		putchar('\n');
	}
	fflush(stdout);
}

static void set_start(struct bench *b, const struct subject *s, const char *ms, const char *bytes)
{
	const bool known = start_known(s);
	report_set_number(&b->report, ms, known ? s->ranks.start_ms : NAN);
	report_set_number(&b->report, bytes,
			  known && b->options->cuda ? s->ranks.start_bytes : NAN);
}

static void begin_report(struct bench *b)
{
	const struct options *o = b->options;
	struct report *r = &b->report;
	char what[64];
	snprintf(what, sizeof(what), "%s, %u ranks", perf_op_name(o->op), o->ranks);
	report_begin(r, o, what);
	r->shown = (b->n > BASELINE ? WITH_BASELINE : 0) | (o->with_cpu ? WITH_CPU : 0) |
		   (o->latency ? WITH_LATENCY : 0);
	report_set(r, "ranks", json_integer(o->ranks));
	report_set(r, "blocking", json_boolean(o->sync == SYNC_EACH));
	report_set(r, "sync", json_string(sync_name(o)));
	report_set(r, "rounds", json_integer(o->rounds));
	report_set(r, "compute_ms", json_integer(o->compute_ms));
	report_set(r, "every_us",
		   o->with_cpu ? json_integer((json_int_t)o->every_us) : json_null());
	report_set(r, "baseline",
		   b->n > BASELINE ? json_string(b->subjects[BASELINE].ranks.library)
				   : json_null());
	set_start(b, &b->subjects[SERVICE], "start_ms", "start_gpu_bytes");
	set_start(b, &b->subjects[BASELINE], "baseline_start_ms", "baseline_start_gpu_bytes");
	show_head(b);
}

static bool end_report(struct bench *b)
{
	struct report *r = &b->report;
	double busbw = b->busbw_n ? b->busbw_sum / b->busbw_n : 0;
	bool checked = b->options->checks > 0;
	if (checked)
		report_note(r, "Out of bounds values : %" PRIu64 " %s", b->wrong,
			    b->wrong ? "FAILED" : "OK");
	else
		report_note(r, "Out of bounds values : not checked");
	report_note(r, "Avg bus bandwidth    : %g", busbw);
	if (b->options->queued) {
		if (!queue_figures(&b->queue))
			return report_end(r, false);
		report_note(r,
			    "%" PRIu64 " tasks were listed once a second, in %.1f ms, %.1f ms at "
			    "worst",
			    b->queue.listed, b->queue.list_ms, b->queue.list_worst_ms);
		report_set(r, "listed", json_integer((json_int_t)b->queue.listed));
		report_set_number(r, "list_ms", b->queue.list_ms);
		report_set_number(r, "list_worst_ms", b->queue.list_worst_ms);
	}
	report_set(r, "wrong", checked ? json_integer((json_int_t)b->wrong) : json_null());
	report_set_number(r, "avg_busbw", busbw);
	return report_end(r, true);
}

/* ---- One row ---- */

static uint64_t fresh_seed(struct bench *b)
{
	b->seed = b->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return b->seed ^ perf_now_ns() << 20;
}

static bool run_round(struct subject *s, const struct command *command, unsigned round)
{
	cores_start(&s->cores);
	if (!ranks_do(&s->ranks, command))
		return false;
	cores_stop(&s->cores);
	static const size_t fields[MEASURES] = {[MEAN] = REPLY(elapsed_ns),
						[SUBMIT] = REPLY(cpu_ns),
						[MEDIAN] = REPLY(median_ns),
						[P99] = REPLY(p99_ns)};
	for (int m = 0; m < MEASURES; m++) {
		const double of = m == MEAN || m == SUBMIT ? (double)command->iters : 1;
		s->us[m][round] = ranks_mean(&s->ranks, fields[m]) / 1e3 / of;
	}
	return true;
}

/* How many iterations fit into the time of a round: one cold operation, then if that was slow a
 * warm one, tell how long it takes. */
static bool fit(struct bench *b, struct ranks *ranks, const struct work *w, uint64_t *iters)
{
	const struct options *o = b->options;
	struct command command = {.kind = COMMAND_TIME,
				  .fill = 1,
				  .sync = SYNC_EACH,
				  .iters = 1,
				  .seed = fresh_seed(b),
				  .work = *w};
	double round_us = o->time_cap_s * 1e6 / o->rounds, us;
	for (int attempt = 0; attempt < 2; attempt++) {
		if (!ranks_do(ranks, &command))
			return false;
		us = fmax(ranks_mean(ranks, REPLY(elapsed_ns)) / 1e3, (double)o->every_us);
		if (us * (double)*iters <= round_us)
			return true;
		command.fill = 0;
	}
	uint64_t fitting = (uint64_t)(round_us / us);
	*iters = fitting ? fitting : 1;
	return true;
}

/* The subjects take turns, and in turns go first. */
static bool run_rounds(struct bench *b, const struct command *command, unsigned n)
{
	const struct work *w = &command->work;
	for (unsigned i = 0; i < n; i++)
		cores_clear(&b->subjects[i].cores);
	for (unsigned round = 0; round < b->options->rounds; round++) {
		report_progress(&b->report, "%s %" PRIu64 " B %s: round %u of %u",
				perf_op_name(w->op), work_bytes(w),
				w->in_place ? "in place" : "out of place", round + 1,
				b->options->rounds);
		for (unsigned i = 0; i < n; i++) {
			if (!run_round(&b->subjects[(round + i) % n], command, round))
				return false;
		}
	}
	return true;
}

static bool check(struct bench *b, struct ranks *ranks, const struct work *w, uint64_t *wrong)
{
	*wrong = 0;
	for (unsigned i = 0; i < b->options->checks; i++) {
		struct command command = {.kind = COMMAND_CHECK,
					  .sync = (uint8_t)b->options->sync,
					  .seed = fresh_seed(b),
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
		n = 1; /* it has no results */
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

static struct value median_of(struct bench *b, unsigned subject, enum measure m)
{
	return NUMBER(median(b->subjects[subject].us[m], b->options->rounds));
}

static void fill_latencies(struct bench *b, unsigned subject, struct value *f)
{
	f[0] = median_of(b, subject, MEDIAN);
	f[1] = median_of(b, subject, P99);
}

static void fill_figures(struct bench *b, const struct work *w, unsigned n, struct value *f)
{
	const struct options *o = b->options;
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

static bool measure(struct bench *b, const struct work *w, struct value *f)
{
	const struct options *o = b->options;
	const unsigned n = baseline_can(o, w) ? SUBJECTS : 1;
	uint64_t iters = o->iters;
	for (unsigned i = 0; i < n; i++) {
		if (!fit(b, &b->subjects[i].ranks, w, &iters))
			return false;
	}
	struct command command = {.kind = COMMAND_TIME,
				  .sync = (uint8_t)o->sync,
				  .iters = iters,
				  .warmup = o->warmup < iters ? o->warmup : iters,
				  .every_us = (uint32_t)o->every_us,
				  .latency = o->latency,
				  .kernels = b->spins ? KERNELS : 0,
				  .spins = b->spins,
				  .work = *w};
	if (!run_rounds(b, &command, n))
		return false;
	fill_figures(b, w, n, f);
	return check_all(b, w, n, &f[WRONG]);
}

static bool can_be_in_place(const struct options *o, const struct work *w)
{
	return work_can_be_in_place(w->op) && (!o->cuda || work_nccl_can(w));
}

static void show_row(struct bench *b, const struct work *w, struct value figures[2][FIGURES],
		     bool in_place)
{
	struct report *r = &b->report;
	const struct value cells[WORK_COLUMNS] = {
		NUMBER(work_bytes(w)),
		NUMBER(w->count),
		TEXT(w->op == NCCLSVC_BARRIER ? "none" : ncclsvc_type_name(w->type)),
		TEXT(work_reduces(w->op) ? ncclsvc_redop_name(w->redop) : "none"),
		NUMBER(work_has_root(w->op) ? w->root : -1),
		TEXT(perf_op_name(w->op)),
	};
	json_t *row = r->rows ? json_object() : NULL;
	json_t *second = row && in_place ? json_object() : NULL;
	report_progress(r, "%s", "");
	if (r->table)
		printf("  ");
	report_cells(r, work_columns, WORK_COLUMNS, cells, row);
	report_cells(r, figure_columns, FIGURES, figures[0], row);
	report_cells(r, figure_columns, FIGURES, figures[1], second);
	if (row && json_object_set_new(row, "in_place", second ? second : json_null()) < 0)
		r->no_memory = true;
	report_row_end(r, row);
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
	show_row(b, &w, figures, can_be_in_place(b->options, &w));
	return true;
}

/* ---- All rows ---- */

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
	uint64_t subjects = o->baseline ? 2 : 1;
	uint64_t need = each * o->ranks * (subjects + (o->memory == MEMORY_PLAIN));
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
						.memory = o->memory,
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

/* Finds how long a kernel must be for those of a round to take --compute-ms. Both subjects then run
 * the same. */
static bool calibrate(struct bench *b)
{
	struct command command = {.kind = COMMAND_TIME,
				  .kernels = KERNELS,
				  .spins = FIRST_SPINS,
				  .work = {.op = NCCLSVC_BARRIER, .nranks = b->options->ranks}};
	for (int attempt = 0; attempt < 3; attempt++) { /* the first compiles the kernel */
		if (!ranks_do(&b->subjects[SERVICE].ranks, &command))
			return false;
		double ms = ranks_mean(&b->subjects[SERVICE].ranks, REPLY(elapsed_ns)) / 1e6;
		double spins = command.spins * b->options->compute_ms / (ms > 0 ? ms : 1);
		if (attempt)
			command.spins = spins < 1 ? 1 : spins > 1e9 ? 1000000000 : (uint32_t)spins;
	}
	b->spins = command.spins;
	return b->n == 1 || ranks_do(&b->subjects[BASELINE].ranks, &command);
}

static bool start(struct bench *b, const char *socket)
{
	const struct options *o = b->options;
	if (!enough_memory(o))
		return false;
	return (!o->queued || queue_start(&b->queue, o, socket)) && start_service(b, socket) &&
	       start_baseline(b) && (!o->with_cpu || watch_cores(b, socket)) &&
	       (!o->compute_ms || calibrate(b));
}

static int run(struct bench *b)
{
	begin_report(b);
	if (!do_everything(b)) {
		(void)report_end(&b->report, false);
		return EXIT_ERROR;
	}
	return !end_report(b) ? EXIT_ERROR : b->wrong ? EXIT_WRONG : EXIT_GOOD;
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
	return status;
}
