/* SPDX-License-Identifier: Apache-2.0
 * Part of main: what layers have the layers above them do. No other place names a function of a
 * higher layer. */
#ifndef DAEMON_CALLBACKS_H
#define DAEMON_CALLBACKS_H

struct server_callbacks;

extern const struct server_callbacks daemon_callbacks;

#endif
