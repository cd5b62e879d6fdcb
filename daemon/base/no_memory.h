/* SPDX-License-Identifier: Apache-2.0
 * The one place where the daemon gives up. Requests of clients fail for want of memory, and
 * sessions end; but behind the point from which others count on something, other nodes above all,
 * there is no way back. A reserve is kept for that (account_memory_left), so it should not happen.
 */
#ifndef DAEMON_NO_MEMORY_H
#define DAEMON_NO_MEMORY_H

/* Says what for there is no memory, and ends the daemon, with a core. Any thread. */
_Noreturn void no_memory(const char *what);

#endif
