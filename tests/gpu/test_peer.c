/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of a communicator's members share: handed out by the daemon, and broken off by
 * it. By hand, without the library. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "peer.h"

static void staging_refused(struct member *m, uint32_t comm, int rank, ncclsvc_result result,
			    const char *why)
{
	struct svc_staging request = {.comm = comm, .rank = rank};
	raw_refused(&m->raw, SVC_STAGING, &request, sizeof(request), NULL, 0, result, why);
}

/* ---- What is refused ---- */

static void join_refused(struct member *m, int device, uint32_t staging)
{
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join request = raw_join_request(&id, 2, 0);
	request.device = device;
	request.staging = staging;
	raw_refused(&m->raw, SVC_JOIN, &request, sizeof(request), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "is no lent memory of device");
}

static void bad_staging(struct member m[2])
{
	stage("staging memory that is none");
	const uint32_t small = peer_lend(&m[0].raw, 0, PEER_STAGING / 2);
	join_refused(&m[0], 0, small);
	join_refused(&m[0], 1, m[0].staging);
	join_refused(&m[0], SVC_DEVICE_HOST, m[0].staging);
	join_refused(&m[0], 0, 77);
	join_refused(&m[0], 0, UINT32_MAX);
	struct svc_region_del del = {.region = small};
	struct raw_reply reply;
	raw_call(&m[0].raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	join_refused(&m[0], 0, small);
}

/* ---- An epoch with staging memory ---- */

static void handed_out(struct member m[2])
{
	stage("what is handed out");
	CHECK_EQ(m[0].joined.peer_bytes, PEER_LINES_MOST);
	CHECK_EQ(m[1].joined.peer_bytes, PEER_LINES_MOST);
	int fds[2][2];
	for (int i = 0; i < 2; i++)
		for (int rank = 0; rank < 2; rank++)
			fds[i][rank] = peer_staging_fd(&m[i], rank);
	struct stat a, b;
	for (int rank = 0; rank < 2; rank++) {
		CHECK(!fstat(fds[0][rank], &a) && !fstat(fds[1][rank], &b));
		CHECK(a.st_ino == b.st_ino);
	}
	svc_close_fds(fds[0], 2);
	svc_close_fds(fds[1], 2);
	staging_refused(&m[0], m[0].joined.comm, 2, NCCLSVC_INVALID_ARGUMENT, "has no rank 2");
	staging_refused(&m[0], m[0].joined.comm, -2, NCCLSVC_INVALID_ARGUMENT, "has no rank -2");
	staging_refused(&m[0], 1000, 0, NCCLSVC_NOT_FOUND, "no communicator 1000");
}

/* Bytes that the daemon counts for its users. */
static uint64_t held_bytes(struct raw *raw)
{
	struct raw_reply reply;
	struct svc_daemon_info_request request = {0};
	raw_call(raw, SVC_DAEMON_INFO, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.info.info.region_bytes;
}

/* The member's region may go: the daemon holds the memory itself, and counts it for the member. */
static void region_goes(struct member *m)
{
	struct raw_reply reply;
	struct svc_region_del del = {.region = m->staging};
	CHECK_EQ(held_bytes(&m->raw), 4 * PEER_STAGING); /* two regions, two members */
	raw_call(&m->raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(held_bytes(&m->raw), 3 * PEER_STAGING);
	close(peer_staging_fd(m, 0));
}

static void nothing_is_held(struct client *c)
{
	struct raw raw;
	stage("what is still held");
	raw_open(&raw, c->daemon);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; held_bytes(&raw); sleep_ms(1))
		CHECK(now_ns() < end);
	raw_close(&raw);
}

static void peer_dies(struct client *c, struct member m[2], const ncclsvc_unique_id *id)
{
	stage("a peer that dies");
	struct peer_page *pages = peer_pages_map(peer_staging_fd(&m[0], -1));
	CHECK(!peer_aborted(pages, 0) && !peer_aborted(pages, 1));
	raw_close(&m[1].raw);
	peer_wait_aborted(pages);
	munmap(pages, 2 * PEER_PAGE);
	staging_refused(&m[0], m[0].joined.comm, 0, NCCLSVC_STALE_EPOCH, "staging memory");

	stage("the next epoch, with one member's staging memory alone");
	raw_open(&m[1].raw, c->daemon);
	m[1].staging = peer_lend(&m[1].raw, 1, PEER_STAGING);
	m[0].staging = peer_lend(&m[0].raw, 0, PEER_STAGING);
	peer_join(m, id, false);
	CHECK_EQ(m[0].joined.peer_bytes, 0);
	CHECK_EQ(m[1].joined.peer_bytes, 0);
	staging_refused(&m[0], m[0].joined.comm, 0, NCCLSVC_STALE_EPOCH, "staging memory");
}

/* The part's members name staging memory of their own. */
static void split(struct member m[2])
{
	stage("a split");
	const uint32_t whole[2] = {m[0].joined.comm, m[1].joined.comm};
	for (int i = 0; i < 2; i++) {
		struct svc_split request = {.comm = whole[i], .staging = m[i].staging};
		m[i].serial = raw_send(&m[i].raw, SVC_SPLIT, &request, sizeof(request), NULL, 0);
	}
	peer_join_end(&m[0]);
	peer_join_end(&m[1]);
	CHECK(m[0].joined.comm != whole[0]);
	CHECK_EQ(m[0].joined.peer_bytes, PEER_LINES_MOST);
	CHECK_EQ(m[1].joined.peer_bytes, PEER_LINES_MOST);
	close(peer_staging_fd(&m[0], 1));
	m[0].joined.comm = whole[0];
	m[1].joined.comm = whole[1];
}

/* A member leaves: the others' kernels go on, and what it gave stays until the epoch ends. */
static void member_leaves(struct member m[2])
{
	ncclsvc_unique_id id;
	struct raw_reply reply;
	stage("a member that leaves");
	CHECK_OK(ncclsvc_unique_id_create(&id));
	peer_join(m, &id, true);
	split(m);
	struct peer_page *pages = peer_pages_map(peer_staging_fd(&m[0], -1));
	struct svc_leave leave = {.comm = m[1].joined.comm};
	raw_call(&m[1].raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK(!peer_aborted(pages, 0));
	staging_refused(&m[0], m[0].joined.comm, 1, NCCLSVC_PEER_GONE, "rank 1");
	leave.comm = m[0].joined.comm;
	raw_call(&m[0].raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	peer_wait_aborted(pages);
	munmap(pages, 2 * PEER_PAGE);
}

static void staging_rank(struct client *c)
{
	struct member m[2];
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, c->daemon);
		m[i].staging = peer_lend(&m[i].raw, i, PEER_STAGING);
	}
	bad_staging(m);
	peer_join(m, &id, true);
	handed_out(m);
	region_goes(&m[0]);
	peer_dies(c, m, &id);
	member_leaves(m);
	raw_close(&m[0].raw);
	raw_close(&m[1].raw);
	nothing_is_held(c);
}

static void test_staging(void)
{
	ranks_run(1, staging_rank, NULL);
}

/* The most bytes that operations of an epoch may have that run in kernels. arg: what is due. */
static void bytes_rank(struct client *c)
{
	struct member m[2];
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, c->daemon);
		m[i].staging = peer_lend(&m[i].raw, i, PEER_STAGING + PEER_BULK);
	}
	peer_join(m, &id, true);
	CHECK_EQ(m[0].joined.peer_bytes, *(const uint32_t *)c->arg);
	CHECK_EQ(m[1].joined.peer_bytes, *(const uint32_t *)c->arg);
	raw_close(&m[0].raw);
	raw_close(&m[1].raw);
}

static void has_bytes(const char *key, const char *value, uint32_t due)
{
	setenv(key, value, 1);
	ranks_run(1, bytes_rank, &due);
	unsetenv(key);
}

static void test_bytes(void)
{
	has_bytes("NCCLSVCD_PEER_BYTES", "8M", 8 << 20);
	has_bytes("NCCLSVCD_PEER_BYTES", "5000", 5000);
	has_bytes("NCCLSVCD_PEER_BYTES", "auto", 64 << 20); /* without MPS */
	has_bytes("NCCLSVCD_PEER_BYTES", "0", 0);
}

static void test_reach(void)
{
	if (!setup.fake)
		skip_test("only stand-ins can lack peer access");
	has_bytes("NCCLSVC_FAKE_NO_PEER", "1-0", 0);
	has_bytes("NCCLSVC_FAKE_NO_PEER", "0-2", 64 << 20);
}

const struct gpu_test peer_tests[] = {
	{"peer/staging", test_staging, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"peer/bytes", test_bytes, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"peer/reach", test_reach, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
