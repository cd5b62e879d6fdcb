/* SPDX-License-Identifier: Apache-2.0
 * Workers that end when nobody needs them, and start again; NCCL communicators that epochs get when
 * an operation needs them, and give back when they are unused (worker_idle, idle_release). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "graphs.h"
#include "kernels.h"
#include "watch.h"

#define MIB	((size_t)1 << 20)
#define BIG	((size_t)1 << 18) /* words; more than peer_bytes below */
#define BYTES	(BIG * sizeof(uint32_t))
#define ENDS_MS 15000

/* A worker's context takes at least this much of a GPU; 530 to 600 MiB were measured. */
#define CONTEXT_BYTES (200 * MIB)

static void idle_daemon_start(struct daemon *d, const char *worker_idle, const char *release)
{
	stage("starting the daemon");
	daemon_start(d, "--device", "cuda", "--log-level", "debug", "--peer-bytes", "64K",
		     "--worker-idle", worker_idle, "--idle-release", release, NULL);
	watch_daemon(d);
}

static void idle_run(const char *worker_idle, const char *release, client_main *main)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	idle_daemon_start(&d, worker_idle, release);
	clients_start(ranks, n, &d, main, NULL);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

static size_t free_bytes(void)
{
	size_t left, all;
	CHECK_CU(cu.cuMemGetInfo(&left, &all));
	return left;
}

static void need_kernels(const struct rank *r)
{
	ncclsvc_comm_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_comms(r->session, &list, &n));
	bool any = false;
	for (size_t i = 0; i < n; i++)
		any = any || list[i].peer_bytes;
	ncclsvc_list_free(list);
	if (!any)
		skip_test("communicators have no kernels: see ncclsvc-ctl doctor");
}

static void worker_ends(const struct rank *r)
{
	stage("waiting for the worker's end");
	const uint64_t end = now_ns() + ENDS_MS * UINT64_C(1000000);
	for (ncclsvc_device_info i; (i = device_info(r->session, r->gpu)).pid; sleep_ms(20)) {
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__,
				     "worker %d has not ended: %u NCCL communicators", i.pid,
				     i.nccl_comms);
		CHECK_EQ(i.state, NCCLSVC_DEVICE_READY);
	}
}

static void comms_end(const struct rank *r)
{
	stage("waiting until the NCCL communicator is given back");
	const uint64_t end = now_ns() + ENDS_MS * UINT64_C(1000000);
	for (; device_info(r->session, r->gpu).nccl_comms; sleep_ms(20))
		CHECK(now_ns() < end);
}

static void fill(const struct rank *r, CUdeviceptr p, size_t words)
{
	CHECK_CU(cu.cuMemsetD32Async(p, (unsigned)r->rank + 1, words, r->stream));
}

static void check(struct rank *r, CUdeviceptr p, size_t words)
{
	rank_sync(r);
	gpu_check(p, (uint32_t)(r->n * (r->n + 1) / 2), words, "the sum over all ranks");
}

static void sum(struct rank *r, CUdeviceptr p, size_t words)
{
	fill(r, p, words);
	kernels_sum(r, p, words);
	check(r, p, words);
}

/* Waits for all ranks, by an operation in kernels. */
static void meet(struct rank *r, CUdeviceptr p)
{
	sum(r, p, 16);
}

/* An operation on NCCL. */
static void sum_big(struct rank *r, CUdeviceptr p)
{
	const uint64_t begin = now_ns();
	sum(r, p, BIG);
	if (!r->rank)
		report("the first operation on NCCL: %llu ms",
		       (unsigned long long)(now_ns() - begin) / 1000000);
	CHECK(device_info(r->session, r->gpu).pid);
	CHECK(device_info(r->session, r->gpu).nccl_comms);
}

/* Joins, and waits until the GPU's worker has ended. Returns memory of BYTES bytes. */
static CUdeviceptr open_idle(struct rank *r, struct client *c)
{
	CUdeviceptr p;
	rank_open(r, c);
	need_kernels(r);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	meet(r, p);
	worker_ends(r);
	meet(r, p);
	return p;
}

/* ---- A job in kernels needs no worker ---- */

static void kernels_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	need_kernels(&r);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	for (int i = 0; i < 2; i++) {
		stage("round %d", i);
		meet(&r, p);
		worker_ends(&r);
		const size_t before = free_bytes();
		meet(&r, p); /* all workers have ended */
		sum_big(&r, p);
		const size_t with = free_bytes();
		sum_big(&r, p);
		meet(&r, p);
		comms_end(&r);
		worker_ends(&r);
		const size_t after = free_bytes();
		meet(&r, p);
		if (!r.rank)
			report("free: %zu MiB, with a worker %zu MiB, then %zu MiB", before / MIB,
			       with / MIB, after / MIB);
		if (!setup.fake && !setup.mps) /* the MPS server has the context */
			CHECK(before - with > CONTEXT_BYTES && after - with > CONTEXT_BYTES);
		CHECK_EQ(device_info(r.session, r.gpu).restarts, 0);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_kernels(void)
{
	idle_run("1", "1", kernels_rank);
}

/* ---- Joining needs no worker, either ---- */

enum word { WAITS = 1, GO };

static void join_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_prepare(&r, c, c->rank);
	worker_ends(&r);
	say(c, WAITS);
	CHECK_EQ(hear(c), GO);
	const uint64_t begin = now_ns();
	rank_join(&r);
	const uint64_t joined = now_ns();
	need_kernels(&r);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	meet(&r, p);
	if (!r.rank)
		report("join without workers: %llu ms",
		       (unsigned long long)(joined - begin) / 1000000);
	CHECK(!device_info(r.session, r.gpu).pid);
	meet(&r, p);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_join(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	idle_daemon_start(&d, "1", "0");
	clients_start(ranks, n, &d, join_rank, NULL);
	hear_all(ranks, n, WAITS);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- worker_idle = 0 ---- */

static void permanent_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	need_kernels(&r);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	CHECK_EQ(device_info(r.session, r.gpu).nccl_comms, 1);
	const int pid = device_info(r.session, r.gpu).pid;
	CHECK(pid);
	sum_big(&r, p);
	comms_end(&r);
	meet(&r, p);
	sum_big(&r, p);
	CHECK_EQ(device_info(r.session, r.gpu).pid, pid);
	meet(&r, p);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_permanent(void)
{
	idle_run("0", "1", permanent_rank);
}

/* ---- Memory ---- */

/* Memory registered before, beside and after a worker, of all kinds. */
static void memory_rank(struct client *c)
{
	static const enum memory_kind kinds[] = {MEMORY_ALLOC, MEMORY_VMM};
	struct rank r;
	struct buffer early[2], late[2];
	CUdeviceptr p;
	rank_open(&r, c);
	need_kernels(&r);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	for (int i = 0; i < 2; i++) {
		buffer_make(&early[i], kinds[i], r.gpu, r.session, BYTES);
		sum(&r, early[i].p, BIG);
	}
	meet(&r, p);
	comms_end(&r);
	worker_ends(&r);
	stage("memory that is new without a worker");
	for (int i = 0; i < 2; i++) {
		buffer_make(&late[i], kinds[i], r.gpu, r.session, BYTES);
		sum(&r, late[i].p, BIG / 32);
	}
	stage("freed without a worker");
	buffer_free(&early[0]);
	meet(&r, p);
	stage("on NCCL");
	sum(&r, early[1].p, BIG);
	for (int i = 0; i < 2; i++)
		sum(&r, late[i].p, BIG);
	meet(&r, p);
	buffer_free(&early[1]);
	for (int i = 0; i < 2; i++)
		buffer_free(&late[i]);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_memory(void)
{
	idle_run("1", "1", memory_rank);
}

/* ---- CUDA graphs ---- */

/* A graph with operations on NCCL keeps its communicator, and gets one if there is none. */
static void graph_rank(struct client *c)
{
	struct rank r;
	const CUdeviceptr p = open_idle(&r, c);
	stage("capturing");
	graph_begin(r.stream);
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), BIG, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm, NULL));
	CUgraphExec exec = graph_end(r.stream);
	for (int i = 0; i < 3; i++) {
		stage("launch %d", i);
		fill(&r, p, BIG);
		graph_launch(exec, r.stream);
		check(&r, p, BIG);
		CHECK(device_info(r.session, r.gpu).nccl_comms);
		sleep_ms(1500);
	}
	graph_destroy(exec);
	meet(&r, p);
	sum(&r, p, BIG);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_graph(void)
{
	idle_run("1", "1", graph_rank);
}

/* ---- Failures while an operation waits for the workers ---- */

static void survivor_rank(struct client *c)
{
	struct rank r;
	ncclsvc_task task;
	const CUdeviceptr p = open_idle(&r, c);
	say(c, WAITS);
	CHECK_EQ(hear(c), GO);
	task = kernels_sum(&r, p, BIG);
	say(c, WAITS);
	wait_for(r.session, task, NCCLSVC_PEER_GONE);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	ncclsvc_close(r.session);
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[2];
	idle_daemon_start(&d, "1", "0");
	clients_start(ranks, 2, &d, survivor_rank, NULL);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(hear(&ranks[i]), WAITS);
	say(&ranks[1], GO);
	CHECK_EQ(hear(&ranks[1]), WAITS);
	client_kill(&ranks[0]);
	ranks_end(&ranks[1], 1);
	gpu_daemon_stop(&d);
}

/* ---- Workers that do not start, or die ---- */

/* Turns a fault of the stand-ins on for all processes, or off. */
static void fault(const char *name, bool on)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/fault.%s", getenv("NCCLSVC_FAKE_DIR"), name);
	FILE *f = on ? fopen(path, "we") : NULL;
	if (f)
		fputs("0", f);
	if (on)
		CHECK(f && !fclose(f));
	else
		unlink(path);
}

static void faulty_rank(struct client *c)
{
	struct rank r;
	const CUdeviceptr p = open_idle(&r, c);
	say(c, WAITS);
	CHECK_EQ(hear(c), GO);
	stage("no worker starts");
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, 500));
	wait_for(r.session, kernels_sum(&r, p, BIG), NCCLSVC_TIMEOUT);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, NCCLSVC_NO_TIMEOUT));
	meet(&r, p); /* the epoch continues */
	say(c, WAITS);
	CHECK_EQ(hear(c), GO);
	stage("workers start");
	sum(&r, p, BIG);
	comms_end(&r);
	meet(&r, p);
	say(c, WAITS);
	CHECK_EQ(hear(c), GO);
	stage("NCCL fails");
	wait_for(r.session, kernels_sum(&r, p, BIG), NCCLSVC_NCCL_ERROR);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	say(c, WAITS);
	CHECK_EQ(hear(c), GO);
	CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
	sum(&r, p, BIG);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_faulty(void)
{
	static const struct {
		const char *name;
		bool on;
	} faults[] = {{"driver-old", true},
		      {"driver-old", false},
		      {"init-fail", true},
		      {"init-fail", false}};
	struct daemon d;
	struct client ranks[2];
	if (!setup.fake)
		skip_test("needs the stand-ins' faults");
	idle_daemon_start(&d, "1", "1");
	clients_start(ranks, 2, &d, faulty_rank, NULL);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		hear_all(ranks, 2, WAITS);
		fault(faults[i].name, faults[i].on);
		say_all(ranks, 2, GO);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* A lost worker does not concern an epoch that has no NCCL communicator. */
static void lost_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	need_kernels(&r);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	sum(&r, p, 16);
	const int pid = device_info(r.session, r.gpu).pid;
	CHECK(pid);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	stage("waiting for another worker");
	for (ncclsvc_device_info i;
	     (i = device_info(r.session, r.gpu)).pid == pid || i.state != NCCLSVC_DEVICE_READY;
	     sleep_ms(5))
		CHECK_OK(ncclsvc_comm_error(r.comm));
	meet(&r, p);
	sum_big(&r, p);
	meet(&r, p);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_lost(void)
{
	idle_run("30", "0", lost_rank);
}

const struct gpu_test idle_tests[] = {
	{"idle/kernels", test_kernels, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"idle/join", test_join, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"idle/permanent", test_permanent, 2, 60, TEST_ONE_NODE},
	{"idle/memory", test_memory, 2, 60, TEST_ONE_NODE},
	{"idle/graph", test_graph, 2, 60, TEST_ONE_NODE},
	{"idle/killed", test_killed, 2, 60, TEST_ONE_NODE},
	{"idle/lost", test_lost, 2, 60, TEST_ONE_NODE},
	{"idle/faulty", test_faulty, 2, 60, TEST_ONE_NODE},
	{0},
};
