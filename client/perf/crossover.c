/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf crossover: finds the size from which AllReduce is faster on NCCL in the daemon's
 * workers than in the ranks' kernels, for each number of ranks, with and without MPS. A daemon
 * allows kernels only up to its peer_bytes, so one is started with a peer_bytes large enough. Ranks
 * that use NCCL disable kernels (NCCLSVC_PEER=0). */
#include "proto/crossover.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "child_process.h"
#include "collective.h"
#include "modes.h"
#include "private_daemon.h"
#include "proto/abi/peer_abi.h"

enum { KERNELS = SERVICE, NCCL = BASELINE };
enum { OUT_OF_PLACE, IN_PLACE, PLACES };

/* Without MPS, a worker and a trainer take turns on the GPU. The cost only shows beside the
 * trainer's own kernels; here these take this many times as long as the operations on NCCL. */
#define COMPUTE_TIMES	 2
#define COMPUTE_FIRST_MS 20 /* to calibrate a kernel's length */

struct scan {
	const struct options *options;
	struct bench bench;
	char path[PATH_MAX];	/* path of the file; empty: none is written */
	struct crossover known; /* the file's content */
	json_t *limits;
	/* How the ranks of this run use their GPUs: */
	bool mps, measured[2]; /* measured: without and with MPS */
	char gpu[NCCLSVC_NAME_BYTES];
	/* For the current number of ranks: the sum so far of the logarithms of the kernels' gain at
	 * each size, its maximum, and up to which size. */
	double won, most;
	uint64_t limit;
};

static const struct column columns[] = {
	{"ranks", "", "ranks", 6, 0, 0},
	{"MPS", "", "mps", 5, 0, 0},
	{"size", "(B)", "bytes", 12, 0, 0},
	{"direct", "(us)", "kernels_us", 10, DIGITS, 0},
	{"NCCL", "(us)", "nccl_us", 10, DIGITS, 0},
	{"ratio", "", "ratio", 7, 2, 0},
	{"direct", "in place", "in_place_kernels_us", 10, DIGITS, 0},
	{"NCCL", "(us)", "in_place_nccl_us", 10, DIGITS, 0},
	{"ratio", "", "in_place_ratio", 7, 2, 0},
};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* ---- One size ---- */

/* Adds kernels on another stream beside the operations. */
static bool add_compute(struct bench *b, struct command *command)
{
	struct subject *nccl = &b->subjects[NCCL];
	if (!turns_round(nccl, command, 0))
		return false;
	const double ms = nccl->us[MEAN][0] * (double)command->iters / 1e3 * COMPUTE_TIMES;
	const double spins = b->spins * ms / COMPUTE_FIRST_MS;
	command->kernels = TURNS_KERNELS;
	command->spins = spins < 1 ? 1 : spins > 1e9 ? 1000000000 : (uint32_t)spins;
	return true;
}

static bool measure(struct scan *s, const struct work *w, double us[SUBJECTS])
{
	const struct options *o = s->options;
	struct bench *b = &s->bench;
	uint64_t iters = o->iters;
	for (int i = 0; i < SUBJECTS; i++)
		if (!turns_fit(b, &b->subjects[i].ranks, w, &iters))
			return false;
	struct command command = {.kind = COMMAND_TIME,
				  .sync = SYNC_STREAM,
				  .iters = iters,
				  .warmup = o->warmup < iters ? o->warmup : iters,
				  .work = *w};
	if ((!s->mps && !add_compute(b, &command)) || !turns_run(b, &command, SUBJECTS))
		return false;
	for (int i = 0; i < SUBJECTS; i++)
		us[i] = median(b->subjects[i].us[MEAN], o->rounds);
	return true;
}

static bool do_size(struct scan *s, uint32_t nranks, uint64_t bytes)
{
	double us[PLACES][SUBJECTS];
	struct work w = {.op = NCCLSVC_ALL_REDUCE,
			 .type = NCCLSVC_FLOAT32,
			 .redop = NCCLSVC_SUM,
			 .nranks = nranks,
			 .count = bytes / sizeof(float)};
	for (w.in_place = 0; w.in_place < PLACES; w.in_place++)
		if (!measure(s, &w, us[w.in_place]))
			return false;
	for (int place = 0; place < PLACES; place++)
		s->won += log(us[place][NCCL] / us[place][KERNELS]);
	if (s->won > s->most) {
		s->most = s->won;
		s->limit = bytes;
	}
	report_row(&s->bench.report, columns, COLUMNS,
		   (struct value[COLUMNS]){
			   NUMBER(nranks),
			   TEXT(s->mps ? "yes" : "no"),
			   NUMBER(bytes),
			   NUMBER(us[OUT_OF_PLACE][KERNELS]),
			   NUMBER(us[OUT_OF_PLACE][NCCL]),
			   NUMBER(us[OUT_OF_PLACE][KERNELS] / us[OUT_OF_PLACE][NCCL]),
			   NUMBER(us[IN_PLACE][KERNELS]),
			   NUMBER(us[IN_PLACE][NCCL]),
			   NUMBER(us[IN_PLACE][KERNELS] / us[IN_PLACE][NCCL]),
		   });
	return true;
}

/* ---- One number of ranks ---- */

static bool start_ranks(struct scan *s, int subject, uint32_t n)
{
	const struct options *o = s->options;
	struct ranks *ranks = &s->bench.subjects[subject].ranks;
	const struct service_options service = {
		.socket = private_daemon_socket(), .gpus = o->gpus, .timeout_ms = o->timeout_ms};
	setenv("NCCLSVC_PEER", subject == KERNELS ? "1" : "0", 1);
	return ranks_start_service(ranks, &service, n) && ranks_join(ranks) &&
	       ranks_buffers(ranks, o->max_bytes);
}

/* Asks the ranks for their GPUs, and how they use them. */
static bool look(struct scan *s)
{
	const struct command command = {.kind = COMMAND_PLACE};
	const struct ranks *ranks = &s->bench.subjects[KERNELS].ranks;
	if (!ranks_do(&s->bench.subjects[KERNELS].ranks, &command))
		return false;
	const struct reply *first = &ranks->members[0].reply;
	s->mps = true;
	for (uint32_t i = 0; i < ranks->n; i++) {
		const struct reply *r = &ranks->members[i].reply;
		s->mps &= r->mps == NCCLSVC_MPS_ACTIVE;
		if (strcmp(r->text, first->text) != 0) {
			complain("the GPUs are of different models (%s, %s): select GPUs of one "
				 "model with --gpus",
				 first->text, r->text);
			return false;
		}
		if (r->peer_bytes < s->options->max_bytes) {
			complain("here the direct transport takes operations of up to %" PRIu64
				 " bytes, not of %" PRIu64 ": `ncclsvc-ctl doctor` may say why",
				 r->peer_bytes, s->options->max_bytes);
			return false;
		}
	}
	snprintf(s->gpu, sizeof(s->gpu), "%.*s", (int)sizeof(s->gpu) - 1, first->text);
	return true;
}

static bool add_limit(struct scan *s, uint32_t nranks)
{
	struct crossover_limit l = {.ranks = nranks, .mps = s->mps, .bytes = (uint32_t)s->limit};
	memcpy(l.gpu, s->gpu, sizeof(l.gpu));
	if (!crossover_put(&s->known, &l)) {
		complain("the file has no room for \"%s\"", l.gpu);
		return false;
	}
	report_note(&s->bench.report, "%u ranks %s MPS: up to %u bytes on the direct transport",
		    l.ranks, l.mps ? "with" : "without", l.bytes);
	if (s->limits &&
	    json_array_append_new(s->limits,
				  json_pack("{s:i, s:b, s:I, s:s}", "ranks", (int)l.ranks, "mps",
					    l.mps, "bytes", (json_int_t)l.bytes, "gpu", l.gpu)) < 0)
		s->bench.report.no_memory = true;
	return true;
}

static bool do_sizes(struct scan *s, uint32_t nranks)
{
	const struct options *o = s->options;
	s->won = s->most = 0;
	s->limit = o->min_bytes / 2; /* so far they are not slower */
	for (uint64_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= 2)
		if (!do_size(s, nranks, bytes))
			return false;
	return add_limit(s, nranks);
}

/* skip: already measured that way. */
static bool do_ranks(struct scan *s, uint32_t nranks, bool *skip)
{
	struct bench *b = &s->bench;
	bool good = start_ranks(s, KERNELS, nranks) && look(s);
	*skip = good && s->measured[s->mps];
	if (*skip)
		report_note(&s->bench.report,
			    "the ranks %s MPS here too: this case is already measured",
			    s->mps ? "use" : "do not use");
	if (good && !*skip)
		good = start_ranks(s, NCCL, nranks) &&
		       (s->mps || turns_calibrate(b, COMPUTE_FIRST_MS)) && do_sizes(s, nranks);
	for (int i = 0; i < SUBJECTS; i++)
		ranks_stop(&b->subjects[i].ranks);
	return good;
}

/* ---- One daemon ---- */

/* Reports the daemon's number of GPUs. Its session must not put this process on MPS. */
static int count_gpus(void *arg, uint32_t member, int fd)
{
	const struct service_options *o = arg;
	struct reply reply = {0};
	ncclsvc_session *session = NULL;
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	(void)member;
	ncclsvc_result result = service_open(o, &session);
	if (!result)
		result = ncclsvc_list_devices(session, &list, &n);
	for (size_t i = 0; i < n; i++)
		reply.listed += list[i].state != NCCLSVC_DEVICE_FAILED;
	ncclsvc_list_free(list);
	if (result)
		service_explain(&reply, result);
	(void)message_send(fd, &reply, sizeof(reply));
	ncclsvc_close(session);
	return 0;
}

/* Finds the largest number of ranks. */
static bool find_ranks(const struct options *o, uint32_t *ranks)
{
	struct ranks one = {0};
	struct service_options service = {.socket = private_daemon_socket(),
					  .timeout_ms = o->timeout_ms};
	bool good = ranks_fork(&one, "the process that counts GPUs", 1, count_gpus, &service,
			       o->timeout_ms);
	const uint64_t gpus = good ? one.members[0].reply.listed : 0;
	ranks_stop(&one);
	const bool chosen = o->gpus_n || o->given & GIVEN_RANKS;
	*ranks = !chosen && gpus < o->ranks ? (uint32_t)gpus : o->ranks;
	if (good && *ranks < 2)
		complain("there is only one GPU, but the direct transport needs two or more");
	return good && *ranks >= 2;
}

static bool do_all_ranks(struct scan *s)
{
	uint32_t ranks;
	bool skip = false;
	if (!find_ranks(s->options, &ranks))
		return false;
	for (uint32_t n = 2; n <= ranks && !skip; n++)
		if (!do_ranks(s, n, &skip))
			return false;
	s->measured[s->mps] = true;
	return true;
}

/* mps: the value for its configuration. */
static bool with_daemon(struct scan *s, const char *mps)
{
	char bytes[32];
	struct options o = *s->options;
	o.ranks = 1; /* of the world, which is not used */
	snprintf(bytes, sizeof(bytes), "%" PRIu64, o.max_bytes);
	setenv("NCCLSVCD_PEER_BYTES", bytes, 1);
	setenv("NCCLSVCD_MPS", mps, 1);
	const bool good = private_daemon_start(&o) && do_all_ranks(s);
	return private_daemon_stop() && good;
}

/* ---- The file ---- */

/* Opens the file before the measurement, so that no result is lost. False: an error was printed. */
static bool open_file(struct scan *s)
{
	const struct options *o = s->options;
	char why[CROSSOVER_TEXT];
	if (!o->write)
		return true;
	if (o->write_path)
		snprintf(s->path, sizeof(s->path), "%s", o->write_path);
	else if (!crossover_default_path(s->path, sizeof(s->path))) {
		complain("--write: HOME is not set; name the file");
		return false;
	}
	if (!crossover_read(&s->known, s->path, why))
		complain("rewriting %s: %s", s->path, why);
	const int error = crossover_write(&s->known, s->path);
	if (error)
		complain("can't write %s: %s", s->path, strerror(error));
	return !error;
}

static bool write_file(struct scan *s)
{
	if (!s->path[0])
		return true;
	const int error = crossover_write(&s->known, s->path);
	if (error) {
		complain("can't write %s: %s", s->path, strerror(error));
		return false;
	}
	report_note(&s->bench.report,
		    "written to %s, which ncclsvcd reads at its start and when it is "
		    "reloaded",
		    s->path);
	return true;
}

int crossover_run(const struct options *o)
{
	static struct scan s;
	const char *chosen = getenv("NCCLSVCD_MPS");
	char mps[PATH_MAX] = "";
	s.options = s.bench.options = o;
	s.bench.n = SUBJECTS;
	s.bench.seed = perf_now_ns();
	if (!open_file(&s))
		return EXIT_ERROR;
	if (chosen)
		snprintf(mps, sizeof(mps), "%s", chosen);
	report_begin(&s.bench.report, o,
		     "the size from which NCCL is faster than the direct transport");
	report_note(&s.bench.report, "AllReduce of float32, in stream order, median of %u rounds",
		    o->rounds);
	report_note(&s.bench.report,
		    "without MPS: beside the ranks' own kernels, which take %d times as "
		    "long",
		    COMPUTE_TIMES);
	s.limits = s.bench.report.json ? json_array() : NULL;
	report_titles(&s.bench.report, columns, COLUMNS);
	bool good =
		chosen ? with_daemon(&s, mps) : with_daemon(&s, "off") && with_daemon(&s, "auto");
	good = good && write_file(&s);
	report_set(&s.bench.report, "limits", s.limits);
	report_set(&s.bench.report, "written", s.path[0] ? json_string(s.path) : json_null());
	return report_end(&s.bench.report, good) ? EXIT_GOOD : EXIT_ERROR;
}
