/* SPDX-License-Identifier: Apache-2.0
 * Internals that the harness's files share. */
#ifndef TESTS_HARNESS_PARTS_H
#define TESTS_HARNESS_PARTS_H

#include "harness.h"

/* This process's client, or NULL in the test itself. */
const struct client *client_self(void);
/* Kill the processes that a failed test has left. */
void clients_cleanup(void);
void daemons_cleanup(void);
/* Registers a daemon that something else started, so that cleanup kills it too; unregisters it. */
void daemon_watch(const struct daemon *d);
void daemon_unwatch(struct daemon *d);
/* Called in a forked child, whose parent cleans up the daemons. */
void daemons_forget(void);
void daemons_print_logs(void);
/* Reaps pid; false if it did not end in time. */
bool reap(pid_t pid, int *status, unsigned ms);

#endif
