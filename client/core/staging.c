/* SPDX-License-Identifier: Apache-2.0
 * Registered memory that stands in for plain pointers: chunks of powers of two, kept for later
 * tasks. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "call.h"
#include "session_handle.h"

#define SMALLEST_ORDER 16 /* 64 KiB */
#define IDLE_BYTES_MAX ((size_t)512 << 20)

void chunk_free(struct chunk *chunk)
{
	munmap(chunk->base, chunk->bytes);
	free(chunk);
}

void staging_free(ncclsvc_session *s)
{
	for (unsigned order = 0; order < STAGING_ORDERS; order++) {
		while (s->staging.idle[order]) {
			struct chunk *chunk = s->staging.idle[order];
			s->staging.idle[order] = chunk->next;
			chunk_free(chunk);
		}
	}
	s->staging.idle_bytes = 0;
}

static void unregister(ncclsvc_session *s, const struct chunk *chunk)
{
	/* The daemon has its own mapping, so ours can go before it answers. */
	call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = chunk->region});
}

static void give_up_idle(ncclsvc_session *s)
{
	for (unsigned order = 0; order < STAGING_ORDERS; order++)
		for (const struct chunk *c = s->staging.idle[order]; c; c = c->next)
			unregister(s, c);
	staging_free(s);
}

static ncclsvc_result chunk_make(ncclsvc_session *s, unsigned order, struct chunk **out)
{
	int fd;
	void *base;
	struct chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	chunk->order = order;
	chunk->bytes = (size_t)1 << order;
	chunk->generation = s->generation;
	ncclsvc_result r = memory_map(chunk->bytes, &base, &fd);
	if (r) {
		free(chunk);
		return r;
	}
	chunk->base = base;
	uint64_t deadline = deadline_in(REQUEST_MS);
	r = region_register(s, fd, chunk->bytes, deadline, &chunk->region);
	if (r == NCCLSVC_LIMIT && s->staging.idle_bytes) {
		give_up_idle(s);
		r = region_register(s, fd, chunk->bytes, deadline, &chunk->region);
	}
	close(fd);
	if (r)
		chunk_free(chunk);
	else
		*out = chunk;
	return r;
}

ncclsvc_result staging_get(ncclsvc_session *s, size_t bytes, struct chunk **out)
{
	struct staging *st = &s->staging;
	unsigned order = SMALLEST_ORDER;
	while (order < STAGING_ORDERS - 1 && (size_t)1 << order < bytes)
		order++;
	if ((size_t)1 << order < bytes)
		return error_argument("a buffer of %zu bytes is too large to copy", bytes);
	struct chunk *chunk = st->idle[order];
	if (!chunk)
		return chunk_make(s, order, out);
	st->idle[order] = chunk->next;
	st->idle_bytes -= chunk->bytes;
	*out = chunk;
	return NCCLSVC_OK;
}

void staging_put(ncclsvc_session *s, struct chunk *chunk)
{
	struct staging *st = &s->staging;
	bool known = !s->lost && chunk->generation == s->generation;
	if (known && st->idle_bytes + chunk->bytes <= IDLE_BYTES_MAX) {
		chunk->next = st->idle[chunk->order];
		st->idle[chunk->order] = chunk;
		st->idle_bytes += chunk->bytes;
		return;
	}
	if (known)
		unregister(s, chunk);
	chunk_free(chunk);
}
