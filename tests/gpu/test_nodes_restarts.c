/* SPDX-License-Identifier: Apache-2.0
 * GPUs of several nodes, whose operations go to NCCL: a daemon ends, in good order or by SIGKILL,
 * and all ranks continue, those of the other nodes, too. Every result is right. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels.h"
#include "node_stand_ins.h"
#include "ranks.h"
#include "watch.h"

#define WORDS	 (1 << 16)
#define RESTARTS 6
#define PROGRESS 3 /* iterations of each rank between two restarts */
#define RESPLIT	 2 /* iterations between two splits */

enum word { READY = 1, GO };

/* Shared by the test and its ranks. */
static struct {
	_Atomic int stop;
	_Atomic unsigned iterations[RANKS_MAX];
} * shared_state;

struct work {
	struct rank r, part; /* part: the ranks in reverse order */
	CUdeviceptr sum, part_sum, sent, received, word;
};

static void sum(const struct rank *r, CUdeviceptr p, size_t words)
{
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), words, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
}

static uint32_t sum_of(const struct rank *r, uint32_t round)
{
	return (uint32_t)r->n * round + (uint32_t)(r->n * (r->n + 1) / 2);
}

static void split(struct work *w)
{
	const struct rank *r = &w->r;
	w->part = *r;
	CHECK_OK(ncclsvc_comm_split(r->comm, 0, -r->rank, WAIT_MS, &w->part.comm));
	w->part.rank = ncclsvc_comm_rank(w->part.comm);
}

static void work_open(struct work *w, struct client *c)
{
	struct rank *r = &w->r;
	rank_open(r, c);
	CHECK_CU(cu.cuMemAlloc(&w->sum, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&w->part_sum, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&w->sent, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&w->received, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&w->word, sizeof(uint32_t)));
	split(w);
}

/* All is submitted at once. */
static void submit(struct work *w, uint32_t round)
{
	struct rank *r = &w->r;
	const int next = (r->rank + 1) % r->n, previous = (r->rank + r->n - 1) % r->n;
	const uint32_t own = round + (uint32_t)r->rank + 1;
	gpu_fill(w->sum, own, WORDS);
	gpu_fill(w->part_sum, own, WORDS);
	gpu_fill(w->sent, own, WORDS);
	sum(r, w->sum, WORDS);
	CHECK_OK(ncclsvc_group_begin(r->session));
	CHECK_OK(ncclsvc_send(at(w->sent), WORDS, NCCLSVC_UINT32, next, r->comm, NULL));
	CHECK_OK(ncclsvc_recv(at(w->received), WORDS, NCCLSVC_UINT32, previous, r->comm, NULL));
	CHECK_OK(ncclsvc_group_end(r->session));
	sum(&w->part, w->part_sum, WORDS);
	sum(r, w->sum, WORDS);
}

static void check(struct work *w, uint32_t round)
{
	struct rank *r = &w->r;
	const int previous = (r->rank + r->n - 1) % r->n;
	gpu_check(w->sum, (uint32_t)r->n * sum_of(r, round), WORDS, "the sum of sums");
	gpu_check(w->part_sum, sum_of(r, round), WORDS, "the split's sum");
	gpu_check(w->received, round + (uint32_t)previous + 1, WORDS, "the message");
}

static bool agree_to_stop(struct work *w)
{
	uint32_t stop = (uint32_t)shared_state->stop;
	struct rank *r = &w->r;
	gpu_put(w->word, &stop, sizeof(stop));
	CHECK_OK(ncclsvc_all_reduce(at(w->word), at(w->word), 1, NCCLSVC_UINT32, NCCLSVC_MAX,
				    r->comm, NULL));
	rank_sync(r);
	gpu_get(&stop, w->word, sizeof(stop));
	return stop;
}

static void working_rank(struct client *c)
{
	struct work w = {0};
	work_open(&w, c);
	say(c, READY);
	for (uint32_t round = 0; !agree_to_stop(&w); round++) {
		stage("iteration %u", round);
		submit(&w, round);
		rank_sync(&w.r);
		check(&w, round);
		if (round % RESPLIT == RESPLIT - 1) {
			CHECK_OK(ncclsvc_comm_leave(w.part.comm));
			split(&w);
		}
		shared_state->iterations[c->rank]++;
	}
	CHECK_OK(ncclsvc_comm_leave(w.part.comm));
	rank_close(&w.r);
}

/* ---- Killed daemons ---- */

/* An operation that was launched on only some nodes cannot be continued. Then all ranks are told,
 * and can rejoin. */
static bool failed(const struct rank *r, ncclsvc_result result)
{
	if (!result)
		return false;
	CHECK(result == NCCLSVC_PEER_GONE || result == NCCLSVC_DAEMON_LOST ||
	      result == NCCLSVC_STALE_EPOCH || result == NCCLSVC_CANCELLED ||
	      result == NCCLSVC_UNSUPPORTED);
	/* The node where the ranks gather may have no daemon yet. */
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	while ((result = ncclsvc_comm_rejoin(r->comm, WAIT_MS)) == NCCLSVC_PEER_GONE &&
	       now_ns() < end)
		sleep_ms(10);
	CHECK_OK(result);
	return true;
}

static bool try_sum(struct rank *r, CUdeviceptr p, size_t words, ncclsvc_redop op)
{
	ncclsvc_result result =
		ncclsvc_all_reduce(at(p), at(p), words, NCCLSVC_UINT32, op, r->comm, NULL);
	if (!result)
		result = ncclsvc_wait_all(r->session, WAIT_MS);
	return !failed(r, result);
}

/* The ranks agree on the next round, which is the same again if one of them has failed. */
static void resilient_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr word, p;
	uint32_t round[2] = {0};
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&word, sizeof(round)));
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * sizeof(uint32_t)));
	say(c, READY);
	while (!round[1]) {
		stage("iteration %u", round[0]);
		round[0]++;
		round[1] = (uint32_t)shared_state->stop;
		gpu_put(word, round, sizeof(round));
		if (!try_sum(&r, word, 2, NCCLSVC_MAX)) {
			round[1] = 0;
			continue;
		}
		gpu_get(round, word, sizeof(round));
		gpu_fill(p, round[0] + (uint32_t)r.rank + 1, WORDS);
		if (!try_sum(&r, p, WORDS, NCCLSVC_SUM))
			continue;
		gpu_check(p, sum_of(&r, round[0]), WORDS, "the sum");
		shared_state->iterations[c->rank]++;
	}
	rank_close(&r);
}

/* ---- The tests ---- */

static void share_state(void)
{
	shared_state = mmap(NULL, sizeof(*shared_state), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared_state != MAP_FAILED);
	setenv("NCCLSVC_REATTACH_MS", "20000", 1);
}

static void await_progress(int n)
{
	const uint64_t end = now_ns() + 2 * WAIT_MS * UINT64_C(1000000);
	for (int k = 0; k < n; k++) {
		const unsigned before = shared_state->iterations[k];
		while (shared_state->iterations[k] < before + PROGRESS) {
			CHECK(now_ns() < end);
			sleep_ms(1);
		}
	}
}

static void run(int n, int each, client_main *main, int signum)
{
	struct nodes w;
	struct client ranks[RANKS_MAX];
	if (!cluster_is_linked())
		skip_test("daemons that mpirun starts cannot return");
	share_state();
	nodes_start(&w, n, each);
	nodes_clients(&w, ranks, main, NULL);
	hear_all(ranks, n * each, READY);
	for (int i = 0; i < RESTARTS; i++) {
		stage("restart %d of %d", i + 1, RESTARTS);
		await_progress(n * each);
		sleep_ms((unsigned)(i * 3 % 11));
		cluster_restart(&w.c, i % n, signum);
	}
	await_progress(n * each);
	shared_state->stop = 1;
	ranks_end(ranks, n * each);
	nodes_stop(&w);
}

static void test_restarts(void)
{
	run(2, 1, working_rank, SIGTERM);
}

static void test_restarts_4(void)
{
	run(2, 2, working_rank, SIGTERM);
}

static void test_kills(void)
{
	run(2, 1, resilient_rank, SIGKILL);
}

static void test_kills_4(void)
{
	run(2, 2, resilient_rank, SIGKILL);
}

const struct gpu_test node_restart_tests[] = {
	{"nodes/restarts", test_restarts, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/restarts/4", test_restarts_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/kills", test_kills, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/kills/4", test_kills_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
