/* SPDX-License-Identifier: Apache-2.0
 * transport = mpi between two nodes: deaths, as seen from the other node, and nodes that differ. */
#include <signal.h>
#include <string.h>

#include "staged_setup.h"

enum word { READY = 1, GO };

/* ---- Deaths, seen from the other node ---- */

#define BETWEEN UINT64_C(1000) /* no task's status names the victim */

static void at_work(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	const size_t bytes = 24 * MIB;
	ncclsvc_task task = 0;
	ncclsvc_result result = NCCLSVC_OK;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, bytes));
	rank_check_usable(&r);
	say(c, (uint64_t)device_info(r.session, 0).pid);
	stage("at work");
	while (!result) {
		result = ncclsvc_all_reduce(at(p), at(p), bytes / 4, NCCLSVC_UINT32, NCCLSVC_SUM,
					    r.comm, &task);
		if (!result)
			result = ncclsvc_wait(r.session, task, WAIT_MS);
	}
	say(c, now_ns());
	/* Between two tasks, the rank learns of the loss from the epoch's end, not from a task. */
	bool between = result == NCCLSVC_STALE_EPOCH;
	if (between)
		result = ncclsvc_comm_error(r.comm);
	say(c, (uint64_t)-result);
	ncclsvc_status st = {0};
	if (result != NCCLSVC_DAEMON_LOST && !between)
		st = status_of(r.session, task);
	say(c, between				? BETWEEN
	       : st.field == NCCLSVC_FIELD_NODE ? 100 + st.value_a
						: (uint64_t)st.rank_a);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	if (hear(c) == GO) {
		stage("rejoining");
		CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
		rank_check_usable(&r);
		rank_check_usable(&r);
		CHECK_CU(cu.cuMemFree(p));
		rank_close(&r);
	} else {
		ncclsvc_close(r.session);
	}
}

/* Replaces the victim. */
static void restarted(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	rank_check_usable(&r);
	rank_check_usable(&r);
	rank_close(&r);
}

enum victim { TRAINER, WORKER, DAEMON };

/* Kills rank 1, its worker or its daemon, all on node 1. */
static void kill_one(enum victim victim)
{
	struct cluster c;
	struct client ranks[2];
	pid_t workers[2];
	stage_memory(NULL);
	staged_nodes_start(&c, 1);
	cluster_clients(ranks, 2, &c, IN_BLOCKS, at_work, NULL);
	for (int i = 0; i < 2; i++)
		workers[i] = (pid_t)hear(&ranks[i]);
	sleep_ms(60);
	uint64_t killed = now_ns();
	if (victim == TRAINER)
		client_kill(&ranks[1]);
	else if (victim == WORKER)
		CHECK_EQ(kill(workers[1], SIGKILL), 0);
	else
		cluster_kill(&c, 1);
	for (int i = 0; i < (victim == TRAINER ? 1 : 2); i++) {
		const ncclsvc_result want = victim == WORKER ? NCCLSVC_WORKER_LOST
					    : i		     ? NCCLSVC_DAEMON_LOST
							     : NCCLSVC_PEER_GONE;
		uint64_t noticed = hear(&ranks[i]) - killed;
		ncclsvc_result is = -(int)hear(&ranks[i]);
		uint64_t who = hear(&ranks[i]);
		report("rank %d: %s after %llu ms", i, ncclsvc_result_name(is),
		       (unsigned long long)(noticed / 1000000));
		CHECK_EQ(is, want);
		CHECK(is == NCCLSVC_DAEMON_LOST || who == BETWEEN ||
		      who == (victim == DAEMON ? 101 : 1));
		CHECK(noticed / 1000000 <= limit_ms(i ? 1000 : 200));
	}
	if (victim == TRAINER)
		client_start(&ranks[1], restarted);
	for (int i = 0; i < (victim == TRAINER ? 1 : 2); i++)
		say(&ranks[i], victim == DAEMON ? READY : GO);
	ranks_end(ranks, 2);
	cluster_stop(&c);
}

static void test_trainer(void)
{
	kill_one(TRAINER);
}

static void test_worker(void)
{
	kill_one(WORKER);
}

static void test_daemon(void)
{
	kill_one(DAEMON);
}

/* ---- Nodes that differ ---- */

static void differing_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->rank);
	ncclsvc_result result =
		ncclsvc_comm_join_device(r.session, &c->id, r.n, r.rank, r.gpu, WAIT_MS, &r.comm);
	/* The second JOIN is refused. The first one, which waits for it, gets the same error. */
	CHECK_EQ(result, NCCLSVC_MISMATCH);
	CHECK(strstr(ncclsvc_last_error(), "transport") && strstr(ncclsvc_last_error(), "node 0") &&
	      strstr(ncclsvc_last_error(), "node 1"));
	ncclsvc_close(r.session);
}

static void test_differing(void)
{
	static const char *const transports[] = {"nccl", "mpi"};
	struct cluster c;
	struct client ranks[2];
	need_mpi();
	cluster_start_staged(&c, 2, 0, transports, NULL);
	cluster_clients(ranks, 2, &c, IN_BLOCKS, differing_rank, NULL);
	ranks_end(ranks, 2);
	cluster_stop(&c);
}

const struct gpu_test staged_failure_tests[] = {
	{"staged/nodes/trainer", test_trainer, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/worker", test_worker, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/daemon", test_daemon, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/differing", test_differing, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
