/* SPDX-License-Identifier: Apache-2.0
 * Finds who is to blame for one group, and reports it. */
#ifndef CTL_WHY_FIND_H
#define CTL_WHY_FIND_H

#include "internal.h"

/* find.c: ranks that are at an operation. */
void why_find_tasks(struct why *w, const struct why_group *g, struct why_report *report);

/* find_joining.c: a communicator that lacks members, and one whose members have not all made the
 * same request. */
void why_find_joining(struct why *w, const struct why_group *g, struct why_report *report);
void why_find_request(struct why *w, const struct why_group *g, struct why_report *report);

#endif
