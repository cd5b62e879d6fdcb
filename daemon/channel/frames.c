/* SPDX-License-Identifier: Apache-2.0 */
#include "frames.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define CHUNK (16 << 10) /* bytes that are encrypted at a time */

struct frame {
	struct frame *prev, *next;
	size_t size;
	char bytes[];
};

struct write {
	uv_write_t request;
	char bytes[];
};

void link_fail(struct link *l, const char *why)
{
	l->failure = why;
	uv_async_send(&l->cluster->kept);
}

/* ---- Sending ---- */

static void drop_queue(struct link *l)
{
	while (l->queue) {
		struct frame *f = l->queue;
		DL_DELETE(l->queue, f);
		free(f);
	}
	l->queued = 0;
}

static void on_written(uv_write_t *request, int status)
{
	struct link *l = request->handle->data;
	free(request);
	l->ended |= status == UV_EPIPE || status == UV_ECONNRESET;
	if (status < 0 && status != UV_ECANCELED)
		link_fail(l, uv_strerror(status));
}

static void write_bytes(struct link *l, const char *bytes, size_t size)
{
	struct write *w = malloc(sizeof(*w) + size);
	if (!w) {
		link_fail(l, "out of memory");
		return;
	}
	memcpy(w->bytes, bytes, size);
	uv_buf_t buf = uv_buf_init(w->bytes, (unsigned)size);
	int error = uv_write(&w->request, (uv_stream_t *)&l->tcp, &buf, 1, on_written);
	l->ended |= error == UV_EPIPE || error == UV_ECONNRESET;
	if (error) {
		free(w);
		link_fail(l, uv_strerror(error));
	} else if (uv_stream_get_write_queue_size((uv_stream_t *)&l->tcp) > LINK_UNSENT_MAX) {
		link_fail(l, "it does not read");
	}
}

void frames_pump(struct link *l)
{
	char chunk[CHUNK];
	size_t n;
	while (!l->closing && !l->failure && (n = tls_take(l->tls, chunk, sizeof(chunk))))
		write_bytes(l, chunk, n);
}

void frames_put(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	const struct control_header h = {.length = (uint32_t)size, .kind = (uint16_t)kind};
	if (tls_write(l->tls, &h, sizeof(h)) || (size && tls_write(l->tls, body, size)))
		link_fail(l, tls_failure(l->tls));
	frames_pump(l);
}

static void queue_frame(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	const struct control_header h = {.length = (uint32_t)size, .kind = (uint16_t)kind};
	struct frame *f = malloc(sizeof(*f) + sizeof(h) + size);
	if (!f || l->queued + sizeof(h) + size > LINK_UNSENT_MAX) {
		free(f);
		link_fail(l, f ? "it does not answer" : "out of memory");
		return;
	}
	f->size = sizeof(h) + size;
	memcpy(f->bytes, &h, sizeof(h));
	memcpy(f->bytes + sizeof(h), body, size);
	DL_APPEND(l->queue, f);
	l->queued += f->size;
}

void frames_send_queue(struct link *l)
{
	struct frame *f, *next;
	DL_FOREACH_SAFE (l->queue, f, next)
		if (tls_write(l->tls, f->bytes, f->size))
			link_fail(l, tls_failure(l->tls));
	drop_queue(l);
	frames_pump(l);
}

void frames_send(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	if (l->failure)
		return;
	if (l->ready)
		frames_put(l, kind, body, size);
	else
		queue_frame(l, kind, body, size);
}

size_t frames_unsent(const struct link *l)
{
	return l->queued + uv_stream_get_write_queue_size((const uv_stream_t *)&l->tcp);
}

/* ---- Receiving ---- */

/* Strangers get a small buffer. */
static bool make_room(struct link *l)
{
	const size_t size =
		sizeof(struct control_header) + (l->greeted ? CONTROL_BODY_MAX : CONTROL_HELLO_MAX);
	if (l->room == size)
		return true;
	char *buffer = realloc(l->buffer, size);
	if (!buffer)
		return false;
	l->buffer = buffer;
	l->room = size;
	return true;
}

/* Copies the first frame's body to where it is aligned, and hands it on. False: out of memory. */
static bool hand_on(struct link *l, const struct control_header *h, frames_take_fn *take)
{
	_Alignas(8) char small[1024];
	char *body = h->length > sizeof(small) ? malloc(h->length) : small;
	if (!body)
		return false;
	memcpy(body, l->buffer + sizeof(*h), h->length);
	take(l, h, body);
	if (body != small)
		free(body);
	return true;
}

static const char *take_whole(struct link *l, frames_take_fn *take)
{
	struct control_header h;
	while (!l->closing && l->used >= sizeof(h)) {
		memcpy(&h, l->buffer, sizeof(h));
		const size_t most = l->greeted ? CONTROL_BODY_MAX : CONTROL_HELLO_MAX;
		const size_t all = sizeof(h) + h.length;
		if (h.length > most || h.reserved)
			return "a message breaks the protocol";
		if (l->used < all)
			return NULL;
		if (!hand_on(l, &h, take))
			return "out of memory";
		memmove(l->buffer, l->buffer + all, l->used - all);
		l->used -= all;
	}
	return NULL;
}

const char *frames_take(struct link *l, frames_take_fn *take)
{
	long n = 1;
	while (!l->closing && n > 0) {
		if (!make_room(l))
			return "out of memory";
		n = tls_read(l->tls, l->buffer + l->used, l->room - l->used);
		l->used += n > 0 ? (size_t)n : 0;
		const char *why = take_whole(l, take);
		if (why)
			return why;
	}
	if (n >= 0)
		return NULL;
	return tls_ended(l->tls) ? "its connection ended" : tls_failure(l->tls);
}

void frames_free(struct link *l)
{
	drop_queue(l);
	tls_free(l->tls);
	free(l->buffer);
}
