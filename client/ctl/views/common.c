/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ids.h"
#include "view.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_WIDTH UINT32_C(100)
#define LATELY_NS  UINT64_C(3600000000000) /* an hour */

void view_paragraph(const struct view *v, size_t indent, const char *s)
{
	struct text *out = v->out;
	size_t column = 0;
	size_t most = !v->width ? SIZE_MAX : v->width < LINE_WIDTH ? v->width : LINE_WIDTH;
	most = most > indent + 20 ? most - indent : 20;
	while (*s) {
		size_t n = 0;
		while (s[n] && s[n] != ' ')
			n++;
		size_t width = text_width(s, n);
		if (column && column + 1 + width > most) {
			text_char(out, '\n');
			text_pad(out, indent);
			column = 0;
		} else if (column) {
			text_char(out, ' ');
			column++;
		}
		text_addn(out, s, n);
		column += width;
		s += n;
		while (*s == ' ')
			s++;
	}
	text_char(out, '\n');
}

struct json view_json_begin(const struct view *v)
{
	struct json j = {.out = v->out};
	put_object(&j, NULL);
	put_u64(&j, "schema", CTL_SCHEMA);
	put_string(&j, "command", ctl_command_name(v->args->command), SIZE_MAX);
	put_string(&j, "time", v->time, SIZE_MAX);
	return j;
}

void view_json_end(struct json *j)
{
	put_object_end(j);
	text_char(j->out, '\n');
}

void view_label(struct text *out, const ncclsvc_comm_info *comm)
{
	if (comm && comm->label[0])
		text_name(out, comm->label, sizeof(comm->label));
	else
		text_char(out, '-');
}

void view_json_label(struct json *j, const char *key, const ncclsvc_comm_info *comm)
{
	put_string(j, key, comm ? comm->label : NULL, sizeof(comm->label));
}

bool view_failed_lately(const ncclsvc_daemon_info *d)
{
	return d->last_failure.result != NCCLSVC_OK && d->last_failure_age_ns < LATELY_NS;
}

void view_json_failure(struct json *j, const ncclsvc_daemon_info *d)
{
	char sentence[VIEW_SENTENCE];
	if (d->last_failure.result == NCCLSVC_OK) {
		put_null(j, "last_failure");
		return;
	}
	put_object(j, "last_failure");
	put_string(j, "result", ncclsvc_result_name(d->last_failure.result), SIZE_MAX);
	ncclsvc_status_sentence(&d->last_failure, sentence, sizeof(sentence));
	put_string(j, "text", sentence, sizeof(sentence));
	put_u64(j, "comm", d->last_failure_comm);
	put_u64(j, "age_ns", d->last_failure_age_ns);
	put_object_end(j);
}

bool view_is_number(const char *s, uint64_t id)
{
	char *end;
	if (!isdigit((unsigned char)*s) || strtoull(s, &end, 10) != ids_number(id))
		return false;
	const uint32_t node = ids_node(id);
	if (!node)
		return !*end;
	return *end == '@' && isdigit((unsigned char)end[1]) &&
	       strtoull(end + 1, &end, 10) == node - 1 && !*end;
}

bool view_comm_wanted(const struct ctl_args *args, uint64_t id, const ncclsvc_comm_info *comm)
{
	if (!args->comm || view_is_number(args->comm, id))
		return true;
	return comm && strlen(args->comm) < sizeof(comm->label) &&
	       !strncmp(args->comm, comm->label, sizeof(comm->label));
}

bool view_job_wanted(const struct ctl_args *args, const char *job)
{
	char name[NCCLSVC_JOB_BYTES];
	if (!args->job)
		return true;
	snprintf(name, sizeof(name), "%.*s", NCCLSVC_JOB_BYTES - 1, job ? job : "");
	return !strcmp(args->job, name) || !fnmatch(args->job, name, 0);
}

const char *view_job(const ncclsvc_session_info *session)
{
	return session->job[0] ? session->job : session->cgroup;
}

void view_name_cell(struct table *t, const char *name, size_t size)
{
	if (name[0])
		text_name(table_cell(t), name, size);
	else
		text_char(table_cell(t), '-');
	table_end(t, TABLE_PLAIN);
}

void view_job_cell(struct table *t, const char job[NCCLSVC_JOB_BYTES])
{
	view_name_cell(t, job, NCCLSVC_JOB_BYTES);
}

void view_version(const struct view *v, const char *version)
{
	if (!v->args->json) {
		text_printf(v->out, "ncclsvc-ctl %s, libncclsvc %s\n", version, ncclsvc_version());
		return;
	}
	struct json j = view_json_begin(v);
	put_string(&j, "version", version, SIZE_MAX);
	put_string(&j, "library", ncclsvc_version(), SIZE_MAX);
	view_json_end(&j);
}

void view_cancelled(const struct view *v, uint64_t cancelled)
{
	static const char *const targets[] = {
		[CTL_TARGET_TASK] = "task",
		[CTL_TARGET_COMM] = "comm",
		[CTL_TARGET_SESSION] = "session",
	};
	const char *target = targets[v->args->target];
	unsigned long long id = v->args->id;
	if (v->args->json) {
		struct json j = view_json_begin(v);
		put_string(&j, "target", target, SIZE_MAX);
		put_u64(&j, "id", id);
		put_u64(&j, "cancelled", cancelled);
		view_json_end(&j);
		return;
	}
	text_printf(v->out, "%s %s %llu: %llu task%s ended.\n",
		    v->args->target == CTL_TARGET_SESSION ? "Ended" : "Cancelled", target, id,
		    (unsigned long long)cancelled, cancelled == 1 ? "" : "s");
}
