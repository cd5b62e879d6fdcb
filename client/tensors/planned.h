/* SPDX-License-Identifier: Apache-2.0
 * Lists whose turns are places in a plan. */
#ifndef CLIENT_PLANNED_H
#define CLIENT_PLANNED_H

#include "tensors.h"

/* As lists_go_on, for those. */
void planned_go_on(ncclsvc_tensors *lists);

#endif
