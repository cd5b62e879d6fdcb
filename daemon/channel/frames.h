/* SPDX-License-Identifier: Apache-2.0
 * One connection between two daemons: messages as frames, in TLS, over TCP; and what link.c has for
 * the other files. Private to channel. */
#ifndef CHANNEL_FRAMES_H
#define CHANNEL_FRAMES_H

#include "link.h"
#include "tls.h"

#define LINK_UNSENT_MAX (64 << 20) /* bytes that a node has not read */

struct frame;

struct link {
	struct link *prev, *next;
	struct cluster *cluster;
	uv_tcp_t tcp;
	uv_connect_t connect;
	struct tls *tls;
	uint32_t node;	 /* CLUSTER_NO_NODE: not known yet */
	bool opened;	 /* by this node */
	bool greeted;	 /* the other side's HELLO has come */
	bool ready;	 /* both sides have said HELLO */
	bool is_carried; /* the other side's carrier reaches this node */
	bool closing;
	bool finished;	     /* the other side no longer needs it */
	bool only_beats;     /* it was opened for keep-alives; nothing else was to be sent */
	bool ended;	     /* the other side's process, or something between, has closed it */
	const char *failure; /* why it must be lost; NULL: it must not */
	uint64_t since_ns;
	uint8_t network[8]; /* of a stranger: its IPv4 address, or the first half of its IPv6 one */
	struct frame *queue; /* what is to be sent once it is ready */
	size_t queued;
	size_t used, room; /* of buffer */
	char *buffer;
};

/* The connection must be lost. Its user may be in the middle of work that involves the node, so
 * this happens later, from the loop. */
void link_fail(struct link *l, const char *why);
/* Writes what TLS has to send. */
void frames_pump(struct link *l);
/* Sends at once, when TLS is ready. */
void frames_put(struct link *l, enum control_kind kind, const void *body, size_t size);
/* Sends once both sides have said HELLO. */
void frames_send(struct link *l, enum control_kind kind, const void *body, size_t size);
/* Sends what has waited for that. */
void frames_send_queue(struct link *l);
/* Bytes that are not sent yet. */
size_t frames_unsent(const struct link *l);
typedef void frames_take_fn(struct link *l, const struct control_header *h, char *body);
/* Hands on the whole frames among what TLS has decrypted. Returns NULL, or why the connection must
 * be lost. */
const char *frames_take(struct link *l, frames_take_fn *take);
/* Frees all but the connection itself. */
void frames_free(struct link *l);

/* ---- link.c ---- */

/* NULL: there is no memory. */
struct link *link_new(struct cluster *c, bool opened);
/* Starts to read from the connection. */
void link_read(struct link *l);
/* Connects to the node. NULL: there is no memory. Other failures are told later. */
struct link *link_open(struct cluster *c, uint32_t node);
void link_close(struct link *l);
/* Handles kept messages, and connections that have failed. */
void link_on_kept(uv_async_t *async);
/* Closes it; its node, if known, is lost. */
void link_lose(struct link *l, const char *why);

/* ---- accept.c ---- */

/* Tries again to accept a connection that there was no memory for. */
void link_accept_again(struct cluster *c);

#endif
