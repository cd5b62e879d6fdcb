/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf join: how long JOIN and the commit of a plan take, for growing numbers of ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "child_process.h"
#include "modes.h"
#include "perf_output.h"
#include "perf_ranks.h"

/* On GPUs: with kernels, whose members share memory, or without. */
enum { KERNELS, WITHOUT, WAYS };

struct size {
	uint32_t ranks;
	double join_us, commit_us;
};

struct bench {
	const struct options *options;
	struct ranks ranks;
	double join_us[WAYS][ROUNDS_MAX], commit_us[ROUNDS_MAX];
	uint64_t kernels; /* number of joins after which kernels shared memory */
	struct size first, last;
};

/* Measures the slowest rank. */
static bool once(struct bench *b, uint32_t n, int variant, double *join_us, double *commit_us)
{
	struct command command = {
		.kind = COMMAND_JOIN_AND_PLAN, .kernels_off = variant == WITHOUT, .work.nranks = n};
	if (!ranks_new_id(&b->ranks, command.id))
		return false;
	ranks_tell(&b->ranks, 0, n, &command);
	if (!ranks_collect(&b->ranks))
		return false;
	*join_us = *commit_us = 0;
	for (uint32_t k = 0; k < n; k++) {
		const struct reply *r = &b->ranks.members[k].reply;
		*join_us = fmax(*join_us, (double)r->elapsed_ns / 1e3);
		*commit_us = fmax(*commit_us, (double)r->commit_ns / 1e3);
	}
	b->kernels += b->ranks.members[0].reply.peer_bytes > 0;
	return true;
}

enum { WITH_GPUS = 1 };

static const struct column columns[] = {
	{"ranks", "", "ranks", 6, 0, 0},
	{"join", "(us)", "join_us", 12, 1, 0},
	{"of each", "(us)", "join_each_us", 14, 2, 0},
	{"no direct", "(us)", "nccl_join_us", 12, 1, WITH_GPUS},
	{"commit", "(us)", "commit_us", 12, 1, 0},
	{"of each", "(us)", "commit_each_us", 14, 2, 0},
};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* Runs the two ways in turn. */
static bool run_rounds(struct bench *b, struct report *r, uint32_t ranks)
{
	const unsigned rounds = b->options->rounds;
	double none;
	for (unsigned i = 0; i <= rounds; i++) { /* round 0 is a warm-up */
		report_progress(r, "%u ranks: round %u of %u", ranks, i, rounds);
		const unsigned to = i ? i - 1 : 0;
		if (caught_signal())
			return false;
		/* The plan's time is that of the last variant. */
		if (b->options->cuda && !once(b, ranks, WITHOUT, &b->join_us[WITHOUT][to], &none))
			return false;
		if (!once(b, ranks, KERNELS, &b->join_us[KERNELS][to], &b->commit_us[to]))
			return false;
	}
	return true;
}

static bool measure(struct bench *b, struct report *r, uint32_t ranks)
{
	const unsigned rounds = b->options->rounds;
	if (!run_rounds(b, r, ranks))
		return false;
	const struct size s = {ranks, median(b->join_us[KERNELS], rounds),
			       median(b->commit_us, rounds)};
	report_row(r, columns, COLUMNS,
		   (struct value[COLUMNS]){
			   NUMBER(ranks),
			   NUMBER(s.join_us),
			   NUMBER(s.join_us / ranks),
			   b->options->cuda ? NUMBER(median(b->join_us[WITHOUT], rounds)) : UNKNOWN,
			   NUMBER(s.commit_us),
			   NUMBER(s.commit_us / ranks),
		   });
	if (!b->first.ranks)
		b->first = s;
	b->last = s;
	return true;
}

/* The exponent e in n^e from the first to the last size: 1 is linear. */
static double exponent(const struct bench *b, double first, double last)
{
	const double sizes = (double)b->last.ranks / b->first.ranks;
	return sizes > 1 && first > 0 ? log(last / first) / log(sizes) : 0;
}

static bool measure_all(struct bench *b)
{
	const struct options *o = b->options;
	struct report r;
	bool good = true;
	report_begin(&r, o, "JOIN, and the commit of a plan");
	if (o->nodes > 1)
		report_note(&r, "%u daemons, the ranks dealt out to them", o->nodes);
	report_note(&r,
		    "of the slowest rank, median of %u rounds; all ranks begin at once, and plan "
		    "128 groups of a Send and a Recv",
		    o->rounds);
	if (o->cuda)
		report_note(
			&r,
			"warm: the NCCL communicators exist already. no direct: NCCLSVC_PEER=0");
	r.shown = o->cuda ? WITH_GPUS : 0;
	report_titles(&r, columns, COLUMNS);
	for (uint32_t n = o->ranks < 2 ? 1 : 2; good && n <= o->ranks; n *= 2)
		good = measure(b, &r, n);
	if (o->cuda && good) {
		report_set(&r, "kernels", json_boolean(b->kernels));
		if (!b->kernels)
			report_note(&r, "The communicators have no direct transport: "
					"`ncclsvc-ctl doctor` may say why.");
	}
	if (good) {
		const double join = exponent(b, b->first.join_us, b->last.join_us);
		const double commit = exponent(b, b->first.commit_us, b->last.commit_us);
		report_set_number(&r, "join_exponent", join);
		report_set_number(&r, "commit_exponent", commit);
		if (b->last.ranks > b->first.ranks)
			report_note(&r,
				    "from %u to %u ranks, JOIN grows as n^%.2f, the commit as "
				    "n^%.2f",
				    b->first.ranks, b->last.ranks, join, commit);
	}
	return report_end(&r, good);
}

int join_run(const struct options *o, const char *socket)
{
	static struct bench b;
	const struct service_options service = {.socket = socket,
						.nodes = o->nodes,
						.dealt = true,
						.no_ring = o->no_ring,
						.gpus = o->cuda ? o->gpus : NULL,
						.timeout_ms = o->timeout_ms};
	b.options = o;
	bool good = ranks_start_service(&b.ranks, &service, o->ranks) && measure_all(&b);
	ranks_stop(&b.ranks);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
