/* SPDX-License-Identifier: Apache-2.0
 * --spawn-daemon: an ncclsvcd of this run alone. */
#ifndef PERF_PRIVATE_DAEMON_H
#define PERF_PRIVATE_DAEMON_H

#include <stdbool.h>

/* Starts ncclsvcd --ranks ranks and waits until it listens. Complains and returns false if it
 * can't. extra (may be NULL): more arguments, NULL-terminated. */
bool private_daemon_start(int ranks, const char *const *extra, int timeout_ms);
/* Its socket; NULL: not started. */
const char *private_daemon_socket(void);
/* Stops it. False: it had crashed before (complained). */
bool private_daemon_stop(void);

#endif
