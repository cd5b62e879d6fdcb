/* SPDX-License-Identifier: Apache-2.0
 * The consequences of a failure: processes that learned of it end, and with them the epochs of
 * other communicators. They are recorded with the failure, not as failures of their own. */
#ifndef COMM_CONSEQUENCES_H
#define COMM_CONSEQUENCES_H

#include "communicator.h"
#include "failures/failures.h"

/* Members' processes hear of the failure, by tasks that fail or by the end of the epoch. */
void consequences_begin(struct communicator *m, const struct failure *f);
/* Only that rank's process hears of it. */
void consequences_tell(struct communicator *m, const struct failure *f, uint32_t rank);
/* The failure from which this end of the epoch follows; NULL: it is a cause itself. */
struct failure *consequences_root(const struct communicator *m, const ncclsvc_status *st);
/* The status of the failure if it is the first one of the epoch. NULL: it is another epoch's. */
const ncclsvc_status *consequences_first(const struct communicator *m, const struct failure *root);
/* The status of the tasks that are pending when the epoch ends because of `why`: on a node that had
 * not heard of an earlier failure on another node, that failure. */
const ncclsvc_status *consequences_pending(const struct communicator *m, const ncclsvc_status *why);
/* The rank's end follows from the failure. */
void consequences_add(struct communicator *m, struct failure *root, int32_t rank);
/* Tells the log what has followed since it was last called. Returns when to call it next, 0: when
 * there is something new. */
uint64_t consequences_log(struct comms *s, uint64_t now);
/* Where the rank is; -1: this node is alone. */
int32_t consequences_node(const struct communicator *m, const struct member *member);

#endif
