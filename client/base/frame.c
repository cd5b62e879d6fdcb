/* SPDX-License-Identifier: Apache-2.0
 * Validates the daemon's messages. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "connection.h"
#include "frame.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "proto/printable.h"

/* The number of bytes of records that follow a reply. */
static size_t records_due(const struct svc_shape *shape, const struct svc_header *h,
			  const void *body, size_t length)
{
	struct svc_list_reply list;
	if (!shape->records || h->result || length < sizeof(list))
		return 0;
	memcpy(&list, body, sizeof(list));
	return (size_t)list.count * list.record_size;
}

static bool check_reply(unsigned version, const struct svc_header *h, const void *body,
			size_t length, unsigned nfds, char *text)
{
	const unsigned opcode = h->opcode & ~(unsigned)SVC_REPLY;
	const struct svc_shape *shape = svc_shape_of(version, opcode);
	if (!shape) {
		snprintf(text, SVC_TEXT_BYTES,
			 "a reply to opcode %u arrived, which protocol version %u lacks", opcode,
			 version);
		return false;
	}
	if (h->result > 0 || !h->request_id) {
		snprintf(text, SVC_TEXT_BYTES, "the reply to %s has result %d and request_id %u",
			 shape->name, h->result, h->request_id);
		return false;
	}
	bool submit = opcode == SVC_SUBMIT;
	bool error = h->result < 0 && !(submit && length == sizeof(struct svc_submit_reply));
	size_t due = error ? sizeof(struct svc_error)
			   : shape->reply + records_due(shape, h, body, length);
	unsigned fds_due = h->result < 0 ? 0 : shape->reply_fds;
	if (length != due || nfds != fds_due) {
		snprintf(text, SVC_TEXT_BYTES,
			 "the reply to %s has %zu bytes and %u file descriptors, expected %zu and "
			 "%u",
			 shape->name, length, nfds, due, fds_due);
		return false;
	}
	return true;
}

/* Events that the version lacks may have any length and are ignored. */
static bool check_event(unsigned version, const struct svc_header *h, size_t length, unsigned nfds,
			char *text)
{
	const struct svc_shape *shape = svc_event_of(version, h->opcode);
	if ((!shape || length == shape->reply) && !nfds && !h->request_id)
		return true;
	snprintf(text, SVC_TEXT_BYTES, "event %#x is malformed", h->opcode);
	return false;
}

bool frame_check(const struct connection *c, const void *message, size_t length, unsigned nfds,
		 struct svc_header *header, char *text)
{
	memset(header, 0, sizeof(*header));
	if (length < sizeof(*header)) {
		snprintf(text, SVC_TEXT_BYTES, "a message of %zu bytes arrived", length);
		return false;
	}
	memcpy(header, message, sizeof(*header));
	if (header->length != length || header->reserved) {
		snprintf(text, SVC_TEXT_BYTES, "a message of %zu bytes has a bad header", length);
		return false;
	}
	if (header->opcode & SVC_REPLY)
		return check_reply(c->version, header, (const char *)message + sizeof(*header),
				   length - sizeof(*header), nfds, text);
	return check_event(c->version, header, length - sizeof(*header), nfds, text);
}

int frame_send(const struct connection *c, unsigned opcode, uint32_t request_id, const void *body,
	       int fd)
{
	_Alignas(8) unsigned char message[SVC_MESSAGE_MAX];
	const struct svc_shape *shape = svc_shape_of(c->version, opcode);
	if (!shape)
		return -EOPNOTSUPP;
	const size_t size = shape->request;
	struct svc_header h = {
		.length = (uint32_t)(sizeof(h) + size),
		.opcode = (uint16_t)opcode,
		.request_id = request_id,
	};
	memcpy(message, &h, sizeof(h));
	memcpy(message + sizeof(h), body, size);
	return svc_send(c->sock, message, h.length, &fd, fd >= 0, MSG_DONTWAIT);
}

ssize_t frame_receive(const struct connection *c, void *message, size_t room, int *fds,
		      unsigned *nfds)
{
	ssize_t n = svc_recv(c->sock, message, room, fds, nfds, MSG_DONTWAIT);
	/* Reported once if the daemon closed before it read everything; its last messages are still
	 * there. */
	if (n == -ECONNRESET)
		n = svc_recv(c->sock, message, room, fds, nfds, MSG_DONTWAIT);
	/* Fields that the session's version lacks are zero. */
	if (n > 0 && n < SVC_MESSAGE_MAX)
		memset((char *)message + n, 0, SVC_MESSAGE_MAX - (size_t)n);
	return n;
}

void frame_error_text(const void *body, int result, char *text)
{
	struct svc_error e;
	memcpy(&e, body, sizeof(e));
	svc_make_printable(e.text, sizeof(e.text));
	snprintf(text, SVC_TEXT_BYTES, "%s", e.text[0] ? e.text : svc_result_meaning(result));
}

int frame_bye(const void *body, char *text)
{
	struct svc_event_bye bye;
	memcpy(&bye, body, sizeof(bye));
	svc_make_printable(bye.text, sizeof(bye.text));
	snprintf(text, SVC_TEXT_BYTES, "%s",
		 bye.text[0] ? bye.text : svc_result_meaning(bye.reason));
	return bye.reason;
}
