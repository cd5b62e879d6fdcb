/* SPDX-License-Identifier: Apache-2.0
 * The tasks that a daemon has not finished, from its end until the next one has them. */
#ifndef CLIENT_RESUME_CARRY_H
#define CLIENT_RESUME_CARRY_H

#include "compare.h"

/* Takes the unfinished tasks out of the ring, which then is empty. Locked. */
ncclsvc_result carry(ncclsvc_session *s);
/* The session's daemon still runs: makes room for copies of all tasks that it may hold. Locked. */
ncclsvc_result carry_begin(ncclsvc_session *s);
/* Copies those of a communicator that was suspended. They stay in the ring. Locked; yields. */
void carry_held(ncclsvc_session *s, const ncclsvc_comm *comm);
/* The previous daemon's workers have exited: ends the tasks that they have run. Locked. */
void carried_look(ncclsvc_session *s);
/* Why the GPU communicator cannot be continued; NULL: it can, and *done is what NCCL has done for
 * it (proto/group/done.h). Locked. */
const char *carried_nccl(const ncclsvc_session *s, const ncclsvc_comm *comm, uint64_t *done);
/* Has the daemon submit what it holds. Locked. */
void carried_release(ncclsvc_session *s);
/* Submits what is left to the next daemon. Tasks of communicators that are not continued fail.
 * Locked. */
void carried_submit(ncclsvc_session *s);

#endif
