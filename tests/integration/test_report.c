/* SPDX-License-Identifier: Apache-2.0
 * The daemon's log: one line for each failure of a communicator, and none for normal events. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

#define RANKS	   4
#define SETTLED_MS 1500 /* a success this long after a failure counts as recovery */

enum { READY = 1, GO, DONE };

static char log_text[1 << 20];

static void read_log(const struct daemon *d)
{
	size_t n = 0;
	int fd = open(d->log, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	for (ssize_t k; n < sizeof(log_text) - 1 &&
			(k = read(fd, log_text + n, sizeof(log_text) - 1 - n)) > 0;)
		n += (size_t)k;
	close(fd);
	log_text[n] = '\0';
}

/* Returns the number of log lines that contain `what`. */
static int lines(const struct daemon *d, const char *what)
{
	int n = 0;
	read_log(d);
	for (const char *at = log_text; (at = strstr(at, what)); n++)
		at += strcspn(at, "\n");
	return n;
}

static void one_line(const struct daemon *d, const char *what)
{
	if (!daemon_logged(d, what) || lines(d, what) != 1)
		check_failed(__FILE__, __LINE__, "%d lines have \"%s\": %s", lines(d, what), what,
			     log_text);
}

static void no_line(const struct daemon *d, const char *what)
{
	if (lines(d, what))
		check_failed(__FILE__, __LINE__, "\"%s\" is in: %s", what, log_text);
}

/* ---- Failures ---- */

static void fails(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task tasks[3];
	/* One rank repeatedly disagrees. */
	for (int i = 0; i < 3; i++)
		CHECK_OK(ncclsvc_all_reduce(v, v, me->rank == 2 ? 2 : 1, NCCLSVC_INT32, NCCLSVC_SUM,
					    comm, &tasks[i]));
	for (int i = 0; i < 3; i++)
		wait_for(s, tasks[i], NCCLSVC_MISMATCH);
	/* One rank is late. The others wait when the first one begins, with a deadline. */
	if (me->rank == 3)
		CHECK_EQ(hear(me), GO);
	if (me->rank == 0) {
		tasks_reach(s, NCCLSVC_WAITING_PEERS, RANKS - 2);
		CHECK_OK(ncclsvc_comm_set_timeout(comm, 200));
	}
	CHECK_OK(ncclsvc_barrier(comm, &tasks[0]));
	wait_for(s, tasks[0], NCCLSVC_TIMEOUT);
	CHECK_OK(ncclsvc_comm_set_timeout(comm, -1));
	say(me, READY);
	/* One rank cancels an operation that all wait for. */
	if (me->rank == 1) {
		CHECK_EQ(hear(me), GO);
		uint64_t cancelled;
		ncclsvc_task_info t = tasks_reach(s, NCCLSVC_WAITING_PEERS, RANKS - 1);
		CHECK_OK(ncclsvc_cancel_comm(s, t.comm, &cancelled));
		say(me, DONE);
		CHECK_OK(ncclsvc_barrier(comm, &tasks[0]));
	} else {
		CHECK_OK(ncclsvc_barrier(comm, &tasks[0]));
		wait_for(s, tasks[0], NCCLSVC_CANCELLED);
	}
	/* The ranks continue: an operation that succeeds a second later is unrelated to those
	 * failures. */
	sleep_ms(SETTLED_MS);
	CHECK_OK(ncclsvc_barrier(comm, &tasks[0]));
	wait_for(s, tasks[0], NCCLSVC_OK);
	say(me, READY);
	/* One rank dies while the others wait for it. */
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_barrier(comm, &tasks[0]));
	CHECK_OK(ncclsvc_barrier(comm, &tasks[1]));
	say(me, DONE);
	wait_for(s, tasks[0], NCCLSVC_PEER_GONE);
	wait_for(s, tasks[1], NCCLSVC_PEER_GONE);
	ncclsvc_close(s);
}

static void each_failure_has_a_line(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	char want[160];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, fails, NULL);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(hear(&clients[i]), READY);
	say(&clients[3], GO);
	CHECK_EQ(hear(&clients[3]), READY);
	say(&clients[1], GO);
	CHECK_EQ(hear(&clients[1]), DONE);
	hear_all(clients, RANKS, READY);
	snprintf(want, sizeof(want),
		 "MISMATCH: count differs: rank 2 (pid %d) has 2, all others have 1; rank 2 is pid "
		 "%d",
		 clients[2].pid, clients[2].pid);
	one_line(&d, want);
	one_line(&d, "MISMATCH");
	one_line(&d, "TIMEOUT: the deadline passed waiting for rank 3 ");
	one_line(&d, "TIMEOUT");
	snprintf(want, sizeof(want), "cancelled on request of pid %d", clients[1].pid);
	one_line(&d, want);
	for (int i = 0; i < RANKS - 1; i++)
		say(&clients[i], GO);
	for (int i = 0; i < RANKS - 1; i++)
		CHECK_EQ(hear(&clients[i]), DONE);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, RANKS - 1);
	ncclsvc_close(s);
	pid_t victim = clients[3].pid;
	client_kill(&clients[3]);
	clients_end(clients, RANKS);
	snprintf(want, sizeof(want),
		 "6 pending tasks fail: PEER_GONE: rank 3 (pid %d) was killed by SIGKILL", victim);
	one_line(&d, want);
	daemon_stop(&d);
}

/* ---- Order ---- */

static void in_order(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void normal_events_are_not_failures(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	char out[8192];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, in_order, NULL);
	hear_all(clients, RANKS, READY);
	char *argv[] = {(char *)program("NCCLSVC_CTL"), "--socket", d.socket, "status", NULL};
	for (int i = 0; i < 3; i++)
		CHECK_EQ(run_program(argv, out, sizeof(out)), 0);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	CHECK(daemon_logged(&d, "; no task was pending"));
	daemon_finishes(&d);
	no_line(&d, "warning:");
	no_line(&d, "error:");
	no_line(&d, "ncclsvc-ctl");
	no_line(&d, "roken pipe");
	no_line(&d, "disconnected");
	no_line(&d, "reset by peer");
	daemon_stop(&d);
}

/* ---- A flood ---- */

#define FLOODS 40

/* Fails on one communicator after another. */
static void floods(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	for (int i = 0; i < FLOODS; i++) {
		ncclsvc_comm *comm = comm_join(me, s);
		CHECK_OK(ncclsvc_all_reduce(v, v, (size_t)me->rank + 1, NCCLSVC_INT32, NCCLSVC_SUM,
					    comm, &task));
		wait_for(s, task, NCCLSVC_MISMATCH);
		me->id.bytes[0]++;
	}
	ncclsvc_close(s);
}

static void a_flood_of_failures_leaves_few_lines(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, floods, NULL);
	clients_end(clients, 2);
	CHECK(daemon_logged(&d, "MISMATCH"));
	/* The limit is ten in five seconds. */
	CHECK(lines(&d, "MISMATCH") < FLOODS);
	daemon_stop(&d);
}

/* ---- Joining ---- */

static void never_whole(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm;
	CHECK_RESULT(ncclsvc_comm_join(s, &me->id, RANKS + 1, me->rank, 300, &comm),
		     NCCLSVC_TIMEOUT);
	ncclsvc_close(s);
}

static void an_attempt_to_join_has_one_line(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, never_whole, NULL);
	clients_end(clients, RANKS);
	one_line(&d, "JOIN of rank ");
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(each_failure_has_a_line),
		TEST(normal_events_are_not_failures),
		TEST(a_flood_of_failures_leaves_few_lines),
		TEST(an_attempt_to_join_has_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
