/* SPDX-License-Identifier: Apache-2.0
 * Part of main: callbacks from lower layers to higher ones. No other file names a function of a
 * higher layer. */
#ifndef DAEMON_CALLBACKS_H
#define DAEMON_CALLBACKS_H

struct server_callbacks;

extern const struct server_callbacks daemon_callbacks;

#endif
