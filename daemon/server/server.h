/* SPDX-License-Identifier: Apache-2.0
 * The supervisor: it accepts connections, validates every message, and keeps sessions,
 * communicators and regions. It runs on one libuv loop, never blocks, and never touches CUDA or
 * users' data.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct cluster;
struct cluster_callbacks;
struct config;
struct gpu_callbacks;
struct memory_callbacks;
struct server;
struct session_callbacks;

/* Callbacks of the lower layers. */
struct server_callbacks {
	const struct session_callbacks *session;
	const struct cluster_callbacks *cluster;
	const struct gpu_callbacks *gpu;
	const struct memory_callbacks *memory;
};

/* Address space that a server of one node needs to work, beyond starting. */
uint64_t server_bytes(const struct config *config);
/* config is borrowed, and may change between calls as far as a reload allows; so is path, of the
 * socket. Returns NULL with errno set. */
struct server *server_create(uv_loop_t *loop, const struct config *config, const char *path,
			     struct cluster *cluster, const struct server_callbacks *callbacks);
/* Accepts connections from a listening SOCK_SEQPACKET socket; admin: only for administration. Takes
 * ownership of fd. Returns 0 or -errno. */
int server_listen(struct server *s, int fd, bool admin);
/* Stops accepting on sockets of this kind, and closes them. */
void server_unlisten(struct server *s, bool admin);
/* Takes a connected socket as a new session. */
void server_adopt(struct server *s, int fd, bool admin);

/* The configuration was reloaded: reads the files beside it. */
void server_reload(struct server *s);

/* Lets pending tasks finish and starts no new ones; drained is called once, when none is pending.
 */
void server_drain(struct server *s, void (*drained)(void *arg), void *arg);
/* Pings the scheduler; pong is called when it answers. */
void server_ping(struct server *s, void (*pong)(void *arg), void *arg);

struct server_summary {
	uint32_t sessions, comms;
	uint64_t pending, completed, failed;
};
void server_summarize(const struct server *s, struct server_summary *sum);

/* Ends every session, telling it why; the loop must run until server_closed is true. */
void server_close(struct server *s, int reason, const char *text);
bool server_closed(const struct server *s);
void server_destroy(struct server *s);

#endif
