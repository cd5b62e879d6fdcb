/* SPDX-License-Identifier: Apache-2.0
 * Details of failed calls: ncclsvc_last_status, in addition to the error text; and abandoned
 * groups. */
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "ncclsvc_plan.h"

#define DEADLINE_MS 11000 /* of a task; earlier waits end before it, even on a busy machine */

enum { READY = 1, GO };

static ncclsvc_status last(ncclsvc_result result)
{
	ncclsvc_status st;
	memset(&st, 0xee, sizeof(st));
	CHECK_OK(ncclsvc_last_status(&st));
	CHECK_EQ(st.result, result);
	/* The name is not in the sentence, so printing both shows it once. */
	CHECK(!strstr(ncclsvc_last_error(), ncclsvc_result_name(result)));
	return st;
}

static void knows_nothing_more(ncclsvc_result result)
{
	const ncclsvc_status st = last(result),
			     nothing = {.result = result, .rank_a = -1, .rank_b = -1};
	CHECK(!memcmp(&st, &nothing, sizeof(st)));
}

static void calls_without_a_task(void **state)
{
	struct daemon d;
	ncclsvc_comm *comm;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_RESULT(ncclsvc_mem_alloc(s, 0, NULL), NCCLSVC_INVALID_ARGUMENT);
	knows_nothing_more(NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_comm_join(s, &id, 2, 0, 50, &comm), NCCLSVC_TIMEOUT);
	knows_nothing_more(NCCLSVC_TIMEOUT);
	CHECK_RESULT(ncclsvc_last_status(NULL), NCCLSVC_INVALID_ARGUMENT);
	knows_nothing_more(NCCLSVC_INVALID_ARGUMENT);
	/* An error set by a callback. */
	CHECK_RESULT(ncclsvc_set_error(NCCLSVC_LIMIT, "%s\t%d", "full", 3), NCCLSVC_LIMIT);
	knows_nothing_more(NCCLSVC_LIMIT);
	CHECK(!strcmp(ncclsvc_last_error(), "full 3"));
	static const int none[] = {NCCLSVC_OK, NCCLSVC_IN_PROGRESS, -99, 4711};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		CHECK_RESULT(ncclsvc_set_error((ncclsvc_result)none[i], "x"),
			     NCCLSVC_INVALID_ARGUMENT);
		knows_nothing_more(NCCLSVC_INVALID_ARGUMENT);
	}
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- Tasks and waits ---- */

static void failing(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t v[8] = {0};
	ncclsvc_task task;
	ncclsvc_status st, full;
	/* The wait's own timeout; then, for the same task, its deadline. */
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_comm_set_timeout(comm, DEADLINE_MS));
		CHECK_OK(ncclsvc_barrier(comm, &task));
		CHECK_RESULT(ncclsvc_wait(s, task, 10), NCCLSVC_TIMEOUT);
		knows_nothing_more(NCCLSVC_TIMEOUT);
		CHECK_RESULT(ncclsvc_wait_all(s, 0), NCCLSVC_TIMEOUT);
		knows_nothing_more(NCCLSVC_TIMEOUT);
		CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_TIMEOUT);
		st = last(NCCLSVC_TIMEOUT);
		CHECK_EQ(st.number, task);
		CHECK(st.missing_count == 1 && st.missing[0] == 1);
		say(me, READY);
	} else {
		CHECK_EQ(hear(me), GO);
		CHECK_OK(ncclsvc_barrier(comm, &task));
		wait_for(s, task, NCCLSVC_TIMEOUT);
	}
	CHECK_OK(ncclsvc_comm_set_timeout(comm, NCCLSVC_NO_TIMEOUT));
	CHECK_OK(ncclsvc_all_reduce(v, v, (size_t)(me->rank ? 4 : 8), NCCLSVC_INT32, NCCLSVC_SUM,
				    comm, &task));
	CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_MISMATCH);
	st = last(NCCLSVC_MISMATCH);
	CHECK_OK(ncclsvc_task_status(s, task, &full));
	CHECK(!memcmp(&st, &full, sizeof(st)));
	CHECK_EQ(st.field, NCCLSVC_FIELD_COUNT);
	CHECK_EQ(st.value_a + st.value_b, 12);
	CHECK(st.rank_a + st.rank_b == 1 && st.pid_a > 0 && st.pid_b > 0);
	CHECK_EQ(st.rank_a == me->rank ? st.pid_a : st.pid_b, getpid());
	/* A later failure without further details. */
	CHECK_RESULT(ncclsvc_barrier(NULL, &task), NCCLSVC_INVALID_ARGUMENT);
	knows_nothing_more(NCCLSVC_INVALID_ARGUMENT);
	if (me->rank == 0) { /* dies */
		say(me, READY);
		CHECK_EQ(hear(me), GO);
	}
	CHECK_OK(ncclsvc_barrier(comm, &task));
	CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_PEER_GONE);
	st = last(NCCLSVC_PEER_GONE);
	CHECK(st.number == task && st.rank_a == 0 && st.pid_a > 0);
	const int32_t gone = st.pid_a;
	while (!ncclsvc_comm_error(comm)) /* until the library knows that the epoch is over */
		sleep_ms(1);
	st = last(NCCLSVC_PEER_GONE);
	CHECK(!st.number && st.rank_a == 0 && st.pid_a == gone);
	CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_STALE_EPOCH);
	st = last(NCCLSVC_STALE_EPOCH);
	CHECK(!st.number && st.rank_a == 0 && st.pid_a == gone);
	ncclsvc_close(s);
}

static void tasks_and_waits(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, failing, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	say(&clients[1], GO);
	CHECK_EQ(hear(&clients[0]), READY);
	client_kill(&clients[0]);
	clients_end(&clients[1], 1);
	daemon_stop(&d);
}

/* ---- Plans ---- */

static void planning(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_plan *plan;
	int32_t v = 5;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_plan_start(comm, &plan));
	CHECK_OK(ncclsvc_plan_group_start(plan));
	CHECK_OK(me->rank ? ncclsvc_plan_recv(plan, 1, NCCLSVC_INT32, 0)
			  : ncclsvc_plan_send(plan, 1, NCCLSVC_INT32, 1));
	CHECK_OK(ncclsvc_plan_group_end(plan));
	CHECK_OK(ncclsvc_plan_end(plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(plan));
	if (me->rank == 0) {
		CHECK_EQ(hear(me), GO);
		CHECK_OK(ncclsvc_plan_terminate(plan, 0));
		CHECK_EQ(hear(me), GO);
		ncclsvc_close(s);
		return;
	}
	CHECK_OK(ncclsvc_plan_submit_recv(plan, &v, 1, NCCLSVC_INT32, 0, &task));
	CHECK_RESULT(ncclsvc_plan_wait(plan, task, 10), NCCLSVC_TIMEOUT);
	knows_nothing_more(NCCLSVC_TIMEOUT);
	CHECK_RESULT(ncclsvc_plan_reset(plan, 10), NCCLSVC_TIMEOUT);
	knows_nothing_more(NCCLSVC_TIMEOUT);
	say(me, READY);
	/* The other member's termination of the plan, as the task and the iteration report it. */
	for (int whole = 0; whole < 2; whole++) {
		CHECK_RESULT(whole ? ncclsvc_plan_reset(plan, WAIT_MS)
				   : ncclsvc_plan_wait(plan, task, WAIT_MS),
			     whole ? NCCLSVC_OK : NCCLSVC_CANCELLED); /* reported once */
		const ncclsvc_status st = last(NCCLSVC_CANCELLED);
		CHECK(st.number == task && st.field == NCCLSVC_FIELD_PLAN);
		CHECK(st.rank_a == 0 && st.pid_a > 0);
	}
	CHECK_OK(ncclsvc_plan_submit_recv(plan, &v, 1, NCCLSVC_INT32, 0, &task));
	CHECK_RESULT(ncclsvc_plan_reset(plan, WAIT_MS), NCCLSVC_CANCELLED);
	const ncclsvc_status st = last(NCCLSVC_CANCELLED);
	CHECK(st.number == task && st.field == NCCLSVC_FIELD_PLAN && st.rank_a == 0);
	CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
	say(me, READY);
	ncclsvc_close(s);
}

static void planned_tasks(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, planning, NULL);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(hear(&clients[1]), READY);
		say(&clients[0], GO);
	}
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Groups ---- */

static void abandoning(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t v = me->rank + 1;
	ncclsvc_task task = 4711, none = 4711;
	CHECK_RESULT(ncclsvc_group_abandon(NULL), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_group_abandon(s), NCCLSVC_INVALID_ARGUMENT);
	CHECK(strstr(ncclsvc_last_error(), "no open group"));
	for (int refused = 0; refused < 2; refused++) {
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_broadcast(&v, &v, 1, NCCLSVC_INT32, 0, comm, &none));
		if (refused)
			CHECK_RESULT(ncclsvc_barrier(NULL, &none), NCCLSVC_INVALID_ARGUMENT);
		CHECK_OK(ncclsvc_group_abandon(s));
		CHECK_EQ(none, 4711);
		CHECK_RESULT(ncclsvc_group_end(s), NCCLSVC_INVALID_ARGUMENT);
	}
	/* Nothing was submitted, and the next group is new. */
	CHECK_OK(ncclsvc_group_begin(s));
	CHECK_OK(ncclsvc_all_reduce(&v, &v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	CHECK_OK(ncclsvc_group_end(s));
	CHECK_EQ(task, 1);
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(v, 3);
	CHECK_OK(ncclsvc_all_reduce(&v, &v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(v, 6);
	ncclsvc_close(s);
}

static void groups_that_are_abandoned_submit_nothing(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, abandoning, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(calls_without_a_task),
		TEST(tasks_and_waits),
		TEST(planned_tasks),
		TEST(groups_that_are_abandoned_submit_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
