/* SPDX-License-Identifier: Apache-2.0
 * Sessions that survive a restart of their daemon, by SIGTERM or SIGKILL: programs see no
 * error, and every result is right. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node_daemons.h"
#include "resume_programs.h"

static void programs_work_through_restarts(void **state)
{
	(void)state;
	run(work, restart, NULL);
}

static void programs_work_though_the_daemon_is_killed(void **state)
{
	(void)state;
	run(work, kill_and_start, &killed);
}

/* ---- In place ---- */

/* All ranks (if a daemon is killed, all of a node) learn the same: the sum is right, or the
 * operation has failed. */
static void work_in_place(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, COUNT * sizeof(*v));
	ncclsvc_task task;
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		fill(v, me->rank, round);
		CHECK_OK(ncclsvc_all_reduce(v, v, COUNT, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		const ncclsvc_result r = ncclsvc_wait(s, task, WAIT_MS);
		if (!r) {
			check_sum(v, all_ranks, RANKS, round);
		} else if (!is_missed(me, r)) {
			CHECK_RESULT(r, NCCLSVC_DAEMON_LOST);
			CHECK(strstr(ncclsvc_last_error(), "in place"));
			shared_state->failed++;
		}
		int32_t codes[RANKS] = {0}, mine = r;
		CHECK_OK(ncclsvc_all_gather(&mine, codes, 1, NCCLSVC_INT32, comm, &task));
		const bool known = has_ended(me, s, task);
		for (int k = 0; known && k < RANKS; k++)
			if (!cluster_nodes() || !me->arg ||
			    k % cluster_nodes() == me->rank % cluster_nodes())
				CHECK_EQ(codes[k], r);
		shared_state->iterations[me->rank]++;
	}
	ncclsvc_close(s);
}

static void in_place_results_are_right_after_a_restart(void **state)
{
	(void)state;
	run(work_in_place, restart, NULL);
	CHECK_EQ(shared_state->failed, 0);
}

static void in_place_results_are_right_or_fail_after_a_kill(void **state)
{
	(void)state;
	run(work_in_place, kill_and_start, &killed);
}

/* ---- Requests and tasks that wait for other ranks ---- */

/* Rank 0 waits for rank 1, which begins only after the restart. */
static void one_waits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *split_off = NULL, *second = NULL;
	ncclsvc_joining *join, *split;
	ncclsvc_unique_id id;
	ncclsvc_task task, alone;
	int32_t *v = shared(s, 2 * sizeof(*v));
	id = me->id;
	id.bytes[0] ^= 7;
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 1, comm, &task));
		CHECK_OK(
			ncclsvc_comm_join_begin(s, &id, 2, 0, NCCLSVC_DEVICE_HOST, WAIT_MS, &join));
		CHECK_OK(ncclsvc_comm_split_begin(comm, 0, 0, WAIT_MS, &split));
	}
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 1) {
		v[0] = 4711;
		CHECK_OK(ncclsvc_send(v, 1, NCCLSVC_INT32, 0, comm, &task));
		CHECK_OK(
			ncclsvc_comm_join_begin(s, &id, 2, 1, NCCLSVC_DEVICE_HOST, WAIT_MS, &join));
		CHECK_OK(ncclsvc_comm_split_begin(comm, 0, 0, WAIT_MS, &split));
	}
	CHECK_OK(ncclsvc_joining_wait(join, &second));
	CHECK_OK(ncclsvc_joining_wait(split, &split_off));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	CHECK_EQ(v[0], 4711);
	ncclsvc_joining_free(join);
	ncclsvc_joining_free(split);
	check_usable(s, comm);
	check_usable(s, second);
	check_usable(s, split_off);
	CHECK_OK(ncclsvc_barrier(second, &alone));
	CHECK_OK(ncclsvc_wait(s, alone, WAIT_MS));
	CHECK_OK(ncclsvc_comm_leave(second));
	void *more;
	CHECK_OK(ncclsvc_mem_alloc(s, 4096, &more));
	CHECK_OK(ncclsvc_mem_free(s, more));
	ncclsvc_close(s);
}

static void run_waiting(void (*again)(struct daemon *d))
{
	struct daemon d;
	struct client clients[2];
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_waits, NULL);
	hear_all(clients, 2, READY);
	again(&d);
	again(&d);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void what_waits_continues_after_a_restart(void **state)
{
	(void)state;
	run_waiting(restart);
}

static void what_waits_continues_after_a_kill(void **state)
{
	(void)state;
	run_waiting(kill_and_start);
}

/* ---- What is not continued ---- */

static void one_does_not_come_back(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .reattach_ms = 1500};
	ncclsvc_session *s;
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s), *alone;
	ncclsvc_unique_id id;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &alone));
	if (me->rank == 0)
		CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK(strstr(ncclsvc_last_error(), "had not joined by rank 0's deadline: 1"));
	check_usable(s, alone);
	ncclsvc_close(s);
}

static void a_member_that_does_not_come_back_is_named(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_does_not_come_back, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	client_kill(&clients[1]);
	daemon_restart(&d, NULL);
	say_all(clients, 1, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Rank 1's session ends with its daemon, so rank 0's does too, without waiting for it. */
static void one_has_not_asked(struct client *me)
{
	const ncclsvc_options options = {.size = sizeof(options),
					 .socket = me->daemon->socket,
					 .reattach_ms = me->rank == 1 ? -1 : WAIT_MS};
	ncclsvc_session *s;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s);
	if (me->rank == 1)
		CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 1) { /* the daemon may end it before it goes */
		const ncclsvc_result r = ncclsvc_wait(s, task, WAIT_MS);
		CHECK(r == NCCLSVC_DAEMON_LOST || r == NCCLSVC_DRAINING);
	}
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_DAEMON_LOST);
	CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void run_one_has_not_asked(void (*again)(struct daemon *d))
{
	struct daemon d;
	struct client clients[2];
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_has_not_asked, NULL);
	hear_all(clients, 2, READY);
	again(&d);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void all_members_ask_or_none_continues_after_a_restart(void **state)
{
	(void)state;
	run_one_has_not_asked(restart);
}

static void all_members_ask_or_none_continues_after_a_kill(void **state)
{
	(void)state;
	run_one_has_not_asked(kill_and_start);
}

/* Rank 1 has left one of two communicators, so nobody waits for it there. */
static void one_has_left(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *child;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_split(comm, 0, me->rank, WAIT_MS, &child));
	CHECK_OK(ncclsvc_barrier(child, &task));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	if (me->rank == 1)
		CHECK_OK(ncclsvc_comm_leave(child));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	check_usable(s, comm);
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_barrier(child, &task), NCCLSVC_PEER_GONE);
		CHECK(strstr(ncclsvc_last_error(), "a member had left it"));
		CHECK_OK(ncclsvc_comm_leave(child));
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_communicator_that_a_member_has_left_holds_nobody_up(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_has_left, NULL);
	hear_all(clients, 2, READY);
	if (cluster_of(&d))
		cluster_restart(cluster_of(&d), 0, SIGKILL); /* rank 0's */
	else
		kill_and_start(&d);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Several nodes ---- */

/* With NCCLSVC_TEST_LINKS, the daemons are ready for ranks of other nodes. */
static char key[] = "/tmp/ncclsvc-key-XXXXXX";

/* All daemons of the test use it: ids name it. */
static void free_port(char text[8])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(a);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&a, length) &&
	      !getsockname(fd, (struct sockaddr *)&a, &length));
	snprintf(text, 8, "%u", ntohs(a.sin_port));
	close(fd);
}

static int open_to_other_nodes(void **state)
{
	char port[8];
	(void)state;
	if (!getenv("NCCLSVC_TEST_LINKS") || cluster_nodes())
		return 0;
	const int fd = mkstemp(key);
	CHECK(fd >= 0);
	CHECK(dprintf(fd, "the key of this test's nodes, with 32 bytes or more\n") > 0);
	close(fd);
	setenv("NCCLSVCD_CLUSTER_KEY_FILE", key, 1);
	setenv("NCCLSVCD_CLUSTER_INTERFACE", "127.0.0.1", 1);
	free_port(port);
	setenv("NCCLSVCD_CLUSTER_PORT", port, 1);
	return 0;
}

static int close_to_other_nodes(void **state)
{
	(void)state;
	if (getenv("NCCLSVC_TEST_LINKS"))
		unlink(key);
	return 0;
}

/* The argument: which tests. */
int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		TEST(programs_work_through_restarts),
		TEST(programs_work_though_the_daemon_is_killed),
		TEST(in_place_results_are_right_after_a_restart),
		TEST(in_place_results_are_right_or_fail_after_a_kill),
		TEST(what_waits_continues_after_a_restart),
		TEST(what_waits_continues_after_a_kill),
		TEST(a_member_that_does_not_come_back_is_named),
		TEST(all_members_ask_or_none_continues_after_a_restart),
		TEST(all_members_ask_or_none_continues_after_a_kill),
		TEST(a_communicator_that_a_member_has_left_holds_nobody_up),
	};
	const struct CMUnitTest across[] = {
		TEST(programs_work_through_restarts),
		TEST(programs_work_though_the_daemon_is_killed),
		TEST(in_place_results_are_right_after_a_restart),
		TEST(in_place_results_are_right_or_fail_after_a_kill),
		TEST(what_waits_continues_after_a_restart),
		TEST(what_waits_continues_after_a_kill),
		TEST(a_communicator_that_a_member_has_left_holds_nobody_up),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	if (cluster_nodes())
		return cmocka_run_group_tests(across, NULL, NULL);
	return cmocka_run_group_tests(tests, open_to_other_nodes, close_to_other_nodes);
}
