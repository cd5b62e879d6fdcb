/* SPDX-License-Identifier: Apache-2.0
 * Speaks the protocol without the client library, for messages that the library never sends. */
#ifndef TESTS_HARNESS_RAW_H
#define TESTS_HARNESS_RAW_H

#include "harness.h"
#include "proto/fdio.h"
#include "proto/ring.h"

struct raw {
	int sock;
	uint32_t request_id;
	uint32_t session;
	struct svc_ring *ring; /* NULL before raw_attach */
	size_t ring_size;
	uint32_t entries;
	int doorbell, completion;
	uint64_t last; /* newest task submitted through the ring */
};

struct raw_reply {
	struct svc_header header;
	union {
		struct svc_error error;
		struct svc_hello_reply hello;
		struct svc_attach_reply attach;
		struct svc_region_reply region;
		struct svc_join_reply join;
		struct svc_submit_reply submit;
		struct svc_list_reply list;
		struct svc_daemon_info_reply info;
		struct svc_cancel_reply cancel;
		struct svc_event_comm event;
		struct svc_event_bye bye;
		unsigned char bytes[SVC_LIST_MESSAGE_MAX];
	};
	size_t body; /* length of body */
	int fds[SVC_FDS_MAX];
	unsigned nfds;
};

struct raw_region {
	uint32_t id;
	int fd;
	void *base;
	size_t bytes;
};

bool raw_try_connect(struct raw *r, const char *path);
void raw_connect(struct raw *r, const struct daemon *d);
void raw_close(struct raw *r);

/* Sends a request; returns its id. */
uint32_t raw_send(struct raw *r, unsigned opcode, const void *body, size_t length, const int *fds,
		  unsigned nfds);
/* Sends bytes as they are. Returns 0 or -errno. */
int raw_send_bytes(struct raw *r, const void *bytes, size_t length, const int *fds, unsigned nfds);
/* Reads the next message; false at the end of the connection. Fails after WAIT_MS. */
bool raw_next(struct raw *r, struct raw_reply *reply);
/* Waits for the reply with that request id; drops events in between. */
void raw_reply_to(struct raw *r, uint32_t request_id, struct raw_reply *reply);
void raw_call(struct raw *r, unsigned opcode, const void *body, size_t length, const int *fds,
	      unsigned nfds, struct raw_reply *reply);
/* Checks that a request is refused with this result and a sentence that contains `why`. */
void raw_refused(struct raw *r, unsigned opcode, const void *body, size_t length, const int *fds,
		 unsigned nfds, ncclsvc_result result, const char *why);
/* Checks that the daemon sends BYE with this reason, and hangs up. */
void raw_ends(struct raw *r, ncclsvc_result reason);

void raw_hello(struct raw *r);
void raw_open(struct raw *r, const struct daemon *d); /* Connects and sends HELLO. */
void raw_attach(struct raw *r, uint32_t entries);
struct raw_region raw_region(struct raw *r, size_t bytes);
void raw_region_close(struct raw_region *region);
/* Joins a new communicator of one rank. */
struct svc_join_reply raw_join_alone(struct raw *r);
struct svc_join raw_join_request(const ncclsvc_unique_id *id, int nranks, int rank);

/* Submits through the socket, and waits until the task has ended. */
ncclsvc_status raw_submit_wait(struct raw *r, struct svc_record record);
/* Submits through the ring, and returns the task's number. */
uint64_t raw_ring_submit(struct raw *r, struct svc_record record);
ncclsvc_status raw_ring_wait(struct raw *r, uint64_t number);

#endif
