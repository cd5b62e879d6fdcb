/* SPDX-License-Identifier: Apache-2.0
 * Operations and starts that wait for ncclGroupEnd. */
#ifndef NCCL_GROUP_H
#define NCCL_GROUP_H

#include "nccl_operation.h"
#include "start.h"

bool group_is_open(void);
/* Keeps the operation for ncclGroupEnd. */
ncclResult_t group_add_operation(const struct operation *operation);
/* Runs it, or keeps it for ncclGroupEnd. Takes ownership. */
ncclResult_t group_begin_start(struct start *start);

#endif
