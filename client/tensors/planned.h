/* SPDX-License-Identifier: Apache-2.0
 * Lists whose turns are places in a plan. */
#ifndef CLIENT_PLANNED_H
#define CLIENT_PLANNED_H

#include "tensors.h"

/* Like lists_go_on, for planned lists. */
void planned_go_on(ncclsvc_tensors *lists);

#endif
