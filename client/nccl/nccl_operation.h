/* SPDX-License-Identifier: Apache-2.0
 * Operations on their way to a session: redop.c and submit.c. */
#ifndef NCCL_OPERATION_H
#define NCCL_OPERATION_H

#include "handle.h"

/* An operation: a reference to its communicator, and what will be submitted. */
struct operation {
	ncclComm_t comm;
	CUstream stream;
	unsigned op; /* ncclsvc_op */
	const void *src;
	void *dst;
	size_t count;
	int type, redop, peer;
	int user_redop;	  /* entry of a user-made reduction, from 1; 0: none */
	CUevent launched; /* from its configuration; NULL: none */
	ncclsvc_task task;
	bool done;
};

/* Enters the communicators, submits everything, and waits while there is no room. */
ncclResult_t operations_submit(struct operation *operations, unsigned n);
/* Waits until everything submitted on the communicator has ended, or it is over. */
void handle_flush(ncclComm_t comm);

/* Gives the operation the service's number for the reduction, reserved until it is
 * released. */
ncclResult_t redop_take(struct operation *operation, ncclRedOp_t op);
void redop_release(const struct operation *operation);

#endif
