/* SPDX-License-Identifier: Apache-2.0
 * Sending requests, and validating what the daemon sends. */
#ifndef CLIENT_BASE_FRAME_H
#define CLIENT_BASE_FRAME_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/wire.h"

struct connection;

/* Validates a datagram. If it breaks the protocol, returns false and explains in `text`. */
bool frame_check(const struct connection *c, const void *message, size_t length, unsigned nfds,
		 struct svc_header *header, char *text);
/* Sends one request. Returns 0 or -errno; -EOPNOTSUPP means that the daemon's protocol version
 * lacks this request. Never blocks. */
int frame_send(const struct connection *c, unsigned opcode, uint32_t request_id, const void *body,
	       int fd);
/* Like svc_recv, but never blocks. The buffer holds at least SVC_MESSAGE_MAX bytes, and a shorter
 * message is followed by zeros. */
ssize_t frame_receive(const struct connection *c, void *message, size_t room, int *fds,
		      unsigned *nfds);
/* Writes an error reply's sentence, printable, into `text` of SVC_TEXT_BYTES. */
void frame_error_text(const void *body, int result, char *text);
/* The same for SVC_EVENT_BYE. Returns the reason. */
int frame_bye(const void *body, char *text);

#endif
