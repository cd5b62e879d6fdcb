/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf join: how long JOIN and the commit of a plan take as ranks grow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "modes.h"
#include "ncclsvc.h"
#include "process.h"
#include "report.h"
#include "stat.h"

#define SIZES_MAX 8 /* powers of two up to PERF_RANKS_MAX */

struct size {
	uint32_t ranks;
	double join_us, commit_us;
};

struct bench {
	const struct options *options;
	struct crew crew;
	double *join_us, *commit_us; /* one for each round */
	struct size sizes[SIZES_MAX];
	unsigned n;
};

/* Of the slowest rank. */
static bool once(struct bench *b, uint32_t ranks, double *join_us, double *commit_us)
{
	struct job job = {.kind = JOB_JOIN, .work.nranks = ranks};
	ncclsvc_unique_id id;
	if (ncclsvc_unique_id_create(&id)) {
		complain("can't make a communicator id: %s", ncclsvc_last_error());
		return false;
	}
	memcpy(job.id, id.bytes, sizeof(job.id));
	crew_tell(&b->crew, 0, ranks, &job);
	if (!crew_collect(&b->crew))
		return false;
	*join_us = *commit_us = 0;
	for (uint32_t k = 0; k < ranks; k++) {
		const struct job_reply *r = &b->crew.members[k].reply;
		*join_us = fmax(*join_us, (double)r->elapsed_ns / 1e3);
		*commit_us = fmax(*commit_us, (double)r->comm_ns / 1e3);
	}
	return true;
}

static bool measure(struct bench *b, uint32_t ranks)
{
	const unsigned rounds = b->options->rounds;
	if (!once(b, ranks, &b->join_us[0], &b->commit_us[0])) /* to get warm */
		return false;
	for (unsigned i = 0; i < rounds; i++)
		if (caught_signal() || !once(b, ranks, &b->join_us[i], &b->commit_us[i]))
			return false;
	b->sizes[b->n++] =
		(struct size){ranks, median(b->join_us, rounds), median(b->commit_us, rounds)};
	return true;
}

/* The exponent e of n^e that goes from the first size to the last: 1 is linear. */
static double exponent(double first, double last, uint32_t from, uint32_t to)
{
	return from < to && first > 0 ? log(last / first) / log((double)to / from) : 0;
}

static void show_head(const struct options *o)
{
	report_header(o, "JOIN, and the commit of a plan");
	if (o->nodes > 1)
		printf("# %u daemons, the ranks dealt out to them\n", o->nodes);
	printf("# of the slowest rank, median of %u rounds; all ranks begin at once, and plan 128 "
	       "groups of a Send and a Recv\n#\n",
	       o->rounds);
	printf("# %6s  %10s  %12s  %10s  %12s\n", "ranks", "join(us)", "of each(us)", "commit(us)",
	       "of each(us)");
}

static void show_size(const struct size *s)
{
	printf("  %6u  %10.1f  %12.2f  %10.1f  %12.2f\n", s->ranks, s->join_us,
	       s->join_us / s->ranks, s->commit_us, s->commit_us / s->ranks);
}

static bool show(const struct bench *b)
{
	const struct options *o = b->options;
	bool table = !o->json || o->json_path, good = true;
	const struct size *first = &b->sizes[0], *last = &b->sizes[b->n - 1];
	double join = exponent(first->join_us, last->join_us, first->ranks, last->ranks);
	double commit = exponent(first->commit_us, last->commit_us, first->ranks, last->ranks);
	json_t *json = report_json_new(o), *rows = json_object_get(json, "rows");
	if (table)
		show_head(o);
	for (unsigned i = 0; good && i < b->n; i++) {
		const struct size *s = &b->sizes[i];
		if (table)
			show_size(s);
		good = json_array_append_new(rows, json_pack("{s:i, s:f, s:f}", "ranks",
							     (int)s->ranks, "join_us", s->join_us,
							     "commit_us", s->commit_us)) == 0;
	}
	if (table && b->n > 1)
		printf("# from %u to %u ranks, JOIN grows as n^%.2f, the commit as n^%.2f\n",
		       first->ranks, last->ranks, join, commit);
	good = good && json_object_set_new(json, "join_exponent", json_real(join)) == 0 &&
	       json_object_set_new(json, "commit_exponent", json_real(commit)) == 0;
	return report_json_finish(o, json, good);
}

int join_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o,
			  .join_us = calloc(o->rounds, sizeof(double)),
			  .commit_us = calloc(o->rounds, sizeof(double))};
	struct rank_options rank = {.socket = socket,
				    .nodes = o->nodes,
				    .dealt = true,
				    .no_ring = o->no_ring,
				    .timeout_ms = o->timeout_ms};
	bool good = b.join_us && b.commit_us && crew_start(&b.crew, &rank, o->ranks);
	for (uint32_t n = o->ranks < 2 ? 1 : 2; good && n <= o->ranks; n *= 2)
		good = measure(&b, n);
	good = good && show(&b);
	crew_stop(&b.crew);
	free(b.join_us);
	free(b.commit_us);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
