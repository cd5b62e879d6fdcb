/* SPDX-License-Identifier: Apache-2.0
 * GPU communicators on several nodes when a trainer, a worker, or a daemon dies, or
 * when NCCL cannot start on one of them. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kill_rounds.h"
#include "node_stand_ins.h"

#define MIB ((size_t)1 << 20)

enum word { READY = 1, GO };

/* ---- Trainers and workers ---- */

static void test_trainer_idle(void)
{
	failure_rounds(2, 1, IDLE, false);
}

static void test_trainer_between(void)
{
	failure_rounds(2, 1, BETWEEN, false);
}

static void test_trainer_waiting(void)
{
	failure_rounds(2, 1, WAITING, false);
}

static void test_trainer_awaited(void)
{
	failure_rounds(2, 1, AWAITED, false);
}

static void test_trainer_inside(void)
{
	failure_rounds(2, 1, INSIDE, false);
}

static void test_worker_idle(void)
{
	failure_rounds(2, 1, IDLE, true);
}

static void test_worker_between(void)
{
	failure_rounds(2, 1, BETWEEN, true);
}

static void test_worker_inside(void)
{
	failure_rounds(2, 1, INSIDE, true);
}

static void test_trainer_inside_4(void)
{
	failure_rounds(2, 2, INSIDE, false);
}

static void test_trainer_between_4(void)
{
	failure_rounds(2, 2, BETWEEN, false);
}

static void test_worker_between_4(void)
{
	failure_rounds(2, 2, BETWEEN, true);
}

static void test_worker_inside_4(void)
{
	failure_rounds(2, 2, INSIDE, true);
}

/* ---- Daemons ---- */

struct survivor {
	struct rank r;
	CUdeviceptr p;
	size_t bytes;
};

/* Submits a task that waits for others or, inside, tasks that run, and later work, which the GPU
 * must reach. The failure must name node `gone`. */
static void endure(struct survivor *o, bool inside, int gone)
{
	ncclsvc_task task = 0;
	for (int i = 0; i < (inside ? 60 : 1); i++)
		CHECK_OK(ncclsvc_all_reduce(at(o->p), at(o->p), inside ? o->bytes / 4 : 64,
					    NCCLSVC_UINT32, NCCLSVC_SUM, o->r.comm, &task));
	CHECK_CU(cu.cuMemsetD32Async(o->p, 77, 64, o->r.stream));
	say(o->r.c, READY);
	stage("waiting for the daemon's death");
	ncclsvc_result result = ncclsvc_wait(o->r.session, task, WAIT_MS);
	const bool over = inside && !result; /* all tasks ended before the failure */
	while (over && !result) {
		CHECK_OK(ncclsvc_dispatch(o->r.session, 5));
		result = ncclsvc_comm_error(o->r.comm);
	}
	CHECK_RESULT(result, NCCLSVC_PEER_GONE);
	say(o->r.c, now_ns());
	ncclsvc_status st = {.field = NCCLSVC_FIELD_NODE, .value_a = (uint64_t)gone};
	if (!over)
		st = status_of(o->r.session, task);
	CHECK_EQ(st.field, NCCLSVC_FIELD_NODE);
	CHECK_EQ(st.value_a, gone);
	if (!inside && !gone)
		CHECK(strstr(ncclsvc_last_error(), "node 0's daemon is gone"));
	stage("waiting for the stream to be released");
	CHECK(gpu_stream_ends(o->r.stream, WAIT_MS));
	say(o->r.c, now_ns());
	gpu_check(o->p, 77, 64, "what was put behind the task");
}

static void survivor_open(struct survivor *o, struct client *c)
{
	rank_open(&o->r, c);
	rank_check_usable(&o->r);
	o->bytes = setup.fake ? 4 * MIB : 256 * MIB;
	CHECK_CU(cu.cuMemAlloc(&o->p, o->bytes));
	gpu_fill(o->p, 1, o->bytes / 4);
}

/* Rank 1's daemon dies. Rank 0 continues alone, on a communicator of its own node. */
static void bereaved_rank(struct client *c)
{
	struct survivor o;
	struct rank *r = &o.r;
	const bool inside = c->arg != NULL;
	ncclsvc_unique_id id = c->id;
	survivor_open(&o, c);
	if (c->rank) {
		for (int i = 0; inside && i < 60; i++)
			CHECK_OK(ncclsvc_all_reduce(at(o.p), at(o.p), o.bytes / 4, NCCLSVC_UINT32,
						    NCCLSVC_SUM, r->comm, NULL));
		say(c, READY);
		while (!ncclsvc_dispatch(r->session, 100))
			;
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		ncclsvc_close(r->session);
		return;
	}
	endure(&o, inside, 1);
	id.bytes[7] ^= 1;
	CHECK_OK(ncclsvc_comm_leave(r->comm));
	CHECK_OK(ncclsvc_comm_join_device(r->session, &id, 1, 0, r->gpu, WAIT_MS, &r->comm));
	r->n = 1;
	rank_check_usable(r);
	CHECK_CU(cu.cuMemFree(o.p));
	rank_close(r);
}

static void take_time(struct client *ranks, int n, uint64_t killed, const char *what)
{
	uint64_t noticed = 0, released = 0;
	for (int i = 0; i < n; i++) {
		uint64_t t = hear(&ranks[i]) - killed, s = hear(&ranks[i]) - killed;
		noticed = noticed > t ? noticed : t;
		released = released > s ? released : s;
	}
	report("%s: noticed after %llu ms, streams released after %llu ms", what,
	       (unsigned long long)noticed / 1000000, (unsigned long long)released / 1000000);
	CHECK(noticed / 1000000 <= limit_ms(setup.mps ? 2000 : 150));
	CHECK(released / 1000000 <= limit_ms(setup.mps ? 4000 : 2000));
}

static void kill_daemon(void *inside)
{
	struct nodes w;
	struct client ranks[2];
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, bereaved_rank, inside);
	hear_all(ranks, 2, READY);
	sleep_ms(30);
	uint64_t killed = now_ns();
	cluster_kill(&w.c, 1);
	take_time(ranks, 1, killed, inside ? "inside" : "waiting");
	ranks_end(ranks, 2);
	nodes_stop(&w);
}

static void test_daemon_waiting(void)
{
	kill_daemon(NULL);
}

static void test_daemon_inside(void)
{
	int yes;
	kill_daemon(&yes);
}

/* Ranks 1 and 2 have a communicator. Node 0, which has none of its members, dies while one rank
 * waits for the late other one or, if arg is set, while both are busy. */
static void undisturbed_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	ncclsvc_unique_id id = c->id;
	if (!c->rank)
		return;
	c->rank--;
	c->nranks--;
	rank_prepare(&r, c, c->rank + 1);
	rank_join(&r);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	gpu_fill(p, 1, 64);
	rank_check_usable(&r);
	if (c->arg) {
		say(c, READY);
		for (int i = 0; i < 300; i++)
			rank_check_usable(&r);
	} else {
		if (c->rank) {
			say(c, READY);
			CHECK_EQ(hear(c), GO);
		}
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm,
					    &task));
		if (!c->rank)
			say(c, READY);
		CHECK_OK(ncclsvc_wait(r.session, task, WAIT_MS));
	}
	CHECK_OK(ncclsvc_comm_error(r.comm));
	if (!cluster_is_linked()) { /* standalone: members gather on node 0, which is gone */
		stage("joining another communicator");
		id.bytes[7] ^= 1;
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
	}
	for (int i = 0; i < 20; i++)
		rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void lose_bystander(void *busy)
{
	struct nodes w;
	struct client ranks[3];
	nodes_start(&w, 3, 1);
	nodes_clients(&w, ranks, undisturbed_rank, busy);
	hear_all(ranks + 1, 2, READY);
	sleep_ms(30);
	cluster_kill(&w.c, 0);
	if (!busy) {
		sleep_ms(100);
		say(&ranks[2], GO);
	}
	ranks_end(ranks, 3);
	nodes_stop(&w);
}

static void test_bystander_awaited(void)
{
	lose_bystander(NULL);
}

static void test_bystander_busy(void)
{
	int yes;
	lose_bystander(&yes);
}

/* Rank 1's daemon dies and returns: both ranks join again. */
static void returning_rank(struct client *c)
{
	struct rank r;
	for (int turn = 0; turn < 3; turn++) {
		stage("joining, turn %d", turn);
		if (c->rank || !turn)
			rank_open(&r, c);
		else
			CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
		for (int i = 0; i < 20; i++)
			rank_check_usable(&r);
		if (turn == 2)
			break;
		say(c, READY);
		while (!(c->rank ? ncclsvc_dispatch(r.session, 100) : ncclsvc_comm_error(r.comm)))
			if (!c->rank)
				CHECK_OK(ncclsvc_dispatch(r.session, 5));
		if (c->rank) {
			ncclsvc_close(r.session);
			CHECK_CU(cu.cuStreamDestroy(r.stream));
		}
		CHECK_EQ(hear(c), GO);
	}
	rank_close(&r);
}

static void test_returns(void)
{
	struct nodes w;
	struct client ranks[2];
	if (!cluster_is_linked())
		skip_test("daemons that mpirun starts cannot return");
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, returning_rank, NULL);
	for (int turn = 0; turn < 2; turn++) {
		hear_all(ranks, 2, READY);
		cluster_restart(&w.c, 1, SIGKILL);
		say_all(ranks, 2, GO);
	}
	ranks_end(ranks, 2);
	nodes_stop(&w);
}

/* ---- A node that does not answer ---- */

/* Runs tasks until one fails, then rejoins. */
static void patient_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_result result = NCCLSVC_OK;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	gpu_fill(p, 1, 64);
	say(c, READY);
	if (c->arg) {
		while (!result) {
			ncclsvc_task task;
			result = ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_UINT32, NCCLSVC_SUM,
						    r.comm, &task);
			if (!result)
				result = ncclsvc_wait(r.session, task, WAIT_MS);
		}
		CHECK(result == NCCLSVC_PEER_GONE || result == NCCLSVC_STALE_EPOCH);
		stage("rejoining");
		CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
		rank_check_usable(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* One node's daemon is stopped. A trainer on the other node dies meanwhile, and the nodes cannot
 * agree on what was launched. */
static void stop_node(int stopped)
{
	struct nodes w;
	struct client ranks[2];
	const int victim = !stopped;
	int yes;
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, patient_rank, &yes);
	hear_all(ranks, 2, READY);
	sleep_ms(30);
	process_stop(w.c.nodes[stopped].pid);
	client_kill(&ranks[victim]);
	CHECK(cluster_logged(&w.c, "did not agree"));
	CHECK_EQ(kill(w.c.nodes[stopped].pid, SIGCONT), 0);
	ranks[victim].arg = NULL;
	client_start(&ranks[victim], patient_rank);
	CHECK_EQ(hear(&ranks[victim]), READY);
	ranks_end(ranks, 2);
	nodes_check_inits(&w, 2, 4); /* both nodes have created another communicator */
	nodes_stop(&w);
}

static void test_stopped(void)
{
	stop_node(1);
}

static void test_stopped_leader(void)
{
	stop_node(0);
}

/* ---- NCCL cannot start ---- */

static void set_fault(const char *name, int pid)
{
	char path[300];
	snprintf(path, sizeof(path), "%s/fault.%s", getenv("NCCLSVC_FAKE_DIR"), name);
	if (!pid) {
		unlink(path);
		return;
	}
	const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && dprintf(fd, "%d", pid) > 0);
	close(fd);
}

static void refused_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->rank);
	stage("joining while NCCL cannot be initialized");
	ncclsvc_result result =
		ncclsvc_comm_join_device(r.session, &c->id, r.n, r.rank, r.gpu, WAIT_MS, &r.comm);
	CHECK_RESULT(result, NCCLSVC_NCCL_ERROR);
	report("rank %d: %s", r.rank, ncclsvc_last_error());
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_join(&r);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_init_fails(void)
{
	struct nodes w;
	struct client ranks[2];
	if (!setup.fake)
		skip_test("needs a stand-in that can fail on demand");
	nodes_start(&w, 2, 1);
	ncclsvc_session *s = session_open(&w.c.nodes[1]);
	set_fault("init-fail", device_info(s, 0).pid);
	ncclsvc_close(s);
	nodes_clients(&w, ranks, refused_rank, NULL);
	hear_all(ranks, 2, READY);
	set_fault("init-fail", 0);
	say_all(ranks, 2, GO);
	ranks_end(ranks, 2);
	nodes_stop(&w);
}

/* Rank 0's JOIN times out, and the error says that a rank has not joined. */
static void late_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->rank);
	if (c->rank)
		CHECK_EQ(hear(c), GO);
	if (!c->rank) {
		CHECK_RESULT(ncclsvc_comm_join_device(r.session, &c->id, r.n, r.rank, r.gpu, 200,
						      &r.comm),
			     NCCLSVC_TIMEOUT);
		CHECK(strstr(ncclsvc_last_error(), "had not joined"));
		say(c, READY);
	}
	rank_join(&r);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_late(void)
{
	struct nodes w;
	struct client ranks[2];
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, late_rank, NULL);
	CHECK_EQ(hear(&ranks[0]), READY);
	say(&ranks[1], GO);
	ranks_end(ranks, 2);
	nodes_stop(&w);
}

const struct gpu_test node_failure_tests[] = {
	{"nodes/trainer_idle", test_trainer_idle, 2, 120, TEST_ONE_NODE},
	{"nodes/trainer_between", test_trainer_between, 2, 120, TEST_ONE_NODE},
	{"nodes/trainer_waiting", test_trainer_waiting, 2, 120, TEST_ONE_NODE},
	{"nodes/trainer_awaited", test_trainer_awaited, 2, 120, TEST_ONE_NODE},
	{"nodes/trainer_inside", test_trainer_inside, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/worker_idle", test_worker_idle, 2, 120, TEST_ONE_NODE},
	{"nodes/worker_between", test_worker_between, 2, 120, TEST_ONE_NODE},
	{"nodes/worker_inside", test_worker_inside, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/trainer_inside/4", test_trainer_inside_4, 4, 120, TEST_ONE_NODE},
	{"nodes/trainer_between/4", test_trainer_between_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/worker_between/4", test_worker_between_4, 4, 120, TEST_ONE_NODE},
	{"nodes/worker_inside/4", test_worker_inside_4, 4, 120, TEST_ONE_NODE},
	{"nodes/daemon_waiting", test_daemon_waiting, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/daemon_inside", test_daemon_inside, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/bystander_awaited/4", test_bystander_awaited, 3, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/bystander_busy/4", test_bystander_busy, 3, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/returns", test_returns, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/stopped", test_stopped, 2, 90, TEST_ONE_NODE},
	{"nodes/stopped_leader", test_stopped_leader, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/init_fails", test_init_fails, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/late", test_late, 2, 60, TEST_ONE_NODE},
	{0},
};
