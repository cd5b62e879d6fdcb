/* SPDX-License-Identifier: Apache-2.0
 * Ranks that abort or leave, and a daemon that dies, while kernels wait. */
#include <pthread.h>

#include "meeting.h"

enum word { READY = 1, GO };

/* ---- Members that abort or leave ---- */

static void *abort_comm(void *arg)
{
	sleep_ms(100);
	ncclsvc_comm_abort(arg);
	return NULL;
}

/* Another thread of the last rank aborts while the ranks wait. */
static void break_off(struct meeting *m, CUdeviceptr p)
{
	pthread_t thread;
	struct rank *const r = &m->r;
	const bool last = r->rank == r->n - 1;
	stage("a rank that aborts");
	/* Rank 0 submits nothing, so no task can complete. */
	const ncclsvc_task task = r->rank ? kernels_sum(r, p, SMALL) : 0;
	meeting_reach(m);
	if (last)
		CHECK_EQ(pthread_create(&thread, NULL, abort_comm, r->comm), 0);
	if (r->rank)
		wait_for(r->session, task, NCCLSVC_PEER_GONE);
	if (last)
		CHECK_EQ(pthread_join(thread, NULL), 0);
	if (!r->rank)
		kernels_over(r, NCCLSVC_PEER_GONE);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	kernels_rejoin(r);
}

/* The last rank leaves while the ranks' kernels wait. */
static void leave_early(struct meeting *m, CUdeviceptr p)
{
	struct rank *const r = &m->r;
	const bool last = r->rank == r->n - 1;
	stage("a rank that leaves early");
	const ncclsvc_task task = r->rank ? kernels_sum(r, p, SMALL) : 0;
	meeting_reach(m);
	if (last) {
		CHECK_OK(ncclsvc_comm_leave(r->comm));
		wait_for(r->session, task, NCCLSVC_CANCELLED);
	} else if (r->rank) {
		wait_for(r->session, task, NCCLSVC_PEER_GONE);
	}
	if (!r->rank)
		kernels_over(r, NCCLSVC_PEER_GONE);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	if (!last) {
		kernels_rejoin(r);
		return;
	}
	rank_join(r);
	rank_check_usable(r);
}

/* Each rank leaves as soon as its own kernel has ended. */
static void leave_late(struct rank *r, CUdeviceptr p, uint8_t round)
{
	const size_t words = (size_t)2 << 20 >> 2; /* so many that other kernels may still run */
	ncclsvc_unique_id id = r->c->id;
	ncclsvc_comm *const first = r->comm;
	stage("a rank that leaves late, %d", round);
	id.bytes[2] ^= (uint8_t)(2 + round);
	CHECK_OK(ncclsvc_comm_join_device(r->session, &id, r->n, r->rank, r->gpu, WAIT_MS,
					  &r->comm));
	gpu_fill(p, 1, words);
	const ncclsvc_task task = kernels_sum(r, p, words);
	rank_wait(r, task);
	CHECK_OK(ncclsvc_comm_leave(r->comm));
	gpu_check(p, (uint32_t)r->n, words, "the sum of one who leaves");
	r->comm = first;
}

static void leaving_rank(struct client *c)
{
	struct meeting m;
	CUdeviceptr p;
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&p, (size_t)2 << 20));
	rank_check_usable(&m.r);
	break_off(&m, p);
	leave_early(&m, p);
	for (uint8_t i = 0; i < 4; i++)
		leave_late(&m.r, p, i);
	rank_check_usable(&m.r);
	CHECK_CU(cu.cuMemFree(p));
	meeting_close(&m);
}

static void test_leave(void)
{
	kernels_run(ranks_count(), leaving_rank, NULL);
}

/* ---- The daemon is killed ---- */

/* The process makes no call: its kernel notices that the daemon's heartbeat has stopped. */
static void unaware_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task = 0;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	rank_check_usable(&r);
	if (r.rank)
		task = kernels_sum(&r, p, SMALL);
	say(c, READY);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	CHECK_EQ(hear(c), GO);
	if (task)
		wait_for(r.session, task, NCCLSVC_DAEMON_LOST);
	CHECK_OK(ncclsvc_reattach(r.session, WAIT_MS));
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_unaware(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, unaware_rank, NULL);
	hear_all(ranks, n, READY);
	sleep_ms(50);
	daemon_kill(&d);
	daemon_restart(&d, "--device", "cuda", "--log-level", "debug", NULL);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test kernel_leave_tests[] = {
	{"kernels/leave", test_leave, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/unaware", test_unaware, 2, 60, TEST_ONE_NODE},
	{0},
};
