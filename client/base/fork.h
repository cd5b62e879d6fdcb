/* SPDX-License-Identifier: Apache-2.0
 * A forked child closes its copies of the watched connections, so that the daemon notices the
 * parent's end. */
#ifndef CLIENT_BASE_FORK_H
#define CLIENT_BASE_FORK_H

#include "connection.h"

void fork_watch(struct connection *connection);
/* Also closes the fds, under the lock: a child forked in between would keep them. */
void fork_unwatch(struct connection *connection);

#endif
