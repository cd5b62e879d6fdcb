/* SPDX-License-Identifier: Apache-2.0
 * Memory shared with the daemon: the table of regions, and the calls that fill it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "call.h"
#include "proto/fdio.h"
#include "session_handle.h"

/* Index of the first region whose base is beyond ptr. */
static size_t upper_bound(const struct regions *r, const void *ptr)
{
	size_t low = 0, high = r->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if ((uintptr_t)r->sorted[middle].base <= (uintptr_t)ptr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct region *region_find(const struct regions *r, const void *ptr)
{
	size_t at = upper_bound(r, ptr);
	if (!at)
		return NULL;
	struct region *region = &r->sorted[at - 1];
	return (uintptr_t)ptr - (uintptr_t)region->base < region->bytes ? region : NULL;
}

ncclsvc_result region_insert(struct regions *r, const struct region *region)
{
	if (r->n == r->room) {
		size_t room = r->room ? 2 * r->room : 16;
		struct region *grown = realloc(r->sorted, room * sizeof(*grown));
		if (!grown)
			return error_set(NCCLSVC_NO_MEMORY, "out of memory");
		r->sorted = grown;
		r->room = room;
	}
	size_t at = upper_bound(r, region->base);
	memmove(&r->sorted[at + 1], &r->sorted[at], (r->n - at) * sizeof(*region));
	r->sorted[at] = *region;
	r->n++;
	return NCCLSVC_OK;
}

void region_remove(struct regions *r, const void *base)
{
	size_t at = upper_bound(r, base);
	if (!at || r->sorted[at - 1].base != base)
		return;
	memmove(&r->sorted[at - 1], &r->sorted[at], (r->n - at) * sizeof(*r->sorted));
	r->n--;
}

void regions_free(struct regions *r)
{
	for (size_t i = 0; i < r->n; i++) {
		munmap(r->sorted[i].base, r->sorted[i].bytes);
		close(r->sorted[i].fd);
	}
	free(r->sorted);
	*r = (struct regions){0};
}

/* Allocates the pages in this process: the daemon refuses memory that it would have to allocate
 * itself. */
static ncclsvc_result populate(void *base, size_t bytes)
{
	const int error = svc_populate(base, bytes);
	if (!error)
		return NCCLSVC_OK;
	errno = -error;
	return error_set(NCCLSVC_NO_MEMORY, "cannot allocate %zu bytes of shared memory: %m",
			 bytes);
}

ncclsvc_result memory_map(size_t bytes, void **ptr, int *fd)
{
	int memfd = svc_memfd_create("ncclsvc", bytes, false);
	if (memfd < 0) {
		errno = -memfd;
		return error_set(errno == EMFILE || errno == ENFILE ? NCCLSVC_LIMIT
								    : NCCLSVC_NO_MEMORY,
				 "cannot create %zu bytes of shared memory: %m", bytes);
	}
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (map == MAP_FAILED) {
		close(memfd);
		return error_set(NCCLSVC_NO_MEMORY, "cannot map %zu bytes of shared memory: %m",
				 bytes);
	}
	madvise(map, bytes, MADV_HUGEPAGE); /* only where the system allows it for shared memory */
	ncclsvc_result r = populate(map, bytes);
	if (r) {
		munmap(map, bytes);
		close(memfd);
		return r;
	}
	*ptr = map;
	*fd = memfd;
	return NCCLSVC_OK;
}

ncclsvc_result region_register(ncclsvc_session *s, int fd, uint64_t bytes, uint64_t deadline,
			       uint32_t *id)
{
	struct call call = {0};
	struct svc_region_reply reply;
	struct svc_region_add request = {.bytes = bytes, .kind = SVC_REGION_MEMFD};
	ncclsvc_result r = call_run(s, &call, SVC_REGION_ADD, &request, fd, deadline);
	if (r)
		return r;
	memcpy(&reply, call.body, sizeof(reply));
	if (!reply.region) {
		session_lose(s, "the daemon broke the protocol: it gave region number 0");
		return session_check(s);
	}
	*id = reply.region;
	return NCCLSVC_OK;
}

/* Takes ownership of the mapping and the fd. */
static ncclsvc_result add(ncclsvc_session *s, void *base, size_t bytes, int fd)
{
	struct region region = {.base = base, .bytes = bytes, .fd = fd, .busy = true};
	uint32_t id = 0, generation;
	session_lock(s);
	generation = s->generation;
	ncclsvc_result r = region_insert(&s->regions, &region);
	if (!r) {
		r = region_register(s, fd, bytes, deadline_in(REQUEST_MS), &id);
		if (!r && generation != s->generation)
			r = error_set(NCCLSVC_DAEMON_LOST, "the daemon was lost in the meantime");
		struct region *there = region_find(&s->regions, base);
		there->id = id;
		there->busy = false;
		if (r)
			region_remove(&s->regions, base);
	}
	session_unlock(s);
	if (r) {
		munmap(base, bytes);
		close(fd);
	}
	return r;
}

ncclsvc_result ncclsvc_mem_alloc(ncclsvc_session *s, size_t bytes, void **ptr)
{
	void *base = NULL;
	int fd = -1;
	if (!s || !ptr)
		return error_argument("ncclsvc_mem_alloc: the session or ptr is NULL");
	if (!bytes || bytes > SVC_REGION_MAX)
		return error_argument("cannot allocate %zu bytes: the valid range is 1 to %llu",
				      bytes, (unsigned long long)SVC_REGION_MAX);
	ncclsvc_result r = memory_map(bytes, &base, &fd);
	if (!r)
		r = add(s, base, bytes, fd);
	if (!r)
		*ptr = base;
	return r;
}

ncclsvc_result ncclsvc_mem_register_fd(ncclsvc_session *s, int fd, size_t bytes, void **ptr)
{
	char text[SVC_TEXT_BYTES];
	if (!s || !ptr)
		return error_argument("ncclsvc_mem_register_fd: the session or ptr is NULL");
	if (!bytes || bytes > SVC_REGION_MAX)
		return error_argument("cannot register %zu bytes: the valid range is 1 to %llu",
				      bytes, (unsigned long long)SVC_REGION_MAX);
	if (!svc_memfd_trusted(fd, bytes, text))
		return error_argument("%s", text);
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return error_set(NCCLSVC_LIMIT, "cannot duplicate the memfd: %m");
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
	if (base == MAP_FAILED) {
		ncclsvc_result r = error_set(NCCLSVC_NO_MEMORY, "cannot map the memfd: %m");
		close(own);
		return r;
	}
	ncclsvc_result r = populate(base, bytes);
	if (r) {
		munmap(base, bytes);
		close(own);
		return r;
	}
	r = add(s, base, bytes, own);
	if (!r)
		*ptr = base;
	return r;
}

ncclsvc_result region_free(ncclsvc_session *s, struct region *region)
{
	struct call call = {0};
	void *const ptr = region->base;
	ncclsvc_result r = NCCLSVC_OK;
	if (region->busy)
		return error_set(NCCLSVC_BUSY, "%p is being registered or freed by another thread",
				 ptr);
	const uint32_t generation = s->generation;
	region->busy = true;
	if (!s->lost && region->id)
		r = call_run(s, &call, SVC_REGION_DEL,
			     &(struct svc_region_del){.region = region->id}, -1,
			     deadline_in(REQUEST_MS));
	if (s->lost || generation != s->generation || r == NCCLSVC_NOT_FOUND)
		r = NCCLSVC_OK;
	region = region_find(&s->regions, ptr);
	region->busy = false;
	if (r)
		return r;
	const struct region gone = *region;
	region_remove(&s->regions, ptr);
	session_unlock(s);
	munmap(gone.base, gone.bytes);
	close(gone.fd);
	session_lock(s);
	return NCCLSVC_OK;
}

void regions_unregister(struct regions *r)
{
	for (size_t i = 0; i < r->n; i++)
		r->sorted[i].id = 0;
}

ncclsvc_result regions_register(ncclsvc_session *s, uint64_t deadline)
{
	const struct regions *r = &s->regions;
	for (size_t i = 0; i < r->n; i++) {
		struct region *region = &r->sorted[i];
		if (region->id || region->busy)
			continue;
		uint32_t id = 0;
		const char *base = region->base;
		region->busy = true;
		ncclsvc_result result =
			region_register(s, region->fd, region->bytes, deadline, &id);
		region = region_find(r, base);
		region->id = id;
		region->busy = false;
		if (result)
			return result;
		i = (size_t)-1; /* the table may have changed meanwhile */
	}
	return NCCLSVC_OK;
}
