/* SPDX-License-Identifier: Apache-2.0
 * Tasks and communicators of GPUs. A task that was launched is a matter of the GPUs themselves: it
 * waits there for a stream, or runs, or its worker is lost. */
#include "internal.h"
#include "sentences.h"

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

/* NULL: the rank has no GPU, or its node has not told of it. */
static const ncclsvc_device_info *device_of(const struct why *w, const ncclsvc_member_info *m)
{
	return m ? snapshot_member_device(w->s, m) : NULL;
}

bool why_worker_is_halted(const struct why *w, const ncclsvc_member_info *m)
{
	const ncclsvc_device_info *d = device_of(w, m);
	return d && !m->elsewhere && process_is_halted(why_look_at(w, d->pid, false));
}

const ncclsvc_member_info *why_bad_device(const struct why *w, uint64_t comm, bool kernels)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_device_info *d = device_of(w, &m[i]);
		if (d && (d->state != NCCLSVC_DEVICE_READY ||
			  (!kernels && why_worker_is_halted(w, &m[i]))))
			return &m[i];
	}
	return NULL;
}

void why_name_worker(const struct why *w, struct why_finding *f, const ncclsvc_member_info *m)
{
	const ncclsvc_device_info *d = device_of(w, m);
	if (!d || f->device >= 0)
		return;
	f->device = m->device;
	f->worker = m->elsewhere ? 0 : d->pid;
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

void why_find_launched(struct why *w, const struct why_group *g, struct why_finding *f,
		       struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const ncclsvc_member_info *bad = why_bad_device(w, t->comm, t->kernel);
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
		why_name_worker(w, f, bad);
		why_tell_worker(w, g, bad, out);
	} else if (nlate) {
		f->cause = WHY_INPUT;
		for (size_t i = 0; i < nlate; i++)
			why_blame(w, f, t->comm, late[i], WHY_INPUT);
		why_tell_streams(w, g, late, nlate, out);
	} else {
		why_tell_launched(w, g, launched, nlaunched, out);
	}
	free(late);
}
