/* SPDX-License-Identifier: Apache-2.0
 * The drop-in when a communicator is aborted, or a rank or the daemon is lost. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dropin_calls.h"

enum word { READY = 1, GO };

/* ---- Aborting ---- */

enum inside { FINALIZING, FILLING, READING, READING_REVOKED, INSIDES };

struct watchdog {
	ncclComm_t comm;
	bool revokes;
	atomic_bool armed; /* the next call is the one that is ended */
};

static void *watchdog_main(void *arg)
{
	struct watchdog *w = arg;
	while (!atomic_load(&w->armed))
		sleep_ms(1);
	sleep_ms(200);
	if (w->revokes)
		CHECK_NC(nc.ncclCommRevoke(w->comm, NCCL_REVOKE_DEFAULT));
	else
		CHECK_NC(nc.ncclCommAbort(w->comm));
	return NULL;
}

/* A scalar in device memory is read after all earlier GPU work. */
static void make_reduction(ncclComm_t comm, CUdeviceptr scalar)
{
	ncclRedOp_t op;
	CHECK_NC_IS(nc.ncclRedOpCreatePreMulSum(&op, at(scalar), NCCLSVC_FLOAT32, ncclScalarDevice,
						comm),
		    ncclInvalidUsage);
}

/* Blocks in a call until the watchdog aborts or revokes the communicator. */
static void abort_inside(struct client *c, ncclComm_t comm, enum inside where)
{
	static const char *const stages[INSIDES] = {"finalizing what no peer joins",
						    "filling the ring", "reading a scalar",
						    "reading a scalar, revoked"};
	pthread_t thread;
	struct watchdog w = {.comm = comm, .revokes = where == READING_REVOKED};
	CUstream s = gpu_stream();
	CUdeviceptr p = dropin_words(1);
	ncclResult_t r = ncclSuccess;
	CHECK_EQ(pthread_create(&thread, NULL, watchdog_main, &w), 0);
	stage("%s", stages[where]);
	atomic_store(&w.armed, where == FILLING);
	for (int k = 0; k < (where == FILLING ? 100000 : 1) && !r; k++)
		r = dropin_sum(p, comm, s);
	atomic_store(&w.armed, true);
	if (where == FILLING)
		CHECK_EQ(r, ncclInvalidUsage);
	else if (where == FINALIZING)
		CHECK_NC(nc.ncclCommFinalize(comm));
	else
		make_reduction(comm, p);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC(nc.ncclCommDestroy(comm)); /* still needed if it was only revoked */
	CHECK_CU(cu.cuMemFree(p));
	say(c, READY);
}

/* Rank 0's main thread would block in a call forever, and another thread aborts it. The other rank
 * is notified. */
static void abort_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	CUdeviceptr p = dropin_words(1);
	for (int i = 0; i < INSIDES; i++) {
		dropin_check_usable(comm);
		if (c->rank == 0) {
			abort_inside(c, comm, (enum inside)i);
		} else {
			CHECK_EQ(hear(c), GO);
			stage("joining a rank that has left, %d", i);
			/* This rank may have been notified before its call. */
			const ncclResult_t r = dropin_sum(p, comm, s);
			CHECK(r == ncclSuccess || r == ncclRemoteError);
			CHECK_EQ(dropin_fails(comm, WAIT_MS), ncclRemoteError);
			CHECK_SAYS(comm, "rank 0");
			CHECK(gpu_stream_ends(s, WAIT_MS));
			CHECK_NC(nc.ncclCommAbort(comm));
		}
		stage("joining again, %d", i);
		CHECK_NC(
			nc.ncclCommInitRank(&comm, c->nranks, dropin_id_number(c, i + 1), c->rank));
	}
	CHECK_NC(nc.ncclCommDestroy(comm));
	CHECK_CU(cu.cuMemFree(p));
}

static void test_abort(void)
{
	struct daemon d;
	struct client ranks[2];
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, abort_rank, NULL);
	for (int i = 0; i < INSIDES; i++) {
		CHECK_EQ(hear(&ranks[0]), READY);
		say(&ranks[1], GO);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- A rank dies ---- */

/* Forks a process that survives this one, like a data loader's worker. */
static void fork_somebody(struct client *c)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(c->link);
		sleep(100);
		_exit(0);
	}
	say(c, (uint64_t)pid);
}

static void killed_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	CUdeviceptr p = dropin_words(1);
	char pid[32];
	dropin_check_usable(comm);
	if (c->rank == c->nranks - 1) {
		fork_somebody(c);
		for (;;)
			pause();
	}
	CHECK_NC(dropin_sum(p, comm, s)); /* the last rank submits nothing */
	say(c, READY);
	stage("waiting for the rank that is killed");
	snprintf(pid, sizeof(pid), "pid %d", (int)hear(c));
	uint64_t killed = now_ns();
	if (c->rank == 0) { /* before ncclCommGetAsyncError is called */
		CHECK(gpu_stream_ends(s, WAIT_MS));
		CHECK_NC_IS(dropin_sum(p, comm, s), ncclRemoteError);
		CHECK_SAYS(NULL, pid);
	}
	CHECK_EQ(dropin_fails(comm, WAIT_MS), ncclRemoteError);
	CHECK(now_ns() - killed < limit_ms(2000) * UINT64_C(1000000));
	CHECK_SAYS(comm, "PEER_GONE");
	CHECK_SAYS(comm, pid);
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC_IS(dropin_sum(p, comm, s), ncclRemoteError);
	/* The survivors continue without it. */
	if (c->nranks > 2) {
		ncclComm_t rest;
		int last = c->nranks - 1;
		stage("shrinking");
		CHECK_NC_IS(nc.ncclCommShrink(comm, &last, 1, &rest, NULL, NCCL_SHRINK_DEFAULT),
			    ncclRemoteError);
		CHECK_NC(nc.ncclCommShrink(comm, &last, 1, &rest, NULL, NCCL_SHRINK_ABORT));
		dropin_check_usable(rest);
		CHECK_NC(nc.ncclCommDestroy(rest));
	}
	CHECK_NC(nc.ncclCommAbort(comm));
	stage("joining again");
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id_number(c, 1), c->rank));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
	CHECK_CU(cu.cuMemFree(p));
}

static void again_rank(struct client *c)
{
	ncclComm_t comm;
	dropin_open(c->daemon);
	gpu_use(c->rank);
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id_number(c, 1), c->rank));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, killed_rank, NULL);
	struct client *last = &ranks[n - 1];
	hear_all(ranks, n - 1, READY);
	pid_t survivor = (pid_t)hear(last);
	int pid = last->pid;
	sleep_ms(50);
	client_kill(last);
	say_all(ranks, n - 1, (uint64_t)pid);
	client_start(last, again_rank);
	ranks_end(ranks, n);
	CHECK_EQ(kill(survivor, SIGKILL), 0); /* still alive */
	gpu_daemon_stop(&d);
}

/* ---- The daemon is killed, or not running ---- */

static void lost_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c), other;
	CUstream s = gpu_stream();
	CUdeviceptr p = dropin_words(1);
	dropin_check_usable(comm);
	if (c->rank == 0)
		CHECK_NC(dropin_sum(p, comm, s));
	say(c, READY);
	stage("waiting for the daemon's end");
	CHECK_EQ(dropin_fails(comm, WAIT_MS), ncclSystemError);
	CHECK_SAYS(comm, "DAEMON_LOST");
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC_IS(dropin_sum(p, comm, s), ncclSystemError);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	stage("without a daemon");
	CHECK_NC_IS(nc.ncclCommInitRank(&other, c->nranks, dropin_id_number(c, 1), c->rank),
		    ncclSystemError);
	CHECK_SAYS(NULL, "start ncclsvcd");
	CHECK_NC(nc.ncclCommDestroy(comm));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	stage("with another daemon");
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id_number(c, 2), c->rank));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
	CHECK_CU(cu.cuMemFree(p));
}

static void test_lost(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, lost_rank, NULL);
	hear_all(ranks, n, READY);
	sleep_ms(50);
	daemon_kill(&d);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	hear_all(ranks, n, READY);
	daemon_restart(&d, "--device", "cuda", NULL);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}
const struct gpu_test nccl_failure_tests[] = {
	{"nccl/abort", test_abort, 2, 120, TEST_QUICK},
	{"nccl/killed", test_killed, 2, 120, TEST_QUICK},
	{"nccl/lost", test_lost, 2, 120, TEST_QUICK},
	{0},
};
