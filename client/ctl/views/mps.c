/* SPDX-License-Identifier: Apache-2.0
 * The processes that share the GPUs through MPS: the control daemon, the workers, the trainers. */
#include <stdlib.h>

#include "base/units.h"
#include "view.h"

#define PIDS_NAMED 8

const char *mps_name(unsigned mps)
{
	switch (mps) {
	case NCCLSVC_MPS_NONE:
		return "no";
	case NCCLSVC_MPS_ACTIVE:
		return "yes";
	case NCCLSVC_MPS_OTHER:
		return "other";
	}
	return "unknown";
}

/* ---- Trainers: the processes that have joined with a GPU ---- */

struct trainer {
	int32_t pid; /* 0: unknown */
	uint32_t mps;
};

struct trainers {
	struct trainer *list;
	size_t n;
};

/* Sort key: a process's first session in this order represents the process. */
static int badness(uint32_t mps)
{
	return mps == NCCLSVC_MPS_OTHER ? 2 : mps == NCCLSVC_MPS_NONE;
}

static int compare(const void *a, const void *b)
{
	const struct trainer *x = a, *y = b;
	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return badness(y->mps) - badness(x->mps);
}

/* The caller frees the list. */
static struct trainers find_trainers(const struct snapshot *s)
{
	struct trainers t = {.list = ctl_calloc(s->nsessions + 1, sizeof(*t.list))};
	size_t all = 0;
	for (size_t i = 0; i < s->nsessions; i++)
		if (s->sessions[i].mps != NCCLSVC_MPS_UNKNOWN)
			t.list[all++] = (struct trainer){s->sessions[i].pid, s->sessions[i].mps};
	qsort(t.list, all, sizeof(*t.list), compare);
	for (size_t i = 0; i < all; i++)
		if (!t.n || !t.list[i].pid || t.list[i].pid != t.list[t.n - 1].pid)
			t.list[t.n++] = t.list[i];
	return t;
}

static size_t count(const struct trainers *t, uint32_t mps)
{
	size_t n = 0;
	for (size_t i = 0; i < t->n; i++)
		n += t->list[i].mps == mps;
	return n;
}

/* ", 1 without (pid 77)" */
static void name_trainers(struct text *out, const struct trainers *t, uint32_t mps, const char *how)
{
	const size_t n = count(t, mps);
	size_t shown = 0;
	if (!n)
		return;
	text_printf(out, ", %zu %s (pid ", n, how);
	for (size_t i = 0; i < t->n && shown < PIDS_NAMED; i++)
		if (t->list[i].mps == mps)
			text_printf(out, "%s%d", shown++ ? ", " : "", t->list[i].pid);
	text_add(out, n > shown ? ", ...)" : ")");
}

/* ---- The line in `status` ---- */

static void name_source(struct text *out, const ncclsvc_daemon_info *d)
{
	switch (d->mps) {
	case NCCLSVC_MPS_OWN:
		text_printf(out, "its own: control daemon %d, for ", d->mps_pid);
		units_age(out, d->mps_age_ns);
		if (!d->mps_starts)
			text_add(out, ", taken over from an earlier daemon");
		else if (d->mps_starts == 1)
			text_add(out, ", started once");
		else
			text_printf(out, ", started %u times", d->mps_starts);
		break;
	case NCCLSVC_MPS_FOUND:
		text_add(out, "that in ");
		text_name(out, d->mps_text, sizeof(d->mps_text));
		text_add(out, ", for ");
		units_age(out, d->mps_age_ns);
		break;
	default:
		text_add(out, "none: ");
		text_name(out, d->mps_text, sizeof(d->mps_text));
	}
}

/* Names the devices whose workers were started before MPS. */
static void name_devices(struct text *out, const struct snapshot *s)
{
	const char *before = "; without it: device ";
	for (size_t i = 0; i < s->ndevices; i++) {
		const ncclsvc_device_info *x = &s->devices[i];
		if (x->state != NCCLSVC_DEVICE_READY || x->mps != NCCLSVC_MPS_NONE)
			continue;
		text_printf(out, "%s%d", before, x->device);
		before = ", ";
	}
}

void view_mps_line(const struct view *v)
{
	const struct snapshot *s = v->s;
	const ncclsvc_daemon_info *d = &s->daemon;
	const bool there = d->mps != NCCLSVC_MPS_NOBODY;
	struct trainers t = find_trainers(s);
	name_source(v->out, d);
	if (there)
		name_devices(v->out, s);
	if (there || d->mps_losses)
		text_printf(v->out, "; %u worker%s lost with it", d->mps_losses,
			    d->mps_losses == 1 ? "" : "s");
	text_printf(v->out, "; trainers: %zu with it", count(&t, NCCLSVC_MPS_ACTIVE));
	name_trainers(v->out, &t, NCCLSVC_MPS_NONE, "without");
	name_trainers(v->out, &t, NCCLSVC_MPS_OTHER, "with another");
	text_char(v->out, '\n');
	free(t.list);
}

/* ---- JSON ---- */

static void pids_json(struct json *j, const char *key, const struct trainers *t, uint32_t mps)
{
	put_array(j, key);
	for (size_t i = 0; i < t->n; i++)
		if (t->list[i].mps == mps)
			put_i64(j, NULL, t->list[i].pid);
	put_array_end(j);
}

void view_mps_json(const struct view *v, struct json *j)
{
	static const char *const sources[] = {"none", "own", "found"};
	const struct snapshot *s = v->s;
	const ncclsvc_daemon_info *d = &s->daemon;
	const bool there = d->mps == NCCLSVC_MPS_OWN || d->mps == NCCLSVC_MPS_FOUND;
	if (!s->ndevices) {
		put_null(j, "mps");
		return;
	}
	struct trainers t = find_trainers(s);
	put_object(j, "mps");
	put_string(j, "source", sources[there ? d->mps : NCCLSVC_MPS_NOBODY], SIZE_MAX);
	put_string(j, "directory", there ? d->mps_text : NULL, sizeof(d->mps_text));
	put_string(j, "text", there ? NULL : d->mps_text, sizeof(d->mps_text));
	put_i64_or_null(j, "pid", d->mps_pid, d->mps_pid);
	put_u64_or_null(j, "age_ns", there, d->mps_age_ns);
	put_u64(j, "starts", d->mps_starts);
	put_u64(j, "workers_lost", d->mps_losses);
	pids_json(j, "trainers_with", &t, NCCLSVC_MPS_ACTIVE);
	pids_json(j, "trainers_without", &t, NCCLSVC_MPS_NONE);
	pids_json(j, "trainers_other", &t, NCCLSVC_MPS_OTHER);
	put_object_end(j);
	free(t.list);
}
