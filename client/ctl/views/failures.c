/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"
#include "view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIME_BYTES 32

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

static bool is_wanted(const struct ctl_args *args, const ncclsvc_failure_info *f)
{
	if (f->unix_ns < args->since_ns || !view_job_wanted(args, f->job))
		return false;
	if (!args->comm || !strcmp(args->comm, f->label))
		return true;
	char *end;
	return strtoull(args->comm, &end, 10) == f->comm && !*end && f->comm;
}

static uint32_t named(const ncclsvc_failure_info *f)
{
	return f->ended < NCCLSVC_FAILURE_RANKS ? f->ended : NCCLSVC_FAILURE_RANKS;
}

static int by_rank(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	return (x > y) - (x < y);
}

static void add_consequences(struct text *out, const ncclsvc_failure_info *f)
{
	int32_t ranks[NCCLSVC_FAILURE_RANKS];
	const uint32_t n = named(f);
	memcpy(ranks, f->ended_ranks, n * sizeof(*ranks));
	qsort(ranks, n, sizeof(*ranks), by_rank);
	if (n) {
		text_add(out, " Then ");
		units_ranks(out, ranks, f->ended, f->nranks);
		text_add(out, " ended, too.");
	}
	if (f->comms)
		text_printf(out, " It also ended the epochs of %u other communicator%s.", f->comms,
			    f->comms == 1 ? "" : "s");
}

/* "17  2026-11-27 22:05:00  world (epoch 3, 4 ranks): 2 pending tasks fail: ..." */
static void paragraph(const struct view *v, const ncclsvc_failure_info *f)
{
	char time[TIME_BYTES];
	struct text out = TEXT_INIT(-1);
	local_time(f->unix_ns, time);
	text_printf(&out, "%llu  %s  ", (unsigned long long)f->failure, time);
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
	if (f->cause)
		text_printf(&out, " It follows from failure %llu.", (unsigned long long)f->cause);
	add_consequences(&out, f);
	char *s = text_steal(&out);
	view_paragraph(v, 4, s);
	free(s);
}

static void element(struct json *j, const ncclsvc_failure_info *f)
{
	char time[TIME_BYTES];
	utc(f->unix_ns, time);
	put_object(j, NULL);
	put_u64(j, "failure", f->failure);
	put_string(j, "time", time, sizeof(time));
	put_string(j, "kind", ncclsvc_failure_name(f->kind), SIZE_MAX);
	put_string(j, "result", ncclsvc_result_name(f->result), SIZE_MAX);
	if (f->cause)
		put_u64(j, "cause", f->cause);
	else
		put_null(j, "cause");
	put_string(j, "job", f->job[0] ? f->job : NULL, sizeof(f->job));
	put_string(j, "label", f->label, sizeof(f->label));
	put_u64(j, "comm", f->comm);
	put_u64(j, "epoch", f->epoch);
	put_u64(j, "nranks", f->nranks);
	put_u64(j, "uid", f->uid);
	put_string(j, "op", f->op ? ncclsvc_op_name(f->op) : NULL, SIZE_MAX);
	if (f->op)
		put_u64(j, "seq", f->seq);
	else
		put_null(j, "seq");
	if (f->rank >= 0) {
		put_object(j, "culprit");
		put_i64(j, "rank", f->rank);
		put_i64(j, "pid", f->pid);
		if (f->node >= 0)
			put_i64(j, "node", f->node);
		else
			put_null(j, "node");
		put_string(j, "host", f->node >= 0 ? f->host : NULL, sizeof(f->host));
		if (f->device >= 0)
			put_i64(j, "device", f->device);
		else
			put_null(j, "device");
		put_string(j, "ending", f->ending ? ncclsvc_ending_name(f->ending) : NULL,
			   SIZE_MAX);
		if (f->ending)
			put_i64(j, "ending_code", f->ending_code);
		else
			put_null(j, "ending_code");
		put_object_end(j);
	} else {
		put_null(j, "culprit");
	}
	put_u64(j, "pending", f->pending);
	put_u64(j, "comms", f->comms);
	put_u64(j, "ended", f->ended);
	put_array(j, "ended_ranks");
	for (uint32_t i = 0; i < named(f); i++) {
		put_object(j, NULL);
		put_i64(j, "rank", f->ended_ranks[i]);
		put_i64(j, "pid", f->ended_pids[i]);
		put_object_end(j);
	}
	put_array_end(j);
	put_string(j, "text", f->text, sizeof(f->text));
	put_object_end(j);
	text_flush(j->out, false);
}

uint64_t view_failures_next(const struct view *v, uint64_t from)
{
	const size_t n = v->s->nfailures;
	return n ? v->s->failures[n - 1].failure + 1 : from;
}

void view_failures(const struct view *v)
{
	const struct snapshot *s = v->s;
	size_t shown = 0;
	if (v->args->json) {
		struct json j = view_json_begin(v);
		put_array(&j, "failures");
		for (size_t i = 0; i < s->nfailures; i++)
			if (is_wanted(v->args, &s->failures[i]))
				element(&j, &s->failures[i]);
		put_array_end(&j);
		view_json_end(&j);
		return;
	}
	for (size_t i = 0; i < s->nfailures; i++) {
		if (!is_wanted(v->args, &s->failures[i]))
			continue;
		paragraph(v, &s->failures[i]);
		shown++;
	}
	if (!shown && !v->args->follow)
		text_add(v->out, "No failures.\n");
}
