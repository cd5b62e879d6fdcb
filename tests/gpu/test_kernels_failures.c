/* SPDX-License-Identifier: Apache-2.0
 * Ranks that do not come, die or are stopped while kernels of others wait for them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels.h"
#include "proto/abi/peer_abi.h"

#define TIMEOUT_MS (setup.fake ? 1500 : 300)
#define MS	   UINT64_C(1000000)

enum word { READY = 1, GO };

/* ---- Deadlines ---- */

/* Returns the rank whose deadline has passed. */
static int check_timeout(struct rank *r, ncclsvc_task task)
{
	wait_for(r->session, task, NCCLSVC_TIMEOUT);
	const ncclsvc_status st = status_of(r->session, task);
	CHECK_EQ(st.missing_count, 1);
	CHECK_EQ(st.missing[0], r->n - 1);
	return st.rank_a;
}

/* The last rank submits nothing. */
static void absent(struct rank *r, CUdeviceptr p)
{
	const bool last = r->rank == r->n - 1;
	const uint64_t begin = now_ns();
	stage("a rank that submits nothing");
	if (last) {
		CHECK_EQ(hear(r->c), GO);
		kernels_over(r, NCCLSVC_TIMEOUT);
		CHECK_RESULT(ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM,
						r->comm, NULL),
			     NCCLSVC_STALE_EPOCH);
	} else {
		const int whose = check_timeout(r, kernels_sum(r, p, SMALL));
		CHECK(whose != r->rank || now_ns() - begin >= TIMEOUT_MS * MS);
		CHECK(now_ns() - begin < (TIMEOUT_MS + limit_ms(1500)) * MS);
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		say(r->c, READY);
	}
	kernels_rejoin(r);
}

/* The last rank's stream is blocked before its kernel, until all ranks are in a new epoch. */
static void blocked(struct rank *r, CUdeviceptr p, CUdeviceptr gate)
{
	const bool last = r->rank == r->n - 1;
	const uint64_t open = 1;
	const CUstream stream = r->stream;
	stage("a rank whose stream is blocked");
	if (last)
		CHECK_CU(cu.cuStreamWaitValue64(stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	check_timeout(r, kernels_sum(r, p, SMALL));
	if (!last)
		CHECK(gpu_stream_ends(stream, WAIT_MS));
	r->stream = gpu_stream();
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	CHECK_OK(ncclsvc_comm_set_timeout(r->comm, NCCLSVC_NO_TIMEOUT));
	CHECK_OK(ncclsvc_comm_rejoin(r->comm, WAIT_MS));
	stage("a stream blocked since the epoch before");
	CHECK_CU(cu.cuMemsetD32Async(p, 1, SMALL, r->stream));
	kernels_sum(r, p, SMALL);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	CHECK_EQ(cu.cuStreamQuery(stream), last ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
	gpu_put(gate, &open, sizeof(open));
	CHECK(gpu_stream_ends(stream, WAIT_MS));
	gpu_check(p, (uint32_t)r->n, SMALL, "the sum");
	rank_check_usable(r);
	CHECK_CU(cu.cuStreamDestroy(stream));
}

static void late_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p, gate;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(uint64_t)));
	gpu_fill(gate, 0, 2);
	rank_check_usable(&r);
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, TIMEOUT_MS));
	absent(&r, p);
	blocked(&r, p, gate);
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(gate));
	rank_close(&r);
}

static void test_timeout(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, late_rank, NULL);
	hear_all(ranks, n - 1, READY);
	say(&ranks[n - 1], GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Trainers that are killed ---- */

enum when { WAITED_FOR, HAS_SENT, AT_WORK, WHENS };

#define OVER UINT64_MAX /* in place of a round's number */

/* Submits sums, and waits for each, until one fails. */
static ncclsvc_result one_by_one(struct rank *r, CUdeviceptr p)
{
	for (;;) {
		ncclsvc_task task;
		ncclsvc_result result = ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_UINT32,
							   NCCLSVC_SUM, r->comm, &task);
		if (!result)
			result = ncclsvc_wait(r->session, task, WAIT_MS);
		if (result)
			return result;
	}
}

static __attribute__((noreturn)) void await_death(struct rank *r, CUdeviceptr p, enum when when)
{
	if (when == HAS_SENT) {
		kernels_sum(r, p, SMALL);
		sleep_ms(20);
	}
	say(r->c, READY);
	if (when == AT_WORK)
		one_by_one(r, p);
	for (;;)
		sleep_ms(1000);
}

/* Tells the test when this rank was notified, and when its stream was released. */
static void survive(struct rank *r, CUdeviceptr p, enum when when)
{
	if (when == WAITED_FOR)
		kernels_sum(r, p, SMALL);
	say(r->c, READY);
	if (when == HAS_SENT)
		CHECK_EQ(hear(r->c), GO);
	const ncclsvc_result result =
		when == WAITED_FOR ? ncclsvc_wait_all(r->session, WAIT_MS) : one_by_one(r, p);
	say(r->c, now_ns());
	if (result != NCCLSVC_PEER_GONE && result != NCCLSVC_STALE_EPOCH)
		CHECK_RESULT(result, NCCLSVC_PEER_GONE);
	stage("waiting for the stream");
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	say(r->c, now_ns());
	CHECK_EQ(hear(r->c), GO);
	kernels_rejoin(r);
}

static void mortal_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	rank_check_usable(&r);
	for (;;) {
		say(c, READY);
		stage("waiting for a round");
		const uint64_t round = hear(c);
		if (round == OVER)
			break;
		stage("round %d", (int)round);
		const enum when when = (enum when)(round % WHENS);
		if (r.rank == (int)round % r.n)
			await_death(&r, p, when);
		survive(&r, p, when);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* The longest delays since a trainer was killed, for each kind of round. */
struct delays {
	uint64_t noticed, released, whole;
};

static void later(uint64_t *worst, uint64_t killed, uint64_t now)
{
	if (now - killed > *worst)
		*worst = now - killed;
}

/* In round k, rank k % n dies. */
static void kill_one(struct client *ranks, int n, int round, struct delays *w)
{
	const int victim = round % n;
	const enum when when = (enum when)(round % WHENS);
	say_all(ranks, n, (uint64_t)round);
	hear_all(ranks, n, READY);
	sleep_ms(20);
	const uint64_t killed = now_ns();
	client_kill(&ranks[victim]);
	for (int i = 0; when == HAS_SENT && i < n; i++)
		if (i != victim)
			say(&ranks[i], GO);
	for (int i = 0; i < n; i++) {
		if (i == victim)
			continue;
		later(&w->noticed, killed, hear(&ranks[i]));
		later(&w->released, killed, hear(&ranks[i]));
	}
	CHECK(w->noticed < limit_ms(setup.mps ? 2000 : 300) * MS);
	CHECK(w->released < PEER_HEARTBEAT_NS / 2); /* otherwise kernels would end by themselves */
	for (int i = 0; i < n; i++)
		if (i == victim)
			client_start(&ranks[i], mortal_rank);
		else
			say(&ranks[i], GO);
	hear_all(ranks, n, READY);
	later(&w->whole, killed, now_ns());
}

static void report_delays(const char *text, const struct delays *w)
{
	report("%s: noticed after %d ms, streams released after %d, rebuilt in %d", text,
	       (int)(w->noticed / MS), (int)(w->released / MS), (int)(w->whole / MS));
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count(), rounds = setup.repeat > WHENS ? setup.repeat : WHENS;
	struct delays worst[WHENS] = {{0}};
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, mortal_rank, NULL);
	hear_all(ranks, n, READY);
	for (int k = 0; k < rounds; k++)
		kill_one(ranks, n, k, &worst[k % WHENS]);
	say_all(ranks, n, OVER);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
	report("%d rounds; at worst", rounds);
	report_delays("waited for", &worst[WAITED_FOR]);
	report_delays("has sent", &worst[HAS_SENT]);
	report_delays("at work", &worst[AT_WORK]);
}

/* ---- A trainer that is stopped ---- */

static void stopped_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	const uint32_t epoch = ncclsvc_comm_epoch(r.comm);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	gpu_fill(p, 1, SMALL);
	rank_check_usable(&r);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	const ncclsvc_task task = kernels_sum(&r, p, SMALL);
	say(c, READY);
	rank_wait(&r, task);
	gpu_check(p, (uint32_t)r.n, SMALL, "the sum");
	CHECK_EQ(ncclsvc_comm_epoch(r.comm), epoch);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* The last rank is stopped before it submits its sum, and the others' kernels wait for it. */
static void test_stopped(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, stopped_rank, NULL);
	hear_all(ranks, n, READY);
	process_stop(ranks[n - 1].pid);
	say_all(ranks, n, GO);
	hear_all(ranks, n - 1, READY);
	sleep_ms(1500);
	CHECK_EQ(kill(ranks[n - 1].pid, SIGCONT), 0);
	CHECK_EQ(hear(&ranks[n - 1]), READY);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- A kernel that cannot be launched ---- */

/* Makes this process's launches fail, or succeed again. */
static void launches_fail(bool fail)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/fault.launch-fail", getenv("NCCLSVC_FAKE_DIR"));
	if (!fail) {
		CHECK(!unlink(path));
		return;
	}
	FILE *file = fopen(path, "we");
	CHECK(file && fprintf(file, "%d", (int)getpid()) > 0 && !fclose(file));
}

/* No stream waits for a kernel whose launch failed, even if another stream gets more work before
 * the epoch's end is known. */
static void unlaunched_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	CUstream other;
	ncclsvc_task task;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	CHECK_CU(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	rank_check_usable(&r);
	if (r.rank) {
		kernels_sum(&r, p, SMALL);
		wait_for(r.session, kernels_sum(&r, p, SMALL), NCCLSVC_PEER_GONE);
	} else {
		kernels_sum(&r, p, SMALL);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		launches_fail(true);
		CHECK_EQ(ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM,
					    r.comm, &task),
			 NCCLSVC_NO_MEMORY);
		launches_fail(false);
		CHECK_OK(ncclsvc_stream_set(r.session, other, 0));
		/* On a slow machine the daemon may have ended the epoch already. */
		const ncclsvc_result later = ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_UINT32,
								NCCLSVC_SUM, r.comm, NULL);
		CHECK(!later || later == NCCLSVC_PEER_GONE);
		CHECK(gpu_stream_ends(other, WAIT_MS));
		CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
		wait_for(r.session, task, NCCLSVC_PEER_GONE);
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	stage("leaving");
	const uint64_t begin = now_ns();
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	CHECK(now_ns() - begin < UINT64_C(1500000000)); /* no kernel is waited for */
	rank_join(&r);
	rank_check_usable(&r);
	CHECK_CU(cu.cuStreamDestroy(other));
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_unlaunched(void)
{
	if (!setup.fake)
		skip_test("needs a stand-in whose launches can fail");
	kernels_run(ranks_count(), unlaunched_rank, NULL);
}

const struct gpu_test kernel_failure_tests[] = {
	{"kernels/timeout", test_timeout, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/killed", test_killed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/killed/4", test_killed, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/unlaunched", test_unlaunched, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/stopped", test_stopped, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
