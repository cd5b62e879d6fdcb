/* SPDX-License-Identifier: Apache-2.0
 * The library against a daemon that misbehaves, answers out of order, or goes away. */
#include "base/deadline_clock.h"
#include "base/session_memory.h"
#include "client_peer.h"
#include "core/call.h"
#include "core/session_handle.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned open_fds(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

static void bad_daemons_are_refused_and_nothing_leaks(void **state)
{
	static const struct {
		enum fault fault;
		ncclsvc_result result;
		const char *says;
	} cases[] = {
		{SAYS_VERSION, NCCLSVC_VERSION,
		 "speaks protocol versions 7 to 9, this library 1 to 1"},
		{SAYS_BYE, NCCLSVC_LIMIT, "too many sessions"},
		{SAYS_NOTHING, NCCLSVC_TIMEOUT, "does not answer"},
		{HANGS_UP_UNREAD, NCCLSVC_LIMIT, "full"},
		{SHORT_REPLY, NCCLSVC_PROTOCOL, "HELLO"},
		{WRONG_REQUEST_ID, NCCLSVC_PROTOCOL, "a different request"},
		{STRAY_FD, NCCLSVC_PROTOCOL, "file descriptors"},
		{NO_RING_FDS, NCCLSVC_PROTOCOL, "file descriptors"},
		{UNSEALED_RING, NCCLSVC_PROTOCOL, "F_SEAL_SHRINK"},
		{SMALL_RING, NCCLSVC_PROTOCOL, "ring"},
		{OTHER_ENTRIES, NCCLSVC_PROTOCOL, "ring"},
		{NO_MAGIC, NCCLSVC_PROTOCOL, "no ring"},
		{OTHER_RING_VERSION, NCCLSVC_PROTOCOL, "has protocol version 2, the session 1"},
		{DOORBELL_PIPE, NCCLSVC_PROTOCOL, "not an eventfd"},
		{DOORBELL_BLOCKS, NCCLSVC_PROTOCOL, "not an eventfd"},
		{COMPLETION_FILE, NCCLSVC_PROTOCOL, "completion"},
		{CHOOSES_VERSION_0, NCCLSVC_PROTOCOL, "chose protocol version 0, outside 1 to 1"},
		{CHOOSES_NEXT_VERSION, NCCLSVC_PROTOCOL,
		 "chose protocol version 2, outside 1 to 1"},
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
	o = (ncclsvc_options){.size = sizeof(o), .socket = peer.path, .reattach_ms = 3600001};
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_INVALID_ARGUMENT);
	says("options.reattach_ms is not valid");
	o.reattach_ms = 0;
	static const char *const bad[] = {"soon", "10s", "-1", "3600001"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("NCCLSVC_REATTACH_MS", bad[i], 1);
		assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_INVALID_ARGUMENT);
		says("NCCLSVC_REATTACH_MS is not valid");
	}
	setenv("NCCLSVC_REATTACH_MS", "0", 1); /* as for all tests */
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
		void *request_id;
		pthread_join(threads[i], &request_id);
		assert_in_range((uintptr_t)request_id, 1, 63);
		assert_false(seen[(uintptr_t)request_id]);
		seen[(uintptr_t)request_id] = true;
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
	ncclsvc_result r;
	while ((r = ncclsvc_comm_error(comm)) == NCCLSVC_OK) /* the task might say more */
		usleep(1000);
	assert_int_equal(r, NCCLSVC_PEER_GONE);
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_OK);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
	says("rank 1 (pid 77)");
	ncclsvc_close(s);
}

static void a_lost_node_is_named(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	peer_event_node_lost(&peer, 1, 4);
	peer_sync(s);
	assert_int_equal(ncclsvc_comm_error(comm), NCCLSVC_PEER_GONE);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
	says("node 4's daemon is gone or cut off, and with it rank 1 (pid 77)");
	ncclsvc_close(s);
}

/* A request of the next version. */
static void a_request_that_the_daemon_lacks_is_not_sent(void **state)
{
	struct call call = {0};
	(void)state;
	ncclsvc_session *s = session(false);
	session_lock(s);
	ncclsvc_result r = call_run(s, &call, SVC_OPCODE_END, NULL, -1, deadline_in(WAIT_MS));
	session_unlock(s);
	assert_int_equal(r, NCCLSVC_UNSUPPORTED);
	says("speaks protocol version 1, which has no request");
	peer_sync(s); /* the peer aborts at requests that it does not know */
	ncclsvc_close(s);
}

static void an_event_of_another_length_ends_the_session(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = world(s);
	peer.fault = SHORT_EVENT;
	peer_event_node_lost(&peer, 1, 4);
	assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	says("event 0x4001 is malformed");
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_DAEMON_LOST);
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

/* The caller's buffers are sized for the ranks it requested. */
static void another_join_than_was_asked_for(void **state)
{
	static const enum fault faults[] = {JOIN_MORE_RANKS, JOIN_OTHER_RANK};
	ncclsvc_unique_id id;
	ncclsvc_comm *comm;
	(void)state;
	assert_int_equal(ncclsvc_unique_id_create(&id), NCCLSVC_OK);
	for (size_t i = 0; i < 2; i++) {
		ncclsvc_session *s = session(false);
		peer.fault = faults[i];
		assert_int_equal(ncclsvc_comm_join(s, &id, 2, 1, WAIT_MS, &comm),
				 NCCLSVC_DAEMON_LOST);
		says("broke the protocol");
		ncclsvc_close(s);
		s = session(false);
		if (faults[i] == JOIN_OTHER_RANK)
			assert_int_equal(ncclsvc_comm_world(s, 1, WAIT_MS, &comm),
					 NCCLSVC_DAEMON_LOST);
		ncclsvc_close(s);
		peer.fault = NO_FAULT;
	}
}

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A polling wait ends in time even if the daemon says that very long polls pay off. */
static void a_wait_that_polls_ends_in_time(void **state)
{
	(void)state;
	peer.fault = SPINS_LONG;
	ncclsvc_session *s = session(false);
	barrier(world(s));
	struct spin spin = {.worth_ns = UINT32_MAX, .budget_ns = UINT32_MAX, .always = true};
	const uint64_t since = cpu_ns();
	assert_false(ring_sleep(s->connection, 1, &spin, deadline_in(10)));
	assert_true(cpu_ns() - since < UINT64_C(2000000000)); /* otherwise 4.3 s */
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
	peer.fault = LIST_CIRCLES;
	assert_int_equal(ncclsvc_list_sessions(s, &list, &n), NCCLSVC_PROTOCOL);
	assert_int_equal(n, 3);
	ncclsvc_close(s);
	static const enum fault bad[] = {LIST_OVERFLOWS, LIST_CUT};
	for (size_t i = 0; i < 2; i++) {
		peer.fault = NO_FAULT;
		s = session(true);
		peer.fault = bad[i];
		assert_int_equal(ncclsvc_list_sessions(s, &list, &n), NCCLSVC_DAEMON_LOST);
		ncclsvc_close(s);
	}
	assert_int_equal(n, 3);
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
	assert_int_equal(
		ncclsvc_all_reduce(memory, memory, 100, NCCLSVC_INT8, NCCLSVC_SUM, comm, &task),
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

/* A daemon's listener outlives the sessions it serves. */
static void reattaching_waits_until_a_going_daemon_is_gone(void **state)
{
	ncclsvc_options o = {.size = sizeof(o), .socket = peer.path};
	ncclsvc_session *other;
	(void)state;
	ncclsvc_session *s = session(false);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	peer.hang_ups = 2;
	peer.drains = 2;
	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_HELLO], 6);
	peer_sync(s);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	peer.drains = 1000;
	ncclsvc_result r = ncclsvc_reattach(s, 60);
	assert_true(r == NCCLSVC_DRAINING || r == NCCLSVC_TIMEOUT);
	assert_int_equal(ncclsvc_open(&o, &other), NCCLSVC_DRAINING); /* at once */
	peer.drains = 0;
	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK);
	ncclsvc_close(s);
}

static void *reattach(void *s)
{
	return (void *)(intptr_t)ncclsvc_reattach(s, WAIT_MS);
}

static void memory_that_is_being_registered_is_busy(void **state)
{
	pthread_t thread;
	void *memory, *result;
	(void)state;
	ncclsvc_session *s = session(false);
	assert_int_equal(ncclsvc_mem_alloc(s, 10000, &memory), NCCLSVC_OK);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	peer.registers_nothing = true;
	assert_int_equal(pthread_create(&thread, NULL, reattach, s), 0);
	while (peer.opcodes[SVC_REGION_ADD] < 2)
		usleep(1000);
	assert_int_equal(ncclsvc_mem_free(s, memory), NCCLSVC_BUSY);
	assert_int_equal(ncclsvc_mem_free(s, (char *)memory + 1), NCCLSVC_NOT_FOUND);
	peer_hang_up(&peer);
	pthread_join(thread, &result);
	assert_int_equal((intptr_t)result, NCCLSVC_DAEMON_LOST);
	peer.registers_nothing = false;
	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_mem_free(s, memory), NCCLSVC_OK);
	ncclsvc_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bad_daemons_are_refused_and_nothing_leaks),
		TEST(bad_options_are_refused),
		TEST(replies_find_their_threads_in_any_order),
		TEST(an_error_reply_leaves_its_sentence),
		TEST(an_event_breaks_the_communicator),
		TEST(a_lost_node_is_named),
		TEST(a_request_that_the_daemon_lacks_is_not_sent),
		TEST(an_event_of_another_length_ends_the_session),
		TEST(socket_tasks_end_in_any_order),
		TEST(nonsense_on_the_socket_ends_the_session),
		TEST(another_join_than_was_asked_for),
		TEST(a_wait_that_polls_ends_in_time),
		TEST(lists_of_other_daemons),
		TEST(reattaching_keeps_handles_and_memory),
		TEST(reattaching_waits_until_a_going_daemon_is_gone),
		TEST(memory_that_is_being_registered_is_busy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
