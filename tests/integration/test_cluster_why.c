/* SPDX-License-Identifier: Apache-2.0
 * Several daemons: inspection shows what this node knows about other nodes' members, and no more.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire.h"
#include "says.h"

#define RANKS 6
#define NODES 3

enum { READY = 1, GO, DONE };

/* Waits until the node's own list of tasks contains `what`. */
static void local_tasks_reach(const struct daemon *d, const char *what)
{
	REACHES(d, what, "tasks", "--json", "--node", "local");
}

/* Waits until `why` says this: on a busy machine, a node may be silent for a while. */
static void why_reaches(const struct daemon *d, const char *nodes, const char *format,
			const char *what)
{
	CHECK_EQ(REACHES(d, what, "why", "--after", "0", "--node", (char *)nodes, (char *)format),
		 3);
}

/* Every line of the common log names its node, once the daemons know their numbers. */
static void check_log_lines(const struct cluster *c)
{
	static const char *const levels[] = {"Z info: ", "Z warning: ", "Z error: "};
	char line[1024];
	int n = 0;
	FILE *f = fopen(c->log, "re");
	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		for (int i = 0; i < 3; i++) {
			const char *at = strstr(line, levels[i]);
			if (at && !strstr(at, "form a cluster") &&
			    strncmp(at + strlen(levels[i]), "node ", 5) != 0)
				check_failed(__FILE__, __LINE__, "no node: %s", line);
			n += at != NULL;
		}
	}
	fclose(f);
	CHECK(n >= c->n);
}

/* ---- A rank that is stopped ---- */

/* Joins, waits for GO, and reduces with the others. */
static ncclsvc_session *reduce_with_all(struct client *me, ncclsvc_comm **comm, int32_t **v)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_task task;
	*comm = comm_join(me, s);
	*v = shared(s, 64);
	check_usable(s, *comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	**v = 1;
	CHECK_OK(ncclsvc_all_reduce(*v, *v, 1, NCCLSVC_INT32, NCCLSVC_SUM, *comm, &task));
	say(me, READY);
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(**v, RANKS);
	return s;
}

static void one_is_stopped(struct client *me)
{
	ncclsvc_comm *comm;
	int32_t *v;
	ncclsvc_task task;
	ncclsvc_session *s = reduce_with_all(me, &comm, &v);
	/* A Recv from another node. */
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 4, comm, &task));
		say(me, READY);
		wait_for(s, task, NCCLSVC_OK);
	} else if (me->rank == 4) {
		CHECK_EQ(hear(me), GO);
		CHECK_OK(ncclsvc_send(v, 1, NCCLSVC_INT32, 0, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
	}
	say(me, DONE);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void a_stopped_rank_is_blamed_where_it_is_known(void **state)
{
	struct cluster c;
	struct client clients[RANKS];
	char text[64];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, RANKS, &c, IN_BLOCKS, one_is_stopped, NULL);
	hear_all(clients, RANKS, READY);
	process_stop(clients[5].pid);
	say_all(clients, RANKS - 1, GO);
	hear_all(clients, RANKS - 1, READY);
	/* Nodes 0 and 1 know that each other's ranks have submitted; of node 2's ranks they know
	 * nothing. */
	for (int node = 0; node < 2; node++) {
		const struct daemon *d = &c.nodes[node];
		local_tasks_reach(d, "\"waits_for\":[],\"waits_count\":0,\"ask_nodes\":[2]");
		CHECK_EQ(CTL(d, "tasks", "--node", "local"), 0);
		said("ask node 2 (");
		why_reaches(d, "local", "--json", "\"cause\":\"elsewhere\"");
		said("\"culprits\":[]");
		said("\"nodes\":[{\"node\":2,");
		why_reaches(d, "local", NULL, "This node cannot see ranks 4 and 5 on node 2 (");
		said("Next: `ncclsvc-ctl why` on host ");
		not_said("has not called");
		not_said("SIGCONT");
		for (int i = 0; i < RANKS; i++) {
			snprintf(text, sizeof(text), "pid %d", clients[i].pid);
			not_said(text);
		}
		CHECK_EQ(CTL(d, "comms", "--members", "--node", "local"), 0);
		said("not known here");
		CHECK_EQ(CTL(d, "comms", "--json", "--node", "local"), 0);
		said("\"node\":2,\"submitted\":null,\"completed\":null,\"waiting_ns\":null");
	}
	/* Node 2 names its rank. */
	local_tasks_reach(&c.nodes[2], "\"waits_for\":[5],\"waits_count\":1,\"ask_nodes\":[]");
	CHECK_EQ(CTL(&c.nodes[2], "why", "--after", "0"), 3);
	snprintf(text, sizeof(text), "rank 5 (pid %d", clients[5].pid);
	said(text);
	snprintf(text, sizeof(text), "Next: `kill -CONT %d`", clients[5].pid);
	said(text);
	CHECK_EQ(kill(clients[5].pid, SIGCONT), 0);
	say(&clients[5], GO);
	CHECK_EQ(hear(&clients[5]), READY);
	/* Node 0 does not blame a Recv's peer on another node either. */
	CHECK_EQ(hear(&clients[0]), READY);
	local_tasks_reach(&c.nodes[0], "\"waits_for\":[],\"waits_count\":0,\"ask_nodes\":[2]");
	why_reaches(&c.nodes[0], "local", NULL, "This node cannot see rank 4 on node 2 (");
	said("in Recv #");
	not_said("has not called");
	say(&clients[4], GO);
	hear_all(clients, RANKS, DONE);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	check_log_lines(&c);
	cluster_stop(&c);
}

/* ---- A daemon that is stopped ---- */

static void all_submit(struct client *me)
{
	ncclsvc_comm *comm;
	int32_t *v;
	ncclsvc_session *s = reduce_with_all(me, &comm, &v);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

/* Waits until the node reports, or no longer reports, that another one is silent. */
static void silence_is(const struct daemon *d, bool silent)
{
	bool is = !silent;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; is != silent; sleep_ms(20)) {
		CHECK(now_ns() < end);
		CHECK_EQ(CTL(d, "status"), 0);
		is = strstr(out, "has not been heard of for");
	}
}

static void a_stopped_daemon_is_the_first_suspect(void **state)
{
	struct cluster c;
	struct client clients[RANKS];
	char host[64], want[160];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, RANKS, &c, IN_BLOCKS, all_submit, NULL);
	hear_all(clients, RANKS, READY);
	silence_is(&c.nodes[0], false);
	uint64_t stopped = now_ns();
	process_stop(c.nodes[2].pid);
	say_all(clients, RANKS, GO);
	hear_all(clients, RANKS, READY);
	for (int node = 0; node < 2; node++) {
		silence_is(&c.nodes[node], true);
		CHECK(now_ns() - stopped >= 500000000);
		/* On a busy machine, its earlier messages may arrive only now. */
		why_reaches(&c.nodes[node], "local", "--json", "\"cause\":\"silent\"");
		said("\"culprits\":[]");
		said("\"nodes\":[{\"node\":2,\"host\":\"");
		CHECK_EQ(gethostname(host, sizeof(host)), 0);
		snprintf(want, sizeof(want), "ode 2 (%s, ncclsvcd pid %d) has sent nothing for",
			 host, c.nodes[2].pid);
		why_reaches(&c.nodes[node], "local", NULL, want);
	}
	CHECK_EQ(kill(c.nodes[2].pid, SIGCONT), 0);
	/* A node that was stopped itself does not count that time as the others' silence. */
	CHECK_EQ(CTL(&c.nodes[2], "status"), 0);
	not_said("has not been heard of");
	for (int node = 0; node < NODES; node++)
		silence_is(&c.nodes[node], false);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	cluster_stop(&c);
}

/* ---- Ranks that have not joined ---- */

static void all_but_one_join(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm;
	if (me->rank == 3)
		CHECK_EQ(hear(me), GO);
	comm = comm_join(me, s);
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

/* Waits until that many of the node's own ranks are joining. */
static void join_here(const struct daemon *d, size_t ranks)
{
	ncclsvc_session *s = session_open(d);
	ncclsvc_member_info *members;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(10)) {
		size_t n, here = 0;
		CHECK_OK(ncclsvc_list_members(s, &members, &n));
		for (size_t i = 0; i < n; i++)
			here += members[i].state == NCCLSVC_MEMBER_JOINING && !members[i].elsewhere;
		ncclsvc_list_free(members);
		if (here == ranks)
			break;
		CHECK(now_ns() < end);
	}
	ncclsvc_close(s);
}

/* The node that gathers the members, according to node 0; it may be node 0 itself. */
static int gathered_on(const struct cluster *c)
{
	CHECK_EQ(CTL(&c->nodes[0], "comms", "--node", "local"), 0);
	const char *at = strstr(out, "ask node ");
	return at ? atoi(at + strlen("ask node ")) : 0;
}

static void who_has_joined_on_other_nodes_is_known_where_they_gather(void **state)
{
	struct cluster c;
	struct client clients[RANKS];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, RANKS, &c, IN_BLOCKS, all_but_one_join, NULL);
	for (int node = 0; node < NODES; node++)
		join_here(&c.nodes[node], node == 1 ? 1 : 2);
	int rendezvous = gathered_on(&c);
	CHECK(rendezvous < NODES);
	for (int node = 0; node < NODES; node++) {
		if (node == rendezvous) {
			why_reaches(&c.nodes[node], "local", NULL,
				    "ranks 0, 1, 2, 4 and 5 have joined; rank 3 has not.");
			continue;
		}
		why_reaches(&c.nodes[node], "local", NULL, "This node cannot see ");
		not_said("have not");
		not_said("rank 3 has not.");
		said("Next: `ncclsvc-ctl why` on host ");
		CHECK_EQ(CTL(&c.nodes[node], "comms", "--members", "--node", "local"), 0);
		said("unknown");
		not_said("absent");
		CHECK_EQ(CTL(&c.nodes[node], "comms", "--node", "local"), 0);
		said("ask node ");
	}
	for (int node = 0; node < NODES; node++) {
		why_reaches(&c.nodes[node], "all", NULL,
			    "ranks 0, 1, 2, 4 and 5 have joined; rank 3 has not.");
		not_said("ask on node");
	}
	say(&clients[3], GO);
	hear_all(clients, RANKS, READY);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	cluster_stop(&c);
}

/* Node 2 gathers the members, and has none of them in the end. */
static void no_member_of_the_coordinators_node_joins(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm;
	me->id.bytes[0] = 2; /* node 2 gathers the members: see cluster_rendezvous */
	memset(me->id.bytes + 1, 0, SVC_RENDEZVOUS_AT + 8 - 1); /* no daemon has made it */
	if (me->rank == 1)
		CHECK_EQ(hear(me), GO);
	comm = comm_join(me, s);
	check_usable(s, comm);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void a_coordinator_without_members_shows_them(void **state)
{
	struct cluster c;
	struct client clients[3];
	(void)state;
	cluster_start(&c, NODES, NULL);
	cluster_clients(clients, 3, &c, IN_BLOCKS, no_member_of_the_coordinators_node_joins, NULL);
	/* Rank 2 is on node 2: it is killed, and restarted on node 0. */
	join_here(&c.nodes[0], 1);
	join_here(&c.nodes[2], 1);
	client_kill(&clients[2]);
	join_here(&c.nodes[2], 0);
	clients[2].daemon = &c.nodes[0];
	client_start(&clients[2], no_member_of_the_coordinators_node_joins);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(20)) {
		int code = CTL(&c.nodes[2], "why", "--after", "0");
		if (code == 3 && strstr(out, "ranks 0 and 2 have joined; rank 1 has not."))
			break;
		if (now_ns() > end)
			said("ranks 0 and 2 have joined; rank 1 has not.");
	}
	why_reaches(&c.nodes[0], "local", NULL, "node 2 (");
	said("gathers them");
	say(&clients[1], GO);
	say_all(clients, 3, GO);
	clients_end(clients, 3);
	cluster_stop(&c);
}

/* ---- A deadline ---- */

/* Times out a task behind another one: of the ranks for which the first task waits, only those on
 * the same node are named. */
static void one_is_late(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task first, second;
	check_usable(s, comm);
	if (me->rank == 1)
		CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_barrier(comm, &first));
	CHECK_OK(ncclsvc_comm_set_timeout(comm, me->rank ? WAIT_MS : 200));
	CHECK_OK(ncclsvc_barrier(comm, &second));
	wait_for(s, second, NCCLSVC_TIMEOUT);
	ncclsvc_status st = status_of(s, second);
	CHECK_EQ(st.missing_count, 1);
	CHECK_EQ(st.missing[0], 1);
	if (me->rank == 0)
		say(me, READY);
	wait_for(s, first, NCCLSVC_OK);
	CHECK_OK(ncclsvc_comm_set_timeout(comm, -1));
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_late_task_names_no_rank_of_another_node(void **state)
{
	struct cluster c;
	struct client clients[4];
	(void)state;
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 4, &c, IN_BLOCKS, one_is_late, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	say(&clients[1], GO);
	clients_end(clients, 4);
	cluster_stop(&c);
}

/* The node that gathers the members is stopped: none of them is reported as missing. */
static void coordinator_is_stopped(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm;
	me->id.bytes[0] = 2; /* node 2 gathers the members: see cluster_rendezvous */
	memset(me->id.bytes + 1, 0, SVC_RENDEZVOUS_AT + 8 - 1); /* no daemon has made it */
	CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 2, me->rank, 200, &comm), NCCLSVC_TIMEOUT);
	if (!strstr(ncclsvc_last_error(), "node 2 (") ||
	    !strstr(ncclsvc_last_error(), "does not answer"))
		check_failed(__FILE__, __LINE__, "not node 2: %s", ncclsvc_last_error());
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	comm = comm_join(me, s);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_join_names_the_coordinator_that_does_not_answer(void **state)
{
	struct cluster c;
	struct client clients[2];
	(void)state;
	cluster_start(&c, NODES, NULL);
	process_stop(c.nodes[2].pid);
	cluster_clients(clients, 2, &c, IN_TURN, coordinator_is_stopped, NULL);
	hear_all(clients, 2, READY);
	CHECK_EQ(kill(c.nodes[2].pid, SIGCONT), 0);
	/* Node 2 reads the joins that have been withdrawn meanwhile. */
	ncclsvc_close(session_open(&c.nodes[2]));
	sleep_ms(300);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	cluster_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_stopped_rank_is_blamed_where_it_is_known),
		TEST(a_stopped_daemon_is_the_first_suspect),
		TEST(who_has_joined_on_other_nodes_is_known_where_they_gather),
		TEST(a_coordinator_without_members_shows_them),
		TEST(a_late_task_names_no_rank_of_another_node),
		TEST(a_join_names_the_coordinator_that_does_not_answer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
