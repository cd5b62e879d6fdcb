/* SPDX-License-Identifier: Apache-2.0
 * Reporting results to clients. */
#ifndef SCHED_COMPLETE_H
#define SCHED_COMPLETE_H

#include "sched/base/held.h"
#include "sched/base/member.h"

/* Returns how tasks that have run ended: successfully, unless the memory of one failed (fault.h);
 * then st is filled. */
const ncclsvc_status *complete_ran(struct task *const *tasks, uint32_t n, ncclsvc_status *st);
void complete_task(struct scheduler *sched, struct task *t, const ncclsvc_status *how);
void complete_refused(struct scheduler *sched, struct sched_session *s,
		      const struct svc_record *record, uint32_t request_id, bool by_socket,
		      const ncclsvc_status *why, const char *text);
/* Ends a task that was held: its client has found out how. */
void complete_held(struct scheduler *sched, struct sched_session *s, struct held *h,
		   const ncclsvc_status *how);
/* The epoch of this handle is not continued: ends all that was held for it. */
void complete_drop_held(struct scheduler *sched, struct sched_session *s, uint32_t handle);
void complete_flush(struct scheduler *sched);
void complete_break_session(struct scheduler *sched, struct sched_session *s, int result,
			    const char *text);

#endif
