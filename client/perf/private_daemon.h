/* SPDX-License-Identifier: Apache-2.0
 * --spawn-daemon: an ncclsvcd of this run alone. */
#ifndef PERF_PRIVATE_DAEMON_H
#define PERF_PRIVATE_DAEMON_H

#include "options.h"

/* Starts ncclsvcd for these ranks and their device, and waits until it listens. Complains and
 * returns false if it can't. */
bool private_daemon_start(const struct options *options);
/* Its socket; NULL: not started. */
const char *private_daemon_socket(void);
/* Stops it. False: it had crashed before (complained). */
bool private_daemon_stop(void);

#endif
