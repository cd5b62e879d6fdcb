/* SPDX-License-Identifier: Apache-2.0
 * What requests to join, split and rejoin have in common. */
#ifndef CLIENT_COMM_JOIN_REQUEST_H
#define CLIENT_COMM_JOIN_REQUEST_H

#include "core/call.h"

/* The daemon answers by the deadline that it was given; this is for the answer's way. */
#define JOIN_GRACE_NS UINT64_C(5000000000)
/* For the answer; timeout_ms: negative means none. */
uint64_t join_deadline(int timeout_ms);
/* Fails the call: the daemon's answer makes no sense. Locked. */
void join_answer_bad(ncclsvc_session *s, struct call *call);
/* Begins a call that the end of beside's epoch cancels (NULL: nothing does). Locked. */
ncclsvc_result join_begin(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			  uint64_t deadline, const ncclsvc_comm *beside);
/* If it was cancelled so, the error is that of the end. Locked; yields. */
ncclsvc_result join_finish(ncclsvc_session *s, struct call *call, uint64_t deadline,
			   const ncclsvc_comm *beside);
/* Takes the name that ncclsvc_comm_label_next has left for this thread's next communicator. */
void join_take_label(char label[NCCLSVC_NAME_BYTES]);
/* Fills in how the process uses the GPU: under which MPS. */
void join_say_mps(int device, struct svc_join *request);

#endif
