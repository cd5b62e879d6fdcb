/* SPDX-License-Identifier: Apache-2.0
 * Several daemons: the results on other nodes when a rank or a node dies, is late, or submits
 * something different. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node_daemons.h"

enum { READY = 1, GO, DONE };

static void check_gone(ncclsvc_result result)
{
	if (result != NCCLSVC_PEER_GONE && result != NCCLSVC_STALE_EPOCH)
		check_failed(__FILE__, __LINE__, "%s: %s", ncclsvc_result_name(result),
			     ncclsvc_last_error());
}

/* ---- A process dies ---- */

static void rejoin_and_check(ncclsvc_session *s, ncclsvc_comm *comm, uint32_t epoch)
{
	CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
	CHECK(ncclsvc_comm_epoch(comm) > epoch);
	check_usable(s, comm);
	check_usable(s, comm);
}

static void restarted(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void survivor(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task tasks[3];
	check_usable(s, comm);
	v[0] = v[1] = me->rank + 1;
	if (me->rank == 1) {
		say(me, READY);
		CHECK_EQ(hear(me), GO); /* killed here */
	}
	CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &tasks[0]));
	CHECK_OK(ncclsvc_barrier(comm, &tasks[1]));
	CHECK_OK(ncclsvc_recv(v + 2, 1, NCCLSVC_INT32, 1, comm, &tasks[2]));
	say(me, READY);
	CHECK_RESULT(ncclsvc_wait(s, tasks[0], WAIT_MS), NCCLSVC_PEER_GONE);
	say(me, now_ns());
	ncclsvc_status st = status_of(s, tasks[0]);
	CHECK_EQ(st.rank_a, 1);
	say(me, (uint64_t)st.pid_a);
	wait_for(s, tasks[1], NCCLSVC_PEER_GONE);
	wait_for(s, tasks[2], NCCLSVC_PEER_GONE);
	CHECK_EQ(v[0], me->rank + 1);
	rejoin_and_check(s, comm, ncclsvc_comm_epoch(comm));
	ncclsvc_close(s);
}

static void a_killed_rank_fails_its_peers_on_all_nodes(void **state)
{
	struct cluster c;
	struct client clients[5];
	(void)state;
	cluster_start(&c, 3, NULL);
	cluster_clients(clients, 5, &c, IN_TURN, survivor, NULL);
	hear_all(clients, 5, READY);
	sleep_ms(50);
	pid_t victim = clients[1].pid;
	client_kill(&clients[1]);
	uint64_t killed = now_ns();
	for (int i = 0; i < 5; i++) {
		if (i == 1)
			continue;
		uint64_t told = hear(&clients[i]);
		CHECK_EQ(hear(&clients[i]), victim);
		print_message("rank %d heard of the death after %.1f ms\n", i,
			      ((double)told - (double)killed) / 1e6);
		CHECK(in_time(killed, told));
	}
	/* The rank comes back on another node. */
	clients[1].daemon = &c.nodes[2];
	client_start(&clients[1], restarted);
	clients_end(clients, 5);
	cluster_stop(&c);
}

/* ---- Death during heavy traffic ---- */

#define BIG ((size_t)24 << 20)

static void killed_at_work(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	char *a = shared(s, BIG), *b = shared(s, BIG);
	ncclsvc_task task;
	ncclsvc_result result = NCCLSVC_OK;
	say(me, READY);
	while (result == NCCLSVC_OK) {
		result = ncclsvc_all_reduce(a, b, BIG / 4, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm,
					    &task);
		if (result == NCCLSVC_OK)
			result = ncclsvc_wait(s, task, WAIT_MS);
	}
	check_gone(result);
	say(me, now_ns());
	rejoin_and_check(s, comm, ncclsvc_comm_epoch(comm));
	ncclsvc_close(s);
}

static void a_rank_killed_in_a_big_task_takes_nobody_along(void **state)
{
	struct cluster c;
	struct client clients[4];
	(void)state;
	time_limit(120);
	cluster_start(&c, 2, NULL);
	for (unsigned round = 0; round < 3; round++) {
		cluster_clients(clients, 4, &c, IN_TURN, killed_at_work, NULL);
		hear_all(clients, 4, READY);
		sleep_ms(30 + 17 * round);
		uint64_t killed = now_ns();
		client_kill(&clients[3]);
		for (int i = 0; i < 3; i++)
			print_message("rank %d heard after %.1f ms\n", i,
				      (double)(hear(&clients[i]) - killed) / 1e6);
		client_start(&clients[3], restarted);
		clients_end(clients, 4);
	}
	cluster_stop(&c);
}

/* ---- A daemon dies ---- */

static uint64_t uid_of(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_unique_id id;
	ncclsvc_comm_info *list;
	size_t n;
	uint64_t uid = 0;
	ncclsvc_comm_get_id(comm, &id);
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (!memcmp(list[i].id, id.bytes, sizeof(list[i].id)))
			uid = list[i].comm;
	ncclsvc_list_free(list);
	CHECK(uid);
	return uid;
}

/* Checks the placement that this node shows: rank r is on node r % 3. */
static void check_inspection(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_node_info *nodes;
	ncclsvc_member_info *members;
	size_t n;
	uint32_t self = (uint32_t)ncclsvc_comm_rank(comm) % 3;
	uint64_t uid = uid_of(s, comm);
	int seen = 0;
	CHECK_OK(ncclsvc_list_nodes(s, &nodes, &n));
	CHECK_EQ(n, 3);
	for (uint32_t i = 0; i < 3; i++) {
		CHECK_EQ(nodes[i].node, i);
		CHECK_EQ(nodes[i].state, i == self ? NCCLSVC_NODE_SELF : NCCLSVC_NODE_ALIVE);
		CHECK_EQ(nodes[i].messages > 0, i == self);
	}
	ncclsvc_list_free(nodes);
	CHECK_OK(ncclsvc_list_members(s, &members, &n));
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_member_info *m = &members[i];
		if (m->comm != uid)
			continue;
		uint32_t node = (uint32_t)m->rank % 3;
		CHECK_EQ(m->elsewhere, node == self ? 0 : node + 1);
		CHECK(m->pid > 0);
		seen++;
	}
	CHECK_EQ(seen, 4);
	ncclsvc_list_free(members);
}

static void check_names_the_node(void)
{
	if (!strstr(ncclsvc_last_error(), "node 2's daemon is gone"))
		check_failed(__FILE__, __LINE__, "'%s' does not name the node",
			     ncclsvc_last_error());
}

static void beside_a_dead_node(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *local = NULL;
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	check_usable(s, comm);
	/* One communicator per node; only ranks 0 and 3 share a node. */
	CHECK_OK(ncclsvc_comm_split(comm, me->rank % 3, 0, WAIT_MS, &local));
	check_usable(s, local);
	v[0] = 1;
	check_inspection(s, comm);
	if (me->rank == 2)
		sleep_ms(60000); /* its daemon dies, and this process is killed */
	CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	say(me, READY);
	CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_PEER_GONE);
	say(me, now_ns());
	ncclsvc_status st = status_of(s, task);
	CHECK_EQ(st.rank_a, 2);
	CHECK_EQ(st.field, NCCLSVC_FIELD_NODE);
	CHECK_EQ(st.value_a, 2);
	check_names_the_node();
	/* Later submissions fail too, and name the node. */
	while (ncclsvc_comm_error(comm) != NCCLSVC_PEER_GONE)
		sleep_ms(1);
	CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
	check_names_the_node();
	/* Inspection shows the lost node. */
	ncclsvc_node_info *nodes;
	size_t n;
	CHECK_OK(ncclsvc_list_nodes(s, &nodes, &n));
	CHECK_EQ(nodes[2].state, NCCLSVC_NODE_LOST);
	ncclsvc_list_free(nodes);
	/* Communicators without a member there continue. */
	check_usable(s, local);
	/* The survivors can form a new communicator. */
	CHECK_EQ(hear(me), GO);
	struct client rest = *me;
	rest.nranks = 3;
	rest.rank = me->rank == 3 ? 2 : me->rank;
	rest.id.bytes[0] ^= 1;
	ncclsvc_comm *smaller = comm_join(&rest, s);
	check_usable(s, smaller);
	ncclsvc_close(s);
}

static void a_killed_daemon_fails_what_is_across_it(void **state)
{
	struct cluster c;
	struct client clients[4];
	(void)state;
	cluster_start(&c, 3, NULL);
	cluster_clients(clients, 4, &c, IN_TURN, beside_a_dead_node, NULL);
	for (int i = 0; i < 4; i++)
		if (i != 2)
			CHECK_EQ(hear(&clients[i]), READY);
	sleep_ms(50);
	uint64_t killed = now_ns();
	cluster_kill(&c, 2);
	for (int i = 0; i < 4; i++) {
		if (i == 2)
			continue;
		uint64_t told = hear(&clients[i]);
		print_message("rank %d heard of the node's death after %.1f ms\n", i,
			      ((double)told - (double)killed) / 1e6);
		CHECK(in_time(killed, told));
	}
	client_kill(&clients[2]);
	for (int i = 0; i < 4; i++)
		if (i != 2)
			say(&clients[i], GO);
	clients_end(clients, 4);
	cluster_stop(&c);
}

/* ---- Disagreement and lateness ---- */

static void disagree(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 8192 * 4);
	ncclsvc_task task;
	size_t count = me->rank == 3 ? 5 : 4;
	/* Small data travels with the nodes' votes on the operation, large data in chunks
	 * afterwards: both are compared first. */
	for (size_t scale = 1; scale <= 1024; scale *= 1024) {
		CHECK_OK(ncclsvc_all_reduce(v, v, count * scale, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					    &task));
		wait_for(s, task, NCCLSVC_MISMATCH);
		ncclsvc_status st = status_of(s, task);
		CHECK_EQ(st.field, NCCLSVC_FIELD_COUNT);
		CHECK_EQ(st.rank_b, 3);
		CHECK_EQ(st.value_a, 4 * scale);
		CHECK_EQ(st.value_b, 5 * scale);
		/* As on one node, the mismatch fails only this task. */
		check_usable(s, comm);
	}
	/* A Send and its Recv. */
	if (me->rank == 0)
		CHECK_OK(ncclsvc_send(v, 2, NCCLSVC_INT32, 1, comm, &task));
	if (me->rank == 1)
		CHECK_OK(ncclsvc_recv(v, 3, NCCLSVC_INT32, 0, comm, &task));
	if (me->rank < 2) {
		wait_for(s, task, NCCLSVC_MISMATCH);
		CHECK_EQ(status_of(s, task).rank_a, 0);
		CHECK_EQ(status_of(s, task).rank_b, 1);
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_mismatch_is_the_same_on_all_nodes(void **state)
{
	struct cluster c;
	struct client clients[5];
	(void)state;
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 5, &c, IN_TURN, disagree, NULL);
	clients_end(clients, 5);
	cluster_stop(&c);
}

/* Checks that the status and the error name the late rank and its process. */
static void check_late(ncclsvc_session *s, const ncclsvc_status *st)
{
	ncclsvc_member_info *members;
	size_t n;
	bool found = false;
	char who[48];
	CHECK_EQ(st->rank_b, st->missing[0]);
	CHECK_OK(ncclsvc_list_members(s, &members, &n));
	for (size_t i = 0; i < n; i++)
		found |= members[i].rank == st->rank_b && members[i].pid == st->pid_b;
	ncclsvc_list_free(members);
	CHECK(found);
	snprintf(who, sizeof(who), "%d (pid %d)", st->rank_b, st->pid_b);
	CHECK(st->pid_b > 0 && strstr(ncclsvc_last_error(), who));
}

static void late(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	bool missing = me->rank == 1 || me->rank == 4;
	check_usable(s, comm);
	if (!missing) {
		/* Rank 0 submits last, and has the earliest deadline. */
		if (me->rank == 0)
			CHECK_EQ(hear(me), GO);
		uint64_t before = now_ns();
		CHECK_OK(ncclsvc_comm_set_timeout(comm, me->rank ? WAIT_MS : 300));
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		if (me->rank)
			say(me, DONE);
		wait_for(s, task, NCCLSVC_TIMEOUT);
		if (me->rank == 0)
			CHECK(now_ns() - before >= UINT64_C(290000000));
		ncclsvc_status st = status_of(s, task);
		check_late(s, &st);
		CHECK_EQ(st.missing_count, 2);
		CHECK_EQ(st.missing[0] + st.missing[1], 5);
		CHECK_OK(ncclsvc_comm_set_timeout(comm, -1));
	}
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (missing) { /* it matches a failed task, and fails in the same way */
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		wait_for(s, task, NCCLSVC_TIMEOUT);
	}
	check_usable(s, comm);
	/* A Recv whose Send is too late. */
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_comm_set_timeout(comm, 200));
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 1, comm, &task));
		wait_for(s, task, NCCLSVC_TIMEOUT);
		say(me, DONE);
		ncclsvc_status st = status_of(s, task);
		CHECK_EQ(st.missing[0], 1);
		CHECK_EQ(st.rank_b, 1);
		CHECK(st.pid_b > 0 && st.pid_b != me->pid);
		CHECK_OK(ncclsvc_comm_set_timeout(comm, -1));
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 1, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
		CHECK_EQ(*v, 77);
	} else if (me->rank == 1) {
		CHECK_EQ(hear(me), GO);
		*v = 66;
		CHECK_OK(ncclsvc_send(v, 1, NCCLSVC_INT32, 0, comm, &task));
		wait_for(s, task, NCCLSVC_TIMEOUT);
		*v = 77;
		CHECK_OK(ncclsvc_send(v, 1, NCCLSVC_INT32, 0, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void missing_ranks_on_other_nodes_are_named(void **state)
{
	struct cluster c;
	struct client clients[5];
	(void)state;
	cluster_start(&c, 3, NULL);
	cluster_clients(clients, 5, &c, IN_TURN, late, NULL);
	CHECK_EQ(hear(&clients[2]), DONE);
	CHECK_EQ(hear(&clients[3]), DONE);
	for (int i = 2; i < 4; i++) { /* each on a separate node */
		ncclsvc_session *s = session_open(clients[i].daemon);
		tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
		ncclsvc_close(s);
	}
	say(&clients[0], GO);
	hear_all(clients, 5, READY);
	say_all(clients, 5, GO);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], GO);
	clients_end(clients, 5);
	cluster_stop(&c);
}

/* ---- Joining ---- */

static void join_checks(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon), *other;
	ncclsvc_comm *comm, *taken;
	/* The missing ranks are named, even if another node gathers the members. */
	if (me->rank == 0) {
		ncclsvc_unique_id id = me->id;
		id.bytes[5] ^= 1;
		CHECK_RESULT(ncclsvc_comm_join(s, &id, 3, 0, 300, &comm), NCCLSVC_TIMEOUT);
		CHECK(strstr(ncclsvc_last_error(), "1, 2"));
	}
	comm = comm_join(me, s);
	/* Refused: a rank that another process holds, on this node or another; a different number
	 * of ranks. */
	other = session_open(me->daemon);
	CHECK_RESULT(ncclsvc_comm_join(other, &me->id, me->nranks, (me->rank + 1) % me->nranks,
				       WAIT_MS, &taken),
		     NCCLSVC_RANK_TAKEN);
	CHECK(strstr(ncclsvc_last_error(), "is held by pid"));
	CHECK_RESULT(ncclsvc_comm_join(other, &me->id, me->nranks + 1, me->nranks, WAIT_MS, &taken),
		     NCCLSVC_MISMATCH);
	check_usable(s, comm);
	ncclsvc_close(other);
	/* The world's ranks are numbered node by node. */
	ncclsvc_comm *world;
	CHECK_OK(ncclsvc_comm_world(s, -1, WAIT_MS, &world));
	CHECK_EQ(ncclsvc_comm_size(world), 4);
	int node = me->rank * 2 / me->nranks;
	CHECK_EQ(ncclsvc_comm_rank(world) / 2, node);
	check_usable(s, world);
	/* Splits across the nodes, and within each. */
	for (int across = 0; across < 2; across++) {
		ncclsvc_comm *part;
		int colour = across ? me->rank % 2 : node;
		CHECK_OK(ncclsvc_comm_split(comm, colour, -me->rank, WAIT_MS, &part));
		CHECK_EQ(ncclsvc_comm_size(part), 2);
		CHECK_EQ(ncclsvc_comm_rank(part), across ? 1 - node : 1 - me->rank % 2);
		check_usable(s, part);
		CHECK_OK(ncclsvc_comm_leave(part));
	}
	/* Rank 2 leaves: the others get an error, and begin a new epoch when it is back. */
	if (me->rank == 2) {
		CHECK_OK(ncclsvc_comm_leave(comm));
		sleep_ms(50);
		comm = comm_join(me, s);
	} else {
		int32_t *v = shared(s, 4);
		ncclsvc_task task;
		ncclsvc_result result =
			ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task);
		if (result == NCCLSVC_OK)
			result = ncclsvc_wait(s, task, WAIT_MS);
		check_gone(result);
		CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void joining_across_nodes_is_as_on_one(void **state)
{
	struct cluster c;
	struct client clients[4];
	(void)state;
	cluster_start(&c, 2, "--ranks", "2", NULL);
	cluster_clients(clients, 4, &c, IN_BLOCKS, join_checks, NULL);
	clients_end(clients, 4);
	cluster_stop(&c);
}

/* ---- A daemon that belonged to a cluster ---- */

/* Starts a daemon alone on the socket; returns its exit code, with its output in out. */
static int start_alone(const char *socket, const char *bootstrap, char *out, size_t size)
{
	char *argv[] = {"/usr/bin/timeout",
			"-s",
			"TERM",
			"--preserve-status",
			"5",
			(char *)(uintptr_t)program("NCCLSVCD"),
			"--device",
			"host",
			"--log-target",
			"stderr",
			"--socket",
			(char *)(uintptr_t)socket,
			"--cluster-bootstrap",
			(char *)(uintptr_t)bootstrap,
			NULL};
	return run_program(argv, out, size);
}

static void a_lost_daemon_does_not_come_back_alone(void **state)
{
	struct cluster c;
	char socket[108], out[8192];
	(void)state;
	cluster_start(&c, 2, "--ranks", "2", NULL);
	snprintf(socket, sizeof(socket), "%s", c.nodes[1].socket);
	cluster_kill(&c, 1);
	/* The killed daemon's lock is held until the kernel has closed its file. */
	do
		CHECK_EQ(start_alone(socket, "auto", out, sizeof(out)), 1);
	while (strstr(out, "another ncclsvcd serves"));
	CHECK(strstr(out, "was node 1 of 2, and did not exit with the other nodes"));
	CHECK(strstr(out, "--cluster-bootstrap none"));
	/* The daemon starts alone, as requested; from then on, also with auto. */
	CHECK_EQ(start_alone(socket, "none", out, sizeof(out)), 0);
	CHECK(strstr(out, "ready on"));
	CHECK_EQ(start_alone(socket, "auto", out, sizeof(out)), 0);
	cluster_stop(&c);
}

static void daemons_that_ended_together_may_be_alone(void **state)
{
	struct cluster c;
	char socket[108], dir[64], lock[128], admin_lock[128], kept[160], out[8192];
	(void)state;
	cluster_start(&c, 2, NULL);
	snprintf(socket, sizeof(socket), "%s", c.nodes[1].socket);
	snprintf(dir, sizeof(dir), "%s", c.dir);
	snprintf(lock, sizeof(lock), "%s.lock", socket);
	snprintf(admin_lock, sizeof(admin_lock), "%s.admin.lock", socket);
	/* Keeps the lock file, which cluster_stop removes: the daemons' note is in it. */
	snprintf(kept, sizeof(kept), "%s.kept", dir);
	CHECK_EQ(link(lock, kept), 0);
	cluster_stop(&c);
	CHECK_EQ(mkdir(dir, 0700), 0);
	CHECK_EQ(rename(kept, lock), 0);
	CHECK_EQ(start_alone(socket, "auto", out, sizeof(out)), 0);
	CHECK_EQ(unlink(lock), 0);
	CHECK_EQ(unlink(admin_lock), 0);
	CHECK_EQ(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_killed_rank_fails_its_peers_on_all_nodes),
		TEST(a_rank_killed_in_a_big_task_takes_nobody_along),
		TEST(a_killed_daemon_fails_what_is_across_it),
		TEST(a_mismatch_is_the_same_on_all_nodes),
		TEST(missing_ranks_on_other_nodes_are_named),
		TEST(joining_across_nodes_is_as_on_one),
		TEST(a_lost_daemon_does_not_come_back_alone),
		TEST(daemons_that_ended_together_may_be_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
