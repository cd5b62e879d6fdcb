/* SPDX-License-Identifier: Apache-2.0
 * Members that fall asleep and wake up (SLEEP), with valid and invalid requests. The test sends raw
 * protocol messages, without the library. */
#include <string.h>
#include <unistd.h>

#include "peer_members.h"

#define CYCLES 300

static void sleep_refused(struct member *m, struct svc_sleep r, int expected, const char *text)
{
	raw_refused(&m->raw, SVC_SLEEP, &r, sizeof(r), NULL, 0, expected, text);
}

static void step(struct member *m, uint32_t asleep, uint32_t staging)
{
	const struct svc_sleep r = {.comm = m->joined.comm, .asleep = asleep, .staging = staging};
	peer_accepted(&m->raw, SVC_SLEEP, &r, sizeof(r), NULL);
}

static void forget(struct member *m, uint32_t region)
{
	const struct svc_region_del r = {.region = region};
	peer_accepted(&m->raw, SVC_REGION_DEL, &r, sizeof(r), NULL);
}

static void wake(struct member *m, int device)
{
	const uint32_t region = peer_memory(&m->raw, device, PEER_STAGING);
	step(m, 0, region);
	forget(m, region);
}

static void refusals(struct member m[2])
{
	const uint32_t comm = m[0].joined.comm, bad = NCCLSVC_INVALID_ARGUMENT;
	const uint32_t larger = peer_memory(&m[0].raw, 0, 2 * PEER_STAGING);
	const uint32_t smaller = peer_memory(&m[0].raw, 0, PEER_STAGING / 2);
	const uint32_t elsewhere = peer_memory(&m[0].raw, 1, PEER_STAGING);
	stage("refusals");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm + 7, .asleep = 1}, NCCLSVC_NOT_FOUND,
		      "no communicator");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .asleep = 2}, (int)bad, "asleep");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .asleep = 1, .reserved = 1}, (int)bad,
		      "reserved");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .asleep = 1, .staging = m[0].staging},
		      (int)bad, "unless a member");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm}, (int)bad, "region 0");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .staging = UINT32_MAX}, (int)bad,
		      "region");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .staging = larger}, (int)bad,
		      "bytes");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .staging = smaller}, (int)bad,
		      "bytes");
	sleep_refused(&m[0], (struct svc_sleep){.comm = comm, .staging = elsewhere}, (int)bad,
		      "device 0");
	forget(&m[0], larger);
	forget(&m[0], smaller);
	forget(&m[0], elsewhere);
}

static void share(struct member *m, struct svc_share r, int expected)
{
	struct raw_reply reply;
	raw_call(&m->raw, SVC_SHARE, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, expected);
}

static uint32_t entry_at(struct member *m, uint64_t position)
{
	struct raw_reply reply;
	struct svc_shared_reply entry;
	const struct svc_shared r = {m->joined.comm, 0, position};
	raw_call(&m->raw, SVC_SHARED, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	memcpy(&entry, reply.bytes, sizeof(entry));
	return entry.what;
}

/* The log is reset while a REGION_DEL still waits for it. */
static void logs(struct member m[2], struct peer_control *controls)
{
	const uint32_t comm = m[0].joined.comm;
	const uint32_t region = peer_memory(&m[0].raw, 0, PEER_STAGING);
	const uint32_t other = peer_memory(&m[0].raw, 0, PEER_STAGING);
	stage("the log of shares");
	share(&m[0], (struct svc_share){comm, region, 3, 1}, 0);
	share(&m[0], (struct svc_share){comm, other, 4, 2}, 0);
	CHECK_EQ(entry_at(&m[1], 0), SVC_SHARED_MAP);
	const struct svc_region_del del = {.region = other, .wait_ms = SVC_DEL_WAIT_MS};
	const uint32_t deletion = raw_send(&m[0].raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0);
	while (entry_at(&m[1], 2) == SVC_SHARED_NONE) /* until it is dropped */
		sleep_ms(1);
	step(&m[1], 1, 0);
	struct raw_reply reply;
	raw_reply_to(&m[0].raw, deletion, &reply);
	CHECK_EQ(reply.header.result, 0);
	share(&m[0], (struct svc_share){comm, region, 3 | SVC_SHARE_AGAIN, 1},
	      NCCLSVC_INVALID_ARGUMENT);
	step(&m[0], 1, 0);
	CHECK_EQ(atomic_load(&controls->shares), 0);
	wake(&m[0], 0);
	share(&m[0], (struct svc_share){comm, region, 3 | SVC_SHARE_AGAIN, 1}, 0);
	share(&m[0], (struct svc_share){comm, 0, SVC_SHARE_AGAIN, 2}, 0);
	wake(&m[1], 1);
	CHECK_EQ(entry_at(&m[1], 0), SVC_SHARED_MAP);
	CHECK_EQ(entry_at(&m[1], 1), SVC_SHARED_COUNT);
	CHECK_EQ(entry_at(&m[1], 2), SVC_SHARED_NONE);
	forget(&m[0], region);
}

static void cycles(struct member m[2], int daemon)
{
	const struct svc_staging request = {.comm = m[0].joined.comm, .rank = 1};
	const int before = open_fds(daemon);
	for (int i = 0; i < CYCLES; i++) {
		stage("cycle %d", i);
		step(&m[1], 1, 0);
		step(&m[1], 1, 0);
		raw_refused(&m[0].raw, SVC_STAGING, &request, sizeof(request), NULL, 0,
			    NCCLSVC_BUSY, "is suspended");
		if (i % 2)
			step(&m[0], 1, 0);
		wake(&m[i / 2 % 2], i / 2 % 2);
		if (i % 2 || i / 2 % 2 == 0)
			wake(&m[1 - i / 2 % 2], 1 - i / 2 % 2);
		wake(&m[1], 1); /* again, as after a restart of the daemon */
		close(peer_staging_fd(&m[0], 1));
	}
	CHECK(open_fds(daemon) <= before);
}

/* Communicators without GPUs have nothing to give back. */
static void host_refused(struct member *m)
{
	struct raw_reply reply;
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	const struct svc_join join = raw_join_request(&id, 1, 0);
	raw_call(&m->raw, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	sleep_refused(m, (struct svc_sleep){.comm = reply.join.comm, .asleep = 1},
		      NCCLSVC_UNSUPPORTED, "no GPU memory");
}

static void sleep_rank(struct client *c)
{
	struct member m[2] = {0};
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, c->daemon);
		raw_attach(&m[i].raw, 16);
		m[i].staging = peer_memory(&m[i].raw, i, PEER_STAGING);
	}
	peer_join(m, &id, true);
	struct peer_control *controls = peer_controls_map(peer_staging_fd(&m[0], -1));
	CHECK(m[0].joined.peer_bytes);
	refusals(m);
	host_refused(&m[0]);
	logs(m, controls);
	cycles(m, c->daemon->pid);
	stage("the end of a member that is asleep");
	step(&m[0], 1, 0);
	step(&m[1], 1, 0);
	raw_close(&m[1].raw);
	peer_wait_aborted(controls);
	sleep_refused(&m[0], (struct svc_sleep){.comm = m[0].joined.comm, .asleep = 1},
		      NCCLSVC_STALE_EPOCH, "");
	raw_close(&m[0].raw);
}

static void test_sleep(void)
{
	ranks_run(1, sleep_rank, NULL);
}

const struct gpu_test peer_sleep_tests[] = {
	{"peer/sleep", test_sleep, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
