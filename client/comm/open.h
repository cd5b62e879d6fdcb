/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_OPEN_H
#define CLIENT_COMM_OPEN_H

#include <stdbool.h>

#include "base/api.h"

/* OK at once if the session is not lost, and nothing is left to do from when it was. rejoin: its
 * communicators, too. Not locked. */
ncclsvc_result session_reattach(ncclsvc_session *s, int timeout_ms, bool rejoin);

#endif
