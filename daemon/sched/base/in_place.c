/* SPDX-License-Identifier: Apache-2.0 */
#include "in_place.h"

#include "member.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"
#include "sched_session.h"

static bool replaces_input(const struct task *t)
{
	const struct svc_record *r = &t->record;
	const bool differs = svc_op_reduces(r->op) || r->op == NCCLSVC_ALL_TO_ALL;
	const uint64_t share = r->count * svc_type_size(r->type);
	const uint64_t bytes = share * (svc_op_sends_each(r->op) ? t->comm->nranks : 1);
	return differs && t->dst >= t->src && t->dst < t->src + bytes;
}

void tasks_mark_in_place(struct task *const *tasks, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		const struct task *t = tasks[k];
		const struct sched_session *s = t ? t->session : NULL;
		if (s && s->resumes && !t->by_socket && replaces_input(t))
			atomic_store_explicit((_Atomic uint64_t *)&svc_status_slot(
						      s->ring, s->entries, t->record.number)
						      ->done_ns,
					      SVC_STATUS_UNDER_WAY, memory_order_relaxed);
	}
	/* A killed process has done its stores in program order; the compiler must not reorder
	 * them. */
	atomic_signal_fence(memory_order_seq_cst);
}
