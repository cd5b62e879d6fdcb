/* SPDX-License-Identifier: Apache-2.0
 * Plans used wrongly or too late, and plans that do not match: errors, not hangs. */
#include "plan_desk.h"

/* ---- Wrong use ---- */

static void wrong_use(struct client *me)
{
	struct desk d;
	int32_t v = 7;
	desk_open(&d, me);
	ncclsvc_plan *p = d.plan;
	const ncclsvc_result bad = NCCLSVC_INVALID_ARGUMENT;
	CHECK_RESULT(ncclsvc_plan_start(NULL, &p), bad);
	CHECK_RESULT(ncclsvc_plan_start(d.comm, NULL), bad);
	CHECK_RESULT(ncclsvc_plan_group_start(NULL), bad);
	CHECK_RESULT(ncclsvc_plan_reset(NULL, 0), bad);
	CHECK_RESULT(ncclsvc_plan_wait(NULL, 1, 0), bad);
	/* Before the plan's end. */
	CHECK_RESULT(ncclsvc_plan_launch(p), bad);
	CHECK_SAYS("ncclsvc_plan_end first");
	CHECK_RESULT(ncclsvc_plan_reset(p, 0), bad);
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_RESULT(ncclsvc_plan_group_end(p), bad);
	CHECK_RESULT(ncclsvc_plan_send(p, ANY, d.other), bad);
	CHECK_SAYS("no group is open");
	CHECK_OK(ncclsvc_plan_group_start(p));
	CHECK_RESULT(ncclsvc_plan_group_start(p), bad);
	CHECK_RESULT(ncclsvc_plan_send(p, ANY, 2), bad);
	CHECK_RESULT(ncclsvc_plan_recv(p, ANY, -1), bad);
	CHECK_RESULT(ncclsvc_plan_recv(p, 1, (ncclsvc_type)99, d.other), bad);
	CHECK_RESULT(ncclsvc_plan_end(p, 0), bad);
	CHECK_SAYS("group 0 is open");
	CHECK_OK(ncclsvc_plan_send(p, 5, NCCLSVC_INT32, d.other));
	CHECK_OK(ncclsvc_plan_recv(p, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(p));
	CHECK_OK(ncclsvc_plan_end(p, WAIT_MS));
	/* After it. */
	CHECK_RESULT(ncclsvc_plan_group_start(p), bad);
	CHECK_SAYS("cannot be changed");
	CHECK_RESULT(ncclsvc_plan_send(p, ANY, d.other), bad);
	CHECK_RESULT(ncclsvc_plan_end(p, WAIT_MS), bad);
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_SAYS("not been launched");
	CHECK_OK(ncclsvc_plan_launch(p));
	CHECK_RESULT(ncclsvc_plan_launch(p), bad);
	CHECK_SAYS("already");
	/* A second plan on the same communicator. */
	ncclsvc_plan *second;
	CHECK_OK(ncclsvc_plan_start(d.comm, &second));
	CHECK_RESULT(ncclsvc_plan_end(second, WAIT_MS), NCCLSVC_BUSY);
	CHECK_OK(ncclsvc_plan_terminate(second, WAIT_MS));
	/* Unplanned, different from the plan, outside a group, too many, and past the end. */
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.me, NULL), bad);
	CHECK_SAYS("is not in the plan");
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_SAYS("was planned with 5 int32");
	CHECK_OK(ncclsvc_group_begin(d.s));
	CHECK_RESULT(ncclsvc_plan_submit_recv(p, &v, 5, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_OK(ncclsvc_group_end(d.s));
	int32_t out[5] = {d.me}, in[5] = {-1};
	for (int round = 0; round < 3; round++) {
		CHECK_OK(ncclsvc_plan_submit_send(p, out, 5, NCCLSVC_INT32, d.other, NULL));
		CHECK_RESULT(ncclsvc_plan_submit_send(p, out, 5, NCCLSVC_INT32, d.other, NULL),
			     bad);
		CHECK_SAYS("have been submitted in this iteration");
		CHECK_OK(ncclsvc_plan_submit_recv_and_wait(p, in, 5, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_RESULT(ncclsvc_plan_submit_recv(p, in, 5, NCCLSVC_INT32, d.other, NULL), bad);
		CHECK_EQ(in[0], d.other);
		CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	}
	/* The communicator is left before the plan ends. */
	CHECK_OK(ncclsvc_barrier(d.comm, NULL));
	CHECK_OK(ncclsvc_wait_all(d.s, WAIT_MS));
	CHECK_OK(ncclsvc_comm_leave(d.comm));
	CHECK_RESULT(ncclsvc_plan_submit_send(p, out, 5, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_SAYS("has been left");
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
	ncclsvc_close(d.s);
}

static void wrong_use_is_an_error_return(void **state)
{
	(void)state;
	run_clients(2, wrong_use);
}

/* ---- Timeouts: the error names the missing tasks, and the plan is unchanged ---- */

static void timeouts(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = 0;
	ncclsvc_task send;
	exchange_desk(&d, me);
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, &send));
	CHECK_RESULT(ncclsvc_plan_test(d.plan, send), NCCLSVC_IN_PROGRESS);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, send, 50), NCCLSVC_TIMEOUT);
	CHECK_SAYS(me->rank ? "Recv from rank 0 in group 0" : "Recv from rank 1 in group 0");
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, 50), NCCLSVC_TIMEOUT);
	CHECK_SAYS("has not submitted the Recv");
	say(me, 1);
	CHECK_EQ(hear(me), 1);
	/* Rank 0's group is complete, rank 1's is not. */
	if (d.me == 0) {
		CHECK_RESULT(
			ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, 1, 50),
			NCCLSVC_TIMEOUT);
		CHECK_SAYS("other ranks have not");
		CHECK_RESULT(ncclsvc_plan_reset(d.plan, 50), NCCLSVC_TIMEOUT);
		say(me, 2);
	} else {
		CHECK_EQ(hear(me), 2);
		CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, 0,
							   WAIT_MS));
	}
	CHECK_OK(ncclsvc_plan_wait(d.plan, send, WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	CHECK_EQ(in, 1);
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 1);
	/* The task's own deadline expires: all ranks learn of it, and the plan continues. */
	CHECK_OK(ncclsvc_comm_set_timeout(d.comm, d.me == 0 ? 100 : NCCLSVC_NO_TIMEOUT));
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, &send));
	if (d.me == 0) {
		CHECK_RESULT(ncclsvc_plan_wait(d.plan, send, WAIT_MS), NCCLSVC_TIMEOUT);
		ncclsvc_status st = status_of(d.s, send);
		CHECK_EQ(st.result, NCCLSVC_TIMEOUT);
		CHECK_EQ(st.missing_count, 1);
		CHECK_EQ(st.missing[0], 0); /* itself */
		CHECK_OK(ncclsvc_comm_set_timeout(d.comm, NCCLSVC_NO_TIMEOUT));
	}
	CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, d.other, NULL));
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), d.me == 0 ? NCCLSVC_OK : NCCLSVC_TIMEOUT);
	for (int round = 0; round < 3; round++) {
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, d.other, NULL));
		CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, &out, 1, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void timeouts_say_what_lacks(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, timeouts, NULL);
	hear_all(clients, 2, 1);
	say_all(clients, 2, 1);
	CHECK_EQ(hear(&clients[0]), 2);
	say(&clients[1], 2);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Commit ---- */

static void commit_mismatch(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	/* A Send without its Recv. */
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_send(d.plan, ANY, 1 - me->rank));
	if (d.me == 1)
		CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, 0));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS(
		"rank 1's Send to rank 0 (the Send no. 1 between the two, in its group 0) has no "
		"Recv in the plan of rank 0");
	CHECK_RESULT(ncclsvc_plan_launch(d.plan), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_plan_group_start(d.plan), NCCLSVC_INVALID_ARGUMENT);
	desk_close(&d);
	/* Sizes. */
	desk_open(&d, me);
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(d.me ? ncclsvc_plan_recv(d.plan, 9, NCCLSVC_FLOAT32, 0)
		      : ncclsvc_plan_send(d.plan, 8, NCCLSVC_FLOAT32, 1));
	CHECK_OK(ncclsvc_plan_label(d.plan, d.me ? "act in" : "act out"));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS("8 float32");
	CHECK_SAYS("9 float32");
	CHECK_SAYS("rank 0's Send \"act out\" to rank 1");
	CHECK_SAYS("the Recv \"act in\"");
	desk_close(&d);
	/* Both receive first, each in a group of its own. */
	desk_open(&d, me);
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_send(d.plan, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS("never be carried out");
	CHECK_SAYS("rank 0 in its group 0 waits for rank 1's group 1");
	desk_close(&d);
}

static void plans_are_matched_at_commit(void **state)
{
	(void)state;
	run_clients(2, commit_mismatch);
}

static void commit_alone(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	if (d.me == 0) {
		CHECK_RESULT(ncclsvc_plan_end(d.plan, 100), NCCLSVC_TIMEOUT);
		CHECK_SAYS("had not committed their plan by the deadline: 1");
		say(me, 1);
		CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_PEER_GONE);
		CHECK_SAYS("rank 1");
		say(me, 2);
		CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_STALE_EPOCH);
		ncclsvc_close(d.s);
		return;
	}
	say(me, 1);
	hear(me);
}

static void a_commit_ends_by_deadline_and_by_death(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, commit_alone, NULL);
	hear_all(clients, 2, 1);
	clients_ask(clients, 1);
	client_kill(&clients[1]);
	uint64_t then = now_ns();
	CHECK_EQ(hear(&clients[0]), 2);
	CHECK(in_time(then, now_ns()));
	clients_end(clients, 1);
	daemon_stop(&d);
}

/* ---- A member terminates while others go on ---- */

static void one_leaves(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = 0;
	ncclsvc_task recv;
	exchange_desk(&d, me);
	if (d.me == 0) {
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, 1, &recv));
		say(me, 1);
		CHECK_RESULT(ncclsvc_plan_wait(d.plan, recv, WAIT_MS), NCCLSVC_CANCELLED);
		CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_CANCELLED);
		/* Later submissions are cancelled, too. */
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_RESULT(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, 1,
							       WAIT_MS),
			     NCCLSVC_CANCELLED);
		CHECK_RESULT(ncclsvc_plan_terminate(d.plan, WAIT_MS), NCCLSVC_CANCELLED);
	} else {
		/* Half a group is held, then cancelled with the plan. */
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 0, NULL));
		hear(me);
		CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	}
	CHECK_OK(ncclsvc_comm_error(d.comm));
	check_usable(d.s, d.comm);
	/* The next plan. */
	CHECK_OK(ncclsvc_plan_start(d.comm, &d.plan));
	plan_exchange(&d);
	launch(&d);
	CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, &out, 1, NCCLSVC_INT32, d.other,
						   WAIT_MS));
	CHECK_OK(
		ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, d.other, WAIT_MS));
	desk_close(&d);
}

static void a_terminated_plan_ends_the_others_tasks(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_leaves, NULL);
	CHECK_EQ(hear(&clients[0]), 1);
	say(&clients[1], 1);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(wrong_use_is_an_error_return),
		TEST(timeouts_say_what_lacks),
		TEST(plans_are_matched_at_commit),
		TEST(a_commit_ends_by_deadline_and_by_death),
		TEST(a_terminated_plan_ends_the_others_tasks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
