/* SPDX-License-Identifier: Apache-2.0
 * Registered memory that stands in for plain pointers: chunks of powers of two, kept for later
 * tasks. */
#include <stdlib.h>
#include <string.h>
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
	chunk->connection = session_connections(s);
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

ncclsvc_result chunk_renew(ncclsvc_session *s, struct chunk *chunk,
			   ncclsvc_result (*add)(ncclsvc_session *s, uint32_t region, int fd,
						 uint64_t bytes))
{
	int fd;
	void *base;
	ncclsvc_result r = memory_map(chunk->bytes, &base, &fd);
	if (r)
		return r;
	memcpy(base, chunk->base, chunk->bytes);
	munmap(base, chunk->bytes);
	/* The same address: nothing else changes. */
	base = mmap(chunk->base, chunk->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		    0);
	r = base == MAP_FAILED ? error_set(NCCLSVC_NO_MEMORY, "cannot map session memory: %m")
			       : add(s, chunk->region, fd, chunk->bytes);
	close(fd);
	chunk->connection = session_connections(s);
	return r;
}

void staging_put(ncclsvc_session *s, struct chunk *chunk)
{
	struct staging *st = &s->staging;
	bool known = !s->lost && chunk->connection == session_connections(s);
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
