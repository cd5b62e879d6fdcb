/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's own socket and its file, which others may remove: a cleaner of old files, or an
 * administrator who removes the directory. Then new clients cannot find the daemon, and another
 * daemon may take the path. So the daemon watches the file, and serves the path again when the file
 * is gone. If it cannot, for example because another daemon serves the path, it exits, or continues
 * without its socket for administration.
 */
#ifndef SERVER_OWN_SOCKET_H
#define SERVER_OWN_SOCKET_H

#include <uv.h>

#include "session/socket.h"

struct server;

struct own_socket {
	struct listen_socket socket;
	const char *path; /* borrowed; NULL: not opened */
	mode_t mode;
	bool admin;
	struct server *server;
	uv_fs_event_t changed;
	uv_timer_t lost; /* when to serve again */
	void (*ended)(void *arg);
	void *arg;
};

/* Takes the path; from here on, no other daemon serves it. admin: as in server_listen. Returns 0,
 * or -1 after logging why. */
int own_socket_open(struct own_socket *o, const char *path, mode_t mode, bool admin);
/* Accepts connections, and watches the file. ended is called once the path is lost for good.
 * Returns 0 or -1. */
int own_socket_serve(struct own_socket *o, uv_loop_t *loop, struct server *server,
		     void (*ended)(void *arg), void *arg);
/* Checks that the file is still the daemon's, for changes that the kernel does not report, such as
 * a renamed directory. */
void own_socket_check(struct own_socket *o);
/* Stops watching. */
void own_socket_stop(struct own_socket *o);
/* Removes the file; call it when the loop has closed the handles that stop left. */
void own_socket_close(struct own_socket *o);

#endif
