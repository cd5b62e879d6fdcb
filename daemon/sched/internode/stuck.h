/* SPDX-License-Identifier: Apache-2.0
 * Deadlocks: members of several nodes that all wait for each other. stuck.c tells how they are
 * found.
 */
#ifndef SCHED_STUCK_H
#define SCHED_STUCK_H

#include "names.h"
#include "span.h"

#define STUCK_ALL UINT64_MAX /* in an ASK: whatever waits */

/* From time to time. */
void stuck_look(struct engine *e);
/* Is that the status of what failed by a deadlock? */
static inline bool stuck_said(const ncclsvc_status *st)
{
	return st->result == NCCLSVC_MISMATCH && st->field == NCCLSVC_FIELD_ORDER;
}
/* body: of a SPAN_FAILED or SPAN_ASK; it begins with a status. If that is of a deadlock which this
 * node has confirmed, all fails that the members here wait for. */
void stuck_break(struct engine *e, struct span *s, const void *body);
/* SPAN_STUCK */
void stuck_hear(struct engine *e, struct span *s, uint32_t place, const void *body, size_t bytes);
void stuck_free(struct span *s);

#endif
