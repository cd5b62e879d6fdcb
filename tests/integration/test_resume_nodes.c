/* SPDX-License-Identifier: Apache-2.0
 * Restarts that need several nodes: large operations between nodes are in flight, all daemons
 * end at once, or one stays away. */
#include <signal.h>
#include <string.h>

#include "node_daemons.h"
#include "resume_programs.h"

#define LARGE (1 << 18) /* elements, 1 MiB */

/* Large sums and messages, some of them in flight whenever a daemon ends. */
static void work_on_large(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *in = shared(s, 3 * LARGE * sizeof(*in));
	int32_t *out = in + LARGE, *received = out + LARGE;
	const int next = (me->rank + 1) % RANKS, prev = (me->rank + RANKS - 1) % RANKS;
	ncclsvc_task sum, send, recv;
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		for (int i = 0; i < LARGE; i++)
			in[i] = value_of(me->rank, round, i);
		CHECK_OK(
			ncclsvc_all_reduce(in, out, LARGE, NCCLSVC_INT32, NCCLSVC_SUM, comm, &sum));
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_send(in, LARGE, NCCLSVC_INT32, next, comm, &send));
		CHECK_OK(ncclsvc_recv(received, LARGE, NCCLSVC_INT32, prev, comm, &recv));
		CHECK_OK(ncclsvc_group_end(s));
		const bool summed = has_ended(me, s, sum), got = has_ended(me, s, recv);
		has_ended(me, s, send);
		for (int i = 0; i < LARGE; i++) {
			int32_t all = 0;
			for (int k = 0; k < RANKS; k++)
				all += value_of(k, round, i);
			CHECK(!summed || out[i] == all);
			CHECK(!got || received[i] == value_of(prev, round, i));
		}
		shared_state->iterations[me->rank]++;
	}
	ncclsvc_close(s);
}

static void large_operations_work_through_restarts(void **state)
{
	(void)state;
	progress = 2;
	run(work_on_large, restart, NULL);
	progress = 10;
}

static void large_operations_work_through_kills(void **state)
{
	(void)state;
	progress = 2;
	run(work_on_large, kill_and_start, &killed);
	progress = 10;
}

static void terminate_all(struct daemon *d)
{
	cluster_restart_all(cluster_of(d), SIGTERM);
}

static void kill_all(struct daemon *d)
{
	cluster_restart_all(cluster_of(d), SIGKILL);
}

static void all_daemons_end_at_once(void **state)
{
	(void)state;
	run(work, terminate_all, NULL);
}

static void all_daemons_are_killed_at_once(void **state)
{
	(void)state;
	run(work, kill_all, &killed);
}

/* Rank 1's node gets no daemon any more. */
static void one_node_stays_away(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .reattach_ms = 1500};
	ncclsvc_session *s = NULL;
	ncclsvc_comm *comm;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_open(&options, &s));
	comm = comm_join(me, s);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 0) {
		const uint64_t since = now_ns();
		CHECK_OK(ncclsvc_barrier(comm, &task));
		CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_PEER_GONE);
		CHECK(strstr(ncclsvc_last_error(), "rank 1"));
		CHECK(in_time(since, now_ns()));
		CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_STALE_EPOCH);
		CHECK(strstr(ncclsvc_last_error(), "was not continued"));
		CHECK(strstr(ncclsvc_last_error(), "had not joined"));
	} else {
		CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_DAEMON_LOST);
	}
	ncclsvc_close(s);
}

static ncclsvc_comm *comm_alone(ncclsvc_session *s)
{
	ncclsvc_unique_id id;
	ncclsvc_comm *comm;
	CHECK_OK(ncclsvc_unique_id_request(s, &id));
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comm));
	return comm;
}

static void one_has_no_room(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .reattach_ms = 60000};
	ncclsvc_session *s = NULL;
	ncclsvc_comm *comm;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_open(&options, &s));
	if (me->rank == 1) /* of the three, the next daemon admits only the first or the last */
		comm_alone(s);
	comm = comm_join(me, s);
	if (me->rank == 1)
		comm_alone(s);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	const uint64_t since = now_ns();
	CHECK_RESULT(ncclsvc_barrier(comm, &task), me->rank ? NCCLSVC_LIMIT : NCCLSVC_PEER_GONE);
	CHECK(in_time(since, now_ns()));
	CHECK(strstr(ncclsvc_last_error(), me->rank ? "user_comms_max" : "a member had left it"));
	ncclsvc_close(s);
}

/* The other members do not wait for the refused one. */
static void a_member_that_is_refused_says_so(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_has_no_room, NULL);
	hear_all(clients, 2, READY);
	cluster_restart_with(cluster_of(&d), 1, "--user-comms-max", "1");
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void a_node_that_stays_away_is_named(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_node_stays_away, NULL);
	hear_all(clients, 2, READY);
	say(&clients[0], GO);
	sleep_ms(20);
	cluster_kill(cluster_of(&d), 1);
	cluster_of(&d)->nodes[1].pid = 0;
	say(&clients[1], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(large_operations_work_through_restarts),
		TEST(large_operations_work_through_kills),
		TEST(all_daemons_end_at_once),
		TEST(all_daemons_are_killed_at_once),
		TEST(a_node_that_stays_away_is_named),
		TEST(a_member_that_is_refused_says_so),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
