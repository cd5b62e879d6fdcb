/* SPDX-License-Identifier: Apache-2.0
 *
 * A child that is forked closes its share of the connections that are watched, so that the daemon
 * sees the parent's end. */
#ifndef CLIENT_BASE_FORK_H
#define CLIENT_BASE_FORK_H

#include "connection.h"

void fork_watch(struct connection *connection);
/* Closes the fds: a child between the two would keep them. */
void fork_unwatch(struct connection *connection);

#endif
