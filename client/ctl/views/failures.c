/* SPDX-License-Identifier: Apache-2.0 */
#include "base/failure_records.h"
#include "base/ids.h"
#include "base/units.h"
#include "view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIME_BYTES 32
#define ALSO_NAMED 8

static void local_time(uint64_t unix_ns, char text[TIME_BYTES])
{
	const time_t t = (time_t)(unix_ns / 1000000000);
	struct tm tm;
	localtime_r(&t, &tm);
	strftime(text, TIME_BYTES, "%Y-%m-%d %H:%M:%S", &tm);
}

static void utc(uint64_t unix_ns, char text[TIME_BYTES])
{
	const time_t t = (time_t)(unix_ns / 1000000000);
	struct tm tm;
	gmtime_r(&t, &tm);
	const size_t n = strftime(text, TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text + n, TIME_BYTES - n, ".%03uZ", (unsigned)(unix_ns / 1000000 % 1000));
}

static bool is_of_comm(const char *comm, const ncclsvc_failure_info *f)
{
	return !strcmp(comm, f->label) || (f->comm && view_is_number(comm, f->comm));
}

/* The nodes may have given the communicator different numbers. */
static bool is_wanted(const struct ctl_args *args, const struct failure *f)
{
	const ncclsvc_failure_info *first = f->records->info;
	if (first->unix_ns < args->since_ns || !view_job_wanted(args, first->job))
		return false;
	for (size_t i = 0; args->comm && i < f->n; i++)
		if (is_of_comm(args->comm, f->records[i].info))
			return true;
	return !args->comm;
}

static int by_rank(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	return (x > y) - (x < y);
}

static void add_effects(struct text *out, const struct failure_effects *e, uint32_t nranks)
{
	int32_t ranks[NCCLSVC_FAILURE_RANKS];
	memcpy(ranks, e->ranks, e->n * sizeof(*ranks));
	qsort(ranks, e->n, sizeof(*ranks), by_rank);
	if (e->n) {
		text_add(out, " Then ");
		units_ranks(out, ranks, e->ended, nranks);
		text_add(out, " ended, too.");
	}
	if (e->comms)
		text_printf(out, " It also ended the epochs of %u other communicator%s.", e->comms,
			    e->comms == 1 ? "" : "s");
}

/* "17"; of several nodes, also this one's numbers have the node: "17@0" */
static void add_number(struct text *out, const struct view *v, const struct failure_record *r,
		       uint64_t number)
{
	text_u64(out, ids_number(number));
	if (v->s->answers)
		text_printf(out, "@%u", r->node);
}

/* " Also recorded as 4@0, 9@1; in all, 5 pending tasks failed." */
static void add_other_records(struct text *out, const struct view *v, const struct failure *f,
			      uint64_t pending)
{
	if (f->n < 2)
		return;
	text_add(out, " Also recorded as ");
	for (size_t i = 1; i < f->n && i <= ALSO_NAMED; i++) {
		text_add(out, i > 1 ? ", " : "");
		add_number(out, v, &f->records[i], f->records[i].info->failure);
	}
	if (f->n > 1 + ALSO_NAMED)
		text_printf(out, " (+%zu)", f->n - 1 - ALSO_NAMED);
	if (pending != f->records->info->pending)
		text_printf(out, "; in all, %llu pending task%s failed",
			    (unsigned long long)pending, pending == 1 ? "" : "s");
	text_char(out, '.');
}

/* "17  2026-11-27 22:05:00  world (epoch 3, 4 ranks): 2 pending tasks fail: ..." */
static void paragraph(const struct view *v, const struct failure *failure)
{
	const struct failure_record *r = failure->records;
	const ncclsvc_failure_info *f = r->info;
	struct failure_effects effects;
	char time[TIME_BYTES];
	struct text out = TEXT_INIT(-1);
	failure_effects(failure, &effects);
	local_time(f->unix_ns, time);
	add_number(&out, v, r, f->failure);
	text_printf(&out, "  %s  ", time);
	text_name(&out, f->label, sizeof(f->label));
	if (f->epoch)
		text_printf(&out, " (epoch %u, %u rank%s)", f->epoch, f->nranks,
			    f->nranks == 1 ? "" : "s");
	text_add(&out, ": ");
	text_name(&out, f->text, sizeof(f->text));
	if (f->node >= 0) {
		text_printf(&out, "; on node %d (", f->node);
		text_name(&out, f->host, sizeof(f->host));
		text_char(&out, ')');
	}
	text_char(&out, '.');
	if (f->cause) {
		text_add(&out, " It follows from failure ");
		add_number(&out, v, r, f->cause);
		text_char(&out, '.');
	}
	add_other_records(&out, v, failure, effects.pending);
	add_effects(&out, &effects, f->nranks);
	char *s = text_steal(&out);
	view_paragraph(v, 4, s);
	free(s);
}

static void put_culprit(struct json *j, const ncclsvc_failure_info *f)
{
	if (f->rank < 0) {
		put_null(j, "culprit");
		return;
	}
	put_object(j, "culprit");
	put_i64(j, "rank", f->rank);
	put_i64(j, "pid", f->pid);
	put_i64_or_null(j, "node", f->node >= 0, f->node);
	put_string(j, "host", f->node >= 0 ? f->host : NULL, sizeof(f->host));
	put_i64_or_null(j, "device", f->device >= 0, f->device);
	put_string(j, "ending", f->ending ? ncclsvc_ending_name(f->ending) : NULL, SIZE_MAX);
	put_i64_or_null(j, "ending_code", f->ending != 0, f->ending_code);
	put_object_end(j);
}

static void put_effects(struct json *j, const struct failure *f)
{
	struct failure_effects e;
	failure_effects(f, &e);
	put_u64(j, "pending", e.pending);
	put_u64(j, "comms", e.comms);
	put_u64(j, "ended", e.ended);
	put_array(j, "ended_ranks");
	for (uint32_t i = 0; i < e.n; i++) {
		put_object(j, NULL);
		put_i64(j, "rank", e.ranks[i]);
		put_i64(j, "pid", e.pids[i]);
		put_object_end(j);
	}
	put_array_end(j);
}

static void put_other_records(struct json *j, const struct failure *f)
{
	put_array(j, "also");
	for (size_t i = 1; i < f->n; i++) {
		put_object(j, NULL);
		put_u64(j, "node", f->records[i].node);
		put_u64(j, "failure", ids_number(f->records[i].info->failure));
		put_object_end(j);
	}
	put_array_end(j);
}

static void element(const struct view *v, struct json *j, const struct failure *failure)
{
	const ncclsvc_failure_info *f = failure->records->info;
	char time[TIME_BYTES];
	utc(f->unix_ns, time);
	put_object(j, NULL);
	view_json_node(v->s, j, failure->records->node);
	put_u64(j, "failure", ids_number(f->failure));
	put_other_records(j, failure);
	put_string(j, "time", time, sizeof(time));
	put_string(j, "kind", ncclsvc_failure_name(f->kind), SIZE_MAX);
	put_string(j, "result", ncclsvc_result_name(f->result), SIZE_MAX);
	put_u64_or_null(j, "cause", f->cause, ids_number(f->cause));
	put_string(j, "job", f->job[0] ? f->job : NULL, sizeof(f->job));
	put_string(j, "label", f->label, sizeof(f->label));
	view_json_comm(v->s, j, f->comm);
	put_u64(j, "epoch", f->epoch);
	put_u64(j, "nranks", f->nranks);
	put_u64(j, "uid", f->uid);
	put_string(j, "tenant", f->tenant[0] ? f->tenant : NULL, sizeof(f->tenant));
	put_string(j, "op", f->op ? ncclsvc_op_name(f->op) : NULL, SIZE_MAX);
	put_u64_or_null(j, "seq", f->op, f->seq);
	put_culprit(j, f);
	put_effects(j, failure);
	put_string(j, "text", f->text, sizeof(f->text));
	put_object_end(j);
	text_flush(j->out, false);
}

uint64_t view_failures_next(const struct view *v, uint64_t from)
{
	const size_t n = v->s->nfailures;
	return n ? v->s->failures[n - 1].failure + 1 : from;
}

static void failures_json(const struct view *v, const struct failures *all)
{
	struct json j = view_json_begin(v);
	put_array(&j, "failures");
	for (size_t i = 0; i < all->n; i++)
		if (is_wanted(v->args, &all->list[i]))
			element(v, &j, &all->list[i]);
	put_array_end(&j);
	view_json_answers(v, &j);
	view_json_end(&j);
}

static void failures_text(const struct view *v, const struct failures *all)
{
	size_t shown = 0;
	for (size_t i = 0; i < all->n; i++) {
		if (!is_wanted(v->args, &all->list[i]))
			continue;
		paragraph(v, &all->list[i]);
		shown++;
	}
	if (!shown && !v->args->follow)
		text_add(v->out, "No failures.\n");
	view_silence(v, NULL);
}

void view_failures(const struct view *v)
{
	struct failures all;
	failures_gather(v->s, &all);
	if (v->args->json)
		failures_json(v, &all);
	else
		failures_text(v, &all);
	failures_free(&all);
}
