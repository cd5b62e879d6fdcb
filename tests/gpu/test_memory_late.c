/* SPDX-License-Identifier: Apache-2.0
 * Memory that is freed while a process that has mapped it is stopped, is killed, or runs a kernel
 * that waits for the rank that frees. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "dropin_calls.h"
#include "meeting.h"

#define BYTES	   ((size_t)8 << 20)
#define SHORT	   200	 /* ms: the time of a free that cannot succeed */
#define LONG	   10000 /* ms: more than a free needs */
#define DROPIN	   1000	 /* ms: how long the drop-in's free waits */
#define FREES	   3
#define LATENCY_MS 3000 /* beyond a timeout, on an idle machine */

enum word { READY = 1, GO };

/* How many lines of the daemon's log say that freed memory stays allocated. */
static int lines(const struct daemon *d)
{
	static char text[4096];
	int n = 0;
	FILE *f = fopen(d->log, "re");
	CHECK(f);
	while (fgets(text, sizeof(text), f))
		n += strstr(text, "that it frees stay allocated") != NULL;
	fclose(f);
	return n;
}

/* The library does not wait for a daemon that is late. */
static void lines_reach(const struct daemon *d, int n)
{
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000); lines(d) < n; sleep_ms(5))
		CHECK(now_ns() < end);
	CHECK_EQ(lines(d), n);
}

/* Frees the memory, which must return in time. */
static void forget(struct rank *r, struct buffer *b, int ms, ncclsvc_result expected)
{
	const uint64_t begin = now_ns();
	CHECK_RESULT(ncclsvc_mem_forget(r->session, at(b->p), ms), expected);
	CHECK(now_ns() - begin < ((uint64_t)ms + limit_ms(LATENCY_MS)) * 1000000);
	buffer_free(b);
}

/* ---- A rank that is stopped ---- */

static void stopped_rank(struct client *c)
{
	struct meeting m;
	struct buffer b[FREES];
	meeting_open(&m, c);
	const size_t unused = gpu_unused_memory();
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++) {
		for (int i = 0; i < FREES; i++) {
			buffer_make(&b[i], kind, m.r.gpu, m.r.session, BYTES);
			meeting_sum(&m, b[i].p);
		}
		say(c, READY);
		stage("%s memory that is freed", memory_name(kind));
		CHECK_EQ(hear(c), GO);
		for (int i = 0; i < FREES; i++)
			forget(&m.r, &b[i], m.r.rank ? LONG : SHORT,
			       m.r.rank ? NCCLSVC_OK : NCCLSVC_TIMEOUT);
		say(c, READY);
		stage("%s memory that returns", memory_name(kind));
		CHECK_EQ(hear(c), GO);
		meeting_wait(&m);
		CHECK(gpu_has_unused(unused - BYTES, WAIT_MS));
	}
	rank_check_usable(&m.r);
	meeting_close(&m);
}

static void test_stopped(void)
{
	struct daemon d;
	struct client ranks[2];
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, stopped_rank, NULL);
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++) {
		hear_all(ranks, 2, READY);
		const int before = lines(&d);
		process_stop(ranks[1].pid);
		say(&ranks[0], GO);
		hear_all(ranks, 1, READY);
		lines_reach(&d, before + FREES);
		CHECK_EQ(kill(ranks[1].pid, SIGCONT), 0);
		say(&ranks[1], GO);
		CHECK_EQ(hear(&ranks[1]), READY);
		say_all(ranks, 2, GO);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- A rank that is killed while it is waited for ---- */

static void killed_rank(struct client *c)
{
	struct meeting m;
	struct buffer b[2];
	meeting_open(&m, c);
	const size_t unused = gpu_unused_memory();
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++) {
		buffer_make(&b[kind], kind, m.r.gpu, m.r.session, BYTES);
		meeting_sum(&m, b[kind].p);
	}
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++) {
		stage("freeing %s memory", memory_name(kind));
		forget(&m.r, &b[kind], LONG, NCCLSVC_OK);
	}
	CHECK(gpu_has_unused(unused - BYTES / 2, WAIT_MS));
	kernels_over(&m.r, NCCLSVC_PEER_GONE);
	meeting_close(&m);
}

/* Rank 1 is stopped when rank 0 frees. */
static void start_and_stop(struct daemon *d, struct client ranks[2], client_main *main)
{
	kernels_daemon_start(d);
	clients_start(ranks, 2, d, main, NULL);
	hear_all(ranks, 2, READY);
	process_stop(ranks[1].pid);
	say(&ranks[0], GO);
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[2];
	start_and_stop(&d, ranks, killed_rank);
	sleep_ms(100); /* it frees meanwhile */
	client_kill(&ranks[1]);
	ranks_end(ranks, 1);
	CHECK_EQ(lines(&d), 0);
	gpu_daemon_stop(&d);
}

/* ---- A rank whose kernel waits for the one that frees ---- */

/* The rank that is waited for frees memory: that of cuMemAlloc stays until the kernel has ended. */
static void free_beside_kernel(struct rank *r, struct buffer *b, int kind)
{
	const bool stays = kind == MEMORY_ALLOC;
	const int before = lines(r->c->daemon);
	const uint64_t begin = now_ns();
	for (int i = 0; i < FREES; i++)
		forget(r, &b[i], LONG, stays ? NCCLSVC_TIMEOUT : NCCLSVC_OK);
	/* No free waits for its whole timeout. */
	CHECK(now_ns() - begin < limit_ms(LATENCY_MS) * UINT64_C(1000000));
	lines_reach(r->c->daemon, before + stays * FREES);
}

static void kernel_rank(struct client *c)
{
	struct meeting m;
	struct buffer used, freed[FREES];
	meeting_open(&m, c);
	buffer_make(&used, MEMORY_ALLOC, m.r.gpu, m.r.session, BYTES);
	meeting_sum(&m, used.p);
	const size_t unused = gpu_unused_memory();
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++) {
		for (int i = 0; i < FREES; i++) {
			buffer_make(&freed[i], kind, m.r.gpu, m.r.session, BYTES);
			meeting_sum(&m, freed[i].p);
		}
		stage("%s memory", memory_name(kind));
		if (m.r.rank)
			kernels_sum(&m.r, used.p, PART_WORDS);
		say(c, READY);
		CHECK_EQ(hear(c), GO);
		if (!m.r.rank) {
			free_beside_kernel(&m.r, freed, kind);
			kernels_sum(&m.r, used.p, PART_WORDS);
		}
		meeting_wait(&m);
		for (int i = 0; m.r.rank && i < FREES; i++)
			forget(&m.r, &freed[i], LONG, NCCLSVC_OK);
		CHECK(gpu_has_unused(unused - BYTES / 2, WAIT_MS));
		meeting_wait(&m);
	}
	buffer_free(&used);
	meeting_close(&m);
}

static void test_kernel(void)
{
	struct daemon d;
	struct client ranks[2];
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, kernel_rank, NULL);
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++) {
		hear_all(ranks, 2, READY);
		say_all(ranks, 2, GO);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- A worker that is stopped ---- */

static void worker_rank(struct client *c)
{
	struct meeting m;
	struct buffer b[FREES];
	meeting_open(&m, c);
	const size_t unused = gpu_unused_memory();
	for (int i = 0; i < FREES; i++) {
		buffer_make(&b[i], MEMORY_VMM, m.r.gpu, m.r.session, BYTES);
		meeting_sum(&m, b[i].p);
	}
	meeting_wait(&m);
	if (!m.r.rank) {
		const pid_t worker = device_info(m.r.session, 0).pid;
		const uint64_t begin = now_ns();
		process_stop(worker);
		for (int i = 0; i < FREES; i++) {
			stage("freeing memory %d", i);
			CHECK_RESULT(ncclsvc_mem_forget(m.r.session, at(b[i].p), SHORT),
				     NCCLSVC_TIMEOUT);
			buffer_free(&b[i]);
		}
		/* The time of all frees together. */
		CHECK(now_ns() - begin <
		      (FREES * SHORT + limit_ms(LATENCY_MS)) * UINT64_C(1000000));
		CHECK_EQ(kill(worker, SIGCONT), 0);
		CHECK(gpu_has_unused(unused - BYTES, WAIT_MS));
	}
	meeting_wait(&m);
	for (int i = 0; m.r.rank && i < FREES; i++)
		forget(&m.r, &b[i], LONG, NCCLSVC_OK);
	rank_check_usable(&m.r);
	meeting_close(&m);
}

static void test_worker(void)
{
	ranks_run(2, worker_rank, NULL);
}

/* ---- The drop-in ---- */

/* Its first free that fails waits, the next ones do not. */
static void dropin_rank(struct client *c)
{
	CUdeviceptr p[FREES];
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	for (int i = 0; i < FREES; i++) {
		CHECK_CU(cu.cuMemAlloc(&p[i], BYTES));
		for (int round = 0; round < 3; round++)
			CHECK_NC(nc.ncclAllReduce(at(p[i]), at(p[i]), PART_WORDS, NCCLSVC_UINT32,
						  NCCLSVC_SUM, comm, s));
	}
	CHECK(gpu_stream_ends(s, WAIT_MS));
	const size_t unused = gpu_unused_memory();
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	const uint64_t begin = now_ns();
	for (int i = 0; i < FREES; i++)
		CHECK_EQ(nc.cuMemFree(p[i]), 0);
	CHECK(now_ns() - begin < (DROPIN + limit_ms(LATENCY_MS)) * UINT64_C(1000000));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK(gpu_has_unused(unused + FREES * BYTES - BYTES, WAIT_MS));
	/* A rank whose kernel waits for the other one unmaps nothing. */
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_dropin(void)
{
	struct daemon d;
	struct client ranks[2];
	start_and_stop(&d, ranks, dropin_rank);
	CHECK_EQ(hear(&ranks[0]), READY);
	lines_reach(&d, FREES);
	CHECK_EQ(kill(ranks[1].pid, SIGCONT), 0);
	say(&ranks[1], GO);
	CHECK_EQ(hear(&ranks[1]), READY);
	say_all(ranks, 2, GO);
	hear_all(ranks, 2, READY);
	say_all(ranks, 2, GO);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

const struct gpu_test memory_late_tests[] = {
	{"memory/late/stopped", test_stopped, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"memory/late/killed", test_killed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"memory/late/kernel", test_kernel, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"memory/late/worker", test_worker, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"memory/late/worker/nccl", test_worker, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"memory/late/dropin", test_dropin, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
