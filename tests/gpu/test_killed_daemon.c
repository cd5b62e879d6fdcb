/* SPDX-License-Identifier: Apache-2.0
 * The daemon is killed: no stream hangs, its workers end too, and sessions find the next daemon. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "proto/abi/peer_abi.h"
#include "ranks.h"
#include "watch.h"

#define MIB ((size_t)1 << 20)

enum word { READY = 1, GO };

static int rounds(void)
{
	return setup.repeat ? setup.repeat : 1;
}

/* inside: large tasks of all ranks are running. Otherwise rank 0's task waits for the others. */
static void lose_daemon(struct rank *r, const struct buffer *b, size_t bytes, bool inside)
{
	struct client *c = r->c;
	ncclsvc_task task = 0;
	for (int i = 0; i < (inside ? 100 : !r->rank); i++)
		CHECK_OK(ncclsvc_all_reduce(at(b->p), at(b->p), inside ? bytes / 4 : 64,
					    NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	/* Later work, which the GPU must reach. */
	CHECK_CU(cu.cuMemsetD32Async(b->p, 77, 64, r->stream));
	say(c, READY);
	stage("waiting for the daemon's death");
	ncclsvc_result result = ncclsvc_wait(r->session, task, WAIT_MS);
	while (!result && (inside || r->rank)) /* the task may have ended first */
		result = ncclsvc_dispatch(r->session, 100);
	CHECK_RESULT(result, NCCLSVC_DAEMON_LOST);
	say(c, now_ns());
	stage("waiting for the stream to be released");
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	say(c, now_ns());
	gpu_check(b->p, 77, 64, "what was put behind the task");
	CHECK_RESULT(ncclsvc_all_reduce(at(b->p), at(b->p), 64, NCCLSVC_UINT32, NCCLSVC_SUM,
					r->comm, NULL),
		     NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(c), GO);
	stage("reattaching");
	CHECK_OK(ncclsvc_reattach(r->session, WAIT_MS));
	rank_check_usable(r);
	gpu_fill(b->p, (uint32_t)r->rank + 1, 64);
	CHECK_OK(ncclsvc_all_reduce(at(b->p), at(b->p), 64, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    &task));
	rank_wait(r, task);
	gpu_check(b->p, (uint32_t)(r->n * (r->n + 1) / 2), 64, "the next daemon's sum");
	say(c, now_ns());
}

static void lost_rank(struct client *c)
{
	struct rank r;
	struct buffer b;
	size_t bytes = setup.fake ? 4 * MIB : 256 * MIB;
	rank_open(&r, c);
	rank_check_usable(&r);
	buffer_make(&b, MEMORY_ALLOC, r.gpu, r.session, bytes);
	for (int i = 0; i < rounds(); i++)
		lose_daemon(&r, &b, bytes, c->arg != NULL);
	buffer_free(&b);
	rank_close(&r);
}

static void check_workers_gone(const int *pids, int n)
{
	for (int i = 0; i < n; i++)
		for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(5)) {
			if (kill(pids[i], 0) < 0 && errno == ESRCH)
				break;
			if (now_ns() > end)
				check_failed(__FILE__, __LINE__, "worker %d outlives its daemon",
					     pids[i]);
		}
}

/* The longest delays of all rounds, since the daemon was killed. */
struct delays {
	uint64_t noticed, released, whole;
};

static void later(uint64_t *worst, uint64_t killed, uint64_t now)
{
	if (now - killed > *worst)
		*worst = now - killed;
}

static void kill_daemon_once(struct daemon *d, struct client *ranks, int n, bool inside,
			     struct delays *w)
{
	struct worker_fds workers;
	worker_fds_note(d, &workers);
	hear_all(ranks, n, READY);
	sleep_ms(inside ? 10 : 50);
	const uint64_t killed = now_ns();
	daemon_kill(d);
	for (int i = 0; i < n; i++) {
		later(&w->noticed, killed, hear(&ranks[i]));
		later(&w->released, killed, hear(&ranks[i]));
	}
	check_workers_gone(workers.pid, workers.n);
	stage("starting the next daemon");
	daemon_restart(d, "--device", "cuda", "--log-level", "debug", NULL);
	watch_daemon(d);
	say_all(ranks, n, GO);
	for (int i = 0; i < n; i++)
		later(&w->whole, killed, hear(&ranks[i]));
}

static void kill_daemon(void *inside)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	struct delays w = {0};
	const int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, lost_rank, inside);
	for (int i = 0; i < rounds(); i++) {
		stage("round %d of %d", i + 1, rounds());
		kill_daemon_once(&d, ranks, n, inside, &w);
	}
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
	report("%s: %d rounds; at worst noticed after %llu ms, streams released after %llu ms, the "
	       "next daemon's sum after %llu ms",
	       inside ? "inside collectives" : "waiting", rounds(),
	       (unsigned long long)w.noticed / 1000000, (unsigned long long)w.released / 1000000,
	       (unsigned long long)w.whole / 1000000);
	CHECK(w.noticed < PEER_HEARTBEAT_NS / 2 && w.released < PEER_HEARTBEAT_NS / 2);
	CHECK(w.noticed / 1000000 <= limit_ms(1000));
	CHECK(w.released / 1000000 <= limit_ms(setup.mps ? 4000 : 2000));
}

static void test_waiting(void)
{
	kill_daemon(NULL);
}

static void test_inside(void)
{
	int yes;
	kill_daemon(&yes);
}

const struct gpu_test killed_daemon_tests[] = {
	{"killed_daemon/waiting", test_waiting, 2, 90, TEST_QUICK},
	{"killed_daemon/inside", test_inside, 2, 90, 0},
	{0},
};
