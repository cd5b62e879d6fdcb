/* SPDX-License-Identifier: Apache-2.0
 * Ranks that die, leave, abort, are stopped or do not come while others wait in Sends and Recvs. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "meeting.h"

#define TIMEOUT_MS (setup.fake ? 1500 : 300)
#define MS	   UINT64_C(1000000)

enum word { READY = 1, GO };

/* The operation in which the other ranks wait for the last one. */
enum wait { IN_RECV, IN_SEND, IN_GROUP, WAITS };

static const char *const wait_names[] = {"a Recv", "a full ring's Send", "a group"};

static ncclsvc_task wait_in(struct rank *r, CUdeviceptr p, enum wait in)
{
	const int last = r->n - 1;
	ncclsvc_task task;
	stage("waiting in %s", wait_names[in]);
	if (in == IN_RECV)
		kernels_recv(r, p, SMALL, last, &task);
	if (in == IN_SEND)
		kernels_send(r, p, LONG_WORDS, last, &task);
	if (in != IN_GROUP)
		return task;
	/* Messages among the other ranks may arrive, but their kernels do not end. */
	CHECK_OK(ncclsvc_group_begin(r->session));
	for (int k = 0; k < r->n; k++) {
		kernels_send(r, p, SMALL, k, NULL);
		kernels_recv(r, p + LARGE / 2 + (unsigned)k * 4096, SMALL, k, &task);
	}
	CHECK_OK(ncclsvc_group_end(r->session));
	return task;
}

static void released(struct rank *r)
{
	stage("waiting for the stream");
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
}

/* ---- A rank that is killed ---- */

static void mortal_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	rank_check_usable(&r);
	for (;;) {
		say(c, READY);
		stage("waiting for a round");
		const uint64_t in = hear(c);
		if (in == WAITS)
			break;
		if (r.rank == r.n - 1) {
			say(c, READY);
			hear(c);
		}
		const ncclsvc_task task = wait_in(&r, p, (enum wait)in);
		say(c, READY);
		wait_for(r.session, task, NCCLSVC_PEER_GONE);
		const ncclsvc_status st = status_of(r.session, task);
		CHECK_EQ(st.rank_a, r.n - 1);
		say(c, now_ns());
		released(&r);
		CHECK_EQ(hear(c), GO);
		kernels_rejoin(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void kill_last(struct client *ranks, int n, enum wait in)
{
	say_all(ranks, n, in);
	hear_all(ranks, n, READY);
	sleep_ms(50);
	const uint64_t killed = now_ns();
	client_kill(&ranks[n - 1]);
	for (int i = 0; i < n - 1; i++)
		CHECK(hear(&ranks[i]) - killed < limit_ms(setup.mps ? 2000 : 500) * MS);
	say_all(ranks, n - 1, GO);
	client_start(&ranks[n - 1], mortal_rank);
	hear_all(ranks, n, READY);
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, mortal_rank, NULL);
	hear_all(ranks, n, READY);
	for (int in = 0; in < WAITS; in++)
		kill_last(ranks, n, (enum wait)in);
	say_all(ranks, n, WAITS);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Ranks that leave or abort ---- */

static void *abort_comm(void *arg)
{
	sleep_ms(100);
	ncclsvc_comm_abort(arg);
	return NULL;
}

/* Rank 0, which waits, too, aborts in another thread. */
static void break_off(struct meeting *m, CUdeviceptr p, enum wait in)
{
	pthread_t thread;
	struct rank *const r = &m->r;
	const bool waits = r->rank < r->n - 1;
	const ncclsvc_task task = waits ? wait_in(r, p, in) : 0;
	meeting_reach(m);
	if (waits) {
		if (!r->rank)
			CHECK_EQ(pthread_create(&thread, NULL, abort_comm, r->comm), 0);
		wait_for(r->session, task, NCCLSVC_PEER_GONE);
		if (!r->rank)
			CHECK_EQ(pthread_join(thread, NULL), 0);
	}
	kernels_over(r, NCCLSVC_PEER_GONE);
	released(r);
	kernels_rejoin(r);
}

/* The last rank leaves without its operation, and joins again when the others have been
 * notified. */
static void leave(struct meeting *m, CUdeviceptr p, enum wait in)
{
	struct rank *const r = &m->r;
	const bool waits = r->rank < r->n - 1;
	const ncclsvc_task task = waits ? wait_in(r, p, in) : 0;
	meeting_reach(m);
	if (!waits) {
		stage("leaving early");
		CHECK_OK(ncclsvc_comm_leave(r->comm));
		meeting_reach(m);
		rank_join(r);
		rank_check_usable(r);
		return;
	}
	wait_for(r->session, task, NCCLSVC_PEER_GONE);
	meeting_reach(m);
	released(r);
	kernels_rejoin(r);
}

/* The last rank sends messages that fit into the rings, and leaves: they all arrive. */
static void leave_behind(struct meeting *m, CUdeviceptr p)
{
	struct rank *const r = &m->r;
	ncclsvc_task task;
	stage("a message left behind");
	if (r->rank == r->n - 1) {
		CHECK_CU(cu.cuMemsetD32Async(p, 17, SMALL, r->stream));
		for (int k = 0; k < r->n - 1; k++)
			kernels_send(r, p, SMALL, k, NULL);
		rank_sync(r);
		CHECK_OK(ncclsvc_comm_leave(r->comm));
		meeting_reach(m);
		meeting_reach(m); /* the others have received it */
		rank_join(r);
		rank_check_usable(r);
		return;
	}
	meeting_reach(m);
	kernels_recv(r, p, SMALL, r->n - 1, &task);
	rank_wait(r, task);
	gpu_check(p, 17, SMALL, "what a rank that has left had sent");
	meeting_reach(m);
	if (!r->rank)
		wait_for(r->session, wait_in(r, p, IN_RECV), NCCLSVC_PEER_GONE);
	kernels_over(r, NCCLSVC_PEER_GONE);
	released(r);
	kernels_rejoin(r);
}

static void leaving_rank(struct client *c)
{
	struct meeting m;
	CUdeviceptr p;
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	rank_check_usable(&m.r);
	for (int in = 0; in < WAITS; in++)
		break_off(&m, p, (enum wait)in);
	for (int in = 0; in < WAITS; in++)
		leave(&m, p, (enum wait)in);
	leave_behind(&m, p);
	CHECK_CU(cu.cuMemFree(p));
	meeting_close(&m);
}

static void test_leave(void)
{
	kernels_run(ranks_count(), leaving_rank, NULL);
}

/* ---- Deadlines ---- */

static void late_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	const bool last = r.rank == r.n - 1;
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	rank_check_usable(&r);
	for (int in = 0; in < WAITS; in++) {
		CHECK_OK(ncclsvc_comm_set_timeout(r.comm, TIMEOUT_MS));
		if (!last) {
			const uint64_t begin = now_ns();
			const ncclsvc_task task = wait_in(&r, p, (enum wait)in);
			wait_for(r.session, task, NCCLSVC_TIMEOUT);
			const uint64_t took = now_ns() - begin;
			CHECK(took < (TIMEOUT_MS + limit_ms(1500)) * MS);
			const ncclsvc_status st = status_of(r.session, task);
			CHECK(st.rank_a >= 0 && st.rank_a < r.n - 1);
			CHECK(st.rank_a != r.rank ||
			      took >= TIMEOUT_MS * MS); /* its deadline has passed */
			CHECK_EQ(st.missing_count, 1);
			CHECK_EQ(st.missing[0], r.n - 1);
		}
		kernels_over(&r, NCCLSVC_TIMEOUT);
		CHECK_RESULT(ncclsvc_recv(at(p), 1, NCCLSVC_UINT8, 0, r.comm, NULL),
			     NCCLSVC_STALE_EPOCH);
		released(&r);
		CHECK_OK(ncclsvc_comm_set_timeout(r.comm, NCCLSVC_NO_TIMEOUT));
		kernels_rejoin(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_timeout(void)
{
	kernels_run(ranks_count(), late_rank, NULL);
}

/* ---- A stopped trainer, and its listing ---- */

static void stopped_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	const int last = r.n - 1;
	const uint32_t epoch = ncclsvc_comm_epoch(r.comm);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	gpu_fill(p, 5 + (unsigned)r.rank, SMALL);
	rank_check_usable(&r);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (r.rank == last) {
		for (int k = 0; k < last; k++)
			kernels_send(&r, p, SMALL, k, NULL);
	} else {
		kernels_recv(&r, p, SMALL, last, NULL);
		say(c, READY);
	}
	rank_sync(&r);
	gpu_check(p, 5 + (unsigned)last, SMALL, "the message");
	CHECK_EQ(ncclsvc_comm_epoch(r.comm), epoch);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void check_shown(const struct daemon *d, int n)
{
	size_t count;
	ncclsvc_task_info *list;
	ncclsvc_session *session = session_open(d);
	tasks_reach(session, NCCLSVC_WAITING_PEERS, (size_t)n - 1);
	CHECK_OK(ncclsvc_list_tasks(session, &list, &count));
	CHECK_EQ(count, n - 1);
	for (size_t i = 0; i < count; i++) {
		CHECK_EQ(list[i].op, NCCLSVC_RECV);
		CHECK_EQ(list[i].rank, i);
		CHECK_EQ(list[i].peer, n - 1);
		CHECK_EQ(list[i].count, SMALL);
		CHECK_EQ(list[i].bytes, SMALL * sizeof(uint32_t));
		CHECK_EQ(list[i].nranks, n);
		CHECK(list[i].kernel);
		CHECK_EQ(list[i].waits_count, 1);
		CHECK_EQ(list[i].waits_for[0], n - 1);
	}
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

/* The last rank is stopped while the others wait for it in Recvs. Then rank 0 is stopped in its
 * Recv. */
static void test_stopped(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	char text[64];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, stopped_rank, NULL);
	hear_all(ranks, n, READY);
	process_stop(ranks[n - 1].pid);
	say_all(ranks, n, GO);
	hear_all(ranks, n - 1, READY);
	snprintf(text, sizeof(text), "rank %d", n - 1);
	check_shown(&d, n);
	process_stop(ranks[0].pid);
	why_says(&d, text);
	sleep_ms(1200);
	CHECK_EQ(kill(ranks[n - 1].pid, SIGCONT), 0);
	sleep_ms(300);
	CHECK_EQ(kill(ranks[0].pid, SIGCONT), 0);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test kernel_message_failure_tests[] = {
	{"kernels/messages/killed", test_killed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/killed/4", test_killed, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/leave", test_leave, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/leave/4", test_leave, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/timeout", test_timeout, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/timeout/4", test_timeout, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/stopped", test_stopped, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/stopped/4", test_stopped, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
