/* SPDX-License-Identifier: Apache-2.0
 * Windows, and what else goes on in their workers: trainers and workers that die, communicators
 * that are made, and tasks of others that do not end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "windows.h"

enum word { READY = 1, GO };

/* ---- Death ---- */

static ncclsvc_result until_told(struct rank *r, CUdeviceptr p, bool busy)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end;) {
		ncclsvc_task task;
		ncclsvc_result result = NCCLSVC_OK;
		if (busy)
			result = ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_FLOAT32,
						    NCCLSVC_SUM, r->comm, &task);
		if (busy && !result)
			result = ncclsvc_wait(r->session, task, WAIT_MS);
		if (!busy)
			result = ncclsvc_dispatch(r->session, 5);
		if (!result)
			result = ncclsvc_comm_error(r->comm);
		if (result)
			return result;
	}
	return NCCLSVC_OK;
}

enum { IDLE, BUSY };

static void mortal_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	for (;;) {
		warm(&r, p, p, 1);
		say(c, READY);
		stage("waiting for a round");
		uint64_t order = hear_within(c, WAIT_MS);
		if (order == GO)
			break;
		stage("waiting for a death");
		ncclsvc_result result = until_told(&r, p, order & 1);
		CHECK(result == NCCLSVC_PEER_GONE || result == NCCLSVC_WORKER_LOST ||
		      result == NCCLSVC_STALE_EPOCH);
		say(c, now_ns());
		CHECK_EQ(hear(c), GO);
		stage("rejoining");
		CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
		say(c, now_ns());
		/* What a lost worker lent is imported by the next one: that can be no window. */
		for (unsigned k = 1; k <= 12 && order & 2; k++) {
			sum(&r, p, p, WORDS, k);
			CHECK_EQ(windows_of(&r), 0);
		}
		give_back(&r, p);
		struct buffer b;
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, BYTES);
		p = b.p;
	}
	give_back(&r, p);
	rank_close(&r);
}

static void deaths(bool worker)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count(), rounds = setup.repeat ? setup.repeat : 4;
	uint64_t random = setup.seed, worst = 0;
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, mortal_rank, NULL);
	for (int round = 0; round < rounds; round++) {
		int victim = round % n;
		uint64_t how = round % 2 ? IDLE : BUSY;
		stage("round %d: %s", round, how == BUSY ? "busy" : "idle");
		hear_all(ranks, n, READY);
		say_all(ranks, n, how | (worker ? 2 : 0) | 256);
		sleep_ms(5 + draw(&random) % 30);
		ncclsvc_session *s = session_open(&d);
		pid_t pid = device_info(s, victim).pid;
		ncclsvc_close(s);
		uint64_t killed = now_ns();
		if (worker)
			CHECK_EQ(kill(pid, SIGKILL), 0);
		else
			client_kill(&ranks[victim]);
		for (int i = 0; i < n; i++)
			if (worker || i != victim)
				hear(&ranks[i]);
		if (!worker)
			client_start(&ranks[victim], mortal_rank);
		uint64_t back = 0;
		for (int i = 0; i < n; i++)
			if (worker || i != victim)
				say(&ranks[i], GO);
		for (int i = 0; i < n; i++) {
			if (!worker && i == victim)
				continue;
			uint64_t t = hear(&ranks[i]);
			back = back > t ? back : t;
		}
		worst = worst > back - killed ? worst : back - killed;
	}
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
	report("%d rounds; at worst joined again %llu ms after the death", rounds,
	       (unsigned long long)worst / 1000000);
	/* A symmetric kernel hears of no abort: its worker is replaced, too, and much sooner than
	 * one that does not answer. */
	CHECK(worst < UINT64_C(15000000000));
}

static void test_killed(void)
{
	deaths(false);
}

static void test_worker_killed(void)
{
	deaths(true);
}

/* One that waits for its trainer's input when another trainer dies: no worker need go for that. */
static void slow_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p, gate;
	const uint64_t open = 1;
	open_rank(&r, c, &p, BYTES);
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(open)));
	gpu_fill(gate, 0, 2);
	CUstream slow = r.stream;
	warm(&r, p, p, 1);
	if (r.rank)
		CHECK_CU(cu.cuStreamWaitValue64(slow, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_FLOAT32, NCCLSVC_SUM, r.comm,
				    NULL));
	say(c, READY);
	if (!r.rank)
		hear(c); /* is killed */
	CHECK_EQ(until_told(&r, p, IDLE), NCCLSVC_PEER_GONE);
	say(c, GO);
	r.stream = gpu_stream();
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	stage("rejoining");
	CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
	sum(&r, p, p, WORDS, 9);
	gpu_put(gate, &open, sizeof(open));
	CHECK(gpu_stream_ends(slow, WAIT_MS));
	for (int i = 0; i < r.n; i++)
		CHECK_EQ(device_info(r.session, i).restarts, 0);
	CHECK_CU(cu.cuMemFree(gate));
	give_back(&r, p);
	rank_close(&r);
	CHECK_CU(cu.cuStreamDestroy(slow));
}

static void again_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	sum(&r, p, p, WORDS, 9);
	give_back(&r, p);
	rank_close(&r);
}

static void test_slow_trainer(void)
{
	struct daemon d;
	struct client ranks[2];
	/* After so long, what still runs is broken off. */
	daemon_start(&d, "--device", "cuda", "--worker-seconds", "3", NULL);
	clients_start(ranks, 2, &d, slow_rank, NULL);
	hear_all(ranks, 2, READY);
	client_kill(&ranks[0]);
	CHECK_EQ(hear(&ranks[1]), GO);
	client_start(&ranks[0], again_rank);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- Workers that make communicators meanwhile ---- */

static void joiner_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->nranks - 1 - c->rank);
	for (unsigned round = 0; round < (setup.quick ? 30u : 200u); round++) {
		ncclsvc_unique_id id = c->id;
		id.bytes[1] ^= 1;
		id.bytes[3] = (uint8_t)round;
		id.bytes[4] = (uint8_t)(round >> 8);
		stage("joining, round %u", round);
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
		rank_check_usable(&r);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
	}
	ncclsvc_close(r.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void churner_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	for (unsigned round = 0; round < (setup.quick ? 15u : 60u); round++) {
		struct buffer b;
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, BYTES);
		warm(&r, b.p, b.p, 1);
		buffer_free(&b);
		wait_windows(&r, 0);
	}
	rank_close(&r);
}

static void test_joins(void)
{
	struct daemon d;
	struct client churners[RANKS_MAX], joiners[RANKS_MAX];
	int n = ranks_count();
	/* Nothing is kept in the pool: every JOIN has NCCL make another one. */
	daemon_start(&d, "--device", "cuda", "--comm-idle-seconds", "0", NULL);
	clients_start(churners, n, &d, churner_rank, NULL);
	clients_start(joiners, n, &d, joiner_rank, NULL);
	ranks_end(joiners, n);
	ranks_end(churners, n);
	gpu_daemon_stop(&d);
}

/* ---- The same, in the worst order ---- */

enum { HELD = 2, JOINING };

/* The last use before a window is made ready, and, at once, one that does not end until the gate
 * opens. */
static void use_and_hold(struct rank *r, CUdeviceptr p, CUdeviceptr gate)
{
	ncclsvc_task last;
	gpu_fill(gate, 0, 2);
	for (unsigned k = 1; k <= 3; k++)
		sum(r, p, p, WORDS, k);
	CHECK_CU(cu.cuMemsetD32Async(p, bits(1), WORDS, r->stream));
	for (int i = 0; i < 2; i++) {
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_FLOAT32, NCCLSVC_SUM,
					    r->comm, &last));
		if (i)
			break;
		CHECK_CU(cu.cuStreamWaitValue64(r->stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
		rank_wait(r, last);
	}
	sleep_ms(20);
}

static void open_gate(struct rank *r, CUdeviceptr p, CUdeviceptr gate)
{
	const uint64_t open = 1;
	gpu_put(gate, &open, sizeof(open));
	rank_sync(r);
	gpu_check(p, bits((float)(r->n * r->n)), WORDS, "the sum that was held");
}

/* Leaves a window where nothing is missing but that nothing flies. */
static void held_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p, gate;
	uint32_t windows = 0;
	open_rank(&r, c, &p, BYTES);
	CHECK_CU(cu.cuMemAlloc(&gate, 8));
	for (use_and_hold(&r, p, gate); windows_of(&r) > windows; use_and_hold(&r, p, gate)) {
		struct buffer b;
		open_gate(&r, p, gate); /* it was quicker */
		CHECK(++windows < 16);
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, BYTES);
		p = b.p;
	}
	say(c, HELD);
	CHECK_EQ(hear(c), GO);
	open_gate(&r, p, gate);
	wait_windows(&r, windows + 1);
	CHECK_CU(cu.cuMemFree(gate));
	rank_close(&r);
}

/* Keeps a worker from its socket. */
static void busy_rank(struct client *c)
{
	struct rank r;
	c->id.bytes[1] ^= 2;
	rank_open(&r, c);
	rank_check_usable(&r);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_check_usable(&r);
	rank_close(&r);
}

static void late_rank(struct client *c)
{
	struct rank r, second;
	rank_prepare(&r, c, c->nranks - 1 - c->rank);
	c->id.bytes[1] ^= 1;
	rank_join(&r); /* else the session is not known to the slow one */
	second = r;
	say(c, JOINING);
	CHECK_EQ(hear(c), GO);
	c->id.bytes[1] ^= 4;
	rank_join(&second);
	rank_check_usable(&second);
	CHECK_OK(ncclsvc_comm_leave(second.comm));
	rank_close(&r);
}

static void slow_worker(const struct daemon *d, bool slow)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/fault.call-slow", getenv("NCCLSVC_FAKE_DIR"));
	if (!slow) {
		CHECK_EQ(unlink(path), 0);
		return;
	}
	ncclsvc_session *s = session_open(d);
	FILE *f = fopen(path, "w");
	CHECK(f);
	fprintf(f, "%d", device_info(s, 0).pid);
	fclose(f);
	ncclsvc_close(s);
}

/* One worker makes a communicator and waits for the other, which finds a window to register before
 * it finds the communicator, and would wait for the first. */
static void test_turns(void)
{
	struct daemon d;
	struct client held[2], busy[2], late[2];
	if (!setup.fake)
		skip_test("needs a stand-in that is slow when told to");
	gpu_daemon_start(&d);
	clients_start(busy, 2, &d, busy_rank, NULL);
	hear_all(busy, 2, READY);
	clients_start(late, 2, &d, late_rank, NULL);
	hear_all(late, 2, JOINING);
	clients_start(held, 2, &d, held_rank, NULL);
	hear_all(held, 2, HELD);
	slow_worker(&d, true);
	say_all(busy, 2, GO); /* a third of a second, from here on */
	sleep_ms(50);
	say_all(late, 2, GO);
	sleep_ms(50);
	say_all(held, 2, GO);
	sleep_ms(50);
	slow_worker(&d, false);
	ranks_end(held, 2);
	ranks_end(late, 2);
	ranks_end(busy, 2);
	gpu_daemon_stop(&d);
}

/* ---- Beside tasks that do not end ---- */

/* Its task waits for the gate on all GPUs. */
static void waiting_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p, gate;
	const uint64_t open = 1;
	c->id.bytes[1] ^= 1;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * 4));
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(open)));
	gpu_fill(gate, 0, 2);
	rank_check_usable(&r);
	CHECK_CU(cu.cuStreamWaitValue64(r.stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK_OK(
		ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm, NULL));
	say(c, READY);
	CHECK_EQ(hear_within(c, 60000), GO);
	gpu_put(gate, &open, sizeof(open));
	rank_sync(&r);
	CHECK_CU(cu.cuMemFree(gate));
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* Windows must come and go while another communicator's tasks wait on the same GPUs: if NCCL or the
 * driver waited for these, so would all that their trainers wait for. */
static void test_beside(void)
{
	struct daemon d;
	struct client waiting[RANKS_MAX], churners[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(waiting, n, &d, waiting_rank, NULL);
	hear_all(waiting, n, READY);
	clients_start(churners, n, &d, churner_rank, NULL);
	ranks_end(churners, n);
	say_all(waiting, n, GO);
	ranks_end(waiting, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test window_lost_tests[] = {
	{"windows/trainer_killed", test_killed, 2, 180, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/worker_killed", test_worker_killed, 2, 240,
	 TEST_QUICK | TEST_WITHOUT_MPS | TEST_ONE_NODE | TEST_NCCL},
	{"windows/slow_trainer", test_slow_trainer, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/joins", test_joins, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/turns", test_turns, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/beside", test_beside, 2, 90, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{0},
};
