/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's data, all owned by one thread. */
#ifndef SERVER_SERVER_STATE_H
#define SERVER_SERVER_STATE_H

#include "account/account.h"
#include "base/loop.h"
#include "comm/comms.h"
#include "coord/coord.h"
#include "gpu/gpu.h"
#include "memory/memory.h"
#include "recorder/recorder.h"
#include "sched/executor.h"
#include "server.h"
#include "session/client.h"
#include "session/sessions.h"
#include "watcher.h"

struct cluster;

struct listener {
	uv_poll_t poll;
	int fd;
	bool admin; /* for administration */
	struct server *server;
	struct listener *next;
};

struct server {
	struct loop loop;
	const struct config *config;
	const char *path; /* of its socket; this daemon's private files are beside it */
	struct executor *executor;
	uv_async_t events, faults, closed;
	struct listener *listeners;
	int spare_fd; /* closed briefly to turn a connection away when fds run out */
	struct sessions sessions;
	struct accounts accounts;
	struct recorder recorder;
	struct comms comms;
	struct cluster *cluster; /* connections to the other nodes; NULL: this node is alone */
	struct gpus gpus;
	struct memory memory;
	struct watcher watcher;
	uint64_t start_ns;
	bool draining;
	void (*drained)(void *arg);
	void *drained_arg;
	void (*pong)(void *arg);
	void *pong_arg;
};

/* server.c: handles the executor's events. */
void server_handle_events(struct server *s);

/* request.c */
void request_handle(struct server *s, struct client *c, const struct svc_header *h,
		    const void *body, int *fds);

/* list.c */
void list_send(struct server *s, struct client *c, uint32_t serial, uint32_t what, uint64_t from);
void list_daemon(struct server *s, struct client *c, uint32_t serial);

#endif
