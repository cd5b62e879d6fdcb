/* SPDX-License-Identifier: Apache-2.0
 * Which daemon this process trusts. In a directory like /tmp, any user may listen at a path before
 * the daemon does. The listener receives this process's memory and names the MPS directory, so it
 * must be this process's own user, root, or the service's user. */
#ifndef CLIENT_BASE_TRUST_H
#define CLIENT_BASE_TRUST_H

#include <stdbool.h>
#include <sys/types.h>

#include "api.h"

#define TRUST_VARIABLE	   "NCCLSVC_DAEMON_USER" /* the service's user, as a name or number */
#define TRUST_SERVICE_USER "ncclsvc"		 /* the default, as in scripts/systemd */
/* The kernel reports this uid for users that are not mapped in the process's user namespace. */
#define TRUST_UNMAPPED_UID ((uid_t)65534)

/* Checks who listens at the other end of a connected socket, before anything is sent. Returns
 * PERMISSION if that user is not trusted. `path` is the socket's path, for the error. */
ncclsvc_result trust_check(int sock, const char *path);

/* The decision alone. `service` is (uid_t)-1 if there is no such user. */
bool trust_allows(uid_t peer, uid_t self, uid_t service);
/* The service's user, or (uid_t)-1. `variable` is the value of TRUST_VARIABLE, or NULL. */
uid_t trust_service(const char *variable);

#endif
