/* SPDX-License-Identifier: Apache-2.0
 * Reattaching that does not succeed at once, and what other threads do meanwhile. */
#include <pthread.h>
#include <string.h>

#include "harness.h"
#include "ncclsvc_world.h"

enum { READY = 1, GO, DONE };

/* Waits until the daemon has exited. */
static void lose(struct client *me, ncclsvc_session *s)
{
	say(me, READY);
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(me), GO);
}

static void replace_daemon(struct daemon *d, struct client *clients, int n)
{
	hear_all(clients, n, READY);
	daemon_kill(d);
	daemon_restart(d, "--ranks", "1", "--user-region-bytes", "256K", NULL);
	say_all(clients, n, GO);
}

/* ---- Unfinished work is not forgotten ---- */

static void more_memory_than_there_is(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v[4];
	ncclsvc_task task;
	for (int i = 0; i < 4; i++)
		v[i] = shared(s, i ? 4096 : 1 << 20);
	lose(me, s);
	for (int i = 0; i < 2; i++) {
		CHECK_RESULT(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_LIMIT);
		CHECK(strstr(ncclsvc_last_error(), "user_region_bytes"));
	}
	CHECK_OK(ncclsvc_mem_free(s, v[0]));
	CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
	for (int i = 1; i < 4; i++) {
		v[i][0] = i;
		CHECK_OK(ncclsvc_all_reduce(v[i], v[i] + 1, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					    &task));
		wait_for(s, task, NCCLSVC_OK);
		CHECK_EQ(v[i][1], i);
	}
	ncclsvc_close(s);
}

static void memory_that_was_refused_is_registered_later(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(&client, 1, &d, more_memory_than_there_is, NULL);
	replace_daemon(&d, &client, 1);
	clients_end(&client, 1);
	daemon_stop(&d);
}

static void a_world_with_more_memory(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world *world;
	CHECK_OK(ncclsvc_world_init(s, NULL, WAIT_MS, &world));
	void *v = shared(s, 1 << 20);
	ncclsvc_comm *comm = comm_join(me, s);
	lose(me, s);
	for (int i = 0; i < 2; i++)
		CHECK_RESULT(ncclsvc_world_rejoin(world, WAIT_MS), NCCLSVC_LIMIT);
	CHECK_OK(ncclsvc_mem_free(s, v));
	CHECK_OK(ncclsvc_world_rejoin(world, WAIT_MS));
	check_usable(s, ncclsvc_world_host_comm(world));
	/* Communicators other than the world's wait for a reattach. */
	CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
	check_usable(s, comm);
	check_usable(s, ncclsvc_world_host_comm(world));
	ncclsvc_world_free(world);
	ncclsvc_close(s);
}

static void a_worlds_rejoin_is_finished_too(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	daemon_start(&d, "--ranks", "1", NULL);
	clients_start(&client, 1, &d, a_world_with_more_memory, NULL);
	replace_daemon(&d, &client, 1);
	clients_end(&client, 1);
	daemon_stop(&d);
}

static void one_waits_in_vain(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *alone;
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &alone));
	lose(me, s);
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_reattach(s, 200), NCCLSVC_TIMEOUT);
		check_usable(s, alone);
		uint32_t epoch = ncclsvc_comm_epoch(alone);
		say(me, DONE);
		CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
		CHECK_EQ(ncclsvc_comm_epoch(alone), epoch);
	} else {
		CHECK_EQ(hear(me), DONE);
		CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
	}
	check_usable(s, comm);
	check_usable(s, alone);
	CHECK_OK(ncclsvc_reattach(s, 0));
	ncclsvc_close(s);
}

static void members_that_came_later_are_rejoined_later(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_waits_in_vain, NULL);
	replace_daemon(&d, clients, 2);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], DONE);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- A communicator is left while it is rejoined ---- */

struct rejoining {
	ncclsvc_session *session;
	ncclsvc_comm *comm; /* NULL: a reattach rejoins all communicators */
	ncclsvc_result result;
	uint64_t ended;
};

static void *rejoins(void *arg)
{
	struct rejoining *r = arg;
	r->result = r->comm ? ncclsvc_comm_rejoin(r->comm, WAIT_MS)
			    : ncclsvc_reattach(r->session, WAIT_MS);
	r->ended = now_ns();
	return NULL;
}

/* Leaves the communicator while a thread waits for its other member to rejoin. */
static void leave_meanwhile(struct rejoining *r, ncclsvc_comm *comm, ncclsvc_session *watch)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, rejoins, r), 0);
	members_reach(watch, NCCLSVC_MEMBER_JOINING, 1);
	sleep_ms(20); /* until the thread sleeps in poll */
	uint64_t left = now_ns();
	CHECK_OK(ncclsvc_comm_leave(comm));
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(in_time(left, r->ended));
}

static void one_leaves(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	lose(me, s);
	if (me->rank == 0) {
		struct rejoining r = {.session = s};
		ncclsvc_session *watch = session_open(me->daemon);
		leave_meanwhile(&r, comm, watch);
		CHECK_RESULT(r.result, NCCLSVC_OK);
		/* The rank becomes free before the JOIN's deadline: any session may take it. */
		const uint64_t left = now_ns();
		members_reach(watch, NCCLSVC_MEMBER_JOINING, 0);
		CHECK(in_time(left, now_ns()));
		say(me, DONE);
		comm = comm_join(me, watch);
		check_usable(watch, comm);
		ncclsvc_close(watch);
	} else {
		CHECK_EQ(hear(me), DONE);
		CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
		check_usable(s, comm);
	}
	ncclsvc_close(s);
}

static void a_communicator_left_during_a_reattach_is_left(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_leaves, NULL);
	replace_daemon(&d, clients, 2);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], DONE);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void one_leaves_while_it_rejoins(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	if (me->rank == 0) {
		struct rejoining r = {.session = s, .comm = comm};
		ncclsvc_session *watch = session_open(me->daemon);
		say(me, READY);
		while (ncclsvc_comm_error(comm) != NCCLSVC_PEER_GONE)
			sleep_ms(5);
		leave_meanwhile(&r, comm, watch);
		CHECK_RESULT(r.result, NCCLSVC_CANCELLED);
		ncclsvc_close(watch);
	} else {
		CHECK_EQ(hear(me), GO);
	}
	ncclsvc_close(s);
}

static void a_communicator_left_during_a_rejoin_is_left(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_leaves_while_it_rejoins, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	say(&clients[1], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_that_was_refused_is_registered_later),
		TEST(a_worlds_rejoin_is_finished_too),
		TEST(members_that_came_later_are_rejoined_later),
		TEST(a_communicator_left_during_a_reattach_is_left),
		TEST(a_communicator_left_during_a_rejoin_is_left),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
