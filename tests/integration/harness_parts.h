/* SPDX-License-Identifier: Apache-2.0
 * What the harness's files share. */
#ifndef TESTS_HARNESS_PARTS_H
#define TESTS_HARNESS_PARTS_H

#include "harness.h"

/* The client that this process is, or NULL in the test itself. */
const struct client *client_self(void);
/* Kills what a failed test has left. */
void clients_cleanup(void);
void daemons_cleanup(void);
/* Registers a daemon that something else started, so that it is killed too; unregisters it. */
void daemon_watch(const struct daemon *d);
void daemon_unwatch(struct daemon *d);
/* For a child: its daemons are the parent's to clean up. */
void daemons_forget(void);
void daemons_print_logs(void);
/* Starts the process behind in_time, once per test program. */
void clock_watch(void);
/* Reaps pid; false if it did not end in time. */
bool reap(pid_t pid, int *status, unsigned ms);

#endif
