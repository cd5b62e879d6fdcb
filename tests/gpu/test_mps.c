/* SPDX-License-Identifier: Apache-2.0
 * MPS without configuration (mps = auto): trainers and workers use the MPS control daemon that
 * ncclsvcd starts; and the end of that control daemon, or of ncclsvcd. These tests ignore --mps. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ranks.h"
#include "watch.h"

#define WORDS 1024

enum word { READY = 1, GO };

static void set_nothing(void)
{
	const char *fake = getenv("NCCLSVC_FAKE_MPS"), *path = getenv("PATH");
	char with_fake[4096];
	unsetenv("NCCLSVCD_MPS");
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	unsetenv("CUDA_MPS_LOG_DIRECTORY");
	if (!setup.fake)
		return;
	if (!fake)
		skip_test("NCCLSVC_FAKE_MPS must name the directory of the stand-in for MPS");
	snprintf(with_fake, sizeof(with_fake), "%s:%s", fake, path ? path : "");
	setenv("PATH", with_fake, 1);
}

static ncclsvc_daemon_info info_of(const struct daemon *d)
{
	ncclsvc_daemon_info info;
	ncclsvc_session *session = session_open(d);
	CHECK_OK(ncclsvc_daemon(session, &info));
	ncclsvc_close(session);
	return info;
}

/* Starts ncclsvcd, and returns its MPS control daemon's pid. */
static pid_t start(struct daemon *d)
{
	set_nothing();
	gpu_daemon_start(d);
	ncclsvc_daemon_info info = info_of(d);
	if (info.mps == NCCLSVC_MPS_NOBODY)
		skip_test("no MPS here: %s", info.mps_text);
	CHECK_EQ(info.mps, NCCLSVC_MPS_OWN);
	return info.mps_pid;
}

static bool lives(pid_t pid)
{
	const char state = process_state(pid);
	return state && state != 'Z';
}

static void await_end(pid_t pid)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; lives(pid); sleep_ms(5))
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "MPS control daemon %d does not end", pid);
}

/* Checks that n joined processes use the worker's MPS server. */
static void check_sessions(const struct daemon *d, size_t n)
{
	ncclsvc_session_info *list;
	size_t sessions, with = 0;
	ncclsvc_session *session = session_open(d);
	CHECK_OK(ncclsvc_list_sessions(session, &list, &sessions));
	for (size_t i = 0; i < sessions; i++)
		with += list[i].mps == NCCLSVC_MPS_ACTIVE;
	CHECK_EQ(with, n);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

static void usable_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	rank_check_usable(&r);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_by_itself(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	const pid_t control = start(&d);
	clients_start(ranks, n, &d, usable_rank, NULL);
	hear_all(ranks, n, READY);
	check_sessions(&d, (size_t)n);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	const uint64_t since = now_ns();
	gpu_daemon_stop(&d);
	report("the daemon's end, with that of MPS: %d ms", (int)((now_ns() - since) / 1000000));
	CHECK(!lives(control));
}

/* Rank 0 runs without MPS, like a process that has used CUDA before. It takes turns with its
 * worker, which can access every kind of its memory. */
static void mixed_rank(struct client *c)
{
	struct rank r;
	if (!c->rank)
		setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/ncclsvc-no-mps", 1);
	rank_open(&r, c);
	rank_check_usable(&r);
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		struct buffer b;
		ncclsvc_task task;
		stage("memory of kind %d", kind);
		buffer_make(&b, (enum memory_kind)kind, r.gpu, r.session, WORDS * sizeof(uint32_t));
		gpu_fill(b.p, (uint32_t)r.rank + 1, WORDS);
		CHECK_OK(ncclsvc_all_reduce(at(b.p), at(b.p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
					    r.comm, &task));
		rank_wait(&r, task);
		gpu_check(b.p, (uint32_t)(r.n * (r.n + 1) / 2), WORDS, "the sum");
		buffer_free(&b);
	}
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_close(&r);
}

static void test_mixed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	start(&d);
	clients_start(ranks, n, &d, mixed_rank, NULL);
	hear_all(ranks, n, READY);
	check_sessions(&d, (size_t)n - 1);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* The rank's GPU memory and stream survive ncclsvcd, whether that is killed or exits. */
static void surviving_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	const bool again = c->arg != NULL;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * sizeof(uint32_t)));
	gpu_fill(p, 77, WORDS);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	gpu_check(p, 77, WORDS, "what was there before the daemon's end");
	gpu_fill(p, 78, WORDS);
	gpu_check(p, 78, WORDS, "what was written after the daemon's end");
	if (again) {
		CHECK_OK(ncclsvc_reattach(r.session, WAIT_MS));
		rank_check_usable(&r);
	}
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (again)
		rank_close(&r);
	else
		ncclsvc_close(r.session);
}

static void test_daemon_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	int yes;
	const pid_t control = start(&d);
	clients_start(ranks, n, &d, surviving_rank, &yes);
	hear_all(ranks, n, READY);
	daemon_kill(&d);
	stage("starting the next daemon");
	daemon_restart(&d, "--device", "cuda", "--log-level", "debug", NULL);
	watch_daemon(&d);
	CHECK_EQ(info_of(&d).mps_pid, control);
	say_all(ranks, n, GO);
	hear_all(ranks, n, READY);
	check_sessions(&d, (size_t)n);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
	CHECK(!lives(control));
}

static void test_daemon_ended(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	const pid_t control = start(&d);
	clients_start(ranks, n, &d, surviving_rank, NULL);
	hear_all(ranks, n, READY);
	CHECK_EQ(kill(d.pid, SIGTERM), 0);
	daemon_wait_exit(&d, 0);
	CHECK(lives(control));
	say_all(ranks, n, GO);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	const uint64_t since = now_ns();
	await_end(control);
	report("MPS ended %d ms after its last client", (int)((now_ns() - since) / 1000000));
}

/* The rank's CUDA context is lost with the control daemon: its CUDA calls fail. */
static void losing_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     !cu.cuMemsetD8Async(p, 1, WORDS, r.stream) && !cu.cuStreamSynchronize(r.stream);
	     sleep_ms(5))
		CHECK(now_ns() < end);
	say(c, READY);
	hear(c);
	ncclsvc_close(r.session);
}

static void test_control_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	const pid_t control = start(&d);
	clients_start(ranks, n, &d, losing_rank, NULL);
	hear_all(ranks, n, READY);
	CHECK_EQ(kill(control, SIGKILL), 0);
	const uint64_t since = now_ns();
	await_end(control);
	say_all(ranks, n, GO);
	hear_all(ranks, n, READY);
	for (int i = 0; i < n; i++)
		client_kill(&ranks[i]);
	stage("waiting for another control daemon");
	ncclsvc_daemon_info info = info_of(&d);
	for (uint64_t end = since + WAIT_MS * 1000000ull; info.mps_starts < 2; sleep_ms(10)) {
		CHECK(now_ns() < end);
		info = info_of(&d);
	}
	stage("starting other ranks");
	clients_start(ranks, n, &d, usable_rank, NULL);
	hear_all(ranks, n, READY);
	report("all running again %d ms after MPS was killed", (int)((now_ns() - since) / 1000000));
	check_sessions(&d, (size_t)n);
	info = info_of(&d);
	CHECK(info.mps_losses >= (uint32_t)n);
	CHECK(info.mps_pid != control);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test mps_tests[] = {
	{"mps/by_itself", test_by_itself, 1, 90, TEST_QUICK | TEST_ONE_NODE},
	{"mps/mixed", test_mixed, 1, 90, TEST_QUICK | TEST_ONE_NODE},
	{"mps/daemon_killed", test_daemon_killed, 1, 90, TEST_QUICK | TEST_ONE_NODE},
	{"mps/daemon_ended", test_daemon_ended, 1, 90, TEST_QUICK | TEST_ONE_NODE},
	{"mps/control_killed", test_control_killed, 1, 90, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
