/* SPDX-License-Identifier: Apache-2.0
 * Session memory (rings), regions, and what each user may hold of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fdio.h"
#include "gpu.h"
#include "server_state.h"

struct account *memory_account(struct server *s, uint32_t uid)
{
	struct account *a;
	HASH_FIND(hh, s->accounts, &uid, sizeof(uid), a);
	if (a)
		return a;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->server = s;
	a->uid = uid;
	HASH_ADD(hh, s->accounts, uid, sizeof(a->uid), a);
	return a;
}

void memory_account_drop(struct server *s, struct account *a)
{
	if (a->sessions || a->region_bytes || a->ranks || a->plan_tasks)
		return;
	HASH_DEL(s->accounts, a);
	free(a);
}

/* ---- Rings ---- */

/* Returns the memfd, or -1. On success the client holds the mapping and both eventfds. */
static int make_ring(struct client *c, uint32_t entries)
{
	size_t size = svc_ring_size(entries);
	int fd = svc_memfd_create("ncclsvc-ring", size, true);
	if (fd < 0)
		return -1;
	int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int completion = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	void *p = MAP_FAILED;
	if (doorbell >= 0 && completion >= 0)
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		int all[] = {fd, doorbell, completion};
		svc_close_fds(all, 3);
		return -1;
	}
	c->ring = p;
	c->ring_size = size;
	c->entries = entries;
	c->doorbell = doorbell;
	c->completion = completion;
	c->ring->magic = SVC_RING_MAGIC;
	c->ring->version = SVC_PROTOCOL_MAX;
	c->ring->entries = entries;
	c->ring->timelines = SVC_TIMELINES;
	c->ring->size = size;
	return fd;
}

void memory_attach(struct client *c, uint32_t serial, const struct svc_attach *a)
{
	if (c->ring) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_PROTOCOL,
			     "this session has a ring already");
		return;
	}
	for (uint32_t i = 1; i < c->nmemberships; i++) {
		const struct communicator *m = c->memberships[i].comm;
		if (!m || !m->cuda)
			continue;
		client_error(c, SVC_ATTACH, serial, NCCLSVC_PROTOCOL,
			     "attach before joining a communicator of GPUs: their workers know the "
			     "session as it was then");
		return;
	}
	if (a->reserved || !svc_ring_entries_valid(a->entries)) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_INVALID_ARGUMENT,
			     "a ring has a power of two of entries, %d to %d", SVC_RING_MIN,
			     c->server->config->ring_max);
		return;
	}
	if (a->entries > (uint32_t)c->server->config->ring_max) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_LIMIT,
			     "a ring of %u entries is over the limit of %d (ring_max)", a->entries,
			     c->server->config->ring_max);
		return;
	}
	if (svc_ring_size(a->entries) > SVC_USER_RING_BYTES - c->account->ring_bytes) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_LIMIT,
			     "the rings of user %u would pass the limit of %llu bytes in all",
			     c->uid, (unsigned long long)SVC_USER_RING_BYTES);
		return;
	}
	int memfd = make_ring(c, a->entries);
	if (memfd < 0) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_NO_MEMORY,
			     "the daemon has no memory, or no file descriptors, for a ring");
		return;
	}
	c->account->ring_bytes += c->ring_size;
	struct command cmd = {.kind = COMMAND_SESSION_RING, .session = c->slot};
	cmd.ring.ring = c->ring;
	cmd.ring.entries = c->entries;
	cmd.ring.doorbell = c->doorbell;
	cmd.ring.completion = c->completion;
	server_command(c->server, &cmd);
	struct svc_attach_reply r = {.size = c->ring_size, .entries = c->entries};
	int fds[] = {memfd, c->doorbell, c->completion};
	client_reply(c, SVC_ATTACH, serial, &r, sizeof(r), fds, 3);
	if (c->server->ngpus)
		c->ring_fd = memfd; /* a worker will need it, and the next one too */
	else
		close(memfd);
}

/* ---- Regions ---- */

uint32_t memory_free_region(struct client *c)
{
	for (uint32_t i = 1; i < c->nmappings; i++)
		if (!c->mappings[i].used)
			return i;
	uint32_t n = c->nmappings ? c->nmappings * 2 : 8;
	if (n > SVC_SESSION_REGIONS)
		n = SVC_SESSION_REGIONS;
	if (n <= c->nmappings)
		return 0;
	struct mapping *m = realloc(c->mappings, n * sizeof(*m));
	if (!m)
		return 0;
	memset(m + c->nmappings, 0, (n - c->nmappings) * sizeof(*m));
	uint32_t i = c->nmappings ? c->nmappings : 1;
	c->mappings = m;
	c->nmappings = n;
	return i;
}

void memory_add(struct client *c, uint32_t serial, const struct svc_region_add *r, int fd)
{
	struct server *s = c->server;
	char text[SVC_TEXT_BYTES];
	if (r->reserved || r->kind != SVC_REGION_MEMFD) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_INVALID_ARGUMENT,
			     "unknown kind of region, or reserved is not 0");
		return;
	}
	if (!r->bytes || r->bytes > SVC_REGION_MAX) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_INVALID_ARGUMENT,
			     "a region has 1 to 2^46 bytes");
		return;
	}
	uint64_t limit = s->config->user_region_bytes, used = c->account->region_bytes;
	if (used > limit || r->bytes > limit - used) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_LIMIT,
			     "%llu bytes more would pass user %u's limit of %llu "
			     "(user_region_bytes); %llu are in use",
			     (unsigned long long)r->bytes, c->uid,
			     (unsigned long long)s->config->user_region_bytes,
			     (unsigned long long)c->account->region_bytes);
		return;
	}
	if (!svc_memfd_trusted(fd, r->bytes, text)) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_INVALID_ARGUMENT, "%s", text);
		return;
	}
	uint32_t i = memory_free_region(c);
	if (!i) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_LIMIT,
			     "a session has at most %d regions", SVC_SESSION_REGIONS - 1);
		return;
	}
	void *p = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_NO_MEMORY,
			     "the region cannot be mapped: %s", strerror(errno));
		return;
	}
	c->mappings[i] = (struct mapping){.used = true,
					  .kind = SVC_REGION_MEMFD,
					  .device = SVC_DEVICE_HOST,
					  .fd = -1,
					  .base = p,
					  .bytes = r->bytes,
					  .since_ns = server_now()};
	c->regions++;
	c->region_bytes += r->bytes;
	c->account->region_bytes += r->bytes;
	s->regions++;
	s->region_bytes += r->bytes;
	server_command(s, &(struct command){.kind = COMMAND_REGION_ADD,
					    .session = c->slot,
					    .region = {.region = i,
						       .base = p,
						       .bytes = r->bytes,
						       .serial = serial,
						       .device = SVC_DEVICE_HOST}});
	struct svc_region_reply reply = {.region = i};
	client_reply(c, SVC_REGION_ADD, serial, &reply, sizeof(reply), NULL, 0);
}

/* Whoever unmaps last frees the pages, up to 200 us a MiB: no other session should wait for that,
 * nor for the address space, which is locked for the length of one call. */
#define UNMAP_AT_ONCE (UINT64_C(4) << 20)

struct unmapping {
	uv_work_t work;
	void *base;
	size_t bytes;
};

static void unmap_work(uv_work_t *work)
{
	const struct unmapping *u = work->data;
	for (size_t at = 0; at < u->bytes; at += UNMAP_AT_ONCE) {
		size_t left = u->bytes - at;
		munmap((char *)u->base + at, left < UNMAP_AT_ONCE ? left : UNMAP_AT_ONCE);
	}
}

static void unmap_done(uv_work_t *work, int status)
{
	(void)status;
	free(work->data);
}

static void unmap_beside(uv_loop_t *loop, void *base, size_t bytes)
{
	struct unmapping *u = bytes > UNMAP_AT_ONCE ? malloc(sizeof(*u)) : NULL;
	if (u)
		*u = (struct unmapping){.work.data = u, .base = base, .bytes = bytes};
	if (u && !uv_queue_work(loop, &u->work, unmap_work, unmap_done))
		return;
	free(u);
	munmap(base, bytes);
}

static void unmap(struct client *c, struct mapping *m)
{
	if (m->kind != SVC_REGION_MEMFD) {
		gpu_memory_close(c, m);
		return;
	}
	unmap_beside(c->server->loop, m->base, m->bytes);
	c->regions--;
	c->region_bytes -= m->bytes;
	c->account->region_bytes -= m->bytes;
	c->server->regions--;
	c->server->region_bytes -= m->bytes;
	*m = (struct mapping){0};
}

void memory_remove(struct client *c, uint32_t serial, uint32_t region)
{
	if (!region || region >= c->nmappings || !c->mappings[region].used ||
	    c->mappings[region].leaving) {
		client_error(c, SVC_REGION_DEL, serial, NCCLSVC_NOT_FOUND,
			     "there is no region %u in this session", region);
		return;
	}
	if (c->mappings[region].pending) {
		client_error(c, SVC_REGION_DEL, serial, NCCLSVC_BUSY, "region %u is being imported",
			     region);
		return;
	}
	c->mappings[region].leaving = true;
	server_command(c->server,
		       &(struct command){.kind = COMMAND_REGION_DEL,
					 .session = c->slot,
					 .region = {.region = region, .serial = serial}});
}

void memory_removed(struct client *c, uint32_t serial, uint32_t region, bool gone)
{
	if (!gone) {
		c->mappings[region].leaving = false;
		client_error(c, SVC_REGION_DEL, serial, NCCLSVC_BUSY,
			     "a pending task, or an open task group, uses region %u", region);
		return;
	}
	unmap(c, &c->mappings[region]);
	client_reply(c, SVC_REGION_DEL, serial, NULL, 0, NULL, 0);
}

void memory_free_all(struct client *c)
{
	for (uint32_t i = 1; i < c->nmappings; i++)
		if (c->mappings[i].used)
			unmap(c, &c->mappings[i]);
	free(c->mappings);
	gpu_session_close(c);
	if (c->ring_fd >= 0)
		close(c->ring_fd);
	if (c->ring) {
		c->account->ring_bytes -= c->ring_size;
		munmap(c->ring, c->ring_size);
	}
	if (c->doorbell >= 0)
		close(c->doorbell);
	if (c->completion >= 0)
		close(c->completion);
}
