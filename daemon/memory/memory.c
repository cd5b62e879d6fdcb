/* SPDX-License-Identifier: Apache-2.0
 * Session memory (rings), regions, and what each user may hold of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/fault.h"
#include "base/loop.h"
#include "fdio.h"
#include "memory.h"
#include "sched/executor.h"
#include "session/sessions.h"

/* ---- Rings ---- */

#define RING_FDS 3 /* doorbell, completion, and the ring's own where GPUs' workers need it */

/* The completion socket: pair[0] stays here, pair[1] is for the client. An eventfd's O_NONBLOCK and
 * counter would be the client's to change; here each end has its own. The client can send nothing
 * to pair[0], so that its close has no passed files to close. */
static bool make_completion(int pair[2])
{
	const int least = 1; /* the kernel raises it to its own minimum: a few bytes fit */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		return false;
	if (shutdown(pair[0], SHUT_RD) == 0 &&
	    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)) == 0)
		return true;
	svc_close_fds(pair, 2);
	return false;
}

/* On success the session has the mapping, the doorbell and its end of the completion socket, and
 * fds are what ATTACH's reply brings. */
static bool make_ring(struct client *c, uint32_t entries, int fds[RING_FDS])
{
	size_t size = svc_ring_size(entries);
	int fd = svc_memfd_create("ncclsvc-ring", size, true);
	int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int completion[2] = {-1, -1};
	void *p = MAP_FAILED;
	if (fd >= 0 && doorbell >= 0 && make_completion(completion))
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		int all[] = {fd, doorbell, completion[0], completion[1]};
		svc_close_fds(all, 4);
		return false;
	}
	fds[0] = fd;
	fds[1] = doorbell;
	fds[2] = completion[1];
	c->ring = p;
	c->ring_fault = fault_watch(p, size, false);
	c->ring_size = size;
	c->entries = entries;
	c->doorbell = doorbell;
	c->completion = completion[0];
	c->ring->magic = SVC_RING_MAGIC;
	c->ring->version = c->version;
	c->ring->entries = entries;
	c->ring->timelines = SVC_TIMELINES;
	c->ring->size = size;
	return true;
}

static bool take_ring(struct client *c, uint64_t bytes, char *text)
{
	if (!account_take(c->account, SHARE_RING_BYTES, bytes, text))
		return false;
	if (account_take(c->account, SHARE_FDS, RING_FDS, text))
		return true;
	account_give(c->account, SHARE_RING_BYTES, bytes);
	return false;
}

static void give_ring(struct client *c, uint64_t bytes)
{
	account_give(c->account, SHARE_RING_BYTES, bytes);
	account_give(c->account, SHARE_FDS, RING_FDS);
}

void memory_attach(struct memory *s, struct client *c, uint32_t serial, const struct svc_attach *a)
{
	char text[SVC_TEXT_BYTES];
	if (c->ring) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_PROTOCOL,
			     "this session has a ring already");
		return;
	}
	if (s->callbacks->uses_gpus(c)) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_PROTOCOL,
			     "attach before joining a communicator of GPUs: their workers know the "
			     "session as it was then");
		return;
	}
	if (a->reserved || !svc_ring_entries_valid(a->entries)) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_INVALID_ARGUMENT,
			     "a ring has a power of two of entries, %d to %d", SVC_RING_MIN,
			     s->config->ring_max);
		return;
	}
	if (a->entries > (uint32_t)s->config->ring_max) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_LIMIT,
			     "a ring of %u entries is over the limit of %d (ring_max)", a->entries,
			     s->config->ring_max);
		return;
	}
	if (!take_ring(c, svc_ring_size(a->entries), text)) {
		client_error(c, SVC_ATTACH, serial, NCCLSVC_LIMIT, "%s", text);
		return;
	}
	int fds[RING_FDS];
	if (!account_memory_left(c->account, svc_ring_size(a->entries)) ||
	    !make_ring(c, a->entries, fds)) {
		give_ring(c, svc_ring_size(a->entries));
		client_error(c, SVC_ATTACH, serial, NCCLSVC_NO_MEMORY,
			     "the daemon has no memory, or no file descriptors, for a ring");
		return;
	}
	struct command cmd = {.kind = COMMAND_SESSION_RING, .session = c->slot};
	cmd.ring.ring = c->ring;
	cmd.ring.entries = c->entries;
	cmd.ring.doorbell = c->doorbell;
	cmd.ring.completion = c->completion;
	executor_command(s->executor, &cmd);
	struct svc_attach_reply r = {.size = c->ring_size, .entries = c->entries};
	client_reply(c, SVC_ATTACH, serial, &r, sizeof(r), fds, RING_FDS);
	close(fds[2]);
	if (s->gpus->ngpus)
		c->ring_fd = fds[0]; /* a worker will need it, and the next one too */
	else
		close(fds[0]);
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

/* Imported memory is the trainer's own: only its mapping counts. */
static uint64_t counted_bytes(uint32_t kind, uint64_t bytes)
{
	return kind == SVC_REGION_MEMFD || kind == SVC_REGION_LENT ? bytes : 0;
}

static uint64_t counted_fds(uint32_t kind)
{
	return kind == SVC_REGION_VMM || kind == SVC_REGION_LENT;
}

bool memory_take(struct client *c, unsigned opcode, uint32_t serial, uint32_t kind, uint64_t bytes)
{
	struct account *a = c->account;
	const uint64_t n = counted_bytes(kind, bytes), fds = counted_fds(kind);
	char text[SVC_TEXT_BYTES];
	if (!account_take(a, SHARE_REGIONS, 1, text))
		goto refused;
	if (!account_take(a, SHARE_REGION_BYTES, n, text))
		goto give_region;
	if (!account_take(a, SHARE_FDS, fds, text))
		goto give_bytes;
	c->regions++;
	c->region_bytes += n;
	return true;
give_bytes:
	account_give(a, SHARE_REGION_BYTES, n);
give_region:
	account_give(a, SHARE_REGIONS, 1);
refused:
	client_error(c, opcode, serial, NCCLSVC_LIMIT, "%s", text);
	return false;
}

void memory_give(struct client *c, uint32_t kind, uint64_t bytes)
{
	const uint64_t n = counted_bytes(kind, bytes);
	account_give(c->account, SHARE_REGIONS, 1);
	account_give(c->account, SHARE_REGION_BYTES, n);
	account_give(c->account, SHARE_FDS, counted_fds(kind));
	c->regions--;
	c->region_bytes -= n;
}

/* Returns MAP_FAILED, with errno set, also where the region would leave nothing for the daemon. */
static void *map_region(const struct account *a, int fd, uint64_t bytes)
{
	if (account_memory_left(a, bytes))
		return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	errno = ENOMEM;
	return MAP_FAILED;
}

void memory_add(struct memory *s, struct client *c, uint32_t serial, const struct svc_region_add *r,
		int fd)
{
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
	if (!svc_memfd_trusted(fd, r->bytes, text)) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_INVALID_ARGUMENT, "%s", text);
		return;
	}
	if (!svc_memfd_filled(fd, r->bytes)) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_INVALID_ARGUMENT,
			     "the memfd has holes, and the daemon allocates no pages for others: "
			     "write to it, or fallocate(2) it, before it is registered");
		return;
	}
	uint32_t i = memory_free_region(c);
	if (!i) {
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_LIMIT,
			     "a session has at most %d regions", SVC_SESSION_REGIONS - 1);
		return;
	}
	if (!memory_take(c, SVC_REGION_ADD, serial, r->kind, r->bytes))
		return;
	void *p = map_region(c->account, fd, r->bytes);
	if (p == MAP_FAILED) {
		memory_give(c, r->kind, r->bytes);
		client_error(c, SVC_REGION_ADD, serial, NCCLSVC_NO_MEMORY,
			     "the daemon cannot map the region: %s", strerror(errno));
		return;
	}
	c->mappings[i] = (struct mapping){.used = true,
					  .kind = SVC_REGION_MEMFD,
					  .device = SVC_DEVICE_HOST,
					  .fd = -1,
					  .base = p,
					  .bytes = r->bytes,
					  .fault = fault_watch(p, r->bytes, true),
					  .since_ns = clock_now()};
	executor_command(s->executor, &(struct command){.kind = COMMAND_REGION_ADD,
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

static void nothing(uv_work_t *work)
{
	(void)work;
}

static void nothing_done(uv_work_t *work, int status)
{
	(void)status;
	free(work);
}

void memory_start(struct memory *s)
{
	uv_work_t *work = malloc(sizeof(*work));
	if (!work || uv_queue_work(s->loop->uv, work, nothing, nothing_done))
		free(work);
}

static void unmap(struct memory *s, struct client *c, struct mapping *m)
{
	if (m->kind != SVC_REGION_MEMFD) {
		gpu_memory_close(s, c, m);
		return;
	}
	fault_unwatch(m->fault);
	unmap_beside(s->loop->uv, m->base, m->bytes);
	memory_give(c, m->kind, m->bytes);
	*m = (struct mapping){0};
}

void memory_remove(struct memory *s, struct client *c, uint32_t serial, uint32_t region)
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
	executor_command(s->executor,
			 &(struct command){.kind = COMMAND_REGION_DEL,
					   .session = c->slot,
					   .region = {.region = region, .serial = serial}});
}

void memory_removed(struct memory *s, struct client *c, uint32_t serial, uint32_t region, bool gone)
{
	if (!gone) {
		c->mappings[region].leaving = false;
		client_error(c, SVC_REGION_DEL, serial, NCCLSVC_BUSY,
			     "a pending task, or an open task group, uses region %u", region);
		return;
	}
	unmap(s, c, &c->mappings[region]);
	client_reply(c, SVC_REGION_DEL, serial, NULL, 0, NULL, 0);
}

static const char *what_failed(const struct client *c)
{
	if (c->ring && fault_at(c->ring))
		return "a page of its ring failed";
	for (uint32_t i = 1; i < c->nmappings; i++)
		if (c->mappings[i].fault && fault_at(c->mappings[i].base))
			return "a page of its registered memory failed: it was punched out, and "
			       "the "
			       "system has no other, or it is damaged";
	return NULL;
}

void memory_fail(struct memory *s)
{
	struct client *c, *next;
	DL_FOREACH_SAFE (s->sessions->clients, c, next) {
		const char *text = c->state == CLIENT_OPEN ? what_failed(c) : NULL;
		if (text)
			client_close(c, NCCLSVC_NO_MEMORY, text);
	}
}

void memory_free_all(struct memory *s, struct client *c)
{
	for (uint32_t i = 1; i < c->nmappings; i++)
		if (c->mappings[i].used)
			unmap(s, c, &c->mappings[i]);
	free(c->mappings);
	gpu_session_close(s, c);
	if (c->ring_fd >= 0)
		close(c->ring_fd);
	if (c->ring) {
		give_ring(c, c->ring_size);
		fault_unwatch(c->ring_fault);
		munmap(c->ring, c->ring_size);
	}
	if (c->doorbell >= 0)
		close(c->doorbell);
	if (c->completion >= 0)
		close(c->completion);
}
