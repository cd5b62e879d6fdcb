/* SPDX-License-Identifier: Apache-2.0
 * JOINs that continue an epoch with kernels: forged control blocks, and shares that are said again.
 * The test speaks the protocol itself, without the library. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "peer_members.h"
#include "proto/fdio.h"

#define CONTROLS (2 * PEER_CONTROL_BYTES)
#define LINEAGE	 7

/* ---- Requests ---- */

static int controls_of(size_t bytes)
{
	const int fd = svc_memfd_create("controls", bytes, true);
	CHECK(fd >= 0);
	return fd;
}

static void send_controls(struct member *m, int fd)
{
	const struct svc_controls r = {0};
	peer_accepted(&m->raw, SVC_CONTROLS, &r, sizeof(r), &fd);
}

static struct svc_join join_request(const struct member *m, const ncclsvc_unique_id *id, int rank)
{
	struct svc_join join = raw_join_request(id, 2, rank);
	join.device = rank;
	join.staging = m->staging;
	return join;
}

/* The next JOIN continues the epoch. */
static void resume(struct member *m)
{
	const struct svc_resume r = {.kind = SVC_RESUME_COMM, .number = 1, .lineage = LINEAGE};
	peer_accepted(&m->raw, SVC_RESUME, &r, sizeof(r), NULL);
}

static void join_refused(struct member *m, const ncclsvc_unique_id *id, int rank, int fd)
{
	const struct svc_join join = join_request(m, id, rank);
	resume(m);
	send_controls(m, fd);
	raw_refused(&m->raw, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_STALE_EPOCH,
		    "do not share their control blocks");
}

static void join_begin(struct member *m, const ncclsvc_unique_id *id, int rank, int fd)
{
	const struct svc_join join = join_request(m, id, rank);
	resume(m);
	send_controls(m, fd);
	m->request_id = raw_send(&m->raw, SVC_JOIN, &join, sizeof(join), NULL, 0);
}

/* ---- Shares that are said again ---- */

static struct svc_share share_again(const struct member *m, uint32_t region, uint32_t slot,
				    uint32_t number)
{
	return (struct svc_share){.comm = m->joined.comm,
				  .region = region,
				  .slot = slot | SVC_SHARE_AGAIN,
				  .number = number};
}

static void share_refused(struct member *m, struct svc_share r)
{
	raw_refused(&m->raw, SVC_SHARE, &r, sizeof(r), NULL, 0, NCCLSVC_INVALID_ARGUMENT, "");
}

static void share(struct member *m, struct svc_share r)
{
	peer_accepted(&m->raw, SVC_SHARE, &r, sizeof(r), NULL);
}

static struct svc_shared_reply read_at(struct member *m, uint64_t position)
{
	struct raw_reply reply;
	struct svc_shared_reply entry;
	const struct svc_shared r = {m->joined.comm, 0, position};
	raw_call(&m->raw, SVC_SHARED, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	memcpy(&entry, reply.bytes, sizeof(entry));
	return entry;
}

static void shares_again(struct member *m)
{
	const uint32_t region = peer_memory(&m[0].raw, 0, PEER_STAGING);
	struct svc_share plain = share_again(&m[0], region, 4, 12);
	stage("shares that are said again");
	share(&m[0], share_again(&m[0], region, 3, 5)); /* those before are gone */
	share_refused(&m[0], share_again(&m[0], region, 4, 5));
	share(&m[0], share_again(&m[0], region, 4, 9));
	share_refused(&m[0], share_again(&m[0], 0, 0, 8));
	share_refused(&m[0], share_again(&m[0], 0, 1, 11));
	share(&m[0], share_again(&m[0], 0, 0, 11));
	stage("new shares");
	share_refused(&m[0], share_again(&m[0], region, 5, 12));
	plain.slot = 5;
	plain.number = 13;
	share_refused(&m[0], plain);
	plain.number = 12;
	share(&m[0], plain);
	const struct svc_shared_reply entries[] = {read_at(&m[1], 0), read_at(&m[1], 1),
						   read_at(&m[1], 2), read_at(&m[1], 3)};
	CHECK(entries[0].what == SVC_SHARED_MAP && entries[0].number == 5 && entries[0].slot == 3);
	CHECK(entries[1].what == SVC_SHARED_MAP && entries[1].number == 9);
	CHECK(entries[2].what == SVC_SHARED_COUNT && entries[2].number == 11);
	CHECK(entries[3].what == SVC_SHARED_MAP && entries[3].number == 12);
	/* Rank 1 has said nothing: its first share is new. */
	plain = share_again(&m[1], peer_memory(&m[1].raw, 1, PEER_STAGING), 0, 1);
	plain.slot = 0;
	share(&m[1], plain);
	share_refused(&m[1], share_again(&m[1], plain.region, 1, 2));
}

/* ---- Control blocks ---- */

static void forged_rank(struct client *c)
{
	struct member m[2] = {0};
	const struct svc_resume survives = {.kind = SVC_RESUME_SESSION};
	const struct svc_controls reserved = {{0, 1}};
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	const int good = controls_of(CONTROLS), other = controls_of(CONTROLS);
	const int small = controls_of(PEER_CONTROL_BYTES), null = open("/dev/null", O_RDWR);
	const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(loose >= 0 && null >= 0 && !ftruncate(loose, CONTROLS));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, c->daemon);
		raw_attach(&m[i].raw, 16);
		peer_accepted(&m[i].raw, SVC_RESUME, &survives, sizeof(survives), NULL);
		m[i].staging = peer_memory(&m[i].raw, i, PEER_STAGING);
	}
	stage("bad control blocks");
	raw_refused(&m[0].raw, SVC_CONTROLS, &reserved, sizeof(reserved), &good, 1,
		    NCCLSVC_INVALID_ARGUMENT, "");
	join_refused(&m[0], &id, 0, small);
	join_refused(&m[0], &id, 0, loose);
	join_refused(&m[0], &id, 0, null);
	stage("control blocks that differ");
	join_begin(&m[0], &id, 0, good);
	join_refused(&m[1], &id, 1, other);
	stage("the same ones");
	send_controls(&m[1], other); /* replaced */
	join_begin(&m[1], &id, 1, good);
	peer_join_end(&m[0]);
	peer_join_end(&m[1]);
	CHECK_EQ(m[0].joined.lineage, LINEAGE | SVC_LINEAGE_RESUMED);
	CHECK(m[1].joined.peer_bytes);
	struct peer_control *controls = peer_controls_map(good);
	CHECK_EQ(controls->pid, getpid());
	CHECK(!peer_aborted(controls, 0));
	shares_again(m);
	stage("the end");
	raw_close(&m[1].raw);
	peer_wait_aborted(controls);
	CHECK(!munmap(controls, CONTROLS));
	/* One is kept for a JOIN that never comes. */
	send_controls(&m[0], other);
	raw_close(&m[0].raw);
}

static void test_forged(void)
{
	ranks_run(1, forged_rank, NULL);
}

const struct gpu_test peer_resume_tests[] = {
	{"peer/forged-controls", test_forged, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
