/* SPDX-License-Identifier: Apache-2.0
 * The session's socket. */
#ifndef CLIENT_CORE_SESSION_SOCKET_H
#define CLIENT_CORE_SESSION_SOCKET_H

#include <stdbool.h>

#include "base/api.h"

/* Reads one message, or waits while another thread reads. False: the deadline passed. Locked;
 * yields. */
bool socket_step(ncclsvc_session *s, uint64_t deadline);
/* Reads all ready messages, unless another thread is reading. Returns how many it read. Locked. */
unsigned socket_pump(ncclsvc_session *s);

#endif
