/* SPDX-License-Identifier: Apache-2.0
 * Messages in kernels between ranks that wait for each other: in a circle, which never ends, or in
 * a chain, which does. */
#include "meeting.h"

#define MANY	50 /* messages: more than a kernel moves */
#define LATE_MS 600
#define MS	UINT64_C(1000000)

/* ---- Circles of ranks 0 to n - 1; each function returns the task that waits ---- */

static ncclsvc_task receive_first(struct rank *r, CUdeviceptr p, int n)
{
	ncclsvc_task task;
	kernels_recv(r, p, SMALL, (r->rank + 1) % n, &task);
	kernels_send(r, p, SMALL, (r->rank + n - 1) % n, NULL);
	return task;
}

static ncclsvc_task on_two_streams(struct rank *r, CUdeviceptr p, int n)
{
	ncclsvc_task task;
	CUstream other = gpu_stream();
	kernels_recv(r, p, SMALL, (r->rank + 1) % n, &task);
	CHECK_OK(ncclsvc_stream_set(r->session, other, 0));
	kernels_send(r, p, SMALL, (r->rank + n - 1) % n, NULL);
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	CHECK(gpu_stream_ends(other, WAIT_MS));
	CHECK_CU(cu.cuStreamDestroy(other));
	return task;
}

static ncclsvc_task send_long(struct rank *r, CUdeviceptr p, int n)
{
	ncclsvc_task task;
	kernels_send(r, p, LONG_WORDS, (r->rank + 1) % n, &task);
	kernels_recv(r, p, LONG_WORDS, (r->rank + n - 1) % n, NULL);
	return task;
}

/* Rank 0 waits in the sum for the others, which wait for its Sends, behind the sum. */
static ncclsvc_task receive_before_sum(struct rank *r, CUdeviceptr p, int n)
{
	ncclsvc_task task;
	if (r->rank)
		kernels_recv(r, p, SMALL, 0, &task);
	const ncclsvc_task sum = kernels_sum(r, p, SMALL);
	for (int to = 1; !r->rank && to < n; to++)
		kernels_send(r, p, SMALL, to, NULL);
	return r->rank ? task : sum;
}

/* The second Recv needs the previous rank's Send behind the group, which waits for its whole
 * group. */
static ncclsvc_task behind_group(struct rank *r, CUdeviceptr p, int n)
{
	const int next = (r->rank + 1) % n, before = (r->rank + n - 1) % n;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_group_begin(r->session));
	kernels_send(r, p, SMALL, next, NULL);
	kernels_recv(r, p, SMALL, before, NULL);
	kernels_recv(r, p, SMALL, before, &task);
	kernels_submitted(r, ncclsvc_group_end(r->session), &task);
	kernels_send(r, p, SMALL, next, NULL);
	return task;
}

/* A message of rank 0 to itself that does not fit into the ring. */
static ncclsvc_task to_itself(struct rank *r, CUdeviceptr p, int n)
{
	ncclsvc_task task = 0;
	if (n && r->rank)
		return kernels_sum(r, p, SMALL);
	kernels_send(r, p, LONG_WORDS, 0, &task);
	kernels_recv(r, p, LONG_WORDS, 0, NULL);
	return task;
}

static const struct circle {
	const char *what;
	ncclsvc_task (*submit)(struct rank *r, CUdeviceptr p, int n);
	ncclsvc_op ops[2]; /* in which rank 0 and the others wait */
	bool of_all, alone;
} circles[] = {
	{"Recv before Send", receive_first, {NCCLSVC_RECV, NCCLSVC_RECV}, 0, 0},
	{"on two streams", on_two_streams, {NCCLSVC_RECV, NCCLSVC_RECV}, 0, 0},
	{"long Sends", send_long, {NCCLSVC_SEND, NCCLSVC_SEND}, 0, 0},
	{"behind a group", behind_group, {NCCLSVC_RECV, NCCLSVC_RECV}, 0, 0},
	{"before a sum", receive_before_sum, {NCCLSVC_ALL_REDUCE, NCCLSVC_RECV}, 1, 0},
	{"one rank", to_itself, {NCCLSVC_SEND, NCCLSVC_SEND}, 1, 1},
};
#define CIRCLES (sizeof(circles) / sizeof(circles[0]))

static void check_circle(struct rank *r, const struct circle *c, ncclsvc_task task)
{
	ncclsvc_status st;
	if (!kernels_failed(r, task, &st))
		return;
	CHECK_EQ(st.field, NCCLSVC_FIELD_ORDER);
	CHECK(st.rank_a >= 0 && st.rank_a < r->n && st.rank_b >= 0 && st.rank_b < r->n);
	CHECK(st.pid_a > 0 && st.pid_b > 0);
	CHECK_EQ(st.rank_a == st.rank_b, c->alone);
	CHECK_EQ(st.value_a, c->ops[st.rank_a > 0]);
	CHECK_EQ(st.value_b, c->ops[st.rank_b > 0]);
}

/* The daemon ends the circle without a deadline. */
static void go_round(struct meeting *m, CUdeviceptr p, const struct circle *c, int n)
{
	struct rank *const r = &m->r;
	stage("%s, %d ranks", c->what, n);
	meeting_reach(m);
	kernels_may_end(r, NCCLSVC_MISMATCH);
	const uint64_t begin = now_ns();
	if (r->rank < n)
		check_circle(r, c, c->submit(r, p, n));
	kernels_over(r, NCCLSVC_MISMATCH);
	CHECK(now_ns() - begin < limit_ms(1000) * MS);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	kernels_rejoin(r);
}

static void circle_rank_of(struct client *c)
{
	struct meeting m;
	CUdeviceptr p;
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	rank_check_usable(&m.r);
	for (size_t i = 0; i < CIRCLES; i++) {
		for (int n = 2; n < m.r.n && !circles[i].of_all; n++)
			go_round(&m, p, &circles[i], n);
		go_round(&m, p, &circles[i], m.r.n);
	}
	CHECK_CU(cu.cuMemFree(p));
	meeting_close(&m);
}

static void test_circle(void)
{
	kernels_run(ranks_count(), circle_rank_of, NULL);
}

/* ---- Waits that take long, but end ---- */

/* Each rank waits for the next one, and the last one is late. */
static void chain(struct rank *r, CUdeviceptr p)
{
	stage("a chain");
	if (r->rank == r->n - 1)
		sleep_ms(LATE_MS);
	else
		kernels_recv(r, p, SMALL, r->rank + 1, NULL);
	if (r->rank)
		kernels_send(r, p, SMALL, r->rank - 1, NULL);
	kernels_sum(r, p, SMALL);
	rank_sync(r);
}

/* As in a circle, each rank receives before it sends, except rank 0, which is late. */
static void nearly(struct rank *r, CUdeviceptr p)
{
	const int next = (r->rank + 1) % r->n, before = (r->rank + r->n - 1) % r->n;
	stage("nearly a circle");
	if (!r->rank) {
		sleep_ms(LATE_MS);
		kernels_send(r, p, SMALL, next, NULL);
		sleep_ms(LATE_MS);
	}
	kernels_recv(r, p, SMALL, before, NULL);
	if (r->rank)
		kernels_send(r, p, SMALL, next, NULL);
	rank_sync(r);
}

/* A group that needs several kernels. Its long messages fill the rings in both directions. */
static void long_groups(struct rank *r, CUdeviceptr p)
{
	ncclsvc_task task;
	stage("long groups");
	const CUdeviceptr to = p + LARGE / 2;
	CHECK_OK(ncclsvc_group_begin(r->session));
	for (int i = 0; i < MANY; i++)
		for (int k = 0; k < r->n; k++) {
			const size_t words = i % 10 == k % 10 ? LONG_WORDS : SMALL;
			kernels_recv(r, to, i % 10 == r->rank ? LONG_WORDS : SMALL, k, &task);
			kernels_send(r, p, words, k, &task);
		}
	CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
}

/* The ranks are late in turn: each waits, but never all at the same time. */
static void in_turn(struct rank *r, CUdeviceptr p)
{
	stage("ranks that are late in turn");
	for (int i = 0; i < 6; i++) {
		if (i % r->n == r->rank)
			sleep_ms(250);
		for (int k = 0; k < r->n; k++) {
			if (k == r->rank)
				continue;
			if (k > r->rank)
				kernels_send(r, p, SMALL, k, NULL);
			kernels_recv(r, p, SMALL, k, NULL);
			if (k < r->rank)
				kernels_send(r, p, SMALL, k, NULL);
		}
	}
	rank_sync(r);
}

static void slow_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	const uint32_t epoch = ncclsvc_comm_epoch(r.comm);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	chain(&r, p);
	nearly(&r, p);
	long_groups(&r, p);
	in_turn(&r, p);
	CHECK_EQ(ncclsvc_comm_epoch(r.comm), epoch);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_slow(void)
{
	kernels_run(ranks_count(), slow_rank, NULL);
}

const struct gpu_test kernel_circle_tests[] = {
	{"kernels/messages/circle", test_circle, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/circle/4", test_circle, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/slow", test_slow, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/slow/4", test_slow, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
