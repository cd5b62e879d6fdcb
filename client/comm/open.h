/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_OPEN_H
#define CLIENT_COMM_OPEN_H

#include <stdbool.h>

#include "base/api.h"

/* Returns OK at once if the session is not lost and has recovered fully from its last loss. rejoin:
 * also rejoins its communicators. Not locked. */
ncclsvc_result session_reattach(ncclsvc_session *s, int timeout_ms, bool rejoin);

#endif
