/* SPDX-License-Identifier: Apache-2.0
 * The daemon is killed and restarted; the daemon drains. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

enum { READY = 1, GO, DONE };
#define RANKS 3

static void through_a_restart(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 4096);
	ncclsvc_task task = 0;
	check_usable(s, comm);
	v[0] = 1000 + me->rank;
	if (me->rank != 2)
		CHECK_OK(ncclsvc_all_reduce(v, v + 1, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	say(me, READY);
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_DAEMON_LOST);
		say(me, now_ns());
	} else {
		CHECK_EQ(hear(me), GO);
		CHECK_RESULT(ncclsvc_dispatch(s, 1000), NCCLSVC_DAEMON_LOST);
		say(me, now_ns());
	}
	if (me->rank == 1)
		CHECK_RESULT(ncclsvc_test(s, task), NCCLSVC_DAEMON_LOST);
	CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(me), DONE);
	CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
	/* Pointers and handles stay valid, and the memory keeps its contents. */
	CHECK_EQ(v[0], 1000 + me->rank);
	CHECK_EQ(ncclsvc_comm_rank(comm), me->rank);
	check_usable(s, comm);
	CHECK_OK(ncclsvc_all_reduce(v, v + 1, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(v[1], 3003);
	ncclsvc_close(s);
}

static void clients_outlive_their_daemon(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	struct stat stale;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, through_a_restart, NULL);
	hear_all(clients, RANKS, READY);
	sleep_ms(20);
	uint64_t killed = now_ns();
	daemon_kill(&d);
	say(&clients[1], GO);
	say(&clients[2], GO);
	for (int i = 0; i < RANKS; i++) {
		uint64_t told = hear(&clients[i]);
		print_message("rank %d heard of it after %.1f ms\n", i,
			      ((double)told - (double)killed) / 1e6);
		CHECK(in_time(killed, told));
	}
	CHECK_EQ(stat(d.socket, &stale), 0);
	daemon_restart(&d, NULL);
	say_all(clients, RANKS, DONE);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

static void no_daemon(struct client *me)
{
	ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .timeout_ms = 300};
	ncclsvc_session *s = NULL;
	uint64_t start = now_ns();
	CHECK_RESULT(ncclsvc_open(&options, &s), NCCLSVC_DAEMON_LOST);
	CHECK(!s);
	CHECK(strstr(ncclsvc_last_error(), me->daemon->socket));
	CHECK(in_time(start, now_ns()));
}

static void nobody_listens(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	daemon_start(&d, NULL);
	daemon_stop(&d);
	clients_start(&client, 1, &d, no_daemon, NULL);
	clients_end(&client, 1);
}

/* ---- SIGTERM ---- */

static void drained(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon), *late;
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .timeout_ms = WAIT_MS};
	v[0] = me->rank + 1;
	if (me->rank == 0)
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 1) {
		/* The daemon accepts no new sessions, but still operations that peers wait for. */
		CHECK_RESULT(ncclsvc_open(&options, &late), NCCLSVC_DRAINING);
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	}
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(v[0], 3);
	/* The daemon then exits; the session reports its loss. */
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

static void sigterm_lets_pending_tasks_end(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--drain-seconds", "20", NULL);
	clients_start(clients, 2, &d, drained, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	CHECK_EQ(kill(d.pid, SIGTERM), 0);
	CHECK(daemon_logged(&d, "pending tasks may run for another"));
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_wait_exit(&d, 0);
	ncclsvc_close(s);
}

static void not_drained(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_barrier(comm, &task));
		say(me, READY);
		wait_for(s, task, NCCLSVC_DAEMON_LOST);
		say(me, now_ns());
	} else {
		say(me, READY);
		CHECK_EQ(hear(me), DONE);
	}
	ncclsvc_close(s);
}

static void sigterm_ends_what_does_not_end(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--drain-seconds", "1", NULL);
	clients_start(clients, 2, &d, not_drained, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	uint64_t start = now_ns();
	CHECK_EQ(kill(d.pid, SIGTERM), 0);
	uint64_t told = hear(&clients[0]);
	CHECK(told - start > UINT64_C(900000000) && in_time(start, told));
	say(&clients[1], DONE);
	clients_end(clients, 2);
	daemon_wait_exit(&d, 0);
	ncclsvc_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(clients_outlive_their_daemon),
		TEST(nobody_listens),
		TEST(sigterm_lets_pending_tasks_end),
		TEST(sigterm_ends_what_does_not_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
