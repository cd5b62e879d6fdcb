/* SPDX-License-Identifier: Apache-2.0
 * The daemon's own listening socket: one live daemon per path, stale sockets replaced. */
#ifndef DAEMON_SOCKET_H
#define DAEMON_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct listen_socket {
	int fd;	     /* passed to the server by socket_take */
	int lock_fd; /* held while the daemon lives */
	dev_t dev;
	ino_t ino;
	char path[256];
};

/* Binds and listens, with the given permissions. Returns 0, or -1 with a sentence in why. */
int socket_open(struct listen_socket *ls, const char *path, mode_t mode, char *why,
		size_t why_size);
/* Returns the listening fd, which the caller now owns. */
int socket_take(struct listen_socket *ls);
/* False: the path, or the lock's path, now names another file or none. */
bool socket_is_own(const struct listen_socket *ls);
/* Removes the path, if it is still ours, and the lock. */
void socket_close(struct listen_socket *ls);

/* Writes a line for the next daemon that takes the lock; "" removes it. Returns 0 or -errno. */
int socket_note(const struct listen_socket *ls, const char *line);
/* The line that the last daemon left, or "". */
void socket_read_note(const struct listen_socket *ls, char *line, size_t size);
/* Removes the line after socket_close, unless another daemon has the lock by now. */
void socket_forget_note(const char *path);

#endif
