/* SPDX-License-Identifier: Apache-2.0
 * Where the daemon's sockets are. */
#ifndef CTL_SOCKET_H
#define CTL_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

/* The jobs' socket, as the library chooses it; path: what the command line says, or NULL. False: it
 * does not fit. */
bool socket_choose(const char *path, char *to, size_t size);
/* The socket for administration beside it. */
bool socket_choose_admin(const char *path, char *to, size_t size);

#endif
