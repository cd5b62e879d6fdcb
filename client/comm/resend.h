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

#endif
