/* SPDX-License-Identifier: Apache-2.0
 * The words of operations that were launched on GPUs, and of GPUs' workers. */
#include "base/units.h"
#include "internal.h"

/* "the worker of device 1 (pid 501), which serves rank 1 (pid 111), has been starting for 3.0 s" */
void why_add_device(const struct why *w, const ncclsvc_member_info *m, struct text *out)
{
	const ncclsvc_device_info *d = snapshot_device(w->s, m->device);
	text_printf(out, "the worker of device %d", m->device);
	if (d->pid > 0)
		text_printf(out, " (pid %d)", d->pid);
	text_add(out, ", which serves ");
	why_add_rank(w, m->comm, m->rank, out);
	switch (d->state) {
	case NCCLSVC_DEVICE_READY:
		text_add(out, ", does not run");
		return;
	case NCCLSVC_DEVICE_STARTING:
		text_add(out, ", has been starting for ");
		break;
	case NCCLSVC_DEVICE_FAILED:
		text_add(out, ", cannot be used; it failed ");
		break;
	default:
		text_add(out, ", was lost ");
	}
	units_age(out, d->age_ns);
	text_add(out, d->state == NCCLSVC_DEVICE_STARTING ? "" : " ago");
	if (d->text[0]) {
		text_add(out, " (");
		text_name(out, d->text, sizeof(d->text));
		text_char(out, ')');
	}
	if (d->state == NCCLSVC_DEVICE_LOST)
		text_add(out, "; ncclsvcd is starting another");
}

void why_tell_worker(const struct why *w, const struct why_group *g, const ncclsvc_member_info *bad,
		     struct text *out)
{
	why_add_called_by_all(w, g, out);
	text_add(out, ", and it has been on the GPUs for ");
	units_age(out, g->age_ns);
	text_add(out, ", but ");
	why_add_device(w, bad, out);
	text_char(out, '.');
}

void why_tell_streams(const struct why *w, const struct why_group *g, const int32_t *ranks,
		      size_t n, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	why_add_called_by_all(w, g, out);
	text_add(out, ", but it has waited ");
	units_age(out, g->age_ns);
	text_add(out, " on the GPUs for the stream of ");
	for (size_t i = 0; i < n && i < WHY_TOLD; i++) {
		const ncclsvc_member_info *m = why_member(w, t->comm, ranks[i]);
		text_add(out, !i ? "" : i + 1 == n ? " and " : ", ");
		why_add_rank(w, t->comm, ranks[i], out);
		if (m && m->device >= 0)
			text_printf(out, " on device %d", m->device);
	}
	if (n > WHY_TOLD)
		text_printf(out, " and %zu more", n - WHY_TOLD);
	text_add(out, ", where earlier work has not ended.");
}

void why_tell_launched(const struct why *w, const struct why_group *g, const int32_t *ranks,
		       size_t n, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	why_add_called_by_all(w, g, out);
	if (t->kernel) {
		text_add(out, "; its kernels have run on all GPUs for ");
		units_age(out, g->age_ns);
		text_add(out, " and have not ended.");
		return;
	}
	text_add(out, ", and for ");
	units_age(out, g->age_ns);
	text_add(out, " it has been on the GPUs of ");
	units_ranks(out, ranks, n, t->nranks);
	text_add(out, ". NCCL is moving ");
	units_bytes(out, t->bytes);
	text_add(out, ", or earlier work of a rank's stream has not ended.");
}
