/* SPDX-License-Identifier: Apache-2.0
 * An attacker's session, with the protocol by hand: refusals and hang-ups are answers, not
 * failures. */
#ifndef ATTACK_CONN_H
#define ATTACK_CONN_H

#include "proto/fdio.h"
#include "proto/ring.h"

#define CONN_LOST (-1000) /* in addition to the protocol's results */

struct conn {
	int sock; /* -1: not open */
	uint32_t request_id;
	unsigned outstanding; /* requests without an answer, for flood.c */
	struct svc_ring *ring;
	size_t ring_size;
	uint32_t entries;
	int doorbell, completion;
	uint64_t last; /* newest task submitted through the ring */
	uint64_t from; /* start of the next chunk of a list, for flood.c */
};

struct answer {
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	struct svc_header header;
	union {
		struct svc_error error;
		struct svc_attach_reply attach;
		struct svc_region_reply region;
		struct svc_join_reply join;
		struct svc_plan_reply plan;
		struct svc_daemon_info_reply info;
		struct svc_list_reply list; /* the records behind it are dropped */
	} body;
};

/* Connects. With hello: also sends HELLO and reads the answer. */
bool conn_connect(struct conn *c, const char *path);
bool conn_open(struct conn *c, const char *path);
void conn_close(struct conn *c);

/* Returns 0 or -errno; flags: MSG_DONTWAIT or 0. */
int conn_send(struct conn *c, unsigned opcode, const void *body, size_t length, int fd, int flags);
/* Reads the next message; the caller owns the fds in it. Returns 1, 0 if there is none within the
 * time (0 ms: does not wait), or CONN_LOST. */
int conn_next(struct conn *c, struct answer *a, int timeout_ms);
/* Sends a request and waits for the answer; drops events, and closes all fds except ATTACH's. fd:
 * to send, or -1. Returns the result, or CONN_LOST. */
int conn_call(struct conn *c, unsigned opcode, const void *body, size_t length, int fd,
	      struct answer *a);

bool conn_attach(struct conn *c, uint32_t entries);
/* The daemon's number of pending tasks, of all users. */
uint64_t conn_pending(struct conn *c);
/* Registers a memfd; returns the region's number, or 0. */
uint32_t conn_region(struct conn *c, int memfd, uint64_t bytes);

/* A rank's handle of its communicator, for records. */
struct rank {
	struct conn *conn;
	uint32_t comm, epoch;
	uint64_t uid;
};

void random_id(uint8_t id[NCCLSVC_ID_BYTES]);
/* Joins conns[0..n) as ranks 0..n-1 of a new communicator. False: refused. */
bool ranks_join(struct conn *conns, int n, struct rank *ranks);
/* Waits for the answers to their JOINs. */
bool ranks_joined(struct conn *conns, int n, struct rank *ranks);
/* Joins a communicator of this session alone. */
bool rank_alone(struct conn *c, struct rank *rank);
/* A barrier's record, to start from. */
struct svc_record rank_record(const struct rank *rank);
/* Submits through the ring, without checking that the slot is free. */
void conn_submit(struct conn *c, const struct svc_record *record);
void conn_ring_bell(struct conn *c);
/* Waits for that task in the ring: returns its result, or CONN_LOST after the timeout. */
int conn_wait(struct conn *c, uint64_t number, int timeout_ms);

#endif
