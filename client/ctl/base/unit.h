/* SPDX-License-Identifier: Apache-2.0
 * The daemon as a service of systemd, whose socket unit starts it on the first connection. */
#ifndef CTL_UNIT_H
#define CTL_UNIT_H

#include <stdbool.h>
#include <stddef.h>

/* Would a connection start the service? Then text says what state it is in, and how to start it.
 * False also where no systemd answers, or the socket is not that of its unit. */
bool unit_is_stopped(const char *socket, char *text, size_t size);

#endif
