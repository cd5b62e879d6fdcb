/* SPDX-License-Identifier: Apache-2.0
 * A session's process as /proc shows it, for clients on other nodes. */
#ifndef SERVER_SESSION_PROCESS_H
#define SERVER_SESSION_PROCESS_H

#include "proto/ncclsvc_types.h"

/* Fills in process_state and tracer_pid; 0 if /proc does not show the process. */
void process_look(int32_t pid, ncclsvc_session_info *i);

#endif
