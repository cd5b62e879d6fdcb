/* SPDX-License-Identifier: Apache-2.0
 * The daemon as a service of systemd, whose socket unit starts it on the first connection. */
#ifndef CTL_UNIT_H
#define CTL_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Would a connection start the service? Then text says what state it is in, and how to start it.
 * Also false if systemd takes longer than timeout_ns to answer a question, or the socket is not
 * that of its unit. */
bool unit_is_stopped(const char *socket, uint64_t timeout_ns, char *text, size_t size);

#endif
