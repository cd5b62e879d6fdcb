/* SPDX-License-Identifier: Apache-2.0
 * Small collectives on lent memory: their results before, while and after NCCL gets windows for it,
 * wherever they lie in it; and windows that go with memory, members, epochs and workers. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crew.h"
#include "values.h"

#define MIB    ((size_t)1 << 20)
#define BYTES  (4 * MIB)
#define WORDS  1000
#define ROUNDS 2000	  /* in which a window is to come */
#define MANY   20	  /* more than a communicator's workers have room for */
#define LEEWAY (48 * MIB) /* of GPU memory: what driver and NCCL keep for themselves */

enum word { READY = 1, GO };

static void open_rank(struct rank *r, struct client *c, CUdeviceptr *p, size_t bytes)
{
	struct buffer b;
	rank_open(r, c);
	buffer_make(&b, MEMORY_LENT, r->gpu, r->session, bytes);
	*p = b.p;
}

static void give_back(const struct rank *r, CUdeviceptr p)
{
	CHECK_OK(ncclsvc_mem_free(r->session, at(p)));
}

/* What the daemon shows of this rank's only communicator. */
static uint32_t windows_of(struct rank *r)
{
	ncclsvc_member_info *list;
	size_t n;
	uint32_t windows = 0;
	CHECK_OK(ncclsvc_list_members(r->session, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == getpid() && list[i].rank == r->rank)
			windows = list[i].windows;
	ncclsvc_list_free(list);
	return windows;
}

static uint32_t bits(float value)
{
	uint32_t word;
	memcpy(&word, &value, sizeof(word));
	return word;
}

/* Every rank gives k times its number from 1. */
static void sum(struct rank *r, CUdeviceptr src, CUdeviceptr dst, size_t n, unsigned k)
{
	ncclsvc_task task;
	CHECK_CU(
		cu.cuMemsetD32Async(src, bits((float)(k * (unsigned)(r->rank + 1))), n, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(src), at(dst), n, NCCLSVC_FLOAT32, NCCLSVC_SUM, r->comm,
				    &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_check(dst, bits((float)(k * (unsigned)(r->n * (r->n + 1) / 2))), n, "a sum");
}

/* All ranks say so: by a sum that is none for windows. */
static bool all_say(struct rank *r, bool yes)
{
	CUdeviceptr p;
	uint32_t total;
	ncclsvc_task task;
	CHECK_CU(cu.cuMemAlloc(&p, 4));
	CHECK_CU(cu.cuMemsetD32Async(p, yes, 1, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_get(&total, p, 4);
	CHECK_CU(cu.cuMemFree(p));
	return total == (uint32_t)r->n;
}

/* All ranks see as many, and go on only then: who gives memory back takes the others' windows. */
static void wait_windows(struct rank *r, uint32_t windows)
{
	for (uint64_t end = now_ns() + limit_ms(SETTLE_MS) * 1000000ull; windows_of(r) != windows;
	     sleep_ms(5))
		CHECK(now_ns() < end);
	CHECK(all_say(r, true));
}

/* Uses them until NCCL has that many windows. False: it gives none on this machine. */
static bool warm(struct rank *r, CUdeviceptr src, CUdeviceptr dst, uint32_t windows)
{
	for (unsigned k = 1; k <= ROUNDS; k++) {
		stage("round %u until there are %u windows", k, windows);
		sum(r, src, dst, WORDS, k % 100);
		if (k % 8 == 0 && all_say(r, windows_of(r) == windows))
			return true;
		if (k > 16)
			sleep_ms(1);
	}
	CHECK(!setup.fake);
	report("NCCL gives no windows on these GPUs");
	return false;
}

/* ---- Values ---- */

static void check_call(struct rank *r, struct call *call, CUdeviceptr src, CUdeviceptr dst)
{
	size_t sends = call_sends(call), receives = call_receives(call);
	float *words = malloc((sends + receives) * sizeof(*words));
	ncclsvc_task task;
	bool exact;
	CHECK(words);
	for (size_t i = 0; i < sends; i++)
		value_store(words, i, call->type, value_input(call, r->rank, i));
	gpu_put(src, words, sends * sizeof(*words));
	CHECK_OK(call_submit(call, r->comm, src, dst, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_get(words, dst, receives * sizeof(*words));
	for (size_t i = 0; i < receives; i++) {
		double is = value_load(words, i, call->type);
		double want = value_expected(call, i, &exact);
		if (!value_close(call, is, want, exact))
			check_failed(__FILE__, __LINE__, "operation %d: element %zu is %g, not %g",
				     call->op, i, is, want);
	}
	free(words);
}

/* The same place on all ranks, or another on each. */
static void check_places(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t room, bool same)
{
	static const ncclsvc_op ops[] = {NCCLSVC_ALL_REDUCE, NCCLSVC_ALL_GATHER,
					 NCCLSVC_REDUCE_SCATTER};
	uint64_t places = setup.seed + (same ? 0 : (uint64_t)r->rank), counts = setup.seed;
	for (unsigned i = 0; i < (setup.quick ? 60u : 300u); i++) {
		struct call call = {.op = ops[i % 3],
				    .type = NCCLSVC_FLOAT32,
				    .redop = NCCLSVC_SUM,
				    .rank = r->rank,
				    .n = r->n};
		call.count = i % 7 ? 1 + draw(&counts) % 2000 : 1;
		size_t most = call.count * (size_t)r->n * 4;
		stage("operation %d, %zu elements, %s places", call.op, call.count,
		      same ? "the same" : "other");
		check_call(r, &call, a + draw(&places) % ((room - most) / 4) * 4,
			   b + draw(&places) % ((room - most) / 4) * 4);
	}
}

static void values_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr a, b, own;
	open_rank(&r, c, &a, BYTES);
	bool some = warm(&r, a, a, 1);
	struct buffer second;
	buffer_make(&second, MEMORY_LENT, r.gpu, r.session, BYTES);
	b = second.p;
	if (some)
		warm(&r, a, b, 2);
	check_places(&r, a, b, BYTES, true);
	check_places(&r, a, b, BYTES, false);
	check_places(&r, a, a + BYTES / 2, BYTES / 2, true);
	stage("what is too large for windows");
	sum(&r, a, b, BYTES / 4, 3);
	sum(&r, a, b, MIB / 4, 3);
	sum(&r, a, b, MIB / 4 + 1, 3);
	stage("one rank on memory of its own");
	CHECK_CU(cu.cuMemAlloc(&own, BYTES));
	for (unsigned k = 1; k <= 10; k++) {
		sum(&r, r.rank ? a : own, r.rank ? a : own, WORDS, k);
		sum(&r, a, r.rank ? b : own, WORDS, k);
		sum(&r, a, b, WORDS, k);
	}
	if (some)
		wait_windows(&r, 2);
	CHECK_CU(cu.cuMemFree(own));
	give_back(&r, a);
	give_back(&r, b);
	rank_close(&r);
}

static void test_values(void)
{
	crew_run(crew_size(), values_rank, NULL);
}

/* Many are under way when the window comes, and more behind it. */
static void pipelined_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	for (unsigned round = 1; round <= (setup.quick ? 20u : 100u); round++) {
		stage("round %u", round);
		CHECK_CU(cu.cuMemsetD32Async(p, bits(1), WORDS, r.stream));
		/* Each multiplies by the number of ranks. */
		float want = 1;
		for (unsigned k = 0; k < 20; k++, want *= (float)r.n)
			CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_FLOAT32,
						    NCCLSVC_SUM, r.comm, NULL));
		rank_sync(&r);
		gpu_check(p, bits(want), WORDS, "a chain of sums");
		sleep_ms(round % 3);
	}
	if (setup.fake)
		wait_windows(&r, 1);
	give_back(&r, p);
	rank_close(&r);
}

static void test_pipelined(void)
{
	crew_run(crew_size(), pipelined_rank, NULL);
}

/* ---- Memory that goes ---- */

static void again_rank(struct client *c)
{
	struct rank r;
	const size_t bytes = 64 * MIB;
	size_t unused = 0;
	rank_open(&r, c);
	for (unsigned round = 0; round < (setup.quick ? 12u : 40u); round++) {
		struct buffer b;
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, bytes);
		if (!warm(&r, b.p, b.p, 1))
			skip_test("NCCL gives no windows on these GPUs");
		buffer_free(&b);
		wait_windows(&r, 0);
		/* The worker lets it go when nothing flies. */
		for (uint64_t end = now_ns() + limit_ms(SETTLE_MS) * 1000000ull; round;
		     sleep_ms(5)) {
			if (gpu_unused_memory() + LEEWAY >= unused)
				break;
			CHECK(now_ns() < end);
		}
		unused = round ? unused : gpu_unused_memory();
	}
	rank_close(&r);
}

static void test_again(void)
{
	crew_run(crew_size(), again_rank, NULL);
}

static void many_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p[MANY];
	open_rank(&r, c, &p[0], BYTES);
	bool some = warm(&r, p[0], p[0], 1);
	for (unsigned i = 1; i < MANY; i++) {
		struct buffer b;
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, BYTES);
		p[i] = b.p;
	}
	for (unsigned k = 1; k <= 12; k++)
		for (unsigned i = 0; i < MANY; i++)
			sum(&r, p[i], p[(i + k) % MANY], WORDS, k);
	if (some)
		wait_windows(&r, 16);
	/* Those that found no room get it from the others, which rest now. */
	for (unsigned k = 1; k <= 40; k++)
		for (unsigned i = 12; i < MANY; i++)
			sum(&r, p[i], p[i], WORDS, k);
	if (some)
		wait_windows(&r, 16);
	for (unsigned i = 0; i < MANY; i++) {
		give_back(&r, p[i]);
		if (i + 1 < MANY)
			sum(&r, p[MANY - 1], p[MANY - 1], WORDS, i + 1);
	}
	wait_windows(&r, 0);
	rank_close(&r);
}

static void test_many(void)
{
	crew_run(crew_size(), many_rank, NULL);
}

/* ---- Communicators ---- */

/* The next communicator takes NCCL's from the pool: without the last one's windows. */
static void pooled_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	ncclsvc_unique_id id = c->id;
	for (uint8_t round = 1; round <= 4; round++) {
		warm(&r, p, p, 1);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		id.bytes[3] = (uint8_t)(c->id.bytes[3] + round);
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
		CHECK_EQ(windows_of(&r), 0);
	}
	sum(&r, p, p, WORDS, 5);
	CHECK_EQ(device_info(r.session, r.gpu).nccl_comms, 1);
	give_back(&r, p);
	rank_close(&r);
}

static void test_pooled(void)
{
	crew_run(crew_size(), pooled_rank, NULL);
}

/* Two communicators, each with windows in the same memory. */
static void two_rank(struct client *c)
{
	struct rank r, other;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	bool some = warm(&r, p, p, 1);
	other = r;
	CHECK_OK(ncclsvc_comm_split(r.comm, 0, -r.rank, WAIT_MS, &other.comm));
	other.rank = r.n - 1 - r.rank;
	for (unsigned k = 1; k <= 60; k++) {
		sum(&other, p, p, WORDS, k);
		sum(&r, p, p, WORDS, k);
	}
	CHECK_OK(ncclsvc_comm_leave(other.comm));
	sum(&r, p, p, WORDS, 7);
	if (some)
		wait_windows(&r, 1);
	give_back(&r, p);
	sleep_ms(20);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_two(void)
{
	crew_run(crew_size(), two_rank, NULL);
}

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
	int n = crew_size(), rounds = setup.repeat ? setup.repeat : 4;
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
	crew_end(ranks, n);
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
	int n = crew_size();
	/* Nothing is kept in the pool: every JOIN has NCCL make another one. */
	daemon_start(&d, "--device", "cuda", "--comm-idle-seconds", "0", NULL);
	clients_start(churners, n, &d, churner_rank, NULL);
	clients_start(joiners, n, &d, joiner_rank, NULL);
	crew_end(joiners, n);
	crew_end(churners, n);
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
	crew_end(held, 2);
	crew_end(late, 2);
	crew_end(busy, 2);
	gpu_daemon_stop(&d);
}

/* ---- Without windows ---- */

static void without_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	for (unsigned k = 1; k <= 60; k++) {
		sum(&r, p, p, WORDS, k);
		CHECK_EQ(windows_of(&r), 0);
	}
	give_back(&r, p);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_off(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = crew_size();
	daemon_start(&d, "--device", "cuda", "--windows", "off", NULL);
	clients_start(ranks, n, &d, without_rank, NULL);
	crew_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* NCCL has none, or one worker alone cannot register. */
static void test_refused(void)
{
	static const char *const faults[] = {"window-none", "window-fail:1:gpu1", "window-fail"};
	if (!setup.fake)
		skip_test("needs a stand-in that refuses");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		setenv("NCCLSVC_FAKE_FAULTS", faults[i], 1);
		crew_run(crew_size(), without_rank, NULL);
	}
	unsetenv("NCCLSVC_FAKE_FAULTS");
}

const struct gpu_test window_tests[] = {
	{"windows/values", test_values, 2, 120, TEST_QUICK},
	{"windows/pipelined", test_pipelined, 2, 60, TEST_QUICK},
	{"windows/again", test_again, 2, 120, TEST_QUICK},
	{"windows/many", test_many, 2, 120, 0},
	{"windows/pooled", test_pooled, 2, 60, TEST_QUICK},
	{"windows/two_comms", test_two, 2, 60, TEST_QUICK},
	{"windows/trainer_killed", test_killed, 2, 180, TEST_QUICK},
	{"windows/worker_killed", test_worker_killed, 2, 240, TEST_QUICK},
	{"windows/joins", test_joins, 2, 120, TEST_QUICK},
	{"windows/turns", test_turns, 2, 60, TEST_QUICK},
	{"windows/off", test_off, 2, 60, TEST_QUICK},
	{"windows/refused", test_refused, 2, 60, TEST_QUICK},
	{0},
};
