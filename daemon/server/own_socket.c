/* SPDX-License-Identifier: Apache-2.0 */
#include "own_socket.h"

#include <string.h>

#include "base/log.h"
#include "base/paths.h"
#include "base/timings.h"
#include "server.h"

static int take_path(struct own_socket *o)
{
	char why[512];
	const int error = paths_make_socket_dir(o->path, 0755);
	if (error) {
		log_error("cannot make the directory of %s: %s", o->path, strerror(-error));
		return -1;
	}
	if (socket_open(&o->socket, o->path, o->mode, why, sizeof(why))) {
		log_error("%s", why);
		return -1;
	}
	if (!o->admin && paths_socket_dir_shared(o->path))
		log_warning("other users can write to the directory of %s: one of them could take "
			    "the socket's place, and keep clients from this daemon. Choose a "
			    "directory that only this user can write to (--socket)",
			    o->path);
	return 0;
}

int own_socket_open(struct own_socket *o, const char *path, mode_t mode, bool admin)
{
	o->path = path;
	o->mode = mode;
	o->admin = admin;
	o->socket = (struct listen_socket){.fd = -1, .lock_fd = -1};
	return take_path(o);
}

static void on_changed(uv_fs_event_t *changed, const char *name, int events, int status)
{
	(void)name;
	(void)events;
	(void)status;
	own_socket_check(changed->data);
}

/* Without inotify, the next keep-alive notices a removal. */
static int serve(struct own_socket *o)
{
	if (server_listen(o->server, socket_take(&o->socket), o->admin) < 0)
		return -1;
	const int error = uv_fs_event_start(&o->changed, on_changed, o->path, 0);
	if (error)
		log_debug("%s cannot be watched: %s", o->path, uv_strerror(error));
	own_socket_check(o); /* it may have been removed before it was watched */
	return 0;
}

/* The lock is closed first: if another daemon has taken the path meanwhile, it keeps the path. */
static void on_lost(uv_timer_t *timer)
{
	struct own_socket *o = timer->data;
	char note[64];
	socket_read_note(&o->socket, note, sizeof(note));
	server_unlisten(o->server, o->admin);
	socket_close(&o->socket);
	if (!take_path(o) && !serve(o)) {
		if (note[0] && socket_note(&o->socket, note))
			log_warning("cannot write %s.lock", o->path);
		log_warning("%s was removed or replaced: the daemon serves it again. If a "
			    "cleaner of old files did that, exclude the directory",
			    o->path);
		return;
	}
	log_error("%s was removed or replaced, and cannot be served again", o->path);
	o->ended(o->arg);
}

int own_socket_serve(struct own_socket *o, uv_loop_t *loop, struct server *server,
		     void (*ended)(void *arg), void *arg)
{
	o->server = server;
	o->ended = ended;
	o->arg = arg;
	uv_fs_event_init(loop, &o->changed);
	uv_timer_init(loop, &o->lost);
	o->changed.data = o->lost.data = o;
	return serve(o);
}

/* The file's directory may be about to be removed, too, so the daemon waits briefly. */
void own_socket_check(struct own_socket *o)
{
	if (!o->server || uv_is_closing((uv_handle_t *)&o->lost) || socket_is_own(&o->socket))
		return;
	uv_fs_event_stop(&o->changed);
	if (!uv_is_active((uv_handle_t *)&o->lost))
		uv_timer_start(&o->lost, on_lost, SOCKET_LOST_MS, 0);
}

void own_socket_stop(struct own_socket *o)
{
	if (!o->server)
		return;
	uv_close((uv_handle_t *)&o->changed, NULL);
	uv_close((uv_handle_t *)&o->lost, NULL);
	o->server = NULL;
}

void own_socket_close(struct own_socket *o)
{
	if (o->path)
		socket_close(&o->socket);
}
