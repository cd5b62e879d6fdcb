/* SPDX-License-Identifier: Apache-2.0
 * Registered memory that members of an epoch share with each other, by the daemon's log. The test
 * speaks the protocol itself, without the library. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "peer_members.h"

#define MIB   (UINT64_C(1) << 20)
#define BYTES (4 * MIB)
#define QUIET 100 /* ms for which nothing must happen */

struct shares {
	struct client *c;
	struct member m[2];
	ncclsvc_unique_id id;
	int bell;	   /* of member 1 */
	uint64_t position; /* of member 1 */
	uint32_t number;   /* of member 0's last share */
	struct buffer ipc, vmm;
};

/* ---- Requests ---- */

static uint32_t region_ipc(struct raw *raw, const struct buffer *b)
{
	struct svc_region_cuda r = {.bytes = b->bytes, .base = b->p, .buffer_id = b->p};
	CUipcMemHandle handle;
	CHECK_CU(cu.cuIpcGetMemHandle(&handle, b->p));
	memcpy(r.handle, &handle, sizeof(r.handle));
	struct raw_reply reply;
	raw_call(raw, SVC_REGION_CUDA, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.region.region;
}

static uint32_t region_vmm(struct raw *raw, const struct buffer *b)
{
	return peer_region(raw, 0, b);
}

static uint32_t region_range(struct raw *raw, uint32_t a, uint32_t b, uint64_t bytes)
{
	const struct svc_region_range r = {.bytes = bytes, .count = 2, .parts = {a, b}};
	struct raw_reply reply;
	raw_call(raw, SVC_REGION_RANGE, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.region.region;
}

static void share(struct shares *s, uint32_t region, uint32_t slot)
{
	struct raw_reply reply;
	const struct svc_share r = {s->m[0].joined.comm, region, slot, ++s->number};
	raw_call(&s->m[0].raw, SVC_SHARE, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
}

static void share_refused(struct shares *s, struct svc_share r, ncclsvc_result result,
			  const char *why)
{
	raw_refused(&s->m[0].raw, SVC_SHARE, &r, sizeof(r), NULL, 0, result, why);
}

static struct svc_shared_reply read_at(struct member *m, uint64_t position)
{
	struct raw_reply reply;
	struct svc_shared_reply entry;
	const struct svc_shared r = {.comm = m->joined.comm, .position = position};
	raw_call(&m->raw, SVC_SHARED, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.body, sizeof(entry));
	memcpy(&entry, reply.bytes, sizeof(entry));
	return entry;
}

static void read_refused(struct raw *raw, struct svc_shared r, ncclsvc_result result,
			 const char *why)
{
	raw_refused(raw, SVC_SHARED, &r, sizeof(r), NULL, 0, result, why);
}

/* Member 1 reads the next entry, which is of member 0. */
static struct svc_shared_reply next(struct shares *s, uint32_t what, uint32_t slot, uint32_t number)
{
	const struct svc_shared_reply entry = read_at(&s->m[1], s->position++);
	CHECK_EQ(entry.what, what);
	CHECK_EQ(entry.rank, 0);
	CHECK_EQ(entry.slot, slot);
	CHECK_EQ(entry.number, number);
	return entry;
}

static void log_ends(struct shares *s)
{
	CHECK_EQ(read_at(&s->m[1], s->position).what, SVC_SHARED_NONE);
}

/* The same, and what it has passed is unmapped later. */
static void log_ends_later(struct shares *s)
{
	struct raw_reply reply;
	struct svc_shared_reply entry;
	const struct svc_shared r = {s->m[1].joined.comm, 1, s->position};
	raw_call(&s->m[1].raw, SVC_SHARED, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	memcpy(&entry, reply.bytes, sizeof(entry));
	CHECK_EQ(entry.what, SVC_SHARED_NONE);
}

static void part_refused(struct shares *s, uint64_t position, uint32_t part)
{
	const struct svc_shared_part r = {s->m[1].joined.comm, part, position};
	raw_refused(&s->m[1].raw, SVC_SHARED_PART, &r, sizeof(r), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no memory is shared");
}

/* Member 1 opens the parts of the entry that it read last. */
static void open_parts(struct shares *s, uint32_t parts)
{
	struct svc_shared_part r = {.comm = s->m[1].joined.comm, .position = s->position - 1};
	struct svc_shared_part_reply part;
	struct raw_reply reply;
	CUmemGenericAllocationHandle handle;
	for (; r.part < parts; r.part++) {
		raw_call(&s->m[1].raw, SVC_SHARED_PART, &r, sizeof(r), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
		CHECK_EQ(reply.nfds, 1);
		memcpy(&part, reply.bytes, sizeof(part));
		CHECK_EQ(part.bytes, BYTES);
		CHECK_CU(cu.cuMemImportFromShareableHandle(
			&handle, at((CUdeviceptr)reply.fds[0]),
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		CHECK_CU(cu.cuMemRelease(handle));
		close(reply.fds[0]);
	}
	part_refused(s, r.position, parts);
	part_refused(s, r.position, UINT32_MAX);
}

static bool readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) == 1;
}

static void bell_rings(int bell)
{
	uint64_t n;
	CHECK(readable(bell, WAIT_MS));
	CHECK_EQ(read(bell, &n, sizeof(n)), sizeof(n));
	CHECK(n > 0);
}

static uint32_t del_begin(struct shares *s, uint32_t region, uint32_t wait_ms)
{
	const struct svc_region_del r = {.region = region, .wait_ms = wait_ms};
	return raw_send(&s->m[0].raw, SVC_REGION_DEL, &r, sizeof(r), NULL, 0);
}

static void del_ends(struct shares *s, uint32_t request_id, ncclsvc_result result)
{
	struct raw_reply reply;
	const uint64_t then = now_ns();
	raw_reply_to(&s->m[0].raw, request_id, &reply);
	CHECK_EQ(reply.header.result, result);
	CHECK(in_time(then, now_ns()));
}

static void del_waits(struct shares *s)
{
	CHECK(!readable(s->m[0].raw.sock, QUIET));
}

/* ---- Tests ---- */

static void begin(struct shares *s)
{
	peer_join(s->m, &s->id, true);
	s->number = 0;
	s->position = 0;
}

static void the_bell_is_one(struct shares *s)
{
	struct raw_reply reply;
	struct svc_shares r = {{0, 1}};
	stage("the bell");
	raw_refused(&s->m[1].raw, SVC_SHARES, &r, sizeof(r), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "reserved");
	r.reserved[1] = 0;
	raw_call(&s->m[1].raw, SVC_SHARES, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.nfds, 1);
	s->bell = reply.fds[0];
	CHECK(!readable(s->bell, 0));
	const uint32_t region = region_ipc(&s->m[0].raw, &s->ipc);
	share(s, region, 7);
	raw_call(&s->m[1].raw, SVC_SHARES, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.nfds, 1);
	bell_rings(reply.fds[0]);
	CHECK(!readable(s->bell, 0));
	close(reply.fds[0]);
	del_ends(s, del_begin(s, region, 0), NCCLSVC_OK);
	bell_rings(s->bell);
	next(s, SVC_SHARED_GONE, 7, 1);
	part_refused(s, 0, 0);
	next(s, SVC_SHARED_DROP, 7, 1);
	log_ends(s);
}

static void bad_shares(struct shares *s)
{
	struct raw *raw = &s->m[0].raw;
	const uint32_t comm = s->m[0].joined.comm;
	stage("invalid shares");
	const uint32_t good = region_ipc(raw, &s->ipc);
	const struct svc_share r = {comm, good, 0, s->number + 1};
	struct svc_share q;
	struct raw_region host = raw_region(raw, SVC_PAGE);
	q = r, q.comm = 1000;
	share_refused(s, q, NCCLSVC_NOT_FOUND, "no communicator 1000");
	for (uint32_t i = 0; i < 3; i++) {
		q = r, q.region = (uint32_t[]){0, 4000, UINT32_MAX}[i];
		share_refused(s, q, NCCLSVC_NOT_FOUND, "no region");
	}
	q = r, q.region = host.id;
	share_refused(s, q, NCCLSVC_INVALID_ARGUMENT, "not memory of device 0");
	q = r, q.region = peer_memory(raw, 1, 2 * MIB);
	share_refused(s, q, NCCLSVC_INVALID_ARGUMENT, "not memory of device 0");
	for (uint32_t i = 0; i < 2; i++) {
		q = r, q.slot = (uint32_t[]){SVC_SHARE_SLOTS, INT32_MAX}[i];
		share_refused(s, q, NCCLSVC_INVALID_ARGUMENT, "slot");
	}
	for (uint32_t i = 0; i < 3; i++) {
		q = r, q.number = (uint32_t[]){0, s->number, s->number + 2}[i];
		share_refused(s, q, NCCLSVC_INVALID_ARGUMENT, "number");
	}
	share(s, good, 0);
	q = r, q.number = s->number + 1;
	share_refused(s, q, NCCLSVC_INVALID_ARGUMENT, "slot 0 is in use");
	raw_region_close(&host);
	/* Member 1 has no region of that number. */
	q.comm = s->m[1].joined.comm, q.number = 1;
	raw_refused(&s->m[1].raw, SVC_SHARE, &q, sizeof(q), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no region");
	next(s, SVC_SHARED_MAP, 0, s->number);
	del_ends(s, del_begin(s, good, 0), NCCLSVC_OK);
	next(s, SVC_SHARED_DROP, 0, s->number);
}

static void bad_reads(struct shares *s)
{
	struct raw other;
	const uint32_t comm = s->m[1].joined.comm;
	stage("invalid positions, and sessions that take no part");
	log_ends(s);
	const ncclsvc_result bad = NCCLSVC_INVALID_ARGUMENT;
	read_refused(&s->m[1].raw, (struct svc_shared){comm, 0, s->position - 1}, bad, "position");
	read_refused(&s->m[1].raw, (struct svc_shared){comm, 0, s->position + 1}, bad, "position");
	read_refused(&s->m[1].raw, (struct svc_shared){comm, 0, UINT64_MAX}, bad, "position");
	read_refused(&s->m[1].raw, (struct svc_shared){comm, 2, s->position}, bad, "later");
	read_refused(&s->m[1].raw, (struct svc_shared){1000, 0, 0}, NCCLSVC_NOT_FOUND, "1000");
	raw_open(&other, s->c->daemon);
	read_refused(&other, (struct svc_shared){comm, 0, 0}, NCCLSVC_NOT_FOUND, "communicator");
	const struct svc_shared_part part = {comm, 0, 0};
	raw_refused(&other, SVC_SHARED_PART, &part, sizeof(part), NULL, 0, NCCLSVC_NOT_FOUND,
		    "communicator");
	const struct svc_join_reply alone = raw_join_alone(&other);
	read_refused(&other, (struct svc_shared){alone.comm, 0, 0}, NCCLSVC_STALE_EPOCH,
		     "staging memory");
	raw_close(&other);
	part_refused(s, s->position, 0);
	part_refused(s, UINT64_MAX, 0);
	/* Its own entries are gone, as the other member has passed them. */
	const struct svc_shared_reply own = read_at(&s->m[0], 0);
	CHECK_EQ(own.what, SVC_SHARED_GONE);
	CHECK_EQ(own.rank, 0);
}

static void kinds(struct shares *s)
{
	struct raw *raw = &s->m[0].raw;
	stage("every kind of memory");
	const uint32_t ipc = region_ipc(raw, &s->ipc), vmm = region_vmm(raw, &s->vmm);
	const uint32_t two = region_range(raw, vmm, vmm, 2 * BYTES);
	const uint32_t four = region_range(raw, two, two, 4 * BYTES);
	const uint32_t regions[] = {ipc, vmm, two, four};
	for (uint32_t i = 0; i < 4; i++)
		share(s, regions[i], i);
	const uint32_t first = s->number - 3;
	struct svc_shared_reply e = next(s, SVC_SHARED_MAP, 0, first);
	CUipcMemHandle handle;
	CHECK_CU(cu.cuIpcGetMemHandle(&handle, s->ipc.p));
	CHECK(e.kind == SVC_REGION_IPC && e.parts == 0 && e.bytes == BYTES);
	CHECK(!memcmp(e.handle, &handle, sizeof(e.handle)));
	open_parts(s, 0);
	e = next(s, SVC_SHARED_MAP, 1, first + 1);
	CHECK(e.kind == SVC_REGION_VMM && e.parts == 1 && e.bytes == BYTES);
	open_parts(s, 1);
	e = next(s, SVC_SHARED_MAP, 2, first + 2);
	CHECK(e.kind == SVC_REGION_MAPPINGS && e.parts == 2 && e.bytes == 2 * BYTES);
	open_parts(s, 2);
	e = next(s, SVC_SHARED_MAP, 3, first + 3);
	CHECK(e.kind == SVC_REGION_MAPPINGS && e.parts == 4 && e.bytes == 4 * BYTES);
	open_parts(s, 4);
	stage("a range whose parts are gone");
	del_ends(s, del_begin(s, two, 0), NCCLSVC_OK);
	part_refused(s, s->position - 1, 0);
	next(s, SVC_SHARED_DROP, 2, first + 2);
	for (uint32_t i = 0; i < 4; i++)
		if (regions[i] != two)
			del_ends(s, del_begin(s, regions[i], 0), NCCLSVC_OK);
	next(s, SVC_SHARED_DROP, 0, first);
	next(s, SVC_SHARED_DROP, 1, first + 1);
	next(s, SVC_SHARED_DROP, 3, first + 3);
	log_ends(s);
}

/* The region's owner waits until the other member has passed its DROP, or for so long. */
static void waits(struct shares *s)
{
	struct raw *raw = &s->m[0].raw;
	stage("a REGION_DEL that waits for the other member");
	uint32_t region = region_vmm(raw, &s->vmm);
	share(s, region, 0);
	next(s, SVC_SHARED_MAP, 0, s->number);
	log_ends(s);
	bell_rings(s->bell); /* of the shares before */
	uint32_t request_id = del_begin(s, region, SVC_DEL_WAIT_MS);
	bell_rings(s->bell);
	next(s, SVC_SHARED_DROP, 0, s->number);
	del_waits(s);
	const uint32_t again = del_begin(s, region, 0);
	del_ends(s, again, NCCLSVC_NOT_FOUND);
	log_ends(s);
	del_ends(s, request_id, NCCLSVC_OK);
	stage("a REGION_DEL whose other member unmaps later");
	region = region_ipc(raw, &s->ipc);
	share(s, region, 0);
	next(s, SVC_SHARED_MAP, 0, s->number);
	log_ends(s);
	bell_rings(s->bell);
	request_id = del_begin(s, region, SVC_DEL_WAIT_MS);
	bell_rings(s->bell);
	next(s, SVC_SHARED_DROP, 0, s->number);
	log_ends_later(s);
	del_ends(s, request_id, NCCLSVC_TIMEOUT);
	stage("a REGION_DEL whose time is up");
	region = region_ipc(raw, &s->ipc);
	share(s, region, 0);
	del_ends(s, del_begin(s, region, QUIET), NCCLSVC_TIMEOUT);
	del_ends(s, del_begin(s, region, 0), NCCLSVC_NOT_FOUND);
	next(s, SVC_SHARED_GONE, 0, s->number);
	next(s, SVC_SHARED_DROP, 0, s->number);
	log_ends(s);
}

/* The owner shares another region with a slot at once after it has sent a REGION_DEL. */
static void slot_again(struct shares *s)
{
	struct raw *raw = &s->m[0].raw;
	struct raw_reply reply;
	stage("a slot that is used again");
	uint32_t region = region_ipc(raw, &s->ipc);
	share(s, region, 3);
	for (int round = 0; round < 200; round++) {
		const uint32_t other = region_ipc(raw, &s->ipc);
		const struct svc_share r = {s->m[0].joined.comm, other, 3, ++s->number};
		const uint32_t deleted = del_begin(s, region, 0);
		const uint32_t shared = raw_send(raw, SVC_SHARE, &r, sizeof(r), NULL, 0);
		for (int left = 2; left;) { /* in any order */
			CHECK(raw_next(raw, &reply));
			CHECK_EQ(reply.header.result, 0);
			left -= reply.header.request_id == deleted ||
				reply.header.request_id == shared;
		}
		next(s, SVC_SHARED_GONE, 3, s->number - 1);
		next(s, SVC_SHARED_DROP, 3, s->number - 1);
		region = other;
	}
	next(s, SVC_SHARED_MAP, 3, s->number);
	del_ends(s, del_begin(s, region, 0), NCCLSVC_OK);
	next(s, SVC_SHARED_DROP, 3, s->number);
	log_ends(s);
}

/* other: the handle of another epoch of member 0. */
static void too_many(struct shares *s, uint32_t other)
{
	const uint32_t comm = s->m[0].joined.comm;
	stage("more shares than the log holds");
	const uint32_t region = region_ipc(&s->m[0].raw, &s->ipc);
	for (uint32_t i = 0; i < SVC_SHARE_SLOTS; i++)
		share(s, region, i);
	share_refused(s, (struct svc_share){comm, region, 0, s->number + 1},
		      NCCLSVC_INVALID_ARGUMENT, "in use");
	share_refused(s, (struct svc_share){other, region, 0, 3}, NCCLSVC_LIMIT, "1024 shares");
	del_ends(s, del_begin(s, region, 0), NCCLSVC_OK);
	const uint32_t more = region_ipc(&s->m[0].raw, &s->ipc);
	for (uint32_t i = 0; i < SVC_SHARE_SLOTS; i++)
		share(s, more, i);
	del_ends(s, del_begin(s, more, 0), NCCLSVC_OK);
	const uint32_t last = region_ipc(&s->m[0].raw, &s->ipc);
	share_refused(s, (struct svc_share){comm, last, 0, s->number + 1}, NCCLSVC_LIMIT,
		      "not all members");
	s->position += 4 * SVC_SHARE_SLOTS;
	log_ends(s);
	share(s, last, 0);
	next(s, SVC_SHARED_MAP, 0, s->number);
}

/* In two epochs of the same members, and then in one, which a member leaves. */
static void two_epochs(struct shares *s)
{
	struct raw *raw = &s->m[0].raw;
	struct raw_reply reply;
	struct svc_join_reply first[2] = {s->m[0].joined, s->m[1].joined};
	struct shares other = *s;
	stage("a region in two epochs");
	CHECK_OK(ncclsvc_unique_id_create(&other.id));
	other.m[0].raw.request_id += 1000;
	other.m[1].raw.request_id += 1000;
	begin(&other);
	log_ends(&other);
	uint32_t region = region_ipc(raw, &s->ipc);
	share(s, region, 0);
	log_ends(&other);
	share(&other, region, 5);
	next(s, SVC_SHARED_MAP, 0, s->number);
	next(&other, SVC_SHARED_MAP, 5, 1);
	uint32_t request_id = del_begin(s, region, SVC_DEL_WAIT_MS);
	del_waits(s);
	next(s, SVC_SHARED_DROP, 0, s->number);
	log_ends(s);
	del_waits(s);
	next(&other, SVC_SHARED_DROP, 5, 1);
	log_ends(&other);
	del_ends(s, request_id, NCCLSVC_OK);
	stage("a member that leaves");
	region = region_ipc(raw, &s->ipc);
	share(&other, region, 5);
	request_id = del_begin(s, region, SVC_DEL_WAIT_MS);
	del_waits(s);
	struct svc_leave leave = {.comm = other.m[1].joined.comm};
	raw_call(&s->m[1].raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	del_ends(s, request_id, NCCLSVC_OK);
	too_many(s, other.m[0].joined.comm);
	leave.comm = other.m[0].joined.comm;
	raw_call(raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(first[0].comm, s->m[0].joined.comm);
	CHECK_EQ(first[1].comm, s->m[1].joined.comm);
}

static void the_other_dies(struct shares *s)
{
	stage("a member that dies");
	const uint32_t region = region_ipc(&s->m[0].raw, &s->ipc);
	share(s, region, 1);
	const uint32_t request_id = del_begin(s, region, SVC_DEL_WAIT_MS);
	del_waits(s);
	raw_close(&s->m[1].raw);
	del_ends(s, request_id, NCCLSVC_OK);
	read_refused(&s->m[0].raw, (struct svc_shared){s->m[0].joined.comm, 0, 0},
		     NCCLSVC_STALE_EPOCH, "staging memory");
	share_refused(s, (struct svc_share){s->m[0].joined.comm, s->m[0].staging, 0, 1},
		      NCCLSVC_STALE_EPOCH, "staging memory");
}

/* The owner has left the communicator. Its session ends while a REGION_DEL waits. */
static void the_owner_dies(struct shares *s)
{
	struct raw_reply reply;
	stage("an owner that leaves, and whose session ends");
	raw_open(&s->m[1].raw, s->c->daemon);
	s->m[1].staging = peer_memory(&s->m[1].raw, 1, PEER_STAGING);
	begin(s);
	log_ends(s);
	const uint32_t a = region_ipc(&s->m[0].raw, &s->ipc);
	const uint32_t b = region_vmm(&s->m[0].raw, &s->vmm);
	share(s, a, 0);
	share(s, b, 1);
	next(s, SVC_SHARED_MAP, 0, 1);
	next(s, SVC_SHARED_MAP, 1, 2);
	const struct svc_leave leave = {.comm = s->m[0].joined.comm};
	raw_call(&s->m[0].raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	del_begin(s, a, SVC_DEL_WAIT_MS);
	del_waits(s);
	raw_close(&s->m[0].raw);
	next(s, SVC_SHARED_DROP, 0, 1);
	for (uint64_t then = now_ns(); read_at(&s->m[1], s->position).what == SVC_SHARED_NONE;
	     sleep_ms(1))
		CHECK(in_time(then, now_ns()));
	next(s, SVC_SHARED_DROP, 1, 2);
	log_ends(s);
}

static void shares_rank(struct client *c)
{
	struct shares s = {.c = c};
	gpu_use(0);
	buffer_make(&s.ipc, MEMORY_ALLOC, 0, NULL, BYTES);
	buffer_make(&s.vmm, MEMORY_VMM, 0, NULL, BYTES);
	CHECK_OK(ncclsvc_unique_id_create(&s.id));
	for (int i = 0; i < 2; i++) {
		raw_open(&s.m[i].raw, c->daemon);
		s.m[i].staging = peer_memory(&s.m[i].raw, i, PEER_STAGING);
	}
	begin(&s);
	the_bell_is_one(&s);
	bad_shares(&s);
	bad_reads(&s);
	kinds(&s);
	waits(&s);
	slot_again(&s);
	two_epochs(&s);
	the_other_dies(&s);
	the_owner_dies(&s);
	raw_close(&s.m[1].raw);
	close(s.bell);
	buffer_free(&s.ipc);
	buffer_free(&s.vmm);
}

static void test_shares(void)
{
	ranks_run(1, shares_rank, NULL);
}

const struct gpu_test share_tests[] = {
	{"peer/shares", test_shares, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
