/* SPDX-License-Identifier: Apache-2.0
 * The GPUs of a communicator's members, and the workers that serve them. */
#include "internal.h"

bool why_on_gpus(const struct why *w, uint64_t comm)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++)
		if (m[i].device >= 0)
			return true;
	return false;
}

const ncclsvc_device_info *why_device(const struct why *w, const ncclsvc_member_info *m)
{
	return m ? snapshot_member_device(w->s, m) : NULL;
}

bool why_worker_is_halted(const struct why *w, const ncclsvc_member_info *m)
{
	const ncclsvc_device_info *d = why_device(w, m);
	return d && d->pid > 0 && !m->elsewhere && process_is_halted(why_look_at(w, d->pid, false));
}

const ncclsvc_member_info *why_bad_device(const struct why *w, uint64_t comm, bool kernels)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_device_info *d = why_device(w, &m[i]);
		if (d && (d->state != NCCLSVC_DEVICE_READY ||
			  (!kernels && why_worker_is_halted(w, &m[i]))))
			return &m[i];
	}
	return NULL;
}
