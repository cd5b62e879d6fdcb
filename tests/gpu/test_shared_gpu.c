/* SPDX-License-Identifier: Apache-2.0
 * Communicators with two ranks on one GPU, which NCCL refuses: all operations run in kernels. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dropin_calls.h"
#include "graphs.h"
#include "kernels.h"
#include "lists.h"
#include "ncclsvc_plan.h"
#include "node_stand_ins.h"
#include "staged_setup.h"

#define ROUNDS	   20
#define LONG_BYTES ((size_t)4 << 20) /* zero copy */

enum word { READY = 1, GO };

/* Runs n ranks, with this many on each GPU. */
static void shared_run(int n, int per_gpu, client_main *main, void *arg)
{
	setup.per_gpu = per_gpu;
	ranks_run(n, main, arg);
}

/* ---- Values ---- */

static void test_values_two(void)
{
	shared_run(2, 2, values_rank, NULL);
}

static void test_values_four(void)
{
	shared_run(4, 4, values_rank, NULL);
}

static void test_values_mixed(void)
{
	shared_run(3, 2, values_rank, NULL);
}

/* ---- Operations of all sizes ---- */

static void sums(struct rank *r, CUdeviceptr p, size_t words)
{
	uint32_t value = 1;
	gpu_fill(p, value, words);
	for (int k = 0; k < ROUNDS; k++, value *= (uint32_t)r->n)
		kernels_sum(r, p, words);
	rank_sync(r);
	gpu_check(p, value, words, "the sum of sums");
}

/* Each rank sends to the next one, and receives from the one before, in one group. */
static void ring(struct rank *r, CUdeviceptr p, size_t words)
{
	const int to = (r->rank + 1) % r->n, from = (r->rank + r->n - 1) % r->n;
	const CUdeviceptr in = p + words * sizeof(uint32_t);
	for (uint32_t k = 1; k <= ROUNDS; k++) {
		gpu_fill(p, k * 100 + (uint32_t)r->rank, words);
		CHECK_OK(ncclsvc_group_begin(r->session));
		kernels_recv(r, in, words, from, NULL);
		kernels_send(r, p, words, to, NULL);
		CHECK_OK(ncclsvc_group_end(r->session));
		rank_sync(r);
		gpu_check(in, k * 100 + (uint32_t)from, words, "what the rank before sent");
	}
}

/* Both ranks map each other's buffers, which are on the GPU of both. Rank 0 decides when to end. */
static void zero_copy(struct rank *r, CUdeviceptr p, size_t words)
{
	uint64_t before = 1, after = 0;
	const CUdeviceptr ends = p + words * sizeof(uint32_t);
	for (int k = 0; k < 1000; k++) {
		before = kernels_staged(r);
		rank_wait(r, kernels_sum(r, p, words));
		after = kernels_staged(r);
		gpu_fill(ends, before == after, 1);
		CHECK_OK(
			ncclsvc_broadcast(at(ends), at(ends), 1, NCCLSVC_UINT32, 0, r->comm, NULL));
		rank_sync(r);
		uint32_t end;
		gpu_get(&end, ends, sizeof(end));
		if (end)
			return;
		sleep_ms(1);
	}
	check_failed(__FILE__, __LINE__, "the ranks never mapped each other's buffers");
}

static void sizes_rank(struct client *c)
{
	static const size_t words[] = {1, SMALL, 1 << 16, LONG_WORDS, LONG_BYTES / 4};
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * LONG_BYTES));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		stage("sums of %zu words", words[i]);
		sums(&r, p, words[i]);
		stage("messages of %zu words", words[i]);
		ring(&r, p, words[i]);
	}
	stage("without staging memory");
	zero_copy(&r, p, LONG_BYTES / 4);
	stage("freeing");
	/* TIMEOUT: while another rank's kernel runs, its process keeps the memory mapped. */
	const ncclsvc_result forgotten = ncclsvc_mem_forget(r.session, at(p), 10000);
	CHECK(!forgotten || forgotten == NCCLSVC_TIMEOUT);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_sizes(void)
{
	shared_run(2, 2, sizes_rank, NULL);
}

static void test_sizes_eight(void)
{
	shared_run(8, 8, sizes_rank, NULL);
}

static void test_sizes_mixed(void)
{
	shared_run(3, 2, sizes_rank, NULL);
}

/* ---- Graphs ---- */

static void graphs_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	uint32_t value = 1;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, LONG_BYTES));
	gpu_fill(p, value, LONG_BYTES / 4);
	graph_begin(r.stream);
	graph_sum(&r, p, SMALL);
	graph_sum(&r, p, LONG_BYTES / 4);
	CUgraphExec exec = graph_end(r.stream);
	for (int k = 0; k < 3; k++) {
		graph_launch(exec, r.stream);
		value *= (uint32_t)(r.n * r.n);
	}
	rank_sync(&r);
	gpu_check(p, value, SMALL, "the sums in a graph");
	graph_destroy(exec);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_graphs(void)
{
	shared_run(2, 2, graphs_rank, NULL);
}

/* ---- Operations for NCCL ---- */

static void refused(struct rank *r, ncclsvc_result result)
{
	char gpu[64];
	snprintf(gpu, sizeof(gpu), "two ranks of this communicator use GPU %d", r->gpu);
	CHECK_RESULT(result, NCCLSVC_UNSUPPORTED);
	says(gpu);
	says("needs NCCL");
	says("give each rank its own GPU");
	rank_check_usable(r);
}

static void refused_plan(struct rank *r)
{
	ncclsvc_plan *plan = NULL;
	CHECK_OK(ncclsvc_plan_start(r->comm, &plan));
	CHECK_OK(ncclsvc_plan_group_start(plan));
	CHECK_OK(r->rank ? ncclsvc_plan_recv(plan, 4, NCCLSVC_UINT32, 0)
			 : ncclsvc_plan_send(plan, 4, NCCLSVC_UINT32, 1));
	CHECK_OK(ncclsvc_plan_group_end(plan));
	refused(r, ncclsvc_plan_end(plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
}

static void refused_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	stage("float8");
	refused(&r, ncclsvc_all_reduce(at(p), at(p), 16, NCCLSVC_FLOAT8E4M3, NCCLSVC_SUM, r.comm,
				       NULL));
	stage("4 GiB");
	refused(&r, ncclsvc_all_reduce(at(p), at(p), (size_t)1 << 32, NCCLSVC_UINT32, NCCLSVC_SUM,
				       r.comm, NULL));
	stage("a capture");
	graph_begin(r.stream);
	CHECK_RESULT(
		ncclsvc_all_reduce(at(p), at(p), 16, NCCLSVC_FLOAT8E4M3, NCCLSVC_SUM, r.comm, NULL),
		NCCLSVC_UNSUPPORTED);
	graph_drop(r.stream);
	stage("a plan");
	refused_plan(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_refused(void)
{
	shared_run(2, 2, refused_rank, NULL);
}

static void lists_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	stage("a list");
	const ncclsvc_message m = desk_message(&d, 1 - c->rank, NCCLSVC_SHAPES_STATIC, 7);
	const ncclsvc_result result = c->rank ? ncclsvc_tensors_recv(d.lists, &m, WAIT_MS, NULL)
					      : ncclsvc_tensors_send(d.lists, &m, WAIT_MS, NULL);
	CHECK_RESULT(result, NCCLSVC_UNSUPPORTED);
	says("needs NCCL");
	rank_check_usable(&d.r);
	desk_close(&d);
}

static void test_lists(void)
{
	shared_run(2, 2, lists_rank, NULL);
}

/* ---- Failures ---- */

static void mismatch_ranks(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	wait_for(r.session, kernels_sum(&r, p, c->rank ? SMALL : 2 * SMALL), NCCLSVC_MISMATCH);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_mismatch(void)
{
	shared_run(2, 2, mismatch_ranks, NULL);
}

/* Rank 1 submits nothing; then both join again. */
static void timeout_ranks(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, 300));
	if (!c->rank)
		wait_for(r.session, kernels_sum(&r, p, SMALL), NCCLSVC_TIMEOUT);
	kernels_over(&r, NCCLSVC_TIMEOUT);
	kernels_rejoin(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_timeout(void)
{
	shared_run(2, 2, timeout_ranks, NULL);
}

/* ---- JOINs ---- */

/* Rank 1 has no kernels. */
static void without_rank(struct client *c)
{
	struct rank r;
	if (c->rank)
		CHECK_EQ(setenv("NCCLSVC_PEER", "0", 1), 0);
	rank_prepare(&r, c, 0);
	CHECK_RESULT(ncclsvc_comm_join_device(r.session, &c->id, 2, c->rank, 0, WAIT_MS, &r.comm),
		     NCCLSVC_MISMATCH);
	says("both use GPU 0");
	says("rank 1 does not use it (NCCLSVC_PEER=0?)");
	ncclsvc_close(r.session);
}

static void test_without(void)
{
	ranks_run(2, without_rank, NULL);
}

static void off_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, 0);
	CHECK_RESULT(ncclsvc_comm_join_device(r.session, &c->id, 2, c->rank, 0, 10000, &r.comm),
		     NCCLSVC_UNSUPPORTED);
	says("peer_bytes = 0");
	ncclsvc_close(r.session);
}

static void test_off(void)
{
	setenv("NCCLSVCD_PEER_BYTES", "0", 1);
	ranks_run(2, off_rank, NULL);
}

static void ctl_says(const struct daemon *d, const char *command, const char *text)
{
	char out[65536];
	char *argv[] = {(char *)program("NCCLSVC_CTL"), "--socket", (char *)d->socket,
			(char *)command, NULL};
	run_program(argv, out, sizeof(out));
	if (!strstr(out, text))
		check_failed(__FILE__, __LINE__, "%s does not say \"%s\": %s", command, text, out);
}

static void listed_rank(struct client *c)
{
	struct rank r;
	ncclsvc_comm_info *list;
	size_t n;
	bool found = false;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_OK(ncclsvc_list_comms(r.session, &list, &n));
	for (size_t i = 0; i < n; i++)
		found = found || list[i].peer_source == NCCLSVC_PEER_SHARED_GPU;
	CHECK(found);
	ncclsvc_list_free(list);
	ctl_says(c->daemon, "comms", "shared GPU: two ranks use one GPU");
	ctl_says(c->daemon, "doctor", "has two ranks on one GPU");
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_listed(void)
{
	shared_run(2, 2, listed_rank, NULL);
}

/* Two ranks on this node, and one on another. */
static void across_rank(struct client *c)
{
	struct rank r;
	ncclsvc_comm *comm;
	rank_prepare(&r, c, c->rank == 2);
	CHECK_RESULT(ncclsvc_comm_join_device(r.session, &c->id, c->nranks, c->rank, c->rank == 2,
					      WAIT_MS, &comm),
		     NCCLSVC_UNSUPPORTED);
	says("both use GPU 0");
	says("ranks on other nodes");
	ncclsvc_close(r.session);
}

static void test_across(void)
{
	struct nodes w;
	struct client ranks[3];
	nodes_start(&w, 2, 1);
	for (int k = 0; k < 3; k++) {
		ranks[k] = (struct client){
			.rank = k, .nranks = 3, .daemon = node_of(&w, k == 2), .link = -1};
		memset(&ranks[k].id, 7, sizeof(ranks[k].id));
		client_start(&ranks[k], across_rank);
	}
	ranks_end(ranks, 3);
	nodes_stop(&w);
}

/* Without NCCL, nothing needs kernels. */
static void test_staged(void)
{
	stage_memory(NULL);
	setenv("NCCLSVC_PEER", "0", 1);
	shared_run(2, 2, values_rank, NULL);
}

static void staged_lists_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	rank_check_usable(&d.r);
	desk_hand_on(&d, NCCLSVC_SHAPES_STATIC, 5, false);
	rank_check_usable(&d.r);
	desk_close(&d);
}

/* Kernels run what they can, and the daemon everything else. */
static void test_staged_lists(void)
{
	stage_memory(NULL);
	shared_run(2, 2, staged_lists_rank, NULL);
}

/* A rank with a GPU of its own has no kernels. */
static void other_rank(struct client *c)
{
	struct rank r;
	if (c->rank == 2)
		CHECK_EQ(setenv("NCCLSVC_PEER", "0", 1), 0);
	rank_prepare(&r, c, c->rank / 2);
	CHECK_RESULT(
		ncclsvc_comm_join_device(r.session, &c->id, 3, c->rank, r.gpu, WAIT_MS, &r.comm),
		NCCLSVC_UNSUPPORTED);
	says("both use GPU 0");
	says("rank 2 (pid ");
	ncclsvc_close(r.session);
}

static void test_other_without(void)
{
	ranks_run(3, other_rank, NULL);
}

/* ---- Ends ---- */

static void killed_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	gpu_fill(p, 1, SMALL);
	rank_wait(&r, kernels_sum(&r, p, SMALL));
	say(c, READY);
	CHECK_EQ(hear(c), GO); /* rank 1 is killed here */
	const ncclsvc_task task = kernels_sum(&r, p, SMALL);
	say(c, READY);
	wait_for(r.session, task, NCCLSVC_PEER_GONE);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	kernels_over(&r, NCCLSVC_PEER_GONE);
	ncclsvc_close(r.session);
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[2];
	setup.per_gpu = 2;
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, killed_rank, NULL);
	hear_all(ranks, 2, READY);
	say(&ranks[0], GO);
	CHECK_EQ(hear(&ranks[0]), READY);
	client_kill(&ranks[1]);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- One process with two ranks ---- */

static void *thread_main(void *arg)
{
	struct client *c = arg;
	struct rank r;
	CUdeviceptr p;
	uint32_t value = 1;
	rank_prepare(&r, c, 0);
	CHECK_CU(cu.cuMemAlloc(&p, LONG_BYTES)); /* not beside kernels that wait */
	gpu_fill(p, 1, LONG_BYTES / 4);
	rank_join(&r);
	for (int k = 0; k < ROUNDS; k++, value *= 2) {
		kernels_sum(&r, p, SMALL);
		rank_wait(&r, kernels_sum(&r, p + 4096, (LONG_BYTES - 4096) / 4));
	}
	rank_sync(&r);
	gpu_check(p, value, SMALL, "the sum of sums");
	gpu_check(p + 4096, value, (LONG_BYTES - 4096) / 4, "the sum of sums");
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	ncclsvc_close(r.session);
	return NULL;
}

static void threads_rank(struct client *c)
{
	rank_threads(c, thread_main);
}

static void test_threads(void)
{
	ranks_run(1, threads_rank, NULL);
}

/* Both ranks belong to one session of the drop-in, and to one group. */
static void group_rank(struct client *c)
{
	ncclComm_t comms[2];
	CUstream streams[2];
	CUdeviceptr p[2];
	dropin_open(c->daemon);
	gpu_use(0);
	CHECK_NC(nc.ncclCommInitAll(comms, 2, (int[]){0, 0}));
	for (int k = 0; k < 2; k++) {
		streams[k] = gpu_stream();
		p[k] = dropin_words((uint32_t)k + 1);
	}
	stage("in one group");
	CHECK_NC(nc.ncclGroupStart());
	for (int k = 0; k < 2; k++)
		CHECK_NC(dropin_sum(p[k], comms[k], streams[k]));
	CHECK_NC(nc.ncclGroupEnd());
	for (int k = 0; k < 2; k++)
		CHECK(gpu_stream_ends(streams[k], WAIT_MS));
	for (int k = 0; k < 2; k++)
		gpu_check(p[k], 3, DROPIN_WORDS, "the sum of both ranks");
	stage("one after the other on one stream");
	CHECK_NC(dropin_sum(p[0], comms[0], streams[0]));
	CHECK_NC_IS(dropin_sum(p[1], comms[1], streams[0]), ncclInvalidArgument);
	CHECK_SAYS(NULL, "give each rank a stream of its own");
	CHECK_NC(dropin_sum(p[1], comms[1], streams[1]));
	for (int k = 0; k < 2; k++)
		CHECK(gpu_stream_ends(streams[k], WAIT_MS));
	stage("on one stream");
	CHECK_NC(nc.ncclGroupStart());
	for (int k = 0; k < 2; k++)
		CHECK_NC(dropin_sum(p[k], comms[k], streams[0]));
	CHECK_NC_IS(nc.ncclGroupEnd(), ncclInvalidArgument);
	CHECK_SAYS(NULL, "give each rank a stream of its own");
	for (int k = 0; k < 2; k++)
		CHECK_NC(nc.ncclCommAbort(comms[k]));
}

static void test_group(void)
{
	ranks_run(1, group_rank, NULL);
}

/* ---- NCCL programs ---- */

static void dropin_rank(struct client *c)
{
	ncclComm_t comm, part;
	dropin_open(c->daemon);
	gpu_use(0);
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id(c), c->rank));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &part, NULL));
	dropin_check_usable(part);
	CHECK_NC(nc.ncclCommDestroy(part));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_dropin(void)
{
	ranks_run(2, dropin_rank, NULL);
}

#define FLAGS (TEST_QUICK | TEST_ONE_NODE)

const struct gpu_test shared_gpu_tests[] = {
	{"shared_gpu/values", test_values_two, 1, 600, FLAGS},
	{"shared_gpu/values/4_ranks", test_values_four, 1, 600, FLAGS},
	{"shared_gpu/values/mixed", test_values_mixed, 2, 600, FLAGS},
	{"shared_gpu/sizes", test_sizes, 1, 120, FLAGS},
	{"shared_gpu/sizes/8_ranks", test_sizes_eight, 1, 300, FLAGS},
	{"shared_gpu/sizes/mixed", test_sizes_mixed, 2, 120, FLAGS},
	{"shared_gpu/mismatch", test_mismatch, 1, 60, FLAGS},
	{"shared_gpu/timeout", test_timeout, 1, 60, FLAGS},
	{"shared_gpu/graphs", test_graphs, 1, 60, FLAGS},
	{"shared_gpu/refused", test_refused, 1, 60, FLAGS},
	{"shared_gpu/refused/lists", test_lists, 1, 60, FLAGS},
	{"shared_gpu/without_kernels", test_without, 1, 60, FLAGS},
	{"shared_gpu/without_kernels/other", test_other_without, 2, 60, FLAGS},
	{"shared_gpu/off", test_off, 1, 60, FLAGS},
	{"shared_gpu/across_nodes", test_across, 2, 60, FLAGS},
	{"shared_gpu/staged", test_staged, 1, 600, FLAGS},
	{"shared_gpu/staged/lists", test_staged_lists, 1, 60, FLAGS},
	{"shared_gpu/listed", test_listed, 1, 60, FLAGS},
	{"shared_gpu/killed", test_killed, 1, 60, FLAGS},
	{"shared_gpu/threads", test_threads, 1, 60, FLAGS},
	{"shared_gpu/group", test_group, 1, 60, FLAGS},
	{"shared_gpu/dropin", test_dropin, 1, 60, FLAGS},
	{0},
};
