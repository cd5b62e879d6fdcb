/* SPDX-License-Identifier: Apache-2.0
 * Inspection while tasks hang: its lists name the ranks that others wait for. */
#include <string.h>
#include <unistd.h>

#include "harness.h"

enum { READY = 1, GO };
#define RANKS 3

static void straggles(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	float *v = shared(s, 4096);
	ncclsvc_task task, next;
	say(me, READY);
	if (me->rank == 1)
		CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_all_reduce(v, v, 100, NCCLSVC_FLOAT32, NCCLSVC_MAX, comm, &task));
	CHECK_OK(ncclsvc_broadcast(v, v, 7, NCCLSVC_FLOAT32, 2, comm, &next));
	wait_for(s, task, NCCLSVC_OK);
	wait_for(s, next, NCCLSVC_OK);
	ncclsvc_close(s);
}

static void check_tasks(ncclsvc_session *s, struct client *clients)
{
	ncclsvc_task_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_tasks(s, &list, &n));
	CHECK_EQ(n, 4);
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_task_info *t = &list[i];
		CHECK(t->rank == 0 || t->rank == 2);
		CHECK_EQ(t->pid, clients[t->rank].pid);
		CHECK_EQ(t->nranks, RANKS);
		CHECK_EQ(t->type, NCCLSVC_FLOAT32);
		CHECK(t->task && t->comm && t->session && t->epoch);
		CHECK(t->age_ns > 0 && t->state_ns <= t->age_ns);
		CHECK(t->seq <= 1);
		if (t->seq == 1) {
			CHECK_EQ(t->state, NCCLSVC_QUEUED);
			CHECK_EQ(t->op, NCCLSVC_BROADCAST);
			CHECK_EQ(t->peer, 2);
			CHECK_EQ(t->count, 7);
			continue;
		}
		CHECK_EQ(t->state, NCCLSVC_WAITING_PEERS);
		CHECK_EQ(t->op, NCCLSVC_ALL_REDUCE);
		CHECK_EQ(t->redop, NCCLSVC_MAX);
		CHECK_EQ(t->peer, -1);
		CHECK_EQ(t->count, 100);
		CHECK_EQ(t->bytes, 400);
		CHECK_EQ(t->waits_count, 1);
		CHECK_EQ(t->waits_for[0], 1);
	}
	ncclsvc_list_free(list);
}

static void check_members(ncclsvc_session *s, struct client *clients)
{
	ncclsvc_comm_info *comms;
	ncclsvc_member_info *members;
	size_t ncomms, n, seen = 0;
	CHECK_OK(ncclsvc_list_comms(s, &comms, &ncomms));
	CHECK_OK(ncclsvc_list_members(s, &members, &n));
	for (size_t i = 0; i < ncomms; i++) {
		if (comms[i].state != NCCLSVC_COMM_READY)
			continue;
		CHECK(memcmp(comms[i].id, clients[0].id.bytes, NCCLSVC_ID_BYTES) == 0);
		CHECK_EQ(comms[i].nranks, RANKS);
		CHECK_EQ(comms[i].joined, RANKS);
		CHECK_EQ(comms[i].pending, 4);
		CHECK_EQ(comms[i].uid, getuid());
		for (size_t k = 0; k < n; k++) {
			if (members[k].comm != comms[i].comm)
				continue;
			seen++;
			CHECK_EQ(members[k].state, NCCLSVC_MEMBER_JOINED);
			CHECK_EQ(members[k].pid, clients[members[k].rank].pid);
			CHECK_EQ(members[k].submitted, members[k].rank == 1 ? 0 : 2);
			CHECK_EQ(members[k].completed, 0);
			CHECK_EQ(members[k].device, -1);
			CHECK((members[k].waiting_ns > 0) == (members[k].rank != 1));
		}
	}
	CHECK_EQ(seen, RANKS);
	ncclsvc_list_free(comms);
	ncclsvc_list_free(members);
}

static void check_sessions(ncclsvc_session *s, struct client *clients)
{
	ncclsvc_session_info *sessions;
	ncclsvc_region_info *regions;
	size_t n, nregions, known = 0;
	CHECK_OK(ncclsvc_list_sessions(s, &sessions, &n));
	CHECK_OK(ncclsvc_list_regions(s, &regions, &nregions));
	CHECK_EQ(n, RANKS + 1);
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < RANKS; k++) {
			if (sessions[i].pid != clients[k].pid)
				continue;
			known++;
			CHECK_EQ(sessions[i].submitted, k == 1 ? 0 : 2);
			CHECK_EQ(sessions[i].completed, 0);
			CHECK_EQ(sessions[i].comms, 1);
			CHECK_EQ(sessions[i].ring_entries, 1024);
			CHECK(sessions[i].region_bytes >= 4096);
			CHECK(sessions[i].name[0]);
			size_t own = 0;
			for (size_t r = 0; r < nregions; r++)
				own += regions[r].session == sessions[i].session;
			CHECK_EQ(own, sessions[i].regions);
		}
	CHECK_EQ(known, RANKS);
	ncclsvc_list_free(sessions);
	ncclsvc_list_free(regions);
}

static void lists_name_who_is_waited_for(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	ncclsvc_daemon_info info;
	(void)state;
	daemon_start(&d, "--ranks", "5", NULL);
	clients_start(clients, RANKS, &d, straggles, NULL);
	hear_all(clients, RANKS, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	tasks_reach(s, NCCLSVC_QUEUED, 2);
	check_tasks(s, clients);
	check_members(s, clients);
	check_sessions(s, clients);
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.pid, d.pid);
	CHECK_EQ(info.host_ranks, 5);
	CHECK_EQ(info.sessions, RANKS + 1);
	CHECK_EQ(info.tasks_pending, 4);
	CHECK_EQ(info.draining, 0);
	say(&clients[1], GO);
	clients_end(clients, RANKS);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 0);
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.tasks_pending, 0);
	CHECK(info.tasks_completed >= 6);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- A hundred thousand queued tasks ---- */

#define QUEUES 8
#define QUEUED 12500

static void queues_many(struct client *me)
{
	ncclsvc_session *s;
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = me->daemon->socket,
				   .ring_entries = 16384,
				   .timeout_ms = WAIT_MS};
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s);
	for (int i = 0; me->rank && i < QUEUED; i++)
		CHECK_OK(ncclsvc_barrier(comm, NULL));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void many_tasks_are_listed_in_a_second(void **state)
{
	struct daemon d;
	struct client clients[QUEUES + 1];
	ncclsvc_daemon_info info = {0};
	ncclsvc_task_info *list;
	size_t n;
	(void)state;
	time_limit(120);
	daemon_start(&d, NULL);
	clients_start(clients, QUEUES + 1, &d, queues_many, NULL);
	hear_all(clients, QUEUES + 1, READY);
	ncclsvc_session *s = session_open(&d);
	for (int i = 0; info.tasks_pending < QUEUES * QUEUED && i < 4000; i++, sleep_ms(5))
		CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.tasks_pending, QUEUES * QUEUED);
	uint64_t start = now_ns();
	CHECK_OK(ncclsvc_list_tasks(s, &list, &n));
	uint64_t took = now_ns() - start;
	CHECK_EQ(n, QUEUES * QUEUED);
	for (size_t i = 0; i < n; i++)
		CHECK(list[i].state == NCCLSVC_QUEUED || list[i].waits_for[0] == 0);
	ncclsvc_list_free(list);
	print_message("%zu tasks listed in %.0f ms\n", n, (double)took / 1e6);
	CHECK(in_time(start, start + took));
	say_all(clients, QUEUES + 1, GO);
	clients_end(clients, QUEUES + 1);
	ncclsvc_close(s);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lists_name_who_is_waited_for),
		TEST(many_tasks_are_listed_in_a_second),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
