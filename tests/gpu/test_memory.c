/* SPDX-License-Identifier: Apache-2.0
 * Trainers' memory: parts of allocations, reused addresses, and no leaks. */
#include <stdlib.h>
#include <unistd.h>

#include "ranks.h"

#define MIB    ((size_t)1 << 20)
#define WORDS  10000
#define BIG    (32 * MIB)
#define LEEWAY (64 * MIB) /* GPU memory that the driver and NCCL keep */

/* Sums value * (rank + 1) over all ranks at p, in place, and checks the result. */
static void sum_here(struct rank *r, CUdeviceptr p, uint32_t value, size_t n, const char *what)
{
	ncclsvc_task task;
	CHECK_CU(cu.cuMemsetD32Async(p, value * (uint32_t)(r->rank + 1), n, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_check(p, value * (uint32_t)(r->n * (r->n + 1) / 2), n, what);
}

static unsigned imports(struct rank *r)
{
	return device_info(r->session, r->gpu).imports;
}

/* ---- Parts of one allocation ---- */

static void parts_rank(struct client *c)
{
	struct rank r;
	uint64_t random = setup.seed + (uint64_t)c->rank; /* different offsets on every rank */
	rank_open(&r, c);
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		struct buffer b;
		buffer_make(&b, kind, r.gpu, r.session, BIG);
		for (uint32_t k = 1; k <= 50; k++) {
			size_t offset = draw(&random) % (BIG / 4 - WORDS) * 4;
			stage("%s memory, round %u at %zu", memory_name(kind), k, offset);
			sum_here(&r, b.p + offset, k, WORDS, "a part of an allocation");
		}
		sum_here(&r, b.p + BIG - 4 * WORDS, 7, WORDS, "an allocation's end");
		/* One import for all parts; the previous kind's is dropped at the next
		 * allocation. */
		CHECK_EQ(imports(&r), 1);
		buffer_free(&b);
	}
	rank_close(&r);
}

static void test_parts(void)
{
	ranks_run(ranks_count(), parts_rank, NULL);
}

/* ---- The same address again ---- */

static void again_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	for (int kind = 0; kind < MEMORY_SESSION; kind++) {
		CUdeviceptr seen[60];
		unsigned again = 0, rounds = setup.quick ? 20 : 60;
		for (uint32_t k = 1; k <= rounds; k++) {
			/* Some are longer than the previous one at that address. */
			size_t bytes = (k / 2 % 2 ? 6 : 2) * MIB;
			struct buffer b;
			stage("%s memory, round %u", memory_name(kind), k);
			buffer_make(&b, kind, r.gpu, r.session, bytes);
			seen[k - 1] = b.p;
			for (uint32_t i = 0; i + 1 < k; i++)
				if (seen[i] == b.p) {
					again++;
					break;
				}
			sum_here(&r, b.p, k, bytes / 4, "memory that was allocated again");
			buffer_free(&b);
		}
		CHECK(imports(&r) <= 4);
		if (!r.rank)
			report("%s: %u of %u allocations had an address that was used before",
			       memory_name(kind), again, rounds);
	}
	rank_close(&r);
}

static void test_again(void)
{
	ranks_run(ranks_count(), again_rank, NULL);
}

/* ---- No leaks ---- */

static void churn(struct rank *r, unsigned rounds, uint64_t *random)
{
	for (unsigned k = 1; k <= rounds; k++) {
		struct buffer b[3];
		stage("round %u of %u", k, rounds);
		for (int kind = 0; kind < MEMORY_KINDS; kind++)
			buffer_make(&b[kind], kind, r->gpu, r->session,
				    (1 + draw(random) % 8) * MIB);
		for (int kind = 0; kind < MEMORY_KINDS; kind++)
			sum_here(r, b[kind].p, k, 100, memory_name(kind));
		for (int kind = 0; kind < MEMORY_KINDS; kind++)
			buffer_free(&b[kind]);
	}
}

static void churn_rank(struct client *c)
{
	struct rank r;
	uint64_t random = setup.seed;
	rank_open(&r, c);
	churn(&r, 10, &random);
	size_t unused = gpu_unused_memory();
	say(c, 1);
	CHECK_EQ(hear(c), 2);
	churn(&r, setup.quick ? 50 : 500, &random);
	ncclsvc_device_info info = device_info(r.session, r.gpu);
	size_t now = gpu_unused_memory();
	if (now + LEEWAY < unused)
		check_failed(__FILE__, __LINE__, "%zu MiB of GPU memory are gone",
			     (unused - now) / MIB);
	/* The last round's import is dropped with the next allocation. */
	CHECK(info.imports <= 2);
	say(c, 3);
	CHECK_EQ(hear(c), 4);
	rank_close(&r);
}

static void test_churn(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	struct worker_fds fds;
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, churn_rank, NULL);
	hear_all(ranks, n, 1);
	struct usage before = daemon_usage(&d);
	worker_fds_note(&d, &fds);
	say_all(ranks, n, 2);
	for (int i = 0; i < n; i++)
		CHECK_EQ(hear_within(&ranks[i], 200000), 3);
	worker_fds_check(&d, &fds);
	/* The last frees may still be in progress. */
	for (uint64_t end = now_ns() + UINT64_C(10000000000);
	     daemon_usage(&d).fds > before.fds + n * 2; sleep_ms(10))
		CHECK(now_ns() < end);
	say_all(ranks, n, 4);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* A process that ends without freeing anything. */
static void leaver_rank(struct client *c)
{
	struct rank r;
	struct buffer b[MEMORY_KINDS];
	rank_open(&r, c);
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		buffer_make(&b[kind], kind, r.gpu, r.session, 256 * MIB / (setup.fake ? 16 : 1));
		sum_here(&r, b[kind].p, 3, WORDS, memory_name(kind));
	}
	/* Other ranks may not have completed the last task yet. */
	say(c, 1);
	CHECK_EQ(hear(c), 2);
	_exit(0);
}

static void unused_rank(struct client *c)
{
	gpu_use(c->rank);
	say(c, gpu_unused_memory());
}

static size_t unused_memory(const struct daemon *d)
{
	struct client c;
	clients_start(&c, 1, d, unused_rank, NULL);
	size_t unused = hear(&c);
	ranks_end(&c, 1);
	return unused;
}

static void test_leavers(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	struct worker_fds fds;
	size_t unused = 0;
	int n = ranks_count();
	gpu_daemon_start(&d);
	for (int round = 0; round < 4; round++) {
		stage("round %d", round);
		clients_start(ranks, n, &d, leaver_rank, NULL);
		hear_all(ranks, n, 1);
		say_all(ranks, n, 2);
		ranks_end(ranks, n);
		daemon_finishes(&d);
		workers_finish(&d);
		if (round)
			worker_fds_check(&d, &fds);
		else
			worker_fds_note(&d, &fds);
		size_t now = unused_memory(&d);
		if (round && now + LEEWAY < unused)
			check_failed(__FILE__, __LINE__, "%zu MiB of GPU memory are gone",
				     (unused - now) / MIB);
		unused = round ? unused : now;
	}
	gpu_daemon_stop(&d);
}

/* ---- Two sessions of one process ---- */

static void two_sessions_rank(struct client *c)
{
	struct rank r, second;
	struct buffer b;
	rank_open(&r, c);
	second = r;
	second.session = session_open(c->daemon);
	second.stream = gpu_stream();
	CHECK_OK(ncclsvc_stream_set(second.session, second.stream, 0));
	ncclsvc_unique_id id = c->id;
	id.bytes[2] ^= 1;
	CHECK_OK(ncclsvc_comm_join_device(second.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
					  &second.comm));
	for (int kind = 0; kind < MEMORY_SESSION; kind++) {
		stage("%s memory", memory_name(kind));
		buffer_make(&b, kind, r.gpu, r.session, BIG);
		for (uint32_t k = 1; k <= 5; k++) {
			sum_here(&r, b.p, k, WORDS, "the first session's part");
			sum_here(&second, b.p + BIG / 2, k, WORDS, "the second session's part");
			sum_here(&second, b.p, k, WORDS, "the first session's part, by the second");
		}
		if (kind != MEMORY_SESSION - 1)
			buffer_free(&b);
	}
	/* One session releases memory that the other still uses. */
	stage("one session closes");
	ncclsvc_close(r.session);
	for (uint32_t k = 1; k <= 5; k++) {
		sum_here(&second, b.p, k, WORDS, "memory that one session has left");
		sleep_ms(20);
	}
	buffer_free(&b);
	ncclsvc_close(second.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
	CHECK_CU(cu.cuStreamDestroy(second.stream));
}

static void test_two_sessions(void)
{
	ranks_run(ranks_count(), two_sessions_rank, NULL);
}

/* ---- A rank that is late ---- */

#define LATE_MS 13000 /* longer than workers keep memory that is not in use */

enum word { READY = 1, GO };

/* A separate process, alone on GPU 0. */
static void bystander_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	c->id.bytes[2] ^= 1;
	c->rank = 0;
	c->nranks = 1;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * 4));
	sum_here(&r, p, 1, WORDS, "one rank's sum");
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* Rank 0 has a task whose input is late. Meanwhile the bystander returns memory: freeing it on rank
 * 0's GPU would wait for everything that is running. A task of another communicator still
 * completes. */
static void straggler_rank(struct client *c)
{
	struct rank r;
	ncclsvc_comm *other;
	CUdeviceptr p, gate;
	const uint64_t open = 1;
	if (c->rank == 2) {
		bystander_rank(c);
		return;
	}
	c->nranks = 2;
	rank_open(&r, c);
	CHECK_OK(ncclsvc_comm_split(r.comm, 0, r.rank, WAIT_MS, &other));
	CHECK_CU(cu.cuMemAlloc(&p, 8));
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(open)));
	gpu_fill(gate, 0, 2);
	gpu_fill(p, 1, 2);
	CUstream late = gpu_stream();
	if (!r.rank)
		CHECK_CU(cu.cuStreamWaitValue64(late, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK_OK(ncclsvc_stream_set(r.session, late, 0));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_UINT32, NCCLSVC_SUM, other, NULL));
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	say(c, READY);
	stage("waiting to submit, while another sum is late");
	CHECK_EQ(hear(c), GO);
	stage("a sum while another one is late");
	CHECK_OK(ncclsvc_all_reduce(at(p + 4), at(p + 4), 1, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm,
				    NULL));
	CHECK(gpu_stream_ends(r.stream, LATE_MS));
	gpu_put(gate, &open, sizeof(open));
	CHECK(gpu_stream_ends(late, WAIT_MS));
	gpu_check(p, (uint32_t)r.n, 2, "both sums");
	CHECK_OK(ncclsvc_comm_leave(other));
	CHECK_CU(cu.cuStreamDestroy(late));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(gate));
	rank_close(&r);
}

static void test_straggler(void)
{
	struct daemon d;
	struct client clients[3];
	gpu_daemon_start(&d);
	clients_start(clients, 3, &d, straggler_rank, NULL);
	hear_all(clients, 3, READY);
	say(&clients[2], GO);
	sleep_ms(LATE_MS);
	say_all(clients, 2, GO);
	ranks_end(clients, 3);
	gpu_daemon_stop(&d);
}

const struct gpu_test memory_tests[] = {
	{"memory/parts", test_parts, 2, 60, TEST_QUICK | TEST_NCCL},
	{"memory/again", test_again, 2, 60, TEST_QUICK},
	{"memory/churn", test_churn, 2, 240, TEST_QUICK},
	{"memory/leavers", test_leavers, 2, 40, 0},
	{"memory/two_sessions", test_two_sessions, 2, 60, TEST_QUICK},
	{"memory/straggler", test_straggler, 2, 40, 0},
	{0},
};
