/* SPDX-License-Identifier: Apache-2.0
 * Requests without an answer, after a restart of the daemon. */
#ifndef CLIENT_COMM_RESEND_H
#define CLIENT_COMM_RESEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/api.h"

/* Sends those with ids below `before`, the first of the new connection: late ones, which need a
 * running epoch, or all others. False: the daemon does not take them. Locked. */
bool resend(ncclsvc_session *s, uint32_t before, bool late);

#endif
