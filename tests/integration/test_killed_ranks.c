/* SPDX-License-Identifier: Apache-2.0
 * Members that die by SIGKILL, and the results that the others get. */
#include <signal.h>
#include <string.h>

#include "harness.h"

#define RANKS 3

enum { READY = 1, GO, DONE };

/* For a survivor: the killed rank comes back, and the next epoch works. */
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

/* Restarts the killed rank beside its survivors, and ends the test. */
static void restart_and_end(struct daemon *d, struct client *clients, int victim)
{
	client_start(&clients[victim], restarted);
	clients_end(clients, RANKS);
	daemon_stop(d);
}

/* ---- Killed while the others wait for it ---- */

static void survivor_waits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task first, second;
	v[0] = v[1] = me->rank + 1;
	if (me->rank == 1) {
		say(me, READY);
		CHECK_EQ(hear(me), GO); /* killed here */
	}
	CHECK_OK(ncclsvc_all_reduce(&v[0], &v[0], 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &first));
	CHECK_OK(ncclsvc_all_reduce(&v[1], &v[1], 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &second));
	say(me, READY);
	CHECK_RESULT(ncclsvc_wait(s, first, WAIT_MS), NCCLSVC_PEER_GONE);
	say(me, now_ns());
	ncclsvc_status st = status_of(s, first);
	CHECK_EQ(st.rank_a, 1);
	say(me, (uint64_t)st.pid_a);
	CHECK(strstr(ncclsvc_last_error(), "rank 1"));
	CHECK_EQ(st.started_ns, 0);
	wait_for(s, second, NCCLSVC_PEER_GONE);
	CHECK_EQ(status_of(s, second).rank_a, 1);
	/* Nothing ran. */
	CHECK_EQ(v[0], me->rank + 1);
	CHECK_EQ(v[1], me->rank + 1);
	/* The epoch is over. */
	uint32_t epoch = ncclsvc_comm_epoch(comm);
	ncclsvc_result late = ncclsvc_barrier(comm, &second);
	if (late == NCCLSVC_OK)
		late = ncclsvc_wait(s, second, WAIT_MS);
	CHECK(late == NCCLSVC_STALE_EPOCH || late == NCCLSVC_PEER_GONE);
	rejoin_and_check(s, comm, epoch);
	ncclsvc_close(s);
}

static void a_rank_killed_before_its_task_fails_its_peers(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, survivor_waits, NULL);
	hear_all(clients, RANKS, READY);
	sleep_ms(50);
	pid_t victim = clients[1].pid;
	client_kill(&clients[1]);
	uint64_t killed = now_ns();
	for (int i = 0; i < RANKS; i += 2) {
		uint64_t told = hear(&clients[i]);
		CHECK_EQ(hear(&clients[i]), victim);
		print_message("rank %d heard of the death after %.1f ms\n", i,
			      ((double)told - (double)killed) / 1e6);
		CHECK(in_time(killed, told));
	}
	restart_and_end(&d, clients, 1);
}

/* ---- Killed while its own task waits ---- */

static void victim_waits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	v[0] = 5;
	if (me->rank == 1) {
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		say(me, READY);
		wait_for(s, task, NCCLSVC_OK); /* killed here */
	}
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	uint32_t epoch = ncclsvc_comm_epoch(comm);
	for (int i = 0; i < 20;
	     i++) /* the library has most likely learned that the epoch is over */
		CHECK_OK(ncclsvc_dispatch(s, 10));
	/* The dead rank's task is gone with it, and must not be matched. */
	ncclsvc_result result =
		ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task);
	if (result == NCCLSVC_OK)
		result = ncclsvc_wait(s, task, WAIT_MS);
	/* The first call that reports the end names the dead rank. */
	CHECK_RESULT(result, NCCLSVC_PEER_GONE);
	ncclsvc_status st;
	CHECK_OK(ncclsvc_last_status(&st));
	CHECK_EQ(st.result, NCCLSVC_PEER_GONE);
	CHECK_EQ(st.rank_a, 1);
	CHECK(st.pid_a > 0);
	CHECK(strstr(ncclsvc_last_error(), "rank 1 (pid "));
	CHECK_EQ(v[0], 5);
	while (!ncclsvc_comm_error(comm)) /* reports the dead member once more */
		sleep_ms(1);
	CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_STALE_EPOCH);
	rejoin_and_check(s, comm, epoch);
	ncclsvc_close(s);
}

static void a_rank_killed_in_its_own_wait_leaves_no_task_behind(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, victim_waits, NULL);
	hear_all(clients, RANKS, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	client_kill(&clients[1]);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 0);
	ncclsvc_close(s);
	say(&clients[0], GO);
	say(&clients[2], GO);
	restart_and_end(&d, clients, 1);
}

/* ---- Killed while data moves ---- */

#define BIG   (UINT64_C(512) << 20)
#define TASKS 12 /* seconds of work, so that the kill comes in the middle */

static void in_a_big_task(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	unsigned char *buf = shared(s, BIG);
	ncclsvc_task tasks[TASKS];
	memset(buf, me->rank + 1, BIG);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	for (int i = 0; i < TASKS; i++)
		CHECK_OK(ncclsvc_all_reduce(buf, buf, BIG, NCCLSVC_UINT8,
					    i ? NCCLSVC_MAX : NCCLSVC_SUM, comm, &tasks[i]));
	say(me, DONE);
	/* A running task is completed, with the right bytes. A waiting one is not. */
	ncclsvc_result first = ncclsvc_wait(s, tasks[0], WAIT_MS);
	if (first == NCCLSVC_OK)
		CHECK(buf[0] == 6 && buf[BIG / 2] == 6 && buf[BIG - 1] == 6);
	else
		CHECK_EQ(first, NCCLSVC_PEER_GONE);
	wait_for(s, tasks[TASKS - 1], NCCLSVC_PEER_GONE);
	CHECK_EQ(status_of(s, tasks[TASKS - 1]).rank_a, 1);
	/* A task may still run, and keeps its memory. */
	for (int i = 0; i < TASKS; i++)
		CHECK(ncclsvc_wait(s, tasks[i], WAIT_MS) != NCCLSVC_TIMEOUT);
	CHECK_OK(ncclsvc_mem_free(s, buf));
	rejoin_and_check(s, comm, ncclsvc_comm_epoch(comm));
	ncclsvc_close(s);
}

static void a_rank_killed_in_the_middle_of_a_big_task(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	time_limit(120);
	daemon_start(&d, "--user-region-bytes", "4G", NULL);
	clients_start(clients, RANKS, &d, in_a_big_task, NULL);
	hear_all(clients, RANKS, READY);
	ncclsvc_session *s = session_open(&d);
	say_all(clients, RANKS, GO);
	hear_all(clients, RANKS, DONE);
	tasks_reach(s, NCCLSVC_LAUNCHED, RANKS);
	client_kill(&clients[1]);
	ncclsvc_close(s);
	restart_and_end(&d, clients, 1);
}

/* ---- Killed in JOIN and in SPLIT ---- */

static void joins(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm;
	say(me, READY);
	CHECK_OK(ncclsvc_comm_join(s, &me->id, RANKS, me->rank, WAIT_MS, &comm));
	check_usable(s, comm);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_rank_killed_in_join_makes_room(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, joins, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	members_reach(s, NCCLSVC_MEMBER_JOINING, 2);
	client_kill(&clients[1]);
	ncclsvc_close(s);
	clients[2] = clients[0];
	clients[2].rank = 2;
	clients[2].link = -1;
	client_start(&clients[1], joins);
	client_start(&clients[2], joins);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

static void splits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *part = NULL;
	say(me, READY);
	if (me->rank == 1)
		CHECK_EQ(hear(me), GO); /* killed here */
	CHECK_RESULT(ncclsvc_comm_split(comm, 0, 0, WAIT_MS, &part), NCCLSVC_PEER_GONE);
	CHECK(!part);
	rejoin_and_check(s, comm, ncclsvc_comm_epoch(comm));
	ncclsvc_close(s);
}

static void a_rank_killed_before_its_split_fails_the_others(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, splits, NULL);
	hear_all(clients, RANKS, READY);
	clients_ask(clients, RANKS);
	client_kill(&clients[1]);
	restart_and_end(&d, clients, 1);
}

/* ---- A clean leave ---- */

static void leaves(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task = 0;
	int32_t *v = shared(s, 64);
	check_usable(s, comm);
	if (me->rank == 1) {
		CHECK_EQ(hear(me), GO);
		CHECK_OK(ncclsvc_comm_leave(comm));
		say(me, DONE);
		CHECK_EQ(hear(me), GO); /* the others are in rejoin by then */
		comm = comm_join(me, s);
		check_usable(s, comm);
		ncclsvc_close(s);
		return;
	}
	CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	say(me, READY);
	wait_for(s, task, NCCLSVC_PEER_GONE);
	CHECK_EQ(status_of(s, task).rank_a, 1);
	CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_rank_that_leaves_fails_its_peers_tasks(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, leaves, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	CHECK_EQ(hear(&clients[2]), READY);
	say(&clients[1], GO);
	CHECK_EQ(hear(&clients[1]), DONE);
	sleep_ms(100);
	say(&clients[1], GO);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

/* ---- Stopped is not dead ---- */

static void is_stopped(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	for (int i = 0; i < 20; i++)
		check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_stopped_rank_is_waited_for(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, is_stopped, NULL);
	hear_all(clients, 2, READY);
	process_stop(clients[1].pid);
	say_all(clients, 2, GO);
	ncclsvc_session *s = session_open(&d);
	ncclsvc_task_info task = tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	CHECK_EQ(task.rank, 0);
	CHECK_EQ(task.waits_count, 1);
	CHECK_EQ(task.waits_for[0], 1);
	CHECK_EQ(task.pid, clients[0].pid);
	sleep_ms(200);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	CHECK_EQ(kill(clients[1].pid, SIGCONT), 0);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_rank_killed_before_its_task_fails_its_peers),
		TEST(a_rank_killed_in_its_own_wait_leaves_no_task_behind),
		TEST(a_rank_killed_in_the_middle_of_a_big_task),
		TEST(a_rank_killed_in_join_makes_room),
		TEST(a_rank_killed_before_its_split_fails_the_others),
		TEST(a_rank_that_leaves_fails_its_peers_tasks),
		TEST(a_stopped_rank_is_waited_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
