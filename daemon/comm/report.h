/* SPDX-License-Identifier: Apache-2.0
 * What fails on a communicator, told to the operator: one log line for a failure, however many
 * tasks and ranks it ends. A user whose communicators fail all the time gets a few lines, so that
 * those of others are seen. */
#ifndef COMM_REPORT_H
#define COMM_REPORT_H

#include "communicator.h"

/* Tasks have failed with this status; op, rank and seq are the first one's. */
void report_tasks(struct communicator *m, const ncclsvc_status *st, unsigned op, int32_t rank,
		  uint64_t seq);
/* The epoch ends with this status. */
void report_epoch(struct communicator *m, const ncclsvc_status *st);
/* The epoch ends with this status, since members' kernels wait in vain, as the sentence says. */
void report_kernels(struct communicator *m, const ncclsvc_status *st, const char *sentence);
/* A request of the members ("JOIN") has failed. */
void report_request(struct communicator *m, const char *request, int result, const char *text);

#endif
