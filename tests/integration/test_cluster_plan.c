/* SPDX-License-Identifier: Apache-2.0
 * Plans with members on several nodes: large ones, and what happens when ranks and nodes die. */
#include <stdlib.h>

#include "node_daemons.h"
#include "plan_desk.h"

enum { READY = 1, GO, DONE };

static void run_on(int nodes, int ranks, client_main *main)
{
	struct cluster c;
	struct client clients[8];
	cluster_start(&c, nodes, NULL);
	cluster_clients(clients, ranks, &c, IN_TURN, main, NULL);
	clients_end(clients, ranks);
	cluster_stop(&c);
}

/* ---- Large plans ---- */

#define MANY 10000 /* tasks per rank: more than fit into one message */

/* Adds one group: a Send to the next rank, and a Recv from the previous one. */
static void plan_ring_step(ncclsvc_plan *p, int me, int n, ncclsvc_type type)
{
	CHECK_OK(ncclsvc_plan_group_start(p));
	CHECK_OK(ncclsvc_plan_send(p, 1, type, (me + 1) % n));
	CHECK_OK(ncclsvc_plan_recv(p, 1, NCCLSVC_INT32, (me + n - 1) % n));
	CHECK_OK(ncclsvc_plan_group_end(p));
}

static void ring_of_many(struct client *me)
{
	const int n = me->nranks, next = (me->rank + 1) % n, before = (me->rank + n - 1) % n;
	struct desk d;
	ncclsvc_task recv;
	desk_open(&d, me);
	for (int g = 0; g < MANY / 2; g++)
		plan_ring_step(d.plan, me->rank, n, NCCLSVC_INT32);
	launch(&d);
	int32_t *v = shared(d.s, 2 * sizeof(*v) * MANY);
	for (int round = 0; round < 2; round++) {
		for (int g = 0; g < MANY / 2; g++) {
			v[g] = me->rank * MANY + g + round;
			CHECK_OK(ncclsvc_plan_submit_send(d.plan, &v[g], 1, NCCLSVC_INT32, next,
							  NULL));
			CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &v[MANY + g], 1, NCCLSVC_INT32,
							  before, &recv));
			if (g % 256 == 255) /* the ring has no room for more groups */
				CHECK_OK(ncclsvc_plan_wait(d.plan, recv, WAIT_MS));
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		for (int g = 0; g < MANY / 2; g++)
			CHECK_EQ(v[MANY + g], before * MANY + g + round);
	}
	CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	/* The very last task of rank 1 does not match its peer's. */
	CHECK_OK(ncclsvc_plan_start(d.comm, &d.plan));
	for (int g = 0; g < MANY / 2; g++)
		plan_ring_step(d.plan, me->rank, n,
			       me->rank == 1 && g == MANY / 2 - 1 ? NCCLSVC_FLOAT32
								  : NCCLSVC_INT32);
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS("rank 1's Send to rank 2 in its group 4999 has 1 float32, but the Recv in "
		   "rank 2's group 4999 has 1 int32");
	desk_close(&d);
}

static void plans_of_many_tasks_cross_nodes(void **state)
{
	(void)state;
	run_on(3, 6, ring_of_many);
}

/* ---- A member dies, or leaves ---- */

static void exchange(struct desk *d, int32_t value)
{
	int32_t in = -1;
	CHECK_OK(ncclsvc_plan_submit_send(d->plan, &value, 1, NCCLSVC_INT32, d->other, NULL));
	CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d->plan, &in, 1, NCCLSVC_INT32, d->other,
						   WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d->plan, WAIT_MS));
	CHECK_EQ(in, value);
}

static void newcomer(struct client *me)
{
	struct desk d;
	exchange_desk(&d, me);
	exchange(&d, 7);
	desk_close(&d);
}

/* Rank 0 has submitted all of its group, rank 1 only half of its own. */
static void bereaved(struct client *me)
{
	struct desk d;
	int32_t in, out = 1;
	ncclsvc_task recv = 0;
	exchange_desk(&d, me);
	exchange(&d, 3);
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, NULL));
	if (me->rank == 0)
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, 1, &recv));
	say(me, READY);
	if (me->rank == 1) {
		CHECK_EQ(hear(me), GO); /* or it is killed here */
		CHECK_OK(ncclsvc_comm_leave(d.comm));
		CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
		ncclsvc_close(d.s);
		return;
	}
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, recv, WAIT_MS), NCCLSVC_PEER_GONE);
	say(me, now_ns());
	CHECK_EQ(status_of(d.s, recv).rank_a, 1);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_comm_rejoin(d.comm, WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS)); /* commits the plan again */
	exchange(&d, 7);
	desk_close(&d);
}

static void a_member_goes(bool dies)
{
	struct cluster c;
	struct client clients[2];
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 2, &c, IN_TURN, bereaved, NULL);
	hear_all(clients, 2, READY);
	sleep_ms(50);
	uint64_t then = now_ns();
	if (dies)
		client_kill(&clients[1]);
	else
		say(&clients[1], GO);
	print_message("noticed after %.1f ms\n", (double)(hear(&clients[0]) - then) / 1e6);
	if (!dies)
		clients_end(&clients[1], 1);
	client_start(&clients[1], newcomer);
	say(&clients[0], GO);
	clients_end(clients, 2);
	cluster_stop(&c);
}

static void other_nodes_learn_that_a_member_died(void **state)
{
	(void)state;
	a_member_goes(true);
}

static void other_nodes_learn_that_a_member_left(void **state)
{
	(void)state;
	a_member_goes(false);
}

/* ---- Unfinished tasks of one plan do not affect the next ---- */

static void leave_things_undone(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = -1;
	ncclsvc_task late;
	exchange_desk(&d, me);
	for (int round = 0; round < 20; round++) {
		/* Rank 0's group waits for rank 1's, which never comes: its deadline passes, or one
		 * of the two leaves the plan first. */
		CHECK_OK(ncclsvc_comm_set_timeout(d.comm, round % 2 ? 20 : -1));
		if (d.me == 0) {
			CHECK_OK(
				ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, &late));
			CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, 1, NULL));
			if (round % 2)
				CHECK_RESULT(ncclsvc_wait(d.s, late, WAIT_MS), NCCLSVC_TIMEOUT);
		}
		CHECK_OK(ncclsvc_comm_set_timeout(d.comm, -1));
		if (round % 2)
			check_usable(d.s, d.comm);
		ncclsvc_plan_terminate(d.plan, WAIT_MS);
		CHECK_OK(ncclsvc_plan_start(d.comm, &d.plan));
		plan_exchange(&d);
		launch(&d);
		exchange(&d, round);
	}
	desk_close(&d);
}

static void a_plan_begins_anew(void **state)
{
	(void)state;
	run_on(2, 2, leave_things_undone);
}

/* ---- A node goes ---- */

static void on_a_node_that_lives(struct client *me)
{
	struct desk d;
	int32_t out = 1, in;
	ncclsvc_task recv;
	exchange_desk(&d, me);
	exchange(&d, 3);
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, 1, &recv));
	}
	say(me, READY);
	if (me->rank == 1) { /* its daemon is killed */
		hear(me);
		exit(0);
	}
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, recv, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK_SAYS("node 1's daemon is gone");
	ncclsvc_plan_terminate(d.plan, WAIT_MS);
	ncclsvc_close(d.s);
}

static void a_node_that_goes_is_named(void **state)
{
	struct cluster c;
	struct client clients[2];
	(void)state;
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 2, &c, IN_TURN, on_a_node_that_lives, NULL);
	hear_all(clients, 2, READY);
	cluster_kill(&c, 1);
	clients_end(clients, 1);
	say(&clients[1], GO);
	clients_end(&clients[1], 1);
	cluster_stop(&c);
}

/* The node that gathered the members has no member itself: the epoch continues without that node.
 */
static void without_a_rendezvous(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	plan_exchange(&d);
	say(me, READY);
	if (me->rank == 1) /* rank 0 commits, and waits */
		CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_plan_end(d.plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d.plan));
	exchange(&d, 5);
	desk_close(&d);
}

static void the_gathering_node_goes(void **state)
{
	struct cluster c;
	struct client clients[2];
	uint64_t word;
	ncclsvc_unique_id id;
	(void)state;
	cluster_start(&c, 3, NULL);
	do {
		CHECK_OK(ncclsvc_unique_id_create(&id));
		memcpy(&word, &id, sizeof(word));
	} while (word % 3 != 2);
	for (int i = 0; i < 2; i++) {
		clients[i] = (struct client){
			.rank = i, .nranks = 2, .daemon = &c.nodes[i], .id = id, .link = -1};
		client_start(&clients[i], without_a_rendezvous);
	}
	hear_all(clients, 2, READY);
	clients_ask(clients, 1);
	cluster_kill(&c, 2);
	say(&clients[1], GO);
	clients_end(clients, 2);
	cluster_stop(&c);
}

/* ---- Inspection ---- */

static void idle_at_a_plan(struct client *me)
{
	struct desk d;
	exchange_desk(&d, me);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	desk_close(&d);
}

static void each_node_lists_its_own(void **state)
{
	struct cluster c;
	struct client clients[2];
	uint64_t uid = 0;
	(void)state;
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 2, &c, IN_TURN, idle_at_a_plan, NULL);
	hear_all(clients, 2, READY);
	for (int i = 0; i < 2; i++) {
		ncclsvc_plan_info *plans;
		ncclsvc_plan_task_info *tasks;
		size_t n;
		ncclsvc_session *s = session_open(&c.nodes[i]);
		CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
		CHECK_EQ(n, 1);
		CHECK_EQ(plans[0].rank, i);
		CHECK_EQ(plans[0].pid, clients[i].pid);
		CHECK(plans[0].plan && (!uid || plans[0].plan == uid)); /* the same on all nodes */
		uid = plans[0].plan;
		ncclsvc_list_free(plans);
		CHECK_OK(ncclsvc_list_plan_tasks(s, &tasks, &n));
		CHECK_EQ(n, 2);
		CHECK_EQ(tasks[0].rank, i);
		CHECK_EQ(tasks[0].peer, 1 - i);
		ncclsvc_list_free(tasks);
		ncclsvc_close(s);
	}
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	cluster_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(plans_of_many_tasks_cross_nodes),
		TEST(other_nodes_learn_that_a_member_died),
		TEST(other_nodes_learn_that_a_member_left),
		TEST(a_plan_begins_anew),
		TEST(a_node_that_goes_is_named),
		TEST(the_gathering_node_goes),
		TEST(each_node_lists_its_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
