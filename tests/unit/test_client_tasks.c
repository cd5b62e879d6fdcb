/* SPDX-License-Identifier: Apache-2.0
 * Tasks in the ring, ended by the test: room, order, failures, staging, groups, event loops. */
#include "client_peer.h"
#include "core/session_handle.h"

#include <stdlib.h>
#include <string.h>

static void a_full_ring_says_again(void **state)
{
	ncclsvc_task tasks[ENTRIES], more;
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	for (int i = 0; i < ENTRIES; i++)
		tasks[i] = barrier(comm);
	assert_int_equal(ncclsvc_barrier(comm, &more), NCCLSVC_AGAIN);
	peer_end_task(&peer, 2, NCCLSVC_OK); /* not the slot that is needed */
	assert_int_equal(ncclsvc_test(s, tasks[1]), NCCLSVC_OK);
	assert_int_equal(ncclsvc_barrier(comm, &more), NCCLSVC_AGAIN);
	assert_int_equal(ncclsvc_test(s, tasks[0]), NCCLSVC_IN_PROGRESS);
	assert_int_equal(ncclsvc_wait(s, tasks[0], 20), NCCLSVC_TIMEOUT);
	peer_end_task(&peer, 1, NCCLSVC_OK);
	more = barrier(comm);
	barrier(comm);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_AGAIN);
	assert_int_equal(ncclsvc_wait(s, tasks[0], 0), NCCLSVC_OK); /* forgotten by now */
	assert_int_equal(ncclsvc_wait(s, more, 0), NCCLSVC_TIMEOUT);
	assert_int_equal(ncclsvc_wait(s, more + 100, 0), NCCLSVC_NOT_FOUND);
	ncclsvc_close(s);
}

static void failures_are_reported_once_and_remembered(void **state)
{
	ncclsvc_status st;
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	ncclsvc_task first = barrier(comm), second = barrier(comm), third = barrier(comm);
	peer_end_task(&peer, 1, NCCLSVC_MISMATCH);
	peer_end_task(&peer, 2, NCCLSVC_OK);
	peer_end_task(&peer, 3, NCCLSVC_CANCELLED);
	assert_int_equal(ncclsvc_wait(s, first, WAIT_MS), NCCLSVC_MISMATCH);
	assert_string_equal(
		ncclsvc_last_error(),
		"Barrier #0 on communicator world: count differs: rank 0 (pid 12) has 8, rank 1 "
		"(pid 13) has 16");
	assert_int_equal(ncclsvc_last_status(&st), NCCLSVC_OK);
	assert_int_equal(st.number, first);
	assert_int_equal(st.result, NCCLSVC_MISMATCH);
	assert_int_equal(st.field, NCCLSVC_FIELD_COUNT);
	assert_true(st.rank_a == 0 && st.pid_a == 12 && st.value_a == 8);
	assert_true(st.rank_b == 1 && st.pid_b == 13 && st.value_b == 16);
	assert_int_equal(ncclsvc_wait(s, second, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_CANCELLED);
	says("Barrier #2");
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	for (uint64_t n = 4; n < 4 + 3 * ENTRIES; n++) {
		barrier(comm);
		peer_end_task(&peer, n, n % 10 ? NCCLSVC_OK : NCCLSVC_TIMEOUT);
	}
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_TIMEOUT);
	says("Barrier #9");
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_task_status(s, first, &st), NCCLSVC_OK);
	assert_int_equal(st.result, NCCLSVC_MISMATCH);
	assert_int_equal(st.value_b, 16);
	assert_int_equal(ncclsvc_task_status(s, second, &st), NCCLSVC_OK);
	assert_int_equal(st.result, NCCLSVC_OK);
	assert_int_equal(ncclsvc_wait(s, third, 0), NCCLSVC_CANCELLED);
	ncclsvc_close(s);
}

static void a_wrong_number_in_the_ring_ends_the_session(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	ncclsvc_task first = barrier(comm), second = barrier(comm);
	peer_end_task(&peer, 1, NCCLSVC_OK);
	peer_end_task(&peer, 2 + ENTRIES, NCCLSVC_OK);
	assert_int_equal(ncclsvc_wait(s, second, WAIT_MS), NCCLSVC_DAEMON_LOST);
	says("broke the protocol");
	assert_int_equal(ncclsvc_wait(s, first, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

struct waiting {
	ncclsvc_session *session;
	ncclsvc_task task;
	ncclsvc_result result;
};

static void *waits(void *arg)
{
	struct waiting *w = arg;
	w->result = ncclsvc_wait(w->session, w->task, WAIT_MS);
	return NULL;
}

/* The peer ends the task without touching the data, so the output equals the input. */
static void staged_output_comes_once(void **state)
{
	enum { N = 1 << 20, THREADS = 4 };
	struct waiting w[THREADS];
	pthread_t threads[THREADS];
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	char *data = malloc(N);
	ncclsvc_task task;
	memset(data, 1, N);
	assert_int_equal(ncclsvc_all_reduce(data, data, N, NCCLSVC_INT8, NCCLSVC_SUM, comm, &task),
			 NCCLSVC_OK);
	memset(data, 2, N);
	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct waiting){s, task, NCCLSVC_SYSTEM};
		assert_int_equal(pthread_create(&threads[i], NULL, waits, &w[i]), 0);
	}
	peer_end_task(&peer, 1, NCCLSVC_OK);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(w[i].result, NCCLSVC_OK);
	}
	assert_int_equal(data[0], 1);
	assert_int_equal(data[N - 1], 1);
	memset(data, 3, N);
	assert_int_equal(ncclsvc_wait(s, task, 0), NCCLSVC_OK);
	assert_int_equal(data[0], 3);
	/* A failed task has no output; its chunk is reused. */
	assert_int_equal(ncclsvc_all_reduce(data, data, N, NCCLSVC_INT8, NCCLSVC_SUM, comm, &task),
			 NCCLSVC_OK);
	memset(data, 4, N);
	peer_end_task(&peer, 2, NCCLSVC_CANCELLED);
	assert_int_equal(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_CANCELLED);
	assert_int_equal(data[0], 4);
	assert_int_equal(peer.opcodes[SVC_REGION_ADD], 1);
	ncclsvc_close(s);
	free(data);
}

struct called {
	unsigned n[64];
	ncclsvc_result result[64];
};

static void note(ncclsvc_task task, ncclsvc_result result, void *arg)
{
	struct called *c = arg;
	c->n[task % 64]++;
	c->result[task % 64] = result;
}

static void an_event_loop_misses_nothing(void **state)
{
	struct called c = {0};
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	ncclsvc_set_callback(s, note, &c);
	assert_true(ncclsvc_get_fd(s) >= 0);
	assert_int_equal(ncclsvc_dispatch(s, 0), NCCLSVC_OK);
	assert_false(readable(s));
	for (uint64_t n = 1; n <= 4 * ENTRIES; n++) {
		ncclsvc_task task = barrier(comm);
		assert_false(readable(s));
		peer_end_task(&peer, n, n % 5 ? NCCLSVC_OK : NCCLSVC_CANCELLED);
		assert_true(readable(s));
		if (n % 3 == 0) /* its end was noticed elsewhere, but its callback is still due */
			ncclsvc_wait(s, task, WAIT_MS);
		assert_true(readable(s));
		assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_OK);
		assert_int_equal(c.n[n % 64], 1);
		assert_int_equal(c.result[n % 64], n % 5 ? NCCLSVC_OK : NCCLSVC_CANCELLED);
		assert_false(readable(s));
		c.n[n % 64] = 0;
	}
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK); /* the callback has reported it */
	memset(&c, 0, sizeof(c));
	ncclsvc_task last = barrier(comm);
	assert_int_equal(ncclsvc_dispatch(s, 20), NCCLSVC_OK);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	assert_int_equal(c.n[last % 64], 1);
	assert_int_equal(c.result[last % 64], NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

static void a_group_is_published_whole_or_not_at_all(void **state)
{
	ncclsvc_task tasks[ENTRIES] = {0};
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	barrier(comm);
	assert_int_equal(ncclsvc_group_end(s), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(ncclsvc_group_begin(s), NCCLSVC_OK);
	assert_int_equal(ncclsvc_group_begin(s), NCCLSVC_INVALID_ARGUMENT);
	for (int i = 0; i < ENTRIES; i++)
		assert_int_equal(ncclsvc_barrier(comm, &tasks[i]), NCCLSVC_OK);
	assert_int_equal(ncclsvc_group_end(s), NCCLSVC_AGAIN);
	assert_int_equal(tasks[0], 0);
	assert_int_equal(ncclsvc_group_begin(s), NCCLSVC_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ncclsvc_barrier(comm, &tasks[i]), NCCLSVC_OK);
	assert_int_equal(ncclsvc_send(NULL, 4, NCCLSVC_INT8, 1, comm, NULL),
			 NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(ncclsvc_barrier(comm, &tasks[3]), NCCLSVC_OK);
	assert_int_equal(ncclsvc_group_end(s), NCCLSVC_INVALID_ARGUMENT);
	says("Send");
	assert_int_equal(ncclsvc_group_begin(s), NCCLSVC_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ncclsvc_barrier(comm, &tasks[i]), NCCLSVC_OK);
	assert_int_equal(ncclsvc_group_end(s), NCCLSVC_OK);
	for (uint64_t n = 1; n <= 5; n++) {
		const struct svc_record *r = svc_record_slot(peer.ring, peer.entries, n);
		assert_int_equal(svc_number_load(&r->number), n < 5 ? n : 0);
		if (n < 5)
			assert_int_equal(r->flags, n == 2 || n == 3 ? SVC_TASK_MORE : 0);
	}
	assert_int_equal(tasks[2], 4);
	ncclsvc_close(s);
}

static void *sets_a_stream(void *arg)
{
	ncclsvc_session *s = arg;
	int stream;
	if (ncclsvc_stream_set(s, (struct CUstream_st *)&stream, 0) ||
	    ncclsvc_stream_set(s, NULL, 0))
		return arg;
	return NULL;
}

static void threads_that_come_and_go_leave_nothing(void **state)
{
	enum { THREADS = 200, KEPT = 64 };
	(void)state;
	ncclsvc_session *s = session(false);
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;
		assert_int_equal(pthread_create(&thread, NULL, sets_a_stream, s), 0);
		void *failed;
		pthread_join(thread, &failed);
		assert_null(failed);
	}
	assert_in_range(s->nthreads, 1, KEPT);
	ncclsvc_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_full_ring_says_again),
		TEST(failures_are_reported_once_and_remembered),
		TEST(a_wrong_number_in_the_ring_ends_the_session),
		TEST(staged_output_comes_once),
		TEST(an_event_loop_misses_nothing),
		TEST(a_group_is_published_whole_or_not_at_all),
		TEST(threads_that_come_and_go_leave_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
