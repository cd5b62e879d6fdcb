/* SPDX-License-Identifier: Apache-2.0
 * Several daemons: asked on any node, ncclsvc-ctl asks the others by itself. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "says.h"

#define NODES 3

enum { READY = 1, GO, DONE };

static void says_pid(const char *format, pid_t pid)
{
	char text[96];
	snprintf(text, sizeof(text), format, pid);
	said(text);
}

/* A communicator of its own for some of the ranks. */
static ncclsvc_comm *join_another(const struct client *me, ncclsvc_session *s, uint8_t number,
				  int nranks, int rank)
{
	ncclsvc_unique_id id = me->id;
	ncclsvc_comm *comm;
	id.bytes[100] ^= number;
	CHECK_OK(ncclsvc_comm_join(s, &id, nranks, rank, WAIT_MS, &comm));
	return comm;
}

/* ---- A rank that has posted nothing ---- */

static void all_but_the_last_post(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	wait_for(s, task, NCCLSVC_OK);
	say(me, DONE);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void one_has_posted_nothing(void **state)
{
	struct cluster c;
	struct client clients[6];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, 6, &c, IN_BLOCKS, all_but_the_last_post, NULL);
	hear_all(clients, 6, READY);
	say_all(clients, 5, GO);
	hear_all(clients, 5, READY);
	for (int node = 0; node < NODES; node++) {
		const struct daemon *d = &c.nodes[node];
		CHECK_EQ(REACHES(d, "rank 5 (pid ", "why", "--after", "0"), 3);
		says_pid("rank 5 (pid %d", clients[5].pid);
		said("ranks 0, 1, 2, 3 and 4 have submitted it");
		not_said("ask on node");
		not_said("not known here");
		CHECK_EQ(CTL(d, "why", "--after", "0", "--json"), 3);
		said("\"cause\":\"missing\"");
		says_pid("\"rank\":5,\"node\":2,\"pid\":%d,", clients[5].pid);
		said("\"nodes\":[]");
		said("\"answers\":[{\"node\":0,");
		CHECK_EQ(CTL(d, "tasks", "--json"), 0);
		said("\"node\":2,");
		said("\"waits_for\":[5],\"waits_count\":1,\"ask_nodes\":[],\"ask_count\":0");
		CHECK_EQ(CTL(d, "comms", "--members"), 0);
		not_said("not known here");
		said("NODE");
	}
	/* The state of its process is known to its own node. */
	process_stop(clients[5].pid);
	CHECK_EQ(REACHES(&c.nodes[0], "stopped", "why", "--after", "0"), 3);
	says_pid("rank 5 (pid %d", clients[5].pid);
	CHECK_EQ(CTL(&c.nodes[0], "why", "--after", "0", "--node", "2"), 3);
	says_pid("rank 5 (pid %d", clients[5].pid);
	CHECK_EQ(kill(clients[5].pid, SIGCONT), 0);
	say(&clients[5], GO);
	CHECK_EQ(hear(&clients[5]), READY);
	hear_all(clients, 6, DONE);
	say_all(clients, 6, GO);
	clients_end(clients, 6);
	CHECK_EQ(CTL(&c.nodes[0], "why", "--node", "9"), 5);
	cluster_stop(&c);
}

/* ---- Opposite orders ---- */

/* Rank 0 begins with the first communicator, rank 1 with the second. */
static void opposite_orders(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comms[2];
	ncclsvc_task tasks[2];
	for (uint8_t i = 0; i < 2; i++)
		comms[i] = join_another(me, s, i, 2, me->rank);
	CHECK_OK(ncclsvc_barrier(comms[me->rank], &tasks[0]));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_barrier(comms[!me->rank], &tasks[1]));
	wait_for(s, tasks[0], NCCLSVC_OK);
	wait_for(s, tasks[1], NCCLSVC_OK);
	ncclsvc_close(s);
}

static void opposite_orders_are_a_deadlock(void **state)
{
	struct cluster c;
	struct client clients[2];
	(void)state;
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 2, &c, IN_TURN, opposite_orders, NULL);
	hear_all(clients, 2, READY);
	for (int node = 0; node < 2; node++) {
		CHECK_EQ(REACHES(&c.nodes[node], "\"deadlock\"", "why", "--after", "0", "--json"),
			 3);
		says_pid("\"pid\":%d", clients[0].pid);
		says_pid("\"pid\":%d", clients[1].pid);
		CHECK_EQ(CTL(&c.nodes[node], "why", "--after", "0"), 3);
		said("deadlock");
		not_said("ask on node");
	}
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	cluster_stop(&c);
}

/* ---- A circle of Sends ---- */

/* Each node's rank sends to the next one, in a communicator of these two, before it receives. */
static void circle(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comms[NODES] = {NULL};
	ncclsvc_task send, recv;
	const int before = (me->rank + NODES - 1) % NODES;
	for (int i = 0; i < NODES; i++)
		if (i == me->rank || i == before)
			comms[i] = join_another(me, s, (uint8_t)i, 2, i != me->rank);
	char *v = shared(s, 4096);
	CHECK_OK(ncclsvc_send(v, 1024, NCCLSVC_INT8, 1, comms[me->rank], &send));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_recv(v + 2048, 1024, NCCLSVC_INT8, 0, comms[before], &recv));
	wait_for(s, send, NCCLSVC_OK);
	wait_for(s, recv, NCCLSVC_OK);
	ncclsvc_close(s);
}

static void a_circle_of_sends_is_a_deadlock(void **state)
{
	struct cluster c;
	struct client clients[NODES];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, NODES, &c, IN_TURN, circle, NULL);
	hear_all(clients, NODES, READY);
	for (int node = 0; node < NODES; node++) {
		CHECK_EQ(REACHES(&c.nodes[node], "\"deadlock\"", "why", "--after", "0", "--json"),
			 3);
		for (int i = 0; i < NODES; i++)
			says_pid("\"pid\":%d", clients[i].pid);
	}
	say_all(clients, NODES, GO);
	clients_end(clients, NODES);
	cluster_stop(&c);
}

/* ---- A daemon that does not answer ---- */

static void a_stopped_daemon_is_named_and_the_rest_shown(void **state)
{
	struct cluster c;
	struct client clients[6];
	char want[96];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, 6, &c, IN_BLOCKS, all_but_the_last_post, NULL);
	hear_all(clients, 6, READY);
	process_stop(c.nodes[2].pid);
	say_all(clients, 5, GO);
	hear_all(clients, 5, READY);
	snprintf(want, sizeof(want), "ncclsvcd's pid %d) does not answer", c.nodes[2].pid);
	for (int node = 0; node < 2; node++) {
		const struct daemon *d = &c.nodes[node];
		CHECK_EQ(CTL(d, "why", "--after", "0"), 3);
		said("has not been heard of for");
		not_said("ask on node");
		CHECK_EQ(CTL(d, "tasks"), 0);
		said(want);
		CHECK_EQ(CTL(d, "why", "--after", "0"), 3);
		said("ranks 0, 1, 2 and 3 have submitted it");
		said("ranks 4 and 5");
		CHECK_EQ(CTL(d, "tasks", "--json"), 0);
		said("\"result\":\"TIMEOUT\"");
		CHECK_EQ(CTL(d, "why", "--node", "2"), 4);
	}
	CHECK_EQ(kill(c.nodes[2].pid, SIGCONT), 0);
	REACHES(&c.nodes[0], "rank 5 (pid ", "why", "--after", "0");
	say(&clients[5], GO);
	CHECK_EQ(hear(&clients[5]), READY);
	hear_all(clients, 6, DONE);
	say_all(clients, 6, GO);
	clients_end(clients, 6);
	cluster_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_has_posted_nothing),
		TEST(opposite_orders_are_a_deadlock),
		TEST(a_circle_of_sends_is_a_deadlock),
		TEST(a_stopped_daemon_is_named_and_the_rest_shown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
