/* SPDX-License-Identifier: Apache-2.0
 * Tasks and communicators of GPUs. A task that was launched is a matter of the GPUs themselves: it
 * waits there for a stream, or runs, or its worker is lost. */
#include "base/units.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

bool why_on_gpus(const struct why *w, uint64_t comm)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++)
		if (m[i].device >= 0)
			return true;
	return false;
}

const ncclsvc_member_info *why_bad_device(const struct why *w, uint64_t comm)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_device_info *d = snapshot_member_device(w->s, &m[i]);
		if (d && d->state != NCCLSVC_DEVICE_READY)
			return &m[i];
	}
	return NULL;
}

void why_tell_device(const struct why *w, const ncclsvc_member_info *m, struct text *out)
{
	const ncclsvc_device_info *d = snapshot_member_device(w->s, m);
	text_printf(out, "the worker of device %d, where ", m->device);
	why_add_rank(w, m->comm, m->rank, out);
	text_add(out, " is, ");
	switch (d->state) {
	case NCCLSVC_DEVICE_STARTING:
		text_add(out, "has been starting for ");
		break;
	case NCCLSVC_DEVICE_FAILED:
		text_add(out, "cannot be used; it has failed for ");
		break;
	default:
		text_add(out, "is lost, and another is to be started; it has been so for ");
	}
	units_age(out, d->age_ns);
	if (d->text[0]) {
		text_add(out, " (");
		text_name(out, d->text, sizeof(d->text));
		text_char(out, ')');
	}
	text_add(out, ". `ncclsvc-ctl devices` and the daemon's log tell more.");
}

/* The ranks that are at this very operation in that state. */
static size_t ranks_at(const struct why *w, const ncclsvc_task_info *t, unsigned state,
		       int32_t *ranks)
{
	size_t found = 0, n;
	for (uint32_t rank = 0; rank < t->nranks; rank++) {
		const ncclsvc_task_info **at = why_tasks(w, t->comm, (int32_t)rank, &n);
		for (size_t i = 0; i < n; i++) {
			if (at[i]->state != state || at[i]->op != t->op || at[i]->seq != t->seq ||
			    at[i]->graph != t->graph)
				continue;
			ranks[found++] = (int32_t)rank;
			break;
		}
	}
	return found;
}

static void tell_streams(const struct why *w, const struct why_group *g, const int32_t *ranks,
			 size_t n, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	why_add_head(w, g, "waited", out);
	text_add(out, "it was launched, and waits on the GPUs for the stream of ");
	for (size_t i = 0; i < n && i < WHY_TOLD; i++) {
		const ncclsvc_member_info *m = why_member(w, t->comm, ranks[i]);
		if (i)
			text_add(out, ", of ");
		why_add_rank(w, t->comm, ranks[i], out);
		if (m && m->device >= 0)
			text_printf(out, " on device %d", m->device);
	}
	if (n > WHY_TOLD)
		text_printf(out, " and of %zu more", n - WHY_TOLD);
	text_add(out, ": the work that was put there before it has not ended. Look at what ");
	text_add(out,
		 n == 1 ? "this process runs on its GPU." : "these processes run on their GPUs.");
}

static void tell_launched(const struct why *w, const struct why_group *g, const int32_t *ranks,
			  size_t n, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	why_add_head(w, g, "been", out);
	if (t->kernel) {
		text_add(out,
			 "its kernels have begun on all GPUs, and do not end. Look at what these "
			 "processes run there.");
		return;
	}
	text_add(out, "the workers of the GPUs have launched it for ");
	units_ranks(out, ranks, n, t->nranks);
	text_add(out, ". NCCL runs it, or it waits there for a rank's stream, where the work that "
		      "was put before it has not ended. If that is long for ");
	units_bytes(out, t->bytes);
	text_add(out, ", look at what these processes run on their GPUs, and at `ncclsvc-ctl "
		      "devices`.");
}

void why_find_launched(struct why *w, const struct why_group *g, struct why_finding *f,
		       struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const ncclsvc_member_info *bad = why_bad_device(w, t->comm);
	int32_t *late = ctl_calloc((size_t)t->nranks * 2, sizeof(*late));
	int32_t *launched = late + t->nranks;
	size_t nlate = ranks_at(w, t, NCCLSVC_WAITING_INPUT, late);
	size_t nlaunched = ranks_at(w, t, NCCLSVC_LAUNCHED, launched);
	f->launched = true;
	free(f->waiting);
	f->nwaiting = nlate + nlaunched;
	f->waiting = ctl_calloc(f->nwaiting, sizeof(*f->waiting));
	memcpy(f->waiting, late, nlate * sizeof(*late));
	memcpy(f->waiting + nlate, launched, nlaunched * sizeof(*late));
	if (bad) {
		f->cause = WHY_WORKER;
		why_add_head(w, g, "been", out);
		text_add(out, "it was launched, and ");
		why_tell_device(w, bad, out);
	} else if (nlate) {
		f->cause = WHY_INPUT;
		for (size_t i = 0; i < nlate; i++)
			why_blame(w, f, t->comm, late[i], false);
		tell_streams(w, g, late, nlate, out);
	} else {
		f->cause = WHY_RUNNING;
		tell_launched(w, g, launched, nlaunched, out);
	}
	free(late);
}
