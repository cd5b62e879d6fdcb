/* SPDX-License-Identifier: Apache-2.0
 * Lists that take their turns in slots of a plan. */
#ifndef CLIENT_PLANNED_H
#define CLIENT_PLANNED_H

#include "tensors.h"

/* Like lists_go_on, for planned lists. */
void planned_go_on(ncclsvc_tensors *lists);
/* The prepared request, which has its slot, submits its data, or joins its group's batch if its
 * shapes go ahead. */
ncclsvc_result planned_begin(struct ncclsvc_request *r);

#endif
