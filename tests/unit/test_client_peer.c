/* SPDX-License-Identifier: Apache-2.0
 * The library against a peer that misbehaves, answers out of order, or goes away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "client_peer.h"

#define ENTRIES 16
#define WAIT_MS 5000

static struct peer peer;

static int setup(void **state)
{
	(void)state;
	alarm(60);
	peer_start(&peer);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	peer_stop(&peer);
	return 0;
}

static unsigned open_fds(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

static ncclsvc_session *session(bool no_ring)
{
	ncclsvc_result r;
	ncclsvc_session *s = peer_session(&peer, no_ring, &r);
	assert_int_equal(r, NCCLSVC_OK);
	return s;
}

static ncclsvc_comm *world(ncclsvc_session *s)
{
	ncclsvc_comm *comm;
	assert_int_equal(ncclsvc_comm_world(s, -1, WAIT_MS, &comm), NCCLSVC_OK);
	return comm;
}

static ncclsvc_task barrier(ncclsvc_comm *comm)
{
	ncclsvc_task task = 0;
	assert_int_equal(ncclsvc_barrier(comm, &task), NCCLSVC_OK);
	assert_true(task > 0);
	return task;
}

static void says(const char *part)
{
	if (!strstr(ncclsvc_last_error(), part))
		fail_msg("\"%s\" does not say \"%s\"", ncclsvc_last_error(), part);
}

static void bad_daemons_are_refused_and_nothing_leaks(void **state)
{
	static const struct {
		enum fault fault;
		ncclsvc_result result;
		const char *says;
	} cases[] = {
		{SAYS_VERSION, NCCLSVC_VERSION, "7 to 9"},
		{SAYS_BYE, NCCLSVC_LIMIT, "too many sessions"},
		{SAYS_NOTHING, NCCLSVC_TIMEOUT, "does not answer"},
		{HANGS_UP_UNREAD, NCCLSVC_LIMIT, "full"},
		{SHORT_REPLY, NCCLSVC_PROTOCOL, "HELLO"},
		{WRONG_SERIAL, NCCLSVC_PROTOCOL, "another request"},
		{STRAY_FD, NCCLSVC_PROTOCOL, "file descriptors"},
		{NO_RING_FDS, NCCLSVC_PROTOCOL, "file descriptors"},
		{UNSEALED_RING, NCCLSVC_PROTOCOL, "F_SEAL_SHRINK"},
		{SMALL_RING, NCCLSVC_PROTOCOL, "ring"},
		{OTHER_ENTRIES, NCCLSVC_PROTOCOL, "ring"},
		{NO_MAGIC, NCCLSVC_PROTOCOL, "no ring"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		peer_stop(&peer);
		unsigned before = open_fds();
		ncclsvc_result r;
		peer_start(&peer);
		peer.fault = cases[i].fault;
		assert_null(peer_session(&peer, false, &r));
		assert_int_equal(r, cases[i].result);
		says(cases[i].says);
		peer_stop(&peer);
		assert_int_equal(open_fds(), before);
		peer_start(&peer);
	}
}

static void bad_options_are_refused(void **state)
{
	char longer[200];
	ncclsvc_session *s;
	ncclsvc_options o = {0};
	(void)state;
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_INVALID_ARGUMENT);
	o = (ncclsvc_options){.size = sizeof(o), .socket = peer.path, .ring_entries = 17};
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_INVALID_ARGUMENT);
	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	o = (ncclsvc_options){.size = sizeof(o), .socket = longer};
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_INVALID_ARGUMENT);
	says("longer than 107");
	o.socket = "/nonexistent/socket";
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_DAEMON_LOST);
	says("/nonexistent/socket");
}

static void *ask(void *arg)
{
	ncclsvc_daemon_info info;
	return (void *)(uintptr_t)(ncclsvc_daemon(arg, &info) ? 0 : info.pid);
}

static void replies_find_their_threads_in_any_order(void **state)
{
	enum { THREADS = 8 };
	pthread_t threads[THREADS];
	bool seen[64] = {false};
	(void)state;
	ncclsvc_session *s = session(false);
	peer.hold = THREADS;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, ask, s), 0);
	for (int i = 0; i < THREADS; i++) {
		void *serial;
		pthread_join(threads[i], &serial);
		assert_in_range((uintptr_t)serial, 1, 63);
		assert_false(seen[(uintptr_t)serial]);
		seen[(uintptr_t)serial] = true;
	}
	ncclsvc_close(s);
}

static void an_error_reply_leaves_its_sentence(void **state)
{
	uint64_t n;
	(void)state;
	ncclsvc_session *s = session(true);
	assert_int_equal(ncclsvc_cancel_task(s, 1, &n), NCCLSVC_NOT_FOUND);
	assert_string_equal(ncclsvc_last_error(), "nothing of the kind here");
	ncclsvc_close(s);
}

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

static void failures_are_told_once_and_remembered(void **state)
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
	assert_string_equal(ncclsvc_last_error(),
			    "Barrier #0 on communicator world: MISMATCH: count differs: rank 0 (pid "
			    "12) has 8, rank 1 (pid 13) has 16");
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

static void an_event_breaks_the_communicator(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK);
	peer_event_comm(&peer, 1, 7, NCCLSVC_PEER_GONE, 1, 77); /* another epoch */
	peer_event_comm(&peer, 9, 1, NCCLSVC_PEER_GONE, 1, 77); /* another communicator */
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK);
	barrier(comm);
	peer_event_comm(&peer, 1, 1, NCCLSVC_PEER_GONE, 1, 77);
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_PEER_GONE);
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
	says("rank 1 (pid 77)");
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

/* The peer ends the task without touching the data: what comes back is what went in. */
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
	/* Of a failed task nothing comes back; the chunk is used again. */
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

static bool readable(ncclsvc_session *s)
{
	struct pollfd p = {.fd = ncclsvc_get_fd(s), .events = POLLIN};
	return poll(&p, 1, 0) == 1;
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
		if (n % 3 == 0) /* found out elsewhere: the callback is due all the same */
			ncclsvc_wait(s, task, WAIT_MS);
		assert_true(readable(s));
		assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_OK);
		assert_int_equal(c.n[n % 64], 1);
		assert_int_equal(c.result[n % 64], n % 5 ? NCCLSVC_OK : NCCLSVC_CANCELLED);
		assert_false(readable(s));
		c.n[n % 64] = 0;
	}
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK); /* the callback was told */
	memset(&c, 0, sizeof(c));
	ncclsvc_task last = barrier(comm);
	assert_int_equal(ncclsvc_dispatch(s, 20), NCCLSVC_OK);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	assert_int_equal(c.n[last % 64], 1);
	assert_int_equal(c.result[last % 64], NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

static void socket_tasks_end_in_any_order(void **state)
{
	ncclsvc_task tasks[SVC_SOCKET_TASKS], more;
	ncclsvc_options o = {.size = sizeof(o), .socket = peer.path, .no_ring = true};
	ncclsvc_session *s;
	(void)state;
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_OK);
	ncclsvc_comm *comm = world(s);
	for (int i = 0; i < SVC_SOCKET_TASKS; i++)
		tasks[i] = barrier(comm);
	assert_int_equal(ncclsvc_barrier(comm, &more), NCCLSVC_AGAIN);
	peer_answer_submit(&peer, 5, NCCLSVC_OK, false);
	peer_answer_submit(&peer, 3, NCCLSVC_MISMATCH, false);
	peer_answer_submit(&peer, 4, NCCLSVC_NOT_FOUND, true);
	assert_int_equal(ncclsvc_wait(s, tasks[5], WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_wait(s, tasks[3], WAIT_MS), NCCLSVC_MISMATCH);
	says("Barrier #3");
	assert_int_equal(ncclsvc_wait(s, tasks[4], WAIT_MS), NCCLSVC_NOT_FOUND);
	says("no such region");
	assert_int_equal(ncclsvc_test(s, tasks[0]), NCCLSVC_IN_PROGRESS);
	assert_int_equal(ncclsvc_barrier(comm, &more), NCCLSVC_OK);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_wait(s, tasks[0], WAIT_MS), NCCLSVC_DAEMON_LOST);
	assert_int_equal(ncclsvc_wait(s, more, WAIT_MS), NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

static void nonsense_on_the_socket_ends_the_session(void **state)
{
	ncclsvc_daemon_info info;
	ncclsvc_comm *comm;
	(void)state;
	ncclsvc_session *s = session(true);
	peer.fault = UNASKED_REPLY;
	assert_int_equal(ncclsvc_daemon(s, &info), NCCLSVC_DAEMON_LOST);
	says("broke the protocol");
	ncclsvc_close(s);
	peer.fault = NO_FAULT;
	s = session(true);
	peer.fault = JOIN_RANGE;
	assert_int_equal(ncclsvc_comm_world(s, 0, WAIT_MS, &comm), NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

static void lists_of_other_daemons(void **state)
{
	ncclsvc_session_info *list = NULL;
	size_t n = 0;
	(void)state;
	ncclsvc_session *s = session(true);
	static const enum fault good[] = {NO_FAULT, LIST_LONGER, LIST_SHORTER};
	for (size_t i = 0; i < 3; i++) {
		peer.fault = good[i];
		assert_int_equal(ncclsvc_list_sessions(s, &list, &n), NCCLSVC_OK);
		assert_int_equal(n, 3);
		assert_int_equal(list[2].session, 3);
		assert_int_equal(list[2].submitted, 20);
		assert_int_equal(list[2].comms, good[i] == LIST_SHORTER ? 0 : 7);
		assert_int_equal(list[2].region_bytes, 0);
		ncclsvc_list_free(list);
	}
	peer.fault = LIST_OVERFLOWS;
	assert_int_equal(ncclsvc_list_sessions(s, &list, &n), NCCLSVC_PROTOCOL);
	peer.fault = LIST_CUT;
	assert_int_equal(ncclsvc_list_sessions(s, &list, &n), NCCLSVC_PROTOCOL);
	assert_int_equal(n, 3);
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

static void reattaching_keeps_handles_and_memory(void **state)
{
	ncclsvc_comm *comm, *again;
	ncclsvc_unique_id id;
	ncclsvc_timeline *timeline;
	void *memory;
	(void)state;
	ncclsvc_session *s = session(false);
	assert_int_equal(ncclsvc_unique_id_create(&id), NCCLSVC_OK);
	comm = world(s);
	assert_int_equal(ncclsvc_comm_join(s, &id, 5, 3, WAIT_MS, &again), NCCLSVC_OK);
	assert_int_equal(ncclsvc_mem_alloc(s, 10000, &memory), NCCLSVC_OK);
	memset(memory, 9, 10000);
	assert_int_equal(ncclsvc_timeline_create(s, &timeline), NCCLSVC_OK);
	assert_int_equal(ncclsvc_timeline_set(s, timeline, 5), NCCLSVC_OK);
	int fd = ncclsvc_get_fd(s);
	ncclsvc_task pending = barrier(comm);
	assert_int_equal(ncclsvc_timeline_destroy(timeline), NCCLSVC_BUSY);
	assert_int_equal(ncclsvc_timeline_set(s, NULL, 0), NCCLSVC_OK);
	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK); /* nothing to do */
	assert_int_equal(peer.opcodes[SVC_HELLO], 1);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_wait(s, pending, WAIT_MS), NCCLSVC_DAEMON_LOST);
	assert_int_equal(ncclsvc_timeline_done(timeline), 5);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_DAEMON_LOST);

	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_HELLO], 2);
	assert_int_equal(peer.opcodes[SVC_REGION_ADD], 2);
	assert_int_equal(peer.opcodes[SVC_JOIN], 4);
	assert_int_equal(ncclsvc_comm_rank(again), 3);
	assert_int_equal(((char *)memory)[9999], 9);
	assert_int_equal(ncclsvc_timeline_done(timeline), 5);
	assert_int_equal(ncclsvc_timeline_destroy(timeline), NCCLSVC_OK);
	assert_int_equal(ncclsvc_get_fd(s), fd);
	assert_int_equal(ncclsvc_dispatch(s, 0), NCCLSVC_OK);
	ncclsvc_task task;
	assert_int_equal(ncclsvc_all_reduce(memory, memory, 100, NCCLSVC_INT8, NCCLSVC_SUM, comm, &task),
			 NCCLSVC_OK);
	assert_true(task > pending);
	assert_false(readable(s));
	peer_end_task(&peer, 1, NCCLSVC_OK);
	assert_true(readable(s));
	assert_int_equal(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_wait(s, pending, 0), NCCLSVC_DAEMON_LOST);
	assert_int_equal(ncclsvc_mem_free(s, memory), NCCLSVC_OK);
	ncclsvc_close(s);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(bad_daemons_are_refused_and_nothing_leaks),
		TEST(bad_options_are_refused),
		TEST(replies_find_their_threads_in_any_order),
		TEST(an_error_reply_leaves_its_sentence),
		TEST(a_full_ring_says_again),
		TEST(failures_are_told_once_and_remembered),
		TEST(a_wrong_number_in_the_ring_ends_the_session),
		TEST(an_event_breaks_the_communicator),
		TEST(staged_output_comes_once),
		TEST(an_event_loop_misses_nothing),
		TEST(socket_tasks_end_in_any_order),
		TEST(nonsense_on_the_socket_ends_the_session),
		TEST(lists_of_other_daemons),
		TEST(a_group_is_published_whole_or_not_at_all),
		TEST(reattaching_keeps_handles_and_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
