/* SPDX-License-Identifier: Apache-2.0
 * Messages: what the daemon may send. */
#ifndef CLIENT_BASE_FRAME_H
#define CLIENT_BASE_FRAME_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/wire.h"

struct connection;

/* Judges a datagram. False, with a sentence in text, if it breaks the protocol. */
bool frame_check(const struct connection *c, const void *message, size_t length, unsigned nfds,
		 struct svc_header *header, char *text);
/* Sends one request. Returns 0 or -errno, of which -EOPNOTSUPP means that the daemon's protocol
 * version has no such request. Never blocks. */
int frame_send(const struct connection *c, unsigned opcode, uint32_t serial, const void *body,
	       int fd);
/* As svc_recv. There is room for SVC_MESSAGE_MAX bytes at least: zeros follow a shorter message.
 * Never blocks. */
ssize_t frame_receive(const struct connection *c, void *message, size_t room, int *fds,
		      unsigned *nfds);
/* The sentence of a reply that carries an error, printable, in SVC_TEXT_BYTES. */
void frame_error_text(const void *body, int result, char *text);
/* The same of SVC_EVENT_BYE; returns its reason. */
int frame_bye(const void *body, char *text);

#endif
