/* SPDX-License-Identifier: Apache-2.0
 * A session survives a restart of its daemon: resume.c. */
#ifndef CLIENT_COMM_RESUME_H
#define CLIENT_COMM_RESUME_H

#include "base/api.h"

#define REATTACH_MS_MAX 3600000

/* The option's value, or if that is 0, that of $NCCLSVC_REATTACH_MS. False: it is not valid. */
bool reattach_ms_of(int option, int *ms);

/* Starts the thread that waits for the daemon's end, if the options say so. Not locked. */
void resume_open(ncclsvc_session *s);
/* Ends it. Not locked. */
void resume_close(ncclsvc_session *s);
/* The program itself has reattached the session. Locked. */
void resume_reattached(ncclsvc_session *s);
/* The program leaves the communicator: the watcher need not wait for its other members. Waits until
 * the session is back. Locked; yields. */
void resume_leave(ncclsvc_session *s, const ncclsvc_comm *comm);
/* It has left the communicator: at the next restart, the other members are told. Locked. */
void resume_left(ncclsvc_session *s, const ncclsvc_comm *comm);

#endif
