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
#include "sched/api/scheduler.h"
#include "server.h"
#include "session/session.h"
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

/* relay.c: lists of other nodes. */
struct relay {
	struct deadlines waiting; /* of clients whose LIST another node has yet to answer */
	struct asked *asked;	  /* what other nodes ask, and no turn had time for */
	uint64_t turn, turn_ns;	  /* time that answers took in this turn of the loop */
};

struct server {
	struct loop loop;
	const struct config *config;
	const char *path; /* of its socket; this daemon's private files are beside it */
	struct scheduler *scheduler;
	uv_async_t events, faults, closed;
	bool in_event; /* handle_event is on the stack */
	struct listener *listeners;
	int spare_fd; /* closed briefly to turn a connection away when fds run out */
	struct sessions sessions;
	struct accounts accounts;
	struct recorder recorder;
	struct comms comms;
	struct cluster *cluster; /* connections to the other nodes; NULL: this node is alone */
	struct gpus gpus;
	struct memory memory;
	struct relay relay;
	struct watcher watcher;
	uint64_t start_ns;
	bool draining;	     /* it is ending */
	bool refuses_jobs;   /* it was drained, and takes no new ones */
	uint64_t drained_ns; /* when the scheduler was drained; 0: not yet, or handled */
	void (*drained)(void *arg);
	void *drained_arg;
	void (*pong)(void *arg);
	void *pong_arg;
};

/* server.c: handles the scheduler's events. */
void server_handle_events(struct server *s);

/* request.c */
void request_handle(struct server *s, struct session *c, const struct svc_header *h,
		    const void *body, int *fds);

/* list.c */
void list_send(struct server *s, struct session *c, uint32_t request_id, const struct svc_list *m);
void list_daemon(struct server *s, struct session *c, uint32_t request_id);

#endif
