/* SPDX-License-Identifier: Apache-2.0
 * What the harness's own files share. */
#ifndef TESTS_HARNESS_PARTS_H
#define TESTS_HARNESS_PARTS_H

#include "harness.h"

/* The client this process is, or NULL in the test itself. */
const struct client *client_self(void);
/* Kill whatever a failed test has left. */
void clients_cleanup(void);
void daemons_cleanup(void);
/* A daemon that something else has started: it is killed, too; and no longer. */
void daemon_watch(const struct daemon *d);
void daemon_unwatch(struct daemon *d);
/* In a child: its daemons are the parent's to clean up. */
void daemons_forget(void);
void daemons_print_logs(void);
/* Starts what in_time asks, once for a test program. */
void clock_watch(void);
/* Reaps pid; false if it did not end in time. */
bool reap(pid_t pid, int *status, unsigned ms);

#endif
