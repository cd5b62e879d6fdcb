/* SPDX-License-Identifier: Apache-2.0
 * Operations of the flight recorder, as inspection shows them. */
#ifndef COMM_RECORDED_OPERATIONS_H
#define COMM_RECORDED_OPERATIONS_H

#include "comm/peer/comm_peer.h"
#include "recorder/recorder.h"

struct table_entry;

/* One that a ring has: j is its join. */
void operation_of_recorded(const struct recording *rec, const struct recorded_join *j,
			   const struct recorded *x, ncclsvc_operation_info *i);
/* One that is pending in the scheduler. j: NULL if it is not known. */
void operation_of_task(const struct table_entry *e, const struct recorded_join *j, uint32_t uid,
		       ncclsvc_operation_info *i);
/* One in a kernel of an epoch that runs. */
void operation_of_kernel(const struct communicator *m, uint32_t rank,
			 const struct peer_operation *op, ncclsvc_operation_info *i);

#endif
