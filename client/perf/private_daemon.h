/* SPDX-License-Identifier: Apache-2.0
 * --spawn-daemon: an ncclsvcd for this run only. */
#ifndef PERF_PRIVATE_DAEMON_H
#define PERF_PRIVATE_DAEMON_H

#include "options.h"

/* Starts ncclsvcd for these ranks and their device, and waits until it listens. On failure prints
 * an error and returns false. */
bool private_daemon_start(const struct options *options);
/* Its socket; NULL: not started. */
const char *private_daemon_socket(void);
/* Stops it. False: it had crashed before, and an error was printed. */
bool private_daemon_stop(void);

#endif
