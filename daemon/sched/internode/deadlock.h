/* SPDX-License-Identifier: Apache-2.0
 * Deadlocks: members of several nodes that all wait for each other. deadlock.c explains the
 * detection.
 */
#ifndef SCHED_DEADLOCK_H
#define SCHED_DEADLOCK_H

#include "internode_comm.h"
#include "proto/names.h"

#define DEADLOCK_ALL UINT64_MAX /* in an ASK: every waiting operation */

/* Call it periodically. */
void deadlock_look(struct scheduler *sched);
/* Is this the status of a failure by deadlock? */
static inline bool deadlock_is_cause(const ncclsvc_status *st)
{
	return st->result == NCCLSVC_MISMATCH && st->field == NCCLSVC_FIELD_ORDER;
}
/* body: of an INTERNODE_FAILED or INTERNODE_ASK, which begins with a status. If the status is a
 * deadlock that this node has confirmed, all operations that local members wait for fail. */
void deadlock_break(struct scheduler *sched, struct internode_comm *s, const void *body);
/* INTERNODE_DEADLOCK */
void deadlock_take_message(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			   const void *body, size_t bytes);
void deadlock_free(struct internode_comm *s);

#endif
