/* SPDX-License-Identifier: Apache-2.0
 * CANCELLED: an operator cancels a task, all tasks of a communicator, or a session. */
#include <unistd.h>

#include "harness.h"

enum { READY = 1, GO, DONE };

static void cancelled(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task tasks[3];
	for (int round = 0; round < 2; round++) {
		if (me->rank == 0) {
			for (int i = 0; i < 3; i++)
				CHECK_OK(ncclsvc_barrier(comm, &tasks[i]));
			wait_for(s, tasks[0], NCCLSVC_CANCELLED);
			say(me, DONE);
		} else {
			CHECK_EQ(hear(me), GO);
			for (int i = 0; i < 3; i++)
				CHECK_OK(ncclsvc_barrier(comm, &tasks[i]));
			wait_for(s, tasks[0], NCCLSVC_CANCELLED);
		}
		/* The first round cancels one task, the second all tasks of the communicator. */
		wait_for(s, tasks[1], round ? NCCLSVC_CANCELLED : NCCLSVC_OK);
		wait_for(s, tasks[2], round ? NCCLSVC_CANCELLED : NCCLSVC_OK);
		check_usable(s, comm);
	}
	say(me, READY);
	ncclsvc_result result = NCCLSVC_OK;
	if (me->rank == 0) {
		/* Cancelled together with its session. */
		CHECK_OK(ncclsvc_barrier(comm, &tasks[0]));
		result = ncclsvc_wait(s, tasks[0], WAIT_MS);
		CHECK(result == NCCLSVC_CANCELLED || result == NCCLSVC_DAEMON_LOST);
		say(me, DONE);
	} else {
		CHECK_EQ(hear(me), GO);
		/* Rank 0's barrier may have been matched just before its session ended. */
		for (int i = 0; i < 2 && result == NCCLSVC_OK; i++) {
			result = ncclsvc_barrier(comm, &tasks[i]);
			if (result == NCCLSVC_OK)
				result = ncclsvc_wait(s, tasks[i], WAIT_MS);
		}
		if (result != NCCLSVC_PEER_GONE && result != NCCLSVC_STALE_EPOCH)
			check_failed(__FILE__, __LINE__, "%s: %s", ncclsvc_result_name(result),
				     ncclsvc_last_error());
	}
	ncclsvc_close(s);
}

static uint32_t session_of(ncclsvc_session *s, pid_t pid)
{
	ncclsvc_session_info *list;
	size_t n;
	uint32_t id = 0;
	CHECK_OK(ncclsvc_list_sessions(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == pid)
			id = list[i].session;
	ncclsvc_list_free(list);
	CHECK(id);
	return id;
}

static void tasks_communicators_and_sessions_can_be_cancelled(void **state)
{
	struct daemon d;
	struct client clients[2];
	uint64_t n = 0;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, cancelled, NULL);
	ncclsvc_session *s = session_open(&d);

	ncclsvc_task_info head = tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	tasks_reach(s, NCCLSVC_QUEUED, 2);
	CHECK_EQ(head.seq, 0);
	CHECK_OK(ncclsvc_cancel_task(s, head.task, &n));
	CHECK_EQ(n, 1);
	CHECK_EQ(hear(&clients[0]), DONE);
	/* The task has failed, and is kept until its peers have matched it: nothing is left to
	 * cancel. */
	CHECK_OK(ncclsvc_cancel_task(s, head.task, &n));
	CHECK_EQ(n, 0);
	say(&clients[1], GO);

	for (int i = 0; head.seq < 4 && i < 5000; i++, sleep_ms(1))
		head = tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	tasks_reach(s, NCCLSVC_QUEUED, 2);
	CHECK_OK(ncclsvc_cancel_comm(s, head.comm, &n));
	CHECK_EQ(n, 3);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], GO);

	hear_all(clients, 2, READY);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	CHECK_OK(ncclsvc_cancel_session(s, session_of(s, clients[0].pid), &n));
	CHECK_EQ(n, 1);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], GO);
	clients_end(clients, 2);

	CHECK_EQ(ncclsvc_session_id(s), session_of(s, getpid()));
	CHECK_EQ(ncclsvc_session_id(NULL), 0);
	CHECK_RESULT(ncclsvc_cancel_task(s, head.task, &n), NCCLSVC_NOT_FOUND);
	CHECK_RESULT(ncclsvc_cancel_session(s, 0xffffffff, &n), NCCLSVC_NOT_FOUND);
	CHECK_RESULT(ncclsvc_cancel_comm(s, UINT64_MAX, &n), NCCLSVC_NOT_FOUND);
	ncclsvc_close(s);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tasks_communicators_and_sessions_can_be_cancelled),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
