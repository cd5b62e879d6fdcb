/* SPDX-License-Identifier: Apache-2.0
 * GPU communicators: members that disagree or are late, assignment of GPUs, splits, and the pool of
 * NCCL communicators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define WORDS 1000

enum word { READY = 1, GO };

/* ---- Mismatches ---- */

struct variant {
	const char *what;
	ncclsvc_field field;
	uint64_t values[2]; /* of rank 0 and of the others */
};

static const struct variant variants[] = {
	{"count", NCCLSVC_FIELD_COUNT, {64, 32}},
	{"type", NCCLSVC_FIELD_TYPE, {NCCLSVC_INT32, NCCLSVC_UINT32}},
	{"reduction", NCCLSVC_FIELD_REDOP, {NCCLSVC_SUM, NCCLSVC_MAX}},
	{"operation", NCCLSVC_FIELD_OP, {NCCLSVC_ALL_REDUCE, NCCLSVC_BROADCAST}},
	{"root", NCCLSVC_FIELD_ROOT, {0, 1}},
};

static ncclsvc_result submit_variant(struct rank *r, const struct variant *v, CUdeviceptr p,
				     ncclsvc_task *task)
{
	uint64_t mine = v->values[r->rank != 0];
	size_t count = v->field == NCCLSVC_FIELD_COUNT ? mine : 64;
	ncclsvc_type type = v->field == NCCLSVC_FIELD_TYPE ? (ncclsvc_type)mine : NCCLSVC_INT32;
	ncclsvc_redop redop = v->field == NCCLSVC_FIELD_REDOP ? (ncclsvc_redop)mine : NCCLSVC_SUM;
	if (v->field == NCCLSVC_FIELD_ROOT ||
	    (v->field == NCCLSVC_FIELD_OP && mine == NCCLSVC_BROADCAST))
		return ncclsvc_broadcast(at(p), at(p), count, type,
					 v->field == NCCLSVC_FIELD_ROOT ? (int)mine : 0, r->comm,
					 task);
	return ncclsvc_all_reduce(at(p), at(p), count, type, redop, r->comm, task);
}

void mismatch_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
		const struct variant *v = &variants[i];
		ncclsvc_task task;
		stage("another %s", v->what);
		gpu_fill(p, 7, 64);
		CHECK_OK(submit_variant(&r, v, p, &task));
		wait_for(r.session, task, NCCLSVC_MISMATCH);
		if (!strstr(ncclsvc_last_error(), v->what))
			check_failed(__FILE__, __LINE__, "the sentence does not say \"%s\": %s",
				     v->what, ncclsvc_last_error());
		CHECK_EQ(status_of(r.session, task).field, v->field);
		stage("another %s: the stream", v->what);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(p, 7, 64, "what no task was to touch");
		rank_check_usable(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_mismatch(void)
{
	ranks_run(ranks_count(), mismatch_rank, NULL);
}

/* ---- Circles ---- */

enum circle { SENDS_HEAD_TO_HEAD, SUMS_AGAINST_RECVS, RING_OF_RECVS, CIRCLES };

static ncclsvc_result submit_circle(struct rank *r, enum circle kind, CUdeviceptr p,
				    ncclsvc_task *task)
{
	if (kind == SENDS_HEAD_TO_HEAD && r->n % 2 == 0)
		return ncclsvc_send(at(p), WORDS, NCCLSVC_UINT32, r->rank ^ 1, r->comm, task);
	if (kind != SUMS_AGAINST_RECVS)
		return ncclsvc_recv(at(p), WORDS, NCCLSVC_UINT32, (r->rank + 1) % r->n, r->comm,
				    task);
	if (r->rank)
		return ncclsvc_recv(at(p), WORDS, NCCLSVC_UINT32, 0, r->comm, task);
	CHECK_OK(ncclsvc_group_begin(r->session));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
					    r->comm, task));
	return ncclsvc_group_end(r->session);
}

/* Each rank waits for another: all are notified, and no stream hangs. */
void circle_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * 4));
	for (int round = 0; round < 3 * CIRCLES; round++) {
		ncclsvc_task task;
		stage("circle %d", round);
		gpu_fill(p, 7, WORDS);
		CHECK_OK(submit_circle(&r, (enum circle)(round % CIRCLES), p, &task));
		wait_for(r.session, task, NCCLSVC_MISMATCH);
		const unsigned field = status_of(r.session, task).field;
		CHECK(field == NCCLSVC_FIELD_ORDER || field == NCCLSVC_FIELD_OP);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(p, 7, WORDS, "what no task was to touch");
		rank_check_usable(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_circle(void)
{
	ranks_run(ranks_count() / 2 * 2, circle_rank, NULL);
}

/* ---- Time-outs ---- */

/* The last rank comes when all others have given up. */
void timeout_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	rank_open(&r, c);
	const bool late = r.rank == r.n - 1;
	const unsigned timeout = setup.fake ? 1500 : 300;
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	if (late)
		CHECK_EQ(hear(c), GO);
	else
		CHECK_OK(ncclsvc_comm_set_timeout(r.comm, timeout));
	uint64_t begin = now_ns();
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_INT32, NCCLSVC_SUM, r.comm, &task));
	wait_for(r.session, task, NCCLSVC_TIMEOUT);
	ncclsvc_status st = status_of(r.session, task);
	CHECK_EQ(st.missing_count, 1);
	CHECK_EQ(st.missing[0], r.n - 1);
	if (!late)
		CHECK(now_ns() - begin < (timeout + limit_ms(500)) * UINT64_C(1000000));
	stage("the stream");
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, NCCLSVC_NO_TIMEOUT));
	say(c, READY);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_timeout(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, timeout_rank, NULL);
	hear_all(ranks, n - 1, READY);
	say(&ranks[n - 1], GO);
	CHECK_EQ(hear(&ranks[n - 1]), READY);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Assignment of GPUs ---- */

static ncclsvc_result join(struct client *c, ncclsvc_session *s, int device)
{
	ncclsvc_comm *comm;
	if (device == NCCLSVC_DEVICE_HOST)
		return ncclsvc_comm_join(s, &c->id, 2, c->rank, WAIT_MS, &comm);
	return ncclsvc_comm_join_device(s, &c->id, 2, c->rank, device, WAIT_MS, &comm);
}

/* Rank 0 joins first; rank 1 is refused and rank 0 keeps waiting, or both are refused. */
static void clash(struct client *c, int mine, ncclsvc_result expected)
{
	gpu_use(0);
	ncclsvc_session *s = session_open(c->daemon);
	if (c->rank)
		CHECK_EQ(hear(c), GO);
	else
		say(c, READY);
	ncclsvc_result r = join(c, s, mine);
	if (c->rank)
		CHECK_RESULT(r, expected);
	else
		CHECK(r == expected || r == NCCLSVC_CANCELLED || r == NCCLSVC_PEER_GONE ||
		      r == NCCLSVC_TIMEOUT);
	if (c->rank) {
		report("%s", ncclsvc_last_error());
		say(c, READY);
	}
	ncclsvc_close(s);
}

static void same_gpu_rank(struct client *c)
{
	clash(c, 0, NCCLSVC_INVALID_ARGUMENT);
}

static void host_and_gpu_rank(struct client *c)
{
	clash(c, c->rank ? NCCLSVC_DEVICE_HOST : 0, NCCLSVC_MISMATCH);
}

static void gpu_and_host_rank(struct client *c)
{
	clash(c, c->rank ? 0 : NCCLSVC_DEVICE_HOST, NCCLSVC_MISMATCH);
}

static void run_clash(client_main *main)
{
	struct daemon d;
	struct client ranks[2];
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, main, NULL);
	CHECK_EQ(hear(&ranks[0]), READY);
	clients_ask(ranks, 1); /* until the daemon has read its JOIN */
	say(&ranks[1], GO);
	CHECK_EQ(hear(&ranks[1]), READY);
	client_kill(&ranks[0]); /* it may still wait for a peer */
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

static void test_same_gpu(void)
{
	run_clash(same_gpu_rank);
}

static void test_host_and_gpu(void)
{
	run_clash(host_and_gpu_rank);
	run_clash(gpu_and_host_rank);
}

/* ---- CUDA_VISIBLE_DEVICES ---- */

static void uuid_text(const uint8_t *u, char *text, size_t size)
{
	snprintf(text, size,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
		 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
		 u[14], u[15]);
}

/* This process sees the daemon's GPUs in reverse order: its device r is the daemon's n - 1 - r. */
static void reversed_rank(struct client *c)
{
	struct rank r;
	char list[1024] = "", uuid[64];
	ncclsvc_session *s = session_open(c->daemon);
	for (int i = c->nranks - 1; i >= 0; i--) {
		size_t n = strlen(list);
		uuid_text(device_info(s, i).uuid, uuid, sizeof(uuid));
		snprintf(list + n, sizeof(list) - n, "%s%s", n ? "," : "", uuid);
	}
	/* The last rank sees only its own GPU. */
	bool alone = c->rank == c->nranks - 1;
	if (alone)
		uuid_text(device_info(s, 0).uuid, list, sizeof(list));
	setenv("CUDA_VISIBLE_DEVICES", list, 1);
	rank_prepare(&r, c, alone ? 0 : c->rank);
	rank_join(&r);
	rank_check_usable(&r);
	ncclsvc_member_info *members;
	size_t n;
	int found = 0;
	CHECK_OK(ncclsvc_list_members(s, &members, &n));
	for (size_t i = 0; i < n; i++) {
		if (members[i].device < 0)
			continue;
		CHECK_EQ(members[i].device, c->nranks - 1 - members[i].rank);
		found++;
	}
	CHECK_EQ(found, c->nranks);
	ncclsvc_list_free(members);
	ncclsvc_close(s);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_close(&r);
}

static void test_reversed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, reversed_rank, NULL);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Splits ---- */

static void split_rank(struct client *c)
{
	struct rank r, part;
	rank_open(&r, c);
	part = r;
	/* All ranks in reverse order, then even and odd ones, then rank 0 alone. */
	stage("splitting: reversed");
	CHECK_OK(ncclsvc_comm_split(r.comm, 0, -r.rank, WAIT_MS, &part.comm));
	part.rank = ncclsvc_comm_rank(part.comm);
	part.n = ncclsvc_comm_size(part.comm);
	CHECK_EQ(part.rank, r.n - 1 - r.rank);
	CHECK_EQ(part.n, r.n);
	rank_check_usable(&part);
	CHECK_OK(ncclsvc_comm_leave(part.comm));
	stage("splitting: even and odd");
	CHECK_OK(ncclsvc_comm_split(r.comm, r.rank % 2, r.rank, WAIT_MS, &part.comm));
	part.rank = ncclsvc_comm_rank(part.comm);
	part.n = ncclsvc_comm_size(part.comm);
	CHECK_EQ(part.rank, r.rank / 2);
	rank_check_usable(&part);
	rank_check_usable(&r);
	CHECK_OK(ncclsvc_comm_leave(part.comm));
	stage("splitting: the first alone");
	CHECK_OK(ncclsvc_comm_split(r.comm, r.rank ? -1 : 0, 0, WAIT_MS, &part.comm));
	CHECK(!part.comm == (r.rank != 0));
	if (part.comm) {
		part.n = 1;
		part.rank = 0;
		rank_check_usable(&part);
		CHECK_OK(ncclsvc_comm_leave(part.comm));
	}
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_split(void)
{
	ranks_run(ranks_count(), split_rank, NULL);
}

/* ---- The pool ---- */

static void pool_rank(struct client *c)
{
	struct rank r;
	ncclsvc_unique_id id = c->id;
	rank_prepare(&r, c, c->rank);
	for (uint8_t round = 0; round < 4; round++) {
		id.bytes[3] =
			(uint8_t)(c->id.bytes[3] + round); /* another communicator each time */
		say(c, READY);
		CHECK_EQ(hear(c), GO);
		uint64_t begin = now_ns();
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
		say(c, now_ns() - begin);
		rank_check_usable(&r);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
	}
	CHECK_EQ(device_info(r.session, r.gpu).nccl_comms, 1);
	ncclsvc_close(r.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void test_pool(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	double ms[4] = {0};
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, pool_rank, NULL);
	for (int round = 0; round < 4; round++) {
		hear_all(ranks, n, READY);
		say_all(ranks, n, GO);
		for (int i = 0; i < n; i++) {
			double took = (double)hear(&ranks[i]) / 1e6;
			ms[round] = ms[round] > took ? ms[round] : took;
		}
	}
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
	report("first join %.1f ms, then from the pool %.1f, %.1f and %.1f ms (limit %u)", ms[0],
	       ms[1], ms[2], ms[3], limit_ms(50));
	for (int round = 1; round < 4; round++)
		CHECK(ms[round] < limit_ms(50));
	CHECK(setup.fake || ms[0] > ms[1]);
}

/* One user may have three quarters of a worker's NCCL communicators. Unused ones are replaced. */
static void slots_rank(struct client *c)
{
	enum { SLOTS = 256, MINE = SLOTS * 3 / 4 };
	static ncclsvc_comm *comms[MINE];
	struct rank r;
	ncclsvc_unique_id id = c->id;
	ncclsvc_comm *one = NULL;
	rank_prepare(&r, c, c->rank);
	for (int i = 0; i < MINE; i++) {
		id.bytes[3] = (uint8_t)(c->id.bytes[3] + i);
		stage("communicator %d", i);
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &comms[i]));
	}
	id.bytes[4]++;
	CHECK_RESULT(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS, &one),
		     NCCLSVC_LIMIT);
	CHECK(strstr(ncclsvc_last_error(), "user_nccl_comms_max is 192"));
	for (int i = 0; i < MINE; i++)
		CHECK_OK(ncclsvc_comm_leave(comms[i]));
	/* The ranks have other GPUs than before, so no communicator in the pool fits, and the last
	 * of these has to replace an unused one. */
	r.rank = r.n - 1 - r.rank;
	for (int i = 0; i <= SLOTS - MINE; i++) {
		id.bytes[5]++;
		stage("another communicator %d", i);
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
	}
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_slots(void)
{
	if (!setup.fake)
		skip_test("on real GPUs, each communicator takes 0.3 s and 100 MiB");
	ranks_run(2, slots_rank, NULL);
}

/* ---- Rejoining an epoch that is not over ---- */

static void whole_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_RESULT(ncclsvc_comm_rejoin(r.comm, WAIT_MS), NCCLSVC_RANK_TAKEN);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_whole(void)
{
	ranks_run(ranks_count(), whole_rank, NULL);
}

const struct gpu_test member_tests[] = {
	{"members/whole", test_whole, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"members/mismatch", test_mismatch, 2, 60, TEST_QUICK | TEST_NCCL},
	{"members/circle", test_circle, 2, 60, TEST_QUICK | TEST_NCCL},
	{"members/timeout", test_timeout, 2, 60, TEST_QUICK | TEST_NCCL},
	{"members/same_gpu", test_same_gpu, 2, 60, 0},
	{"members/host_and_gpu", test_host_and_gpu, 2, 60, 0},
	{"members/visible_devices", test_reversed, 2, 60, TEST_QUICK},
	{"members/split", test_split, 2, 60, TEST_QUICK},
	{"members/pool", test_pool, 2, 60, TEST_QUICK | TEST_NCCL},
	{"members/slots", test_slots, 2, 240, TEST_NCCL | TEST_ONE_NODE},
	{0},
};
