/* SPDX-License-Identifier: Apache-2.0
 * What join, split and rejoin requests share. */
#ifndef CLIENT_COMM_JOIN_REQUEST_H
#define CLIENT_COMM_JOIN_REQUEST_H

#include "core/call.h"
#include "core/comm_handle.h"

/* Deadline of the answer. A negative timeout_ms means none. */
uint64_t join_deadline(int timeout_ms);
/* Fails the call because the daemon's answer is invalid. Locked. */
void join_answer_bad(ncclsvc_session *s, struct call *call);
/* Begins a call that is cancelled when beside's epoch ends (NULL: by nothing). `staging`, in the
 * body, becomes the region of the communicator's staging memory with the daemon that gets the
 * request. Locked; yields. */
ncclsvc_result join_begin(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			  const ncclsvc_comm *comm, uint32_t *staging, uint64_t deadline,
			  const ncclsvc_comm *beside);
/* With the result of join_begin: the daemon was lost meanwhile, and the session continues, so the
 * request, checked again, can be sent to the next daemon. Locked. */
bool join_retry(const ncclsvc_session *s, ncclsvc_result r);
/* If the epoch's end cancelled the call, the error is the reason of that end. Locked; yields. */
ncclsvc_result join_finish(ncclsvc_session *s, struct call *call, const ncclsvc_comm *comm,
			   uint64_t deadline, const ncclsvc_comm *beside);
/* Takes the name that ncclsvc_comm_label_next has left for this thread's next communicator. */
void join_take_label(char label[NCCLSVC_NAME_BYTES]);
/* Takes what ncclsvc_comm_tuning_next has left, likewise. */
struct comm_tuning join_take_tuning(void);
/* Fills in the MPS server under which the process uses the GPU. */
void join_say_mps(int device, struct svc_join *request);

/* The JOIN of a communicator that the session has joined before. Locked. */
struct svc_join rejoin_request(const ncclsvc_comm *comm, uint64_t timeout_ns);

/* The JOIN flags for the processes that the session admits to its communicators. */
uint32_t join_admit_flags(const ncclsvc_session *s);

#endif
