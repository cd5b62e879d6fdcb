/* SPDX-License-Identifier: Apache-2.0
 * Several daemons: ncclsvc-ctl on any node also shows what the other nodes know. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness_raw.h"
#include "says.h"

#define NODES 3

enum { READY = 1, GO, DONE };

static void says_pid(const char *format, pid_t pid)
{
	char text[96];
	snprintf(text, sizeof(text), format, pid);
	said(text);
}

/* Joins a further communicator, of some of the ranks. */
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
		CHECK_EQ(REACHES(d, "Ranks 0, 1, 2, 3 and 4 have waited ", "why", "--after", "0"),
			 3);
		says_pid("rank 5 (pid %d", clients[5].pid);
		not_said("cannot see");
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
	/* Only rank 5's node knows the state of its process; node 0 asks it. */
	process_stop(clients[5].pid);
	CHECK_EQ(REACHES(&c.nodes[0], "is stopped by a signal", "why", "--after", "0"), 3);
	says_pid("rank 5 (pid %d", clients[5].pid);
	says_pid("Next: `kill -CONT %d` on host ", clients[5].pid);
	CHECK_EQ(CTL(&c.nodes[0], "why", "--after", "0", "--node", "2"), 3);
	says_pid("rank 5 (pid %d", clients[5].pid);
	CHECK_EQ(kill(clients[5].pid, SIGCONT), 0);
	say(&clients[5], GO);
	CHECK_EQ(hear(&clients[5]), READY);
	hear_all(clients, 6, DONE);
	say_all(clients, 6, GO);
	clients_end(clients, 6);
	CHECK_EQ(CTL(&c.nodes[0], "why", "--node", "9"), 5);
	/* Other lists come from one node. */
	CHECK_EQ(CTL(&c.nodes[0], "sessions", "--node", "2"), 0);
	not_said("ncclsvc-ctl"); /* it is a session of this node */
	CHECK_EQ(CTL(&c.nodes[0], "devices", "--node", "9"), 1);
	said("there is no node 9");
	CHECK_EQ(CTL(&c.nodes[0], "sessions", "--node", "all"), 2);
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
	cluster_start(&c, NODES, NULL); /* one node has no rank */
	cluster_clients(clients, 2, &c, IN_TURN, opposite_orders, NULL);
	hear_all(clients, 2, READY);
	for (int node = 0; node < NODES; node++) {
		CHECK_EQ(REACHES(&c.nodes[node], "\"deadlock\"", "why", "--after", "0", "--json"),
			 3);
		says_pid("\"pid\":%d", clients[0].pid);
		says_pid("\"pid\":%d", clients[1].pid);
		CHECK_EQ(REACHES(&c.nodes[node], "Deadlock for ", "why", "--after", "0"), 3);
		not_said("cannot see");
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
		REACHES(d, "Ranks 0, 1, 2 and 3 have waited ", "why", "--after", "0");
		said("has sent nothing for");
		said("Next: `ncclsvc-ctl why` on host ");
		CHECK_EQ(CTL(d, "tasks"), 0);
		said(want);
		CHECK_EQ(CTL(d, "why", "--after", "0"), 3);
		said("Ranks 0, 1, 2 and 3 have waited ");
		said("ranks 4 and 5");
		CHECK_EQ(CTL(d, "tasks", "--json"), 0);
		said("\"result\":\"TIMEOUT\"");
		CHECK_EQ(CTL(d, "why", "--node", "2"), 4);
		CHECK_EQ(CTL(d, "failures"), 0);
		said(want);
		said("Failures that no other node recorded are missing.");
		CHECK_EQ(CTL(d, "lateness"), 0);
		said(want);
		said("Its ranks are missing.");
		CHECK_EQ(CTL(d, "lateness", "--json"), 0);
		said("\"result\":\"TIMEOUT\"");
		CHECK_EQ(CTL(d, "failures", "--node", "2"), 4);
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

/* ---- A failure that all nodes have recorded ---- */

/* The last rank is killed while the others wait for it. */
static void all_but_the_last_wait(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	check_usable(s, comm);
	if (me->rank < 2 * NODES - 1)
		CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static size_t count(const char *what)
{
	size_t n = 0;
	for (const char *at = out; (at = strstr(at, what)); at += strlen(what))
		n++;
	return n;
}

static void a_failure_is_shown_once(void **state)
{
	struct cluster c;
	struct client clients[2 * NODES];
	char culprit[64];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, 2 * NODES, &c, IN_BLOCKS, all_but_the_last_wait, NULL);
	hear_all(clients, 2 * NODES, READY);
	const pid_t pid = clients[5].pid;
	snprintf(culprit, sizeof(culprit), "\"culprit\":{\"rank\":5,\"pid\":%d,", pid);
	REACHES(&c.nodes[0], "\"total\":5,", "tasks", "--json");
	client_kill(&clients[5]);
	for (int node = 0; node < NODES; node++) {
		const struct daemon *d = &c.nodes[node];
		CHECK_EQ(REACHES(d, "\"also\":[{\"node\":0,\"failure\":1},{\"node\":1,", "failures",
				 "--json"),
			 0);
		said("\"failures\":[{\"node\":2,\"failure\":1,"); /* the culprit's own node */
		said("\"pending\":5,");
		said("\"answers\":[{\"node\":0,");
		CHECK_EQ(count(culprit), 1);
		CHECK_EQ(CTL(d, "failures"), 0);
		says_pid("rank 5 (pid %d", pid);
		said("Also recorded as 1@0, 1@1; in all, 5 pending tasks failed.");
		CHECK_EQ(CTL(d, "failures", "--node", "1", "--json"), 0);
		said("\"failures\":[{\"node\":1,\"failure\":1,\"also\":[],");
		said("\"pending\":2,");
		CHECK_EQ(CTL(d, "failures", "--follow", "--node", "all"), 2);
	}
	say_all(clients, 2 * NODES - 1, GO);
	clients_end(clients, 2 * NODES - 1);
	cluster_stop(&c);
}

/* ---- Requests from one daemon to another ---- */

#define USER_MAX 16 /* limit of such requests per user */

static uint32_t ask(struct raw *r, uint32_t what, uint32_t node)
{
	struct svc_list list = {.what = what, .node = 1 + node};
	return raw_send(r, SVC_LIST, &list, sizeof(list), NULL, 0);
}

static void is_refused(struct raw *r, uint32_t what, uint32_t node, ncclsvc_result result)
{
	struct svc_list list = {.what = what, .node = 1 + node};
	raw_refused(r, SVC_LIST, &list, sizeof(list), NULL, 0, result, "");
}

static int result_of(struct raw *r, uint32_t request_id)
{
	struct raw_reply reply;
	raw_reply_to(r, request_id, &reply);
	return reply.header.result;
}

static void requests_to_a_silent_node_end(void **state)
{
	struct cluster c;
	struct raw r[USER_MAX], more;
	struct raw_reply reply;
	uint32_t request_id[USER_MAX];
	(void)state;
	cluster_start(&c, 2, NULL);
	const struct daemon *d = &c.nodes[0];
	raw_open(&more, d);
	is_refused(&more, SVC_LIST_COMMS, 2, NCCLSVC_INVALID_ARGUMENT);
	is_refused(&more, 999, 1, NCCLSVC_INVALID_ARGUMENT);
	process_stop(c.nodes[1].pid);
	const uint64_t begin = now_ns();
	for (int i = 0; i < USER_MAX; i++) {
		raw_open(&r[i], d);
		request_id[i] = ask(&r[i], SVC_LIST_COMMS, 1);
		if (!i)
			is_refused(&r[0], SVC_LIST_COMMS, 1, NCCLSVC_BUSY);
	}
	/* When this is answered, the daemon has handled the requests before it. */
	CHECK_EQ(result_of(&r[USER_MAX - 1], ask(&r[USER_MAX - 1], SVC_LIST_COMMS, 0)), 0);
	is_refused(&more, SVC_LIST_COMMS, 1, NCCLSVC_BUSY);
	/* A session that ends no longer counts against the user's limit. */
	raw_close(&r[1]);
	uint32_t late;
	do {
		late = ask(&more, SVC_LIST_SESSIONS, 1);
		struct raw_reply busy;
		struct pollfd p = {.fd = more.sock, .events = POLLIN};
		if (!poll(&p, 1, 200))
			break;
		raw_reply_to(&more, late, &busy);
		CHECK(busy.header.result == NCCLSVC_BUSY || busy.header.result == NCCLSVC_TIMEOUT);
		if (busy.header.result == NCCLSVC_TIMEOUT)
			late = 0;
	} while (late && now_ns() - begin < WAIT_MS * 1000000ull);
	for (int i = 0; i < USER_MAX; i++)
		if (i != 1)
			CHECK_EQ(result_of(&r[i], request_id[i]), NCCLSVC_TIMEOUT);
	CHECK(now_ns() - begin >= 500000000);
	if (late)
		CHECK_EQ(result_of(&more, late), NCCLSVC_TIMEOUT);
	/* The node's late answers are dropped. */
	CHECK_EQ(kill(c.nodes[1].pid, SIGCONT), 0);
	uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	do {
		raw_reply_to(&r[0], ask(&r[0], SVC_LIST_MEMBERS, 1), &reply);
		CHECK(now_ns() < end);
	} while (reply.header.result);
	CHECK_EQ(reply.list.what, SVC_LIST_MEMBERS);
	CHECK_EQ(reply.list.record_size, sizeof(ncclsvc_member_info));
	/* The silent node is killed. */
	process_stop(c.nodes[1].pid);
	request_id[0] = ask(&r[0], SVC_LIST_COMMS, 1);
	CHECK_EQ(result_of(&r[2], ask(&r[2], SVC_LIST_COMMS, 0)), 0);
	CHECK_EQ(kill(c.nodes[1].pid, SIGKILL), 0);
	c.nodes[1].pid = 0;
	CHECK_EQ(result_of(&r[0], request_id[0]), NCCLSVC_PEER_GONE);
	is_refused(&r[0], SVC_LIST_COMMS, 1, NCCLSVC_PEER_GONE);
	raw_close(&more);
	for (int i = 0; i < USER_MAX; i++)
		if (i != 1)
			raw_close(&r[i]);
	CHECK_EQ(REACHES(d, "has gone", "why"), 0);
	cluster_stop(&c);
}

/* ---- Other users' communicators ---- */

static void a_stranger_asks(struct client *me)
{
	static const uint8_t none[NCCLSVC_ID_BYTES];
	ncclsvc_comm_info *comms;
	ncclsvc_session_info *sessions;
	size_t n, nsessions, named = 0;
	CHECK_EQ(seteuid(65534), 0);
	ncclsvc_session *s = session_open(me->daemon);
	CHECK_OK(ncclsvc_list_from(s, 1));
	CHECK_OK(ncclsvc_list_comms(s, &comms, &n));
	CHECK_OK(ncclsvc_list_sessions(s, &sessions, &nsessions));
	CHECK(n > 0 && nsessions > 0);
	for (size_t i = 0; i < n; i++) {
		CHECK(!memcmp(comms[i].id, none, sizeof(none)));
		named += comms[i].cluster_comm != 0;
	}
	CHECK_EQ(named, n);
	for (size_t i = 0; i < nsessions; i++)
		CHECK_EQ(sessions[i].process_state, 0);
	ncclsvc_list_free(comms);
	ncclsvc_list_free(sessions);
	ncclsvc_close(s);
}

static void all_join(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void another_node_shows_a_user_his_own(void **state)
{
	struct cluster c;
	struct client clients[2], stranger;
	ncclsvc_session_info *sessions;
	ncclsvc_comm_info *comms[2];
	size_t n[2], same = 0, seen = 0, nsessions;
	(void)state;
	if (geteuid())
		skip();
	cluster_start(&c, 2, "--access", "any", NULL);
	CHECK_EQ(chmod(c.dir, 0711), 0);
	cluster_clients(clients, 2, &c, IN_TURN, all_join, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&c.nodes[0]);
	for (int node = 0; node < 2; node++) {
		CHECK_OK(ncclsvc_list_from(s, node));
		CHECK_OK(ncclsvc_list_comms(s, &comms[node], &n[node]));
	}
	for (size_t i = 0; i < n[0]; i++)
		for (size_t k = 0; k < n[1]; k++) {
			const bool one = !memcmp(comms[0][i].id, comms[1][k].id, NCCLSVC_ID_BYTES);
			CHECK_EQ(one, comms[0][i].cluster_comm == comms[1][k].cluster_comm);
			same += one;
		}
	CHECK(same > 0);
	CHECK_OK(ncclsvc_list_sessions(s, &sessions, &nsessions));
	for (size_t i = 0; i < nsessions; i++)
		seen += sessions[i].pid == clients[1].pid && sessions[i].process_state;
	CHECK_EQ(seen, 1);
	ncclsvc_list_free(comms[0]);
	ncclsvc_list_free(comms[1]);
	ncclsvc_list_free(sessions);
	ncclsvc_close(s);
	clients_start(&stranger, 1, &c.nodes[0], a_stranger_asks, NULL);
	clients_end(&stranger, 1);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	cluster_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_has_posted_nothing),
		TEST(opposite_orders_are_a_deadlock),
		TEST(a_circle_of_sends_is_a_deadlock),
		TEST(a_stopped_daemon_is_named_and_the_rest_shown),
		TEST(a_failure_is_shown_once),
		TEST(requests_to_a_silent_node_end),
		TEST(another_node_shows_a_user_his_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
