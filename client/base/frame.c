/* SPDX-License-Identifier: Apache-2.0
 * Messages of the daemon: which are well-formed. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "frame.h"
#include "proto/fdio.h"
#include "proto/names.h"

/* The bytes of records that follow the reply to LIST. */
static size_t records_due(const struct svc_header *h, const void *body, size_t length)
{
	struct svc_list_reply list;
	if ((h->opcode & ~SVC_REPLY) != SVC_LIST || h->result || length < sizeof(list))
		return 0;
	memcpy(&list, body, sizeof(list));
	return (size_t)list.count * list.record_size;
}

static bool check_reply(const struct svc_header *h, const void *body, size_t length, unsigned nfds,
			char *text)
{
	const struct svc_shape *shape = svc_shape_of(h->opcode & ~(unsigned)SVC_REPLY);
	if (!shape) {
		snprintf(text, SVC_TEXT_BYTES, "a reply to unknown opcode %u came",
			 h->opcode & ~(unsigned)SVC_REPLY);
		return false;
	}
	if (h->result > 0 || !h->serial) {
		snprintf(text, SVC_TEXT_BYTES, "the reply to %s has result %d and serial %u",
			 shape->name, h->result, h->serial);
		return false;
	}
	bool submit = (h->opcode & ~SVC_REPLY) == SVC_SUBMIT;
	bool error = h->result < 0 && !(submit && length == sizeof(struct svc_submit_reply));
	size_t due = error ? sizeof(struct svc_error) : shape->reply + records_due(h, body, length);
	unsigned fds_due = h->result < 0 ? 0 : shape->reply_fds;
	if (length != due || nfds != fds_due) {
		snprintf(
			text, SVC_TEXT_BYTES,
			"the reply to %s has %zu bytes and %u file descriptors, %zu and %u are due",
			shape->name, length, nfds, due, fds_due);
		return false;
	}
	return true;
}

static bool check_event(const struct svc_header *h, size_t body, unsigned nfds, char *text)
{
	size_t due = body;
	if (h->opcode == SVC_EVENT_COMM)
		due = sizeof(struct svc_event_comm);
	else if (h->opcode == SVC_EVENT_BYE)
		due = sizeof(struct svc_event_bye);
	if (body == due && !nfds && !h->serial)
		return true;
	snprintf(text, SVC_TEXT_BYTES, "event %#x is malformed", h->opcode);
	return false;
}

bool frame_check(const void *message, size_t length, unsigned nfds, struct svc_header *header,
		 char *text)
{
	memset(header, 0, sizeof(*header));
	if (length < sizeof(*header)) {
		snprintf(text, SVC_TEXT_BYTES, "a message of %zu bytes came", length);
		return false;
	}
	memcpy(header, message, sizeof(*header));
	if (header->length != length || header->reserved) {
		snprintf(text, SVC_TEXT_BYTES, "a message of %zu bytes has a bad header", length);
		return false;
	}
	if (header->opcode & SVC_REPLY)
		return check_reply(header, (const char *)message + sizeof(*header),
				   length - sizeof(*header), nfds, text);
	return check_event(header, length - sizeof(*header), nfds, text);
}

int frame_send(int sock, unsigned opcode, uint32_t serial, const void *body, int fd)
{
	_Alignas(8) unsigned char message[SVC_MESSAGE_MAX];
	size_t size = svc_shape_of(opcode)->request;
	struct svc_header h = {
		.length = (uint32_t)(sizeof(h) + size),
		.opcode = (uint16_t)opcode,
		.serial = serial,
	};
	memcpy(message, &h, sizeof(h));
	memcpy(message + sizeof(h), body, size);
	return svc_send(sock, message, h.length, &fd, fd >= 0, MSG_DONTWAIT);
}

ssize_t frame_receive(int sock, void *message, size_t room, int *fds, unsigned *nfds)
{
	ssize_t n = svc_recv(sock, message, room, fds, nfds, MSG_DONTWAIT);
	/* Said once when the daemon closed without reading all: its last words are still there. */
	if (n == -ECONNRESET)
		n = svc_recv(sock, message, room, fds, nfds, MSG_DONTWAIT);
	return n;
}

void frame_error_text(const void *body, int result, char *text)
{
	struct svc_error e;
	memcpy(&e, body, sizeof(e));
	e.text[sizeof(e.text) - 1] = '\0';
	for (char *c = e.text; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = ' ';
	snprintf(text, SVC_TEXT_BYTES, "%s", e.text[0] ? e.text : svc_result_meaning(result));
}
