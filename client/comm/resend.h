/* SPDX-License-Identifier: Apache-2.0
 * Requests without an answer, after a restart of the daemon. */
#ifndef CLIENT_COMM_RESEND_H
#define CLIENT_COMM_RESEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/api.h"

enum resend_when {
	RESEND_FIRST,
	RESEND_IN_EPOCH, /* they need a running epoch */
	RESEND_LAST,	 /* after the tasks that were pending */
};

/* Sends those of that time with ids below `before`, the first of the new connection. False: the
 * daemon does not take them. Locked. */
bool resend(ncclsvc_session *s, uint32_t before, enum resend_when when);
/* The daemon goes on, and has forgotten the requests that wait for the other members of
 * communicators that are continued (comm->held): sends those again. Locked. */
bool resend_held(ncclsvc_session *s, uint32_t before);

#endif
