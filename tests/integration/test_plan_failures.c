/* SPDX-License-Identifier: Apache-2.0
 * Plans when members die or leave, tasks are cancelled, or the daemon is lost; and the inspection
 * of plans. */
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "ncclsvc_plan.h"

#define ANY NCCLSVC_PLAN_ANY, NCCLSVC_INT8
enum { READY = 1, GO, DONE };

struct desk {
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_plan *plan;
	int32_t *v;
	int other;
};

static void label(ncclsvc_plan *p, const char *what, int rank)
{
	char text[NCCLSVC_LABEL_BYTES];
	snprintf(text, sizeof(text), "%s of %d", what, rank);
	CHECK_OK(ncclsvc_plan_label(p, text));
}

/* Group 0: Send and Recv, with labels; group 1: the same without labels. */
static void desk_open(struct desk *d, struct client *me)
{
	*d = (struct desk){.other = 1 - me->rank};
	d->s = session_open(me->daemon);
	d->comm = comm_join(me, d->s);
	d->v = shared(d->s, 4096);
	CHECK_OK(ncclsvc_plan_start(d->comm, &d->plan));
	for (int g = 0; g < 2; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d->plan));
		CHECK_OK(ncclsvc_plan_send(d->plan, 1, NCCLSVC_INT32, d->other));
		if (!g)
			label(d->plan, "grad", me->rank);
		CHECK_OK(ncclsvc_plan_recv(d->plan, ANY, d->other));
		if (!g)
			label(d->plan, "act", me->rank);
		CHECK_OK(ncclsvc_plan_group_end(d->plan));
	}
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

static void desk_close(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_terminate(d->plan, WAIT_MS));
	ncclsvc_close(d->s);
}

static ncclsvc_task submit_send(struct desk *d, int32_t value)
{
	ncclsvc_task task;
	d->v[0] = value;
	CHECK_OK(ncclsvc_plan_submit_send(d->plan, &d->v[0], 1, NCCLSVC_INT32, d->other, &task));
	return task;
}

static ncclsvc_task submit_recv(struct desk *d, int i)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_plan_submit_recv(d->plan, &d->v[i], 1, NCCLSVC_INT32, d->other, &task));
	return task;
}

static void iterate(struct desk *d, int32_t mine, int32_t others)
{
	d->v[1] = d->v[2] = -1;
	for (int g = 0; g < 2; g++) {
		submit_recv(d, 1 + g);
		submit_send(d, mine);
	}
	CHECK_OK(ncclsvc_plan_reset(d->plan, WAIT_MS));
	CHECK_EQ(d->v[1], others);
	CHECK_EQ(d->v[2], others);
}

/* ---- A member dies ---- */

static void restarted(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, 5, 6);
	desk_close(&d);
}

static void victim_or_survivor(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, me->rank, d.other);
	/* A Send is held. Rank 0 also has a complete group, which waits for rank 1. */
	ncclsvc_task held, posted = 0;
	if (me->rank == 0) {
		submit_send(&d, 1);
		posted = submit_recv(&d, 1);
	}
	held = submit_send(&d, 1);
	say(me, READY);
	if (me->rank == 1)
		hear(me); /* the test kills this client here */
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_PEER_GONE);
	say(me, now_ns());
	CHECK_EQ(status_of(d.s, held).rank_a, 1);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, posted, WAIT_MS), NCCLSVC_PEER_GONE);
	/* The rank may reuse the memory of its tasks. */
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_STALE_EPOCH);
	CHECK_RESULT(ncclsvc_plan_submit_recv(d.plan, &d.v[1], 1, NCCLSVC_INT32, 1, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_comm_rejoin(d.comm, WAIT_MS));
	CHECK_RESULT(ncclsvc_plan_submit_recv(d.plan, &d.v[1], 1, NCCLSVC_INT32, 1, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK(strstr(ncclsvc_last_error(), "ncclsvc_plan_reset"));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS)); /* Reset commits the plan again. */
	iterate(&d, 6, 5);
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 2);
	CHECK_OK(ncclsvc_mem_free(d.s, d.v));
	desk_close(&d);
}

static void held_tasks_fail_when_a_member_dies(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, victim_or_survivor, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	ncclsvc_task_info t = tasks_reach(s, NCCLSVC_WAITING_GROUP, 2);
	CHECK_EQ(t.op, NCCLSVC_SEND);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	client_kill(&clients[1]);
	uint64_t then = now_ns();
	uint64_t told = hear(&clients[0]);
	print_message("noticed after %.1f ms\n", ((double)told - (double)then) / 1e6);
	CHECK(in_time(then, told));
	client_start(&clients[1], restarted);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- A member leaves ---- */

static void leaver(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	ncclsvc_task held = submit_send(&d, 3);
	say(me, READY);
	hear(me);
	if (me->rank == 1) {
		CHECK_OK(ncclsvc_comm_leave(d.comm));
		CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
		ncclsvc_close(d.s);
		say(me, DONE);
		return;
	}
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_PEER_GONE);
	/* The error is local or remote, depending on what has arrived. */
	ncclsvc_task recv;
	ncclsvc_result r = ncclsvc_plan_submit_recv(d.plan, &d.v[1], 1, NCCLSVC_INT32, 1, &recv);
	if (!r)
		r = ncclsvc_plan_wait(d.plan, recv, WAIT_MS);
	CHECK(r == NCCLSVC_PEER_GONE || r == NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	ncclsvc_close(d.s);
}

static void held_tasks_fail_when_a_member_leaves(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, leaver, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_GROUP, 2);
	ncclsvc_close(s);
	say(&clients[1], GO);
	CHECK_EQ(hear(&clients[1]), DONE);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- A member leaves after it has completed its part ---- */

static void one_is_quicker(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	if (me->rank == 1) {
		iterate(&d, 6, 5);
		desk_close(&d);
		return;
	}
	ncclsvc_task task;
	for (int g = 0; g < 2; g++) {
		submit_recv(&d, 1 + g);
		submit_send(&d, 5);
	}
	/* Waits until this rank learns that rank 1 has left. */
	ncclsvc_result r = ncclsvc_recv(&d.v[3], 1, NCCLSVC_INT32, 1, d.comm, &task);
	if (!r)
		r = ncclsvc_wait(d.s, task, WAIT_MS);
	CHECK(r == NCCLSVC_PEER_GONE || r == NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 1);
	CHECK_EQ(d.v[1], 6);
	CHECK_RESULT(ncclsvc_plan_submit_recv(d.plan, &d.v[1], 1, NCCLSVC_INT32, 1, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_STALE_EPOCH);
	desk_close(&d);
}

static void an_iteration_outlasts_its_members(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_is_quicker, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Cancelled tasks; tasks that hold memory ---- */

static void cancelled(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	if (me->rank == 0) {
		ncclsvc_task held = submit_send(&d, 3);
		tasks_reach(d.s, NCCLSVC_WAITING_GROUP, 1);
		say(me, READY);
		CHECK_RESULT(ncclsvc_mem_free(d.s, d.v), NCCLSVC_BUSY);
		say(me, READY);
		CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_CANCELLED);
		submit_recv(&d, 1);
	} else {
		submit_recv(&d, 1);
		submit_send(&d, 4);
	}
	submit_recv(&d, 2);
	submit_send(&d, 5 + me->rank);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS),
		     me->rank ? NCCLSVC_CANCELLED : NCCLSVC_OK);
	if (me->rank == 0) /* the rest of the group has completed */
		CHECK_EQ(d.v[1], 6);
	CHECK_EQ(d.v[2], 6 - me->rank);
	iterate(&d, me->rank, d.other);
	CHECK_OK(ncclsvc_mem_free(d.s, d.v));
	desk_close(&d);
}

static void held_tasks_can_be_cancelled(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	uint64_t n = 0;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	clients_start(clients, 2, &d, cancelled, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	CHECK_EQ(hear(&clients[0]), READY);
	ncclsvc_task_info t = tasks_reach(s, NCCLSVC_WAITING_GROUP, 1);
	CHECK_EQ(t.rank, 0);
	CHECK_OK(ncclsvc_cancel_task(s, t.task, &n));
	CHECK_EQ(n, 1);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- The daemon is lost ---- */

static void through_a_restart(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, me->rank, d.other);
	ncclsvc_task held = submit_send(&d, 3);
	say(me, READY);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_reattach(d.s, WAIT_MS));
	CHECK_RESULT(ncclsvc_plan_submit_send(d.plan, d.v, 1, NCCLSVC_INT32, d.other, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	iterate(&d, me->rank, d.other);
	desk_close(&d);
}

static void plans_outlive_their_daemon(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, through_a_restart, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	daemon_restart(&d, NULL);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Inspection ---- */

static void inspected(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, me->rank, d.other);
	/* Rank 0: group 0 is complete, and so is the Recv of group 1. Rank 1: the Send of group
	 * 0. */
	submit_send(&d, 1);
	if (me->rank == 0) {
		submit_recv(&d, 1);
		submit_recv(&d, 2);
	}
	say(me, READY);
	hear(me);
	if (me->rank == 1) {
		submit_recv(&d, 1);
		submit_recv(&d, 2);
	}
	submit_send(&d, 1);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	say(me, READY);
	hear(me);
	desk_close(&d);
}

static void check_plan(const ncclsvc_plan_info *i, int rank, uint32_t running, uint32_t group,
		       uint32_t group_enqueued, uint32_t enqueued, uint64_t iterations)
{
	CHECK_EQ(i->rank, rank);
	CHECK_EQ(i->groups, 2);
	CHECK_EQ(i->tasks, 4);
	CHECK_EQ(i->running, running);
	CHECK_EQ(i->group, group);
	CHECK_EQ(i->group_tasks, 2);
	CHECK_EQ(i->group_enqueued, group_enqueued);
	CHECK_EQ(i->enqueued, enqueued);
	CHECK_EQ(i->iterations, iterations);
	CHECK_EQ(i->left, 0);
	CHECK(i->pid > 0 && i->plan > 0 && i->comm > 0 && i->session > 0);
}

/* Runs the ctl program in a separate process. */
static void ctl(const struct daemon *d, char *const *words, int code, const char *const *says)
{
	char out[8192];
	char *argv[16] = {(char *)program("NCCLSVC_CTL"), "--socket", (char *)d->socket};
	for (int i = 0; words[i]; i++)
		argv[3 + i] = words[i];
	CHECK_EQ(run_program(argv, out, sizeof(out)), code);
	for (; *says; says++)
		if (!strstr(out, *says))
			check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", *says, out);
}
#define WORDS(...) ((char *const[]){__VA_ARGS__, NULL})
#define SAYS(...)  ((const char *const[]){__VA_ARGS__, NULL})

static void programs_show_what_lacks(const struct daemon *d)
{
	ctl(d, WORDS("plan"), 0,
	    SAYS("group 0 of 2", "group 1: 1 of 2 enqueued", "group 0: 1 of 2 enqueued",
		 "Send to 1", "Recv \"act of 1\" from 0"));
	ctl(d, WORDS("plan", "--rank", "1", "--json"), 0,
	    SAYS("\"command\":\"plan\"", "\"rank\":1", "\"iterations\":1", "\"group_enqueued\":1",
		 "\"missing\":[{\"op\":\"Recv\",\"peer\":0,\"group\":0,\"task\":1,\"label\":\"act "
		 "of 1\"}]",
		 "\"terminated\":false"));
	ctl(d, WORDS("plan", "--rank", "7"), 0, SAYS("No plan matches."));
	ctl(d, WORDS("plan", "--pid", "7"), 2, SAYS("does not apply"));
	ctl(d, WORDS("tasks", "--state", "waiting-group", "--rank", "1"), 0,
	    SAYS("waiting-group", "Send \"grad of 1\""));
	ctl(d, WORDS("tasks", "--state", "waiting-group", "--json"), 0,
	    SAYS("\"plan_label\":\"grad of 1\"", "\"plan_label\":null"));
	ctl(d, WORDS("why", "--after", "0"), 3,
	    SAYS("the Recv \"act of 1\" from rank 0 in its plan's group 0", "\"grad of 1\""));
	ctl(d, WORDS("why", "--after", "0", "--json"), 3, SAYS("\"cause\":\"plan\""));
}

static void inspection_shows_what_lacks(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	ncclsvc_plan_info *plans = NULL;
	ncclsvc_plan_task_info *tasks = NULL;
	size_t n = 0;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	CHECK_EQ(n, 0);
	clients_start(clients, 2, &d, inspected, NULL);
	hear_all(clients, 2, READY);
	tasks_reach(s, NCCLSVC_WAITING_GROUP, 2);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	CHECK_EQ(n, 2);
	check_plan(&plans[0], 0, 0, 1, 1, 3, 1);
	check_plan(&plans[1], 1, 0, 0, 1, 1, 1);
	CHECK_EQ(plans[0].plan, plans[1].plan);
	ncclsvc_list_free(plans);
	CHECK_OK(ncclsvc_list_plan_tasks(s, &tasks, &n));
	CHECK_EQ(n, 8);
	static const uint8_t states[] = {2, 2, 1, 2, 2, 1, 1, 1};
	static const char *const labels[] = {"grad of 0", "act of 0", "", "",
					     "grad of 1", "act of 1", "", ""};
	for (unsigned i = 0; i < 8; i++) {
		CHECK_EQ(tasks[i].rank, i / 4);
		CHECK_EQ(tasks[i].group, i / 2 % 2);
		CHECK_EQ(tasks[i].task, i % 2);
		CHECK_EQ(tasks[i].op, i % 2 ? NCCLSVC_RECV : NCCLSVC_SEND);
		CHECK_EQ(tasks[i].peer, 1 - tasks[i].rank);
		CHECK_EQ(tasks[i].state, states[i]);
		CHECK_EQ(tasks[i].count, i % 2 ? UINT64_MAX : 1);
		CHECK(!strcmp(tasks[i].label, labels[i]));
	}
	ncclsvc_list_free(tasks);
	programs_show_what_lacks(&d);
	say_all(clients, 2, GO);
	hear_all(clients, 2, READY);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	check_plan(&plans[0], 0, 0, 0, 0, 0, 2);
	check_plan(&plans[1], 1, 0, 0, 0, 0, 2);
	ncclsvc_list_free(plans);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	CHECK_EQ(n, 0);
	ncclsvc_close(s);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(held_tasks_fail_when_a_member_dies),
		TEST(held_tasks_fail_when_a_member_leaves),
		TEST(an_iteration_outlasts_its_members),
		TEST(held_tasks_can_be_cancelled),
		TEST(plans_outlive_their_daemon),
		TEST(inspection_shows_what_lacks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
