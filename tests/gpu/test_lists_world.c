/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors of a GPU world, also after the death of a rank or of the daemon. */
#include <stdio.h>

#include "lists.h"
#include "watch.h"

static void world_rank(struct client *c)
{
	struct rank r;
	ncclsvc_world *w;
	CUdeviceptr p;
	rank_prepare(&r, c, c->rank);
	ncclsvc_world_options o = {.size = sizeof(o),
				   .rank = c->rank,
				   .device = c->rank ? NCCLSVC_DEVICE_LOCAL : 999,
				   .pipeline = c->nranks % 2 ? 1 : 2};
	stage("a GPU that does not exist");
	CHECK_RESULT(ncclsvc_world_init(r.session, &o, WAIT_MS, &w),
		     c->rank ? NCCLSVC_UNSUPPORTED : NCCLSVC_INVALID_ARGUMENT);
	says(c->rank ? "rank 0 cannot use its GPU" : "no GPU 999");
	say(c, 1);
	CHECK_EQ(hear(c), 2);
	o.device = NCCLSVC_DEVICE_LOCAL;
	stage("making the world");
	CHECK_OK(ncclsvc_world_init(r.session, &o, WAIT_MS, &w));
	CHECK_EQ(ncclsvc_world_device(w), c->rank);
	CHECK_CU(cu.cuMemAlloc(&p, 4000));
	for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++) {
		const ncclsvc_group *g = &ncclsvc_world_layout(w)->groups[type];
		const int64_t dim = 1000;
		ncclsvc_tensor t = {at(p), NCCLSVC_UINT32, 1, &dim};
		ncclsvc_tensors *lists;
		uint32_t sum = 0;
		stage("the %s group", ncclsvc_group_type_name(type));
		CHECK_OK(ncclsvc_tensors_open_group(w, (ncclsvc_group_type)type, WAIT_MS, &lists));
		CHECK_CU(cu.cuMemsetD32Async(p, 1u << c->rank, 1000, r.stream));
		CHECK_OK(
			ncclsvc_tensors_all_reduce(lists, &t, NULL, 1, NCCLSVC_SUM, WAIT_MS, NULL));
		for (int i = 0; i < g->size; i++)
			sum |= 1u << ncclsvc_group_rank(g, i);
		gpu_check(p, sum, 1000, "the group's sum");
		CHECK_OK(ncclsvc_tensors_close(lists));
	}
	ncclsvc_task task;
	CHECK_OK(ncclsvc_barrier(ncclsvc_world_host_comm(w), &task));
	rank_wait(&r, task);
	ncclsvc_world_free(w);
	CHECK_CU(cu.cuMemFree(p));
	ncclsvc_close(r.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void test_world(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	char n[16];
	snprintf(n, sizeof(n), "%d", ranks_count());
	stage("starting the daemon");
	daemon_start(&d, "--device", "cuda", "--log-level", "debug", "--ranks", n, NULL);
	watch_daemon(&d);
	clients_start(ranks, ranks_count(), &d, world_rank, NULL);
	hear_all(ranks, ranks_count(), 1);
	say_all(ranks, ranks_count(), 2);
	ranks_end(ranks, ranks_count());
	gpu_daemon_stop(&d);
}

/* The last rank is killed and comes back; the others rejoin beside it. */
static void recover_rank(struct client *c)
{
	enum { READY = 1, GO };
	struct rank r;
	ncclsvc_world *w;
	ncclsvc_tensors *lists;
	CUdeviceptr p, q;
	const int64_t dim = 1000;
	const bool last = c->rank == c->nranks - 1;
	rank_prepare(&r, c, c->rank);
	ncclsvc_world_options o = {
		.size = sizeof(o), .rank = c->rank, .device = NCCLSVC_DEVICE_LOCAL};
	CHECK_OK(ncclsvc_world_init(r.session, &o, WAIT_MS, &w));
	CHECK_OK(ncclsvc_tensors_open_group(w, NCCLSVC_GROUP_DATA, WAIT_MS, &lists));
	CHECK_CU(cu.cuMemAlloc(&p, 4000));
	CHECK_CU(cu.cuMemAlloc(&q, 4000));
	for (int life = 0; life < 2; life++) {
		const ncclsvc_tensor t[] = {{at(p), NCCLSVC_UINT32, 1, &dim},
					    {at(q), NCCLSVC_UINT32, 1, &dim}};
		ncclsvc_message m = {.size = sizeof(m),
				     .input_signal = true,
				     .remote_rank = last ? 0 : c->nranks - 1,
				     .shapes = NCCLSVC_SHAPES_STATIC,
				     .n = 2,
				     .tensors = t};
		stage("a list from rank 0 to the last, life %d", life);
		CHECK_CU(cu.cuMemsetD32Async(p, last ? 0 : 5, 1000, r.stream));
		CHECK_CU(cu.cuMemsetD32Async(q, last ? 0 : 6, 1000, r.stream));
		if (c->rank == 0)
			CHECK_OK(ncclsvc_tensors_send(lists, &m, WAIT_MS, NULL));
		if (last) {
			CHECK_OK(ncclsvc_tensors_recv(lists, &m, WAIT_MS, NULL));
			gpu_check(p, 5, 1000, "the first tensor");
			gpu_check(q, 6, 1000, "the second tensor");
		}
		say(c, READY);
		CHECK_EQ(hear(c), GO);
		if (last || life)
			break;
		stage("rejoining");
		CHECK_OK(ncclsvc_world_rejoin(w, WAIT_MS));
		CHECK_OK(ncclsvc_tensors_rejoin(lists, WAIT_MS));
	}
	CHECK_OK(ncclsvc_tensors_close(lists));
	ncclsvc_world_free(w);
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(q));
	ncclsvc_close(r.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void test_recover(void)
{
	enum { READY = 1, GO };
	struct daemon d;
	struct client ranks[RANKS_MAX];
	char text[16];
	int n = ranks_count();
	snprintf(text, sizeof(text), "%d", n);
	stage("starting the daemon");
	daemon_start(&d, "--device", "cuda", "--log-level", "debug", "--ranks", text, NULL);
	watch_daemon(&d);
	clients_start(ranks, n, &d, recover_rank, NULL);
	hear_all(ranks, n, READY);
	client_kill(&ranks[n - 1]);
	client_start(&ranks[n - 1], recover_rank);
	say_all(ranks, n - 1, GO);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* Buffers continue to be used with the next daemon. */
static void reattach_rank(struct client *c)
{
	enum { READY = 1, GO };
	struct desk d;
	desk_open(&d, c);
	desk_hand_on(&d, NCCLSVC_SHAPES_AHEAD, 10, false);
	CHECK(gpu_stream_ends(d.r.stream, WAIT_MS));
	say(c, READY);
	ncclsvc_result result = NCCLSVC_OK;
	for (const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000); !result;) {
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__,
				     "the session does not report the daemon's death within %d ms",
				     WAIT_MS);
		result = ncclsvc_dispatch(d.r.session, 100);
	}
	CHECK_RESULT(result, NCCLSVC_DAEMON_LOST);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	stage("reattaching");
	CHECK_OK(ncclsvc_reattach(d.r.session, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_rejoin(d.lists, WAIT_MS));
	desk_hand_on(&d, NCCLSVC_SHAPES_AHEAD, 20, false);
	desk_hand_on(&d, NCCLSVC_SHAPES_STATIC, 30, false);
	desk_close(&d);
}

static void test_reattach(void)
{
	enum { READY = 1, GO };
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, reattach_rank, NULL);
	hear_all(ranks, n, READY);
	daemon_kill(&d);
	hear_all(ranks, n, READY);
	stage("restarting the daemon");
	daemon_restart(&d, "--device", "cuda", "--log-level", "debug", NULL);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test list_world_tests[] = {
	{"lists/world", test_world, 2, 60, TEST_QUICK},
	{"lists/recover", test_recover, 2, 60, TEST_QUICK},
	{"lists/reattach", test_reattach, 2, 60, 0},
	{0},
};
