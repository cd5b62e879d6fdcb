/* SPDX-License-Identifier: Apache-2.0
 * Reports an epoch's members to the flight recorder (recorder/recorder.h). */
#ifndef COMM_RECORD_H
#define COMM_RECORD_H

#include "comm/communicator.h"
#include "sched/api/command.h"

/* ncclsvc_operation_transport */
uint32_t comm_recorded_transport(enum transport_kind kind);
/* ncclsvc_operation_info's comm_key */
uint64_t comm_recorded_key(const struct communicator *m);
/* An epoch begins: members get the rings that their operations go to. */
void comm_record_members(struct communicator *m, enum transport_kind kind,
			 struct epoch_member *members);
/* An epoch ends: the operations of its kernels, if it has any, are copied from the members' control
 * blocks. result: how those that are pending fail. */
void comm_record_kernels(const struct communicator *m, int result);

#endif
