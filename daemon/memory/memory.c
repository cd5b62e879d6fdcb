/* SPDX-License-Identifier: Apache-2.0
 * Session memory (rings), regions, and their limits per user. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/fault.h"
#include "base/loop.h"
#include "memory.h"
#include "proto/fdio.h"
#include "sched/api/scheduler.h"
#include "session/sessions.h"

#define FAILURES_PER_TURN 16 /* mappings; each may end a session */
#define REPLACEMENT_MIN	  ((uint64_t)4 << 20)
#define REPLACEMENT_MAX	  ((uint64_t)256 << 20)

/* ---- Rings ---- */

#define RING_FDS 3 /* doorbell, completion, and the ring's own if GPUs' workers need it */

/* The completion socket: pair[0] stays here, pair[1] goes to the client. With an eventfd, the
 * client could change O_NONBLOCK and the counter; with a socket, each side has its own end. The
 * client cannot send to pair[0], so closing pair[0] never has to close passed files. */
static bool make_completion(int pair[2])
{
	const int least = 1; /* the kernel raises it to its minimum, in which a few bytes fit */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		return false;
	if (shutdown(pair[0], SHUT_RD) == 0 &&
	    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)) == 0)
		return true;
	svc_close_fds(pair, 2);
	return false;
}

/* On success the session has the mapping, the doorbell and its end of the completion socket; fds
 * are for ATTACH's reply. fd: the memory, which this function takes. */
static bool map_ring(struct session *c, uint32_t entries, int fd, int fds[RING_FDS])
{
	size_t size = svc_ring_size(entries);
	int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int completion[2] = {-1, -1};
	void *p = MAP_FAILED;
	if (fd >= 0 && doorbell >= 0 && make_completion(completion))
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	const uint32_t fault = p == MAP_FAILED ? 0 : fault_watch(p, size, false, c->slot);
	if (!fault) {
		if (p != MAP_FAILED)
			munmap(p, size);
		int all[] = {fd, doorbell, completion[0], completion[1]};
		svc_close_fds(all, 4);
		return false;
	}
	fds[0] = fd;
	fds[1] = doorbell;
	fds[2] = completion[1];
	c->ring = p;
	c->ring_fault = fault;
	c->ring_size = size;
	c->entries = entries;
	c->doorbell = doorbell;
	c->completion = completion[0];
	return true;
}

static void unmap_ring(struct session *c, int fds[RING_FDS])
{
	int own[] = {c->completion};
	fault_unwatch(c->ring_fault);
	munmap(c->ring, c->ring_size);
	svc_close_fds(fds, RING_FDS);
	svc_close_fds(own, 1);
	c->ring = NULL;
	c->doorbell = c->completion = -1;
}

static void begin_ring(struct session *c)
{
	c->ring->magic = SVC_RING_MAGIC;
	c->ring->version = c->version;
	c->ring->entries = c->entries;
	c->ring->timelines = SVC_TIMELINES;
	c->ring->size = c->ring_size;
	atomic_store(&c->ring->ended, 0);
	atomic_store(&c->ring->daemon, getpid());
}

static bool take_ring(struct session *c, uint64_t bytes, char *text)
{
	if (!account_take(c->account, SHARE_RING_BYTES, bytes, text))
		return false;
	if (account_take(c->account, SHARE_FDS, RING_FDS, text))
		return true;
	account_give(c->account, SHARE_RING_BYTES, bytes);
	return false;
}

static void give_ring(struct session *c, uint64_t bytes)
{
	account_give(c->account, SHARE_RING_BYTES, bytes);
	account_give(c->account, SHARE_FDS, RING_FDS);
}

/* ---- The ring of a session that has come back ---- */

/* Whether the process belongs to an earlier daemon and is still running. A client can write any pid
 * here; pids of other programs are ignored. */
static bool is_running(const struct gpus *gpus, int32_t pid)
{
	char name[32] = "", path[40];
	bool own = pid == getpid();
	for (uint32_t i = 0; i < gpus->ngpus; i++)
		own = own || gpus->gpu[i]->info.pid == pid;
	const int pidfd = own || pid <= 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return false;
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	const bool known = fd >= 0 && read(fd, name, sizeof(name) - 1) > 0 &&
			   !strncmp(name, "ncclsvcd", sizeof("ncclsvcd") - 1);
	if (fd >= 0)
		close(fd);
	const bool running = known && !poll(&p, 1, 0);
	close(pidfd);
	return running;
}

/* The pid of a process that can still write to the ring; 0: all have exited. */
static int32_t writer_of(const struct gpus *gpus, const struct svc_ring *ring)
{
	const int32_t daemon = atomic_load(&ring->daemon);
	if (is_running(gpus, daemon))
		return daemon;
	for (uint32_t i = 0; i < SVC_RING_WORKERS; i++) {
		const int32_t worker = atomic_load(&ring->workers[i]);
		if (is_running(gpus, worker))
			return worker;
	}
	return 0;
}

/* False: the memory cannot be a ring, and an error was sent. */
static bool is_ring(struct session *c, uint32_t request_id, uint32_t entries, int fd)
{
	char text[SVC_TEXT_BYTES];
	struct stat st;
	const uint64_t bytes = svc_ring_size(entries);
	if (!svc_memfd_trusted(fd, bytes, text))
		session_error(c, SVC_ATTACH_AGAIN, request_id, NCCLSVC_INVALID_ARGUMENT, "%s",
			      text);
	else if (fstat(fd, &st) || (uint64_t)st.st_size != bytes)
		session_error(c, SVC_ATTACH_AGAIN, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the memory is not a ring of %u entries", entries);
	else
		return true;
	return false;
}

static bool may_attach(const struct memory *s, struct session *c, unsigned opcode,
		       uint32_t request_id, const struct svc_attach *a)
{
	char text[SVC_TEXT_BYTES];
	if (c->ring)
		session_error(c, opcode, request_id, NCCLSVC_PROTOCOL,
			      "this session has a ring already");
	else if (s->callbacks->uses_gpus(c))
		session_error(c, opcode, request_id, NCCLSVC_PROTOCOL,
			      "attach before joining a communicator of GPUs");
	else if (a->reserved || !svc_ring_entries_valid(a->entries))
		session_error(c, opcode, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the number of ring entries must be a power of two from %d to %d",
			      SVC_RING_MIN, s->config->ring_max);
	else if (a->entries > (uint32_t)s->config->ring_max)
		session_error(c, opcode, request_id, NCCLSVC_LIMIT,
			      "a ring of %u entries exceeds the limit of %d (ring_max)", a->entries,
			      s->config->ring_max);
	else if (take_ring(c, svc_ring_size(a->entries), text))
		return true;
	else if (!session_wait(c))
		session_error(c, opcode, request_id, NCCLSVC_LIMIT, "%s", text);
	return false;
}

void memory_attach(struct memory *s, struct session *c, unsigned opcode, uint32_t request_id,
		   const struct svc_attach *a, int fd)
{
	int fds[RING_FDS];
	const bool again = opcode == SVC_ATTACH_AGAIN;
	if (!may_attach(s, c, opcode, request_id, a))
		return;
	const uint64_t bytes = svc_ring_size(a->entries);
	if (again && !is_ring(c, request_id, a->entries, fd)) {
		give_ring(c, bytes);
		return;
	}
	if (!account_memory_left(c->account, bytes) ||
	    !map_ring(c, a->entries,
		      again ? fcntl(fd, F_DUPFD_CLOEXEC, 0)
			    : svc_memfd_create("ncclsvc-ring", bytes, true),
		      fds)) {
		give_ring(c, bytes);
		session_error(c, opcode, request_id, NCCLSVC_NO_MEMORY,
			      "the daemon has no memory, or no file descriptors, for a ring");
		return;
	}
	const int32_t writer = again ? writer_of(s->gpus, c->ring) : 0;
	if (writer) {
		unmap_ring(c, fds);
		give_ring(c, bytes);
		session_error(c, opcode, request_id, NCCLSVC_AGAIN,
			      "process %d of the previous daemon has not exited yet", writer);
		return;
	}
	begin_ring(c);
	struct command cmd = {.kind = COMMAND_SESSION_RING, .session = c->slot};
	cmd.ring.ring = c->ring;
	cmd.ring.entries = c->entries;
	cmd.ring.doorbell = c->doorbell;
	cmd.ring.completion = c->completion;
	scheduler_command(s->scheduler, &cmd);
	struct svc_attach_reply r = {.size = c->ring_size, .entries = c->entries};
	session_reply(c, opcode, request_id, &r, sizeof(r), fds, RING_FDS);
	close(fds[2]);
	if (s->gpus->ngpus)
		c->ring_fd = fds[0]; /* workers need it, including later ones */
	else
		close(fds[0]);
}

/* ---- Regions ---- */

/* Lower numbers first. */
static void add_free(struct session *c, uint32_t from, uint32_t to)
{
	for (uint32_t i = to; i-- > from;) {
		c->mappings[i].next_free = c->free_mapping;
		c->free_mapping = i;
	}
}

uint32_t memory_free_region(struct session *c)
{
	const uint32_t had = c->nmappings;
	if (c->free_mapping)
		return c->free_mapping;
	const uint32_t n = !had ? 8 : had < SVC_SESSION_REGIONS / 2 ? had * 2 : SVC_SESSION_REGIONS;
	struct mapping *m = n > had ? realloc(c->mappings, n * sizeof(*m)) : NULL;
	if (!m)
		return 0;
	memset(m + had, 0, (n - had) * sizeof(*m));
	c->mappings = m;
	c->nmappings = n;
	add_free(c, had ? had : 1, n);
	return c->free_mapping;
}

/* Moves this number to the head of the free ones, and returns it; 0: it is taken, or beyond the
 * limit. */
static uint32_t claim_region(struct session *c, uint32_t region)
{
	if (region >= SVC_SESSION_REGIONS ||
	    !account_memory_left(c->account, SVC_SESSION_REGIONS * sizeof(*c->mappings)))
		return 0;
	while (region >= c->nmappings && c->nmappings < SVC_SESSION_REGIONS) {
		const uint32_t head = c->free_mapping;
		c->free_mapping = 0; /* makes the table grow */
		if (!memory_free_region(c)) {
			c->free_mapping = head;
			return 0;
		}
		uint32_t last = c->free_mapping;
		while (c->mappings[last].next_free)
			last = c->mappings[last].next_free;
		c->mappings[last].next_free = head;
	}
	if (region >= c->nmappings || c->mappings[region].used)
		return 0;
	uint32_t *at = &c->free_mapping;
	while (*at && *at != region)
		at = &c->mappings[*at].next_free;
	if (!*at)
		return 0;
	*at = c->mappings[region].next_free;
	c->mappings[region].next_free = c->free_mapping;
	c->free_mapping = region;
	return region;
}

uint32_t memory_next_region(struct session *c)
{
	const uint32_t wanted = c->next_region.number;
	return wanted ? claim_region(c, wanted) : memory_free_region(c);
}

struct mapping *memory_set(struct session *c, uint32_t region, const struct mapping *m)
{
	c->free_mapping = c->mappings[region].next_free;
	c->mappings[region] = *m;
	return &c->mappings[region];
}

void memory_clear(struct session *c, struct mapping *m)
{
	*m = (struct mapping){.next_free = c->free_mapping};
	c->free_mapping = (uint32_t)(m - c->mappings);
}

/* Imported memory belongs to the trainer, so only its mapping is charged. */
static uint64_t counted_bytes(uint32_t kind, uint64_t bytes)
{
	return kind == SVC_REGION_MEMFD ? bytes : 0;
}

static uint64_t counted_mappings(uint32_t kind, uint64_t bytes)
{
	return kind == SVC_REGION_MEMFD ? fault_mappings(bytes) : 1;
}

static uint64_t counted_fds(uint32_t kind)
{
	return kind == SVC_REGION_VMM;
}

bool memory_take(struct session *c, unsigned opcode, uint32_t request_id, uint32_t kind,
		 uint64_t bytes)
{
	struct account *a = c->account;
	const uint64_t n = counted_bytes(kind, bytes), fds = counted_fds(kind);
	const uint64_t mappings = counted_mappings(kind, bytes);
	char text[SVC_TEXT_BYTES];
	if (!account_take(a, SHARE_REGIONS, mappings, text))
		goto refused;
	if (!account_take(a, SHARE_REGION_BYTES, n, text))
		goto give_mappings;
	if (!account_take(a, SHARE_FDS, fds, text))
		goto give_bytes;
	c->regions++;
	c->sessions->nregions++;
	c->region_bytes += n;
	return true;
give_bytes:
	account_give(a, SHARE_REGION_BYTES, n);
give_mappings:
	account_give(a, SHARE_REGIONS, mappings);
refused:
	if (!session_wait(c))
		session_error(c, opcode, request_id, NCCLSVC_LIMIT, "%s", text);
	return false;
}

void memory_give(struct session *c, uint32_t kind, uint64_t bytes)
{
	const uint64_t n = counted_bytes(kind, bytes);
	account_give(c->account, SHARE_REGIONS, counted_mappings(kind, bytes));
	account_give(c->account, SHARE_REGION_BYTES, n);
	account_give(c->account, SHARE_FDS, counted_fds(kind));
	c->regions--;
	c->sessions->nregions--;
	c->region_bytes -= n;
}

/* Returns the number of fault_watch and the mapping; or 0 with errno set, also if the region would
 * leave no memory for the daemon. */
static uint32_t map_region(const struct session *c, int fd, uint64_t bytes, void **base)
{
	errno = ENOMEM;
	if (!account_memory_left(c->account, bytes))
		return 0;
	*base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*base == MAP_FAILED)
		return 0;
	const uint32_t fault = fault_watch(*base, bytes, true, c->slot);
	if (!fault)
		munmap(*base, bytes);
	return fault;
}

void memory_add(struct memory *s, struct session *c, uint32_t request_id,
		const struct svc_region_add *r, int fd)
{
	char text[SVC_TEXT_BYTES];
	if (r->reserved || r->kind != SVC_REGION_MEMFD) {
		session_error(c, SVC_REGION_ADD, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "unknown kind of region, or reserved is not 0");
		return;
	}
	if (!r->bytes || r->bytes > SVC_REGION_MAX) {
		session_error(c, SVC_REGION_ADD, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "a region has 1 to 2^46 bytes");
		return;
	}
	if (!svc_memfd_trusted(fd, r->bytes, text)) {
		session_error(c, SVC_REGION_ADD, request_id, NCCLSVC_INVALID_ARGUMENT, "%s", text);
		return;
	}
	if (!svc_memfd_filled(fd, r->bytes)) {
		session_error(c, SVC_REGION_ADD, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the memfd has holes, and the daemon allocates no pages for clients: "
			      "write to it, or call fallocate(2), before registering it");
		return;
	}
	const uint32_t i = memory_next_region(c);
	if (!i) {
		session_error(c, SVC_REGION_ADD, request_id, NCCLSVC_LIMIT,
			      "a session has at most %d regions", SVC_SESSION_REGIONS - 1);
		return;
	}
	if (!memory_take(c, SVC_REGION_ADD, request_id, r->kind, r->bytes))
		return;
	void *p;
	const uint32_t fault = map_region(c, fd, r->bytes, &p);
	if (!fault) {
		memory_give(c, r->kind, r->bytes);
		session_error(c, SVC_REGION_ADD, request_id, NCCLSVC_NO_MEMORY,
			      "the daemon cannot map the region: %s", strerror(errno));
		return;
	}
	memory_set(c, i,
		   &(struct mapping){.used = true,
				     .kind = SVC_REGION_MEMFD,
				     .device = SVC_DEVICE_HOST,
				     .fd = -1,
				     .base = p,
				     .bytes = r->bytes,
				     .fault = fault,
				     .since_ns = clock_now()});
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_REGION_ADD,
					    .session = c->slot,
					    .region = {.region = i,
						       .base = p,
						       .bytes = r->bytes,
						       .request_id = request_id,
						       .device = SVC_DEVICE_HOST,
						       .fault = fault,
						       .file_bytes = svc_memfd_limit(fd)}});
	struct svc_region_reply reply = {.region = i};
	session_reply(c, SVC_REGION_ADD, request_id, &reply, sizeof(reply), NULL, 0);
}

/* The last munmap frees the pages, which takes up to 200 us per MiB, so the user's own thread does
 * it.
 */
static void unmap(struct memory *s, struct session *c, struct mapping *m)
{
	if (m->kind != SVC_REGION_MEMFD) {
		gpu_memory_close(s, c, m);
		return;
	}
	fault_unwatch(m->fault);
	c->regions--;
	c->sessions->nregions--;
	c->region_bytes -= m->bytes;
	account_unmap_region(c->account, m->base, m->bytes, fault_mappings(m->bytes));
	memory_clear(c, m);
}

void memory_remove(struct memory *s, struct session *c, uint32_t request_id,
		   const struct svc_region_del *r)
{
	const uint32_t region = r->region;
	if (r->wait_ms > SVC_DEL_WAIT_MS) {
		session_error(c, SVC_REGION_DEL, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "REGION_DEL waits for 0 to %d ms", SVC_DEL_WAIT_MS);
		return;
	}
	if (!region || region >= c->nmappings || !c->mappings[region].used ||
	    c->mappings[region].leaving) {
		session_error(c, SVC_REGION_DEL, request_id, NCCLSVC_NOT_FOUND,
			      "there is no region %u in this session", region);
		return;
	}
	/* The import of absent memory goes on, since a pending task may use it. */
	if (c->mappings[region].pending && !c->mappings[region].absent) {
		session_error(c, SVC_REGION_DEL, request_id, NCCLSVC_BUSY,
			      "region %u is being imported", region);
		return;
	}
	c->mappings[region].leaving = true;
	c->mappings[region].wait_ms = r->wait_ms;
	scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_REGION_DEL,
							  .session = c->slot,
							  .region = {.region = region,
								     .request_id = request_id}});
}

static void end_region(struct memory *s, struct session *c, struct mapping *m, uint32_t request_id)
{
	if (m->wait_ms && m->address) {
		gpu_memory_close_answered(s, c, m, request_id);
		return;
	}
	unmap(s, c, m);
	session_reply(c, SVC_REGION_DEL, request_id, NULL, 0, NULL, 0);
}

void memory_removed(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		    bool gone)
{
	if (!gone) {
		c->mappings[region].leaving = false;
		session_error(c, SVC_REGION_DEL, request_id, NCCLSVC_BUSY,
			      "a pending task, or an open task group, uses region %u", region);
		return;
	}
	struct mapping *m = &c->mappings[region];
	if (m->pending) {
		m->pending = false;
		m->import = ++s->last_import; /* the worker's answer will not count */
	}
	if (m->wait_ms && m->shares && s->callbacks->unshare(s->owner, c, region, request_id))
		m->pending = true;
	else
		end_region(s, c, m, request_id);
}

void memory_unshared(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		     uint32_t wait_ms)
{
	struct mapping *m = &c->mappings[region];
	m->pending = false;
	m->wait_ms = wait_ms;
	if (wait_ms) {
		end_region(s, c, m, request_id);
		return;
	}
	unmap(s, c, m);
	session_error(c, SVC_REGION_DEL, request_id, NCCLSVC_TIMEOUT,
		      "region %u is deleted, but another member has not unmapped it yet", region);
}

bool memory_fail(struct memory *s)
{
	uint32_t number = 1, slot;
	for (int i = 0; i < FAILURES_PER_TURN && (number = fault_next(&slot)); i++) {
		struct session *c = s->sessions->by_slot[slot];
		if (c->state == SESSION_OPEN)
			session_end(c, NCCLSVC_NO_MEMORY,
				    number == c->ring_fault
					    ? "a page of its ring failed"
					    : "a page of its registered memory is gone: a hole was "
					      "punched into the memory, or the page is damaged");
	}
	return !number;
}

static void free_ring(struct session *c)
{
	int fds[] = {c->ring_fd, c->doorbell, c->completion};
	for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			account_close(c->account, &fds[i], 1);
	account_give(c->account, SHARE_FDS, RING_FDS);
	fault_unwatch(c->ring_fault);
	account_unmap_ring(c->account, c->ring, c->ring_size);
}

bool memory_free_all(struct memory *s, struct session *c, uint64_t until_ns)
{
	for (; c->nmappings > 1; c->nmappings--) {
		struct mapping *m = &c->mappings[c->nmappings - 1];
		if (m->used)
			unmap(s, c, m);
		if (clock_now() >= until_ns)
			return false;
	}
	free(c->mappings);
	gpu_session_close(s, c);
	if (c->ring)
		free_ring(c);
	return true;
}

/* ---- Start ---- */

/* The number of replacement pages: chosen so that registered memory takes at most half of a user's
 * share of the system's mappings, within bounds. */
static size_t replacement_bytes(const struct memory *s, uint64_t mappings)
{
	const uint64_t bytes = s->config->user_region_bytes / (mappings * 3 / 8 + 1);
	const uint64_t steps = bytes / REPLACEMENT_MIN + 1;
	return steps * REPLACEMENT_MIN < REPLACEMENT_MAX ? steps * REPLACEMENT_MIN
							 : REPLACEMENT_MAX;
}

int memory_start(struct memory *s, uint64_t mappings, void (*failed)(void *arg), void *arg)
{
	return fault_start((uint32_t)mappings + SVC_SESSIONS_MAX, replacement_bytes(s, mappings),
			   failed, arg);
}
