/* SPDX-License-Identifier: Apache-2.0
 * How the host learns that a kernel has ended, although kernels do not notify it. */
#include <poll.h>
#include <string.h>

#include "meeting.h"

#define LATE_MS	 (setup.fake ? 400u : 50u) /* delay of the last rank's operations */
#define WHILE_MS 10
#define MANY	 3000
#define MS	 UINT64_C(1000000)

struct waiter {
	struct meeting m;
	CUdeviceptr p;
	uint32_t value; /* of p's words */
	bool late;
};

static ncclsvc_task submit(struct waiter *w)
{
	w->value *= (uint32_t)w->m.r.n;
	return kernels_sum(&w->m.r, w->p, SMALL);
}

/* The last rank's stream reaches the sum when the others already wait for it. */
static ncclsvc_task begin(struct waiter *w)
{
	if (w->late)
		sleep_ms(LATE_MS);
	return submit(w);
}

/* The last rank submits the sums when the others have checked that they are pending. */
static ncclsvc_task begin_checked(struct waiter *w, int n,
				  void (*check)(ncclsvc_session *s, ncclsvc_task task))
{
	ncclsvc_task task = 0;
	if (w->late)
		meeting_reach(&w->m);
	for (int i = 0; i < n; i++)
		task = submit(w);
	if (w->late)
		return task;
	check(w->m.r.session, task);
	meeting_reach(&w->m);
	return task;
}

static void check_sum(struct waiter *w)
{
	CHECK(gpu_stream_ends(w->m.r.stream, WAIT_MS));
	gpu_check(w->p, w->value, SMALL, "the sums");
	w->value = 1;
	gpu_fill(w->p, 1, SMALL);
}

/* Checks that the wait took no longer than its operation. */
static void check_time(uint64_t since)
{
	CHECK(now_ns() - since < (LATE_MS + limit_ms(500)) * MS);
}

/* ---- Waits ---- */

static void wait_briefly(ncclsvc_session *s, ncclsvc_task task)
{
	const uint64_t since = now_ns();
	CHECK_RESULT(ncclsvc_wait(s, task, WHILE_MS), NCCLSVC_TIMEOUT);
	CHECK(now_ns() - since >= WHILE_MS * MS);
	CHECK_RESULT(ncclsvc_wait(s, task, 0), NCCLSVC_TIMEOUT);
}

static void test_once(ncclsvc_session *s, ncclsvc_task task)
{
	CHECK_RESULT(ncclsvc_test(s, task), NCCLSVC_IN_PROGRESS);
}

static void wait_briefly_for_all(ncclsvc_session *s, ncclsvc_task task)
{
	(void)task;
	CHECK_RESULT(ncclsvc_wait_all(s, WHILE_MS), NCCLSVC_TIMEOUT);
}

static void waits(struct waiter *w)
{
	ncclsvc_session *s = w->m.r.session;
	stage("a wait that is too short");
	ncclsvc_task task = begin_checked(w, 1, wait_briefly);
	uint64_t since = now_ns();
	rank_wait(&w->m.r, task);
	check_time(since);
	CHECK_EQ(status_of(s, task).result, NCCLSVC_OK);

	stage("testing a task");
	task = begin_checked(w, 1, test_once);
	since = now_ns();
	while (ncclsvc_test(s, task) == NCCLSVC_IN_PROGRESS)
		check_time(since);
	CHECK_OK(ncclsvc_test(s, task));

	stage("asking for a status");
	task = begin(w);
	since = now_ns();
	ncclsvc_status st;
	while (ncclsvc_task_status(s, task, &st) == NCCLSVC_IN_PROGRESS)
		check_time(since);
	CHECK_EQ(st.result, NCCLSVC_OK);
	CHECK_EQ(st.number, task);

	stage("a wait for all");
	task = begin_checked(w, 5, wait_briefly_for_all);
	CHECK_OK(ncclsvc_wait_all(s, WAIT_MS));
	CHECK_OK(ncclsvc_test(s, task));
	check_sum(w);
}

static void waiter_open(struct waiter *w, struct client *c)
{
	meeting_open(&w->m, c);
	w->value = 1;
	w->late = w->m.r.rank == w->m.r.n - 1;
	CHECK_CU(cu.cuMemAlloc(&w->p, SMALL * sizeof(uint32_t)));
	gpu_fill(w->p, 1, SMALL);
	rank_check_usable(&w->m.r);
}

static void waiter_close(struct waiter *w)
{
	rank_check_usable(&w->m.r);
	CHECK_CU(cu.cuMemFree(w->p));
	meeting_close(&w->m);
}

static void wait_rank(struct client *c)
{
	struct waiter w;
	waiter_open(&w, c);
	waits(&w);
	waiter_close(&w);
}

static void test_wait(void)
{
	kernels_run(ranks_count(), wait_rank, NULL);
}

/* ---- Callbacks ---- */

struct completions {
	unsigned n;
	ncclsvc_task last;
	ncclsvc_result result;
};

static void tell(ncclsvc_task task, ncclsvc_result result, void *arg)
{
	struct completions *completions = arg;
	CHECK(task > completions->last);
	completions->n++;
	completions->last = task;
	completions->result = result;
}

static void dispatch(struct waiter *w, struct completions *completions)
{
	stage("dispatching");
	const ncclsvc_task task = begin(w);
	const uint64_t since = now_ns();
	const unsigned before = completions->n;
	while (completions->last != task)
		CHECK_OK(ncclsvc_dispatch(w->m.r.session, WAIT_MS));
	check_time(since);
	CHECK_EQ(completions->n, before + 1);
	CHECK_OK(completions->result);
}

/* The event loop sleeps in poll until there is something to do. */
static void poll_fd(struct waiter *w, struct completions *completions, unsigned n)
{
	stage("polling for %u", n);
	struct pollfd fd = {.fd = ncclsvc_get_fd(w->m.r.session), .events = POLLIN};
	CHECK(fd.fd >= 0);
	const unsigned before = completions->n;
	ncclsvc_task task = 0;
	for (unsigned i = 0; i < n; i++)
		task = begin(w);
	const uint64_t since = now_ns();
	while (completions->last != task) {
		CHECK_EQ(poll(&fd, 1, WAIT_MS), 1);
		CHECK_OK(ncclsvc_dispatch(w->m.r.session, 0));
	}
	check_time(since);
	CHECK_EQ(completions->n, before + n);
}

/* With no kernel running, nothing wakes the loop. */
static void poll_quiet(struct waiter *w)
{
	struct pollfd fd = {.fd = ncclsvc_get_fd(w->m.r.session), .events = POLLIN};
	unsigned woken = 0;
	stage("polling for nothing");
	CHECK_OK(ncclsvc_dispatch(w->m.r.session, 0));
	for (uint64_t end = now_ns() + LATE_MS * MS; now_ns() < end;) {
		if (poll(&fd, 1, LATE_MS) == 1)
			woken++;
		CHECK_OK(ncclsvc_dispatch(w->m.r.session, 0));
	}
	CHECK(woken <= 2);
}

/* The callback also reports failures. */
static void dispatch_failure(struct waiter *w, struct completions *completions)
{
	ncclsvc_task task;
	stage("dispatching a failure");
	CHECK_OK(ncclsvc_all_reduce(at(w->p), at(w->p), w->late ? 1 : 2, NCCLSVC_UINT32,
				    NCCLSVC_SUM, w->m.r.comm, &task));
	while (completions->last != task)
		CHECK_OK(ncclsvc_dispatch(w->m.r.session, WAIT_MS));
	CHECK_EQ(completions->result, NCCLSVC_MISMATCH);
	CHECK_RESULT(ncclsvc_test(w->m.r.session, task), NCCLSVC_MISMATCH);
}

static void dispatch_rank(struct client *c)
{
	struct waiter w;
	struct completions completions = {0};
	waiter_open(&w, c);
	ncclsvc_set_callback(w.m.r.session, tell, &completions);
	for (int i = 0; i < 3; i++)
		dispatch(&w, &completions);
	poll_quiet(&w);
	poll_fd(&w, &completions, 1);
	poll_fd(&w, &completions, 5);
	poll_quiet(&w);
	check_sum(&w);
	dispatch_failure(&w, &completions);
	ncclsvc_set_callback(w.m.r.session, NULL, NULL);
	waiter_close(&w);
}

static void test_dispatch(void)
{
	kernels_run(ranks_count(), dispatch_rank, NULL);
}

/* ---- Many tasks without waits ---- */

static void many_rank(struct client *c)
{
	struct waiter w;
	ncclsvc_task first = 0, task = 0;
	waiter_open(&w, c);
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; i < MANY;) {
		r = ncclsvc_all_reduce(at(w.p), at(w.p), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM,
				       w.m.r.comm, &task);
		if (r == NCCLSVC_AGAIN) {
			sleep_ms(1);
			continue;
		}
		CHECK_OK(r);
		first = first ? first : task;
		w.value *= (uint32_t)w.m.r.n;
		i++;
	}
	stage("waiting for the last task");
	rank_wait(&w.m.r, task);
	stage("waiting for the first task");
	CHECK_EQ(task - first, MANY - 1);
	CHECK_OK(ncclsvc_test(w.m.r.session, first));
	rank_wait(&w.m.r, first);
	const ncclsvc_status st = status_of(w.m.r.session, first);
	CHECK_EQ(st.result, NCCLSVC_OK);
	CHECK_EQ(st.number, first);
	CHECK_OK(ncclsvc_wait_all(w.m.r.session, WAIT_MS));
	check_sum(&w);
	waiter_close(&w);
}

static void test_many(void)
{
	kernels_run(ranks_count(), many_rank, NULL);
}

const struct gpu_test kernel_wait_tests[] = {
	{"kernels/wait", test_wait, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/dispatch", test_dispatch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/many", test_many, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
