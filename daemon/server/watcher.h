/* SPDX-License-Identifier: Apache-2.0
 *
 * The watcher: what has waited for longer than stuck_after is logged once, with the sentences of
 * `ncclsvc-ctl why`, and once when the wait is over. The supervisor itself only looks how old the
 * oldest wait of each communicator is. The analysis reads what hostile clients wrote, and takes its
 * time: it is ncclsvc-ctl's, in a process of its own, which may be killed.
 */
#ifndef SERVER_WATCHER_H
#define SERVER_WATCHER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "proto/ncclsvc_types.h"

struct communicator;
struct server;

#define WATCHED_MAX	   256	      /* waits that were logged, and are not over */
#define WATCHER_TEXT_BYTES (64 << 10) /* of ncclsvc-ctl's answer; the rest is not read */

/* A wait that was logged. */
struct watched {
	uint64_t comm;
	uint32_t slot;
	uint32_t epoch;
	int32_t rank; /* the first that waits */
	uint64_t seq;
	uint32_t graph;
	char op[24];		/* empty: its members wait in JOIN */
	char culprits[64];	/* their ranks, as "3,5"; empty: unknown */
	uint64_t since_ns;	/* when it began */
	ncclsvc_status failure; /* result 0: it has not failed */
};

struct watcher {
	struct server *server;
	/* ncclsvc-ctl, while it runs: */
	uv_process_t process;
	uv_poll_t output;
	int output_fd;
	unsigned open; /* of these two handles */
	bool killed;
	int64_t exit_code;
	char *text; /* WATCHER_TEXT_BYTES */
	size_t n;
	uint64_t started_ns;

	bool due;	     /* there is a wait that it was not asked about */
	bool trouble_logged; /* that it cannot be run, or has failed */
	uint64_t look_ns;    /* when to look again; 0: not planned */
	uint32_t slot;	     /* where that look begins; not 0: it goes on with a round */
	uint64_t next_ns;    /* when the next round is due, as far as this one knows */
	struct watched watched[WATCHED_MAX];
	uint32_t nwatched;
	char program[PATH_MAX];
};

/* Somebody is here who could wait. */
void watcher_begin(struct watcher *w, uint64_t now);
/* Looks, if it is time; returns when to look again, 0: nobody is here who could wait. */
uint64_t watcher_expire(struct watcher *w, uint64_t now);
/* Tasks of the communicator have failed, from this one on. */
void watcher_failed(struct watcher *w, const struct communicator *m, uint64_t seq,
		    const ncclsvc_status *status);
/* The daemon ends. Its handles close in the loop. */
void watcher_close(struct watcher *w);

/* When the member's oldest waiting operation, in a kernel or not, began to wait; 0: none waits. */
uint64_t waits_since(const struct communicator *m, uint32_t rank, uint64_t now);

#endif
