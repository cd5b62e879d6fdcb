/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_SUBMIT_H
#define CLIENT_COMM_SUBMIT_H

#include "core/op.h"

/* place.c: refuses bad arguments and overlaps, and fills in the extents. */
ncclsvc_result op_check(struct op *op);
/* Finds the buffers in session memory, or plans their staging. Locked. */
ncclsvc_result op_place(const ncclsvc_session *s, struct op *op);
/* slices.c: orders a group's operations when they exceed one of the daemon's task groups, and
 * numbers its slices (proto/group/slices.h). */
ncclsvc_result ops_slice(struct op *ops, unsigned n);
/* redop.c: sends the daemon a reduction that the program has created. Locked; yields. */
ncclsvc_result redop_send(ncclsvc_comm *comm, unsigned redop);
/* The daemon that had them is gone. Locked. */
void redops_forget(const ncclsvc_comm *comm);
/* submit.c: submits all or nothing. Locked; yields. */
ncclsvc_result ops_submit(ncclsvc_session *s, struct op *ops, unsigned n);

#endif
