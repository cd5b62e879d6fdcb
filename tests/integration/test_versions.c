/* SPDX-License-Identifier: Apache-2.0
 * Protocol versions: the real daemon speaks the lowest and the highest at once, through socket and
 * ring, and the library works with a daemon that only speaks the lowest. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness_raw.h"
#include "ncclsvc_tensors.h"
#include "relay.h"

enum { READY = 1, GO, DONE };

#define ENTRIES 16
#define COUNT	1000

/* A rank of a two-member communicator, driven by raw messages. */
struct rank {
	struct raw r;
	struct raw_region region;
	struct svc_join_reply comm;
};

static void open_rank(struct rank *k, const struct daemon *d, unsigned version)
{
	raw_open_version(&k->r, d, version);
	raw_attach(&k->r, ENTRIES);
	k->region = raw_region(&k->r, (size_t)2 * COUNT * sizeof(int32_t));
}

static void join_both(struct rank k[2])
{
	ncclsvc_unique_id id;
	uint32_t serials[2];
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		struct svc_join join = raw_join_request(&id, 2, i);
		serials[i] = raw_send(&k[i].r, SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct raw_reply reply;
		raw_reply_to(&k[i].r, serials[i], &reply);
		CHECK_EQ(reply.header.result, 0);
		k[i].comm = reply.join;
	}
}

static void open_pair(struct rank k[2], const struct daemon *d, unsigned first, unsigned second)
{
	open_rank(&k[0], d, first);
	open_rank(&k[1], d, second);
	join_both(k);
}

static void close_rank(struct rank *k)
{
	raw_close(&k->r);
	raw_region_close(&k->region);
}

static struct svc_record sum_of(struct rank *k, int32_t value)
{
	int32_t *v = k->region.base;
	for (int i = 0; i < COUNT; i++)
		v[i] = value + i;
	return (struct svc_record){
		.comm = k->comm.comm,
		.epoch = k->comm.epoch,
		.op = NCCLSVC_ALL_REDUCE,
		.type = NCCLSVC_INT32,
		.redop = NCCLSVC_SUM,
		.peer = -1,
		.count = COUNT,
		.src_region = k->region.id,
		.dst_region = k->region.id,
		.dst_offset = COUNT * sizeof(int32_t),
	};
}

static void check_sum(const struct rank *k, const ncclsvc_status *st)
{
	const int32_t *v = k->region.base;
	CHECK_EQ(st->result, 0);
	CHECK_EQ(st->epoch, k->comm.epoch);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(v[COUNT + i], 30 + 2 * i);
}

static void sum_by_ring(struct rank k[2])
{
	uint64_t n[2];
	for (int i = 0; i < 2; i++)
		n[i] = raw_ring_submit(&k[i].r, sum_of(&k[i], 10 * (i + 1)));
	for (int i = 0; i < 2; i++) {
		const ncclsvc_status st = raw_ring_wait(&k[i].r, n[i]);
		check_sum(&k[i], &st);
	}
}

static void sum_by_socket(struct rank k[2])
{
	uint32_t serials[2];
	for (int i = 0; i < 2; i++) {
		const struct svc_record record = sum_of(&k[i], 10 * (i + 1));
		serials[i] = raw_send(&k[i].r, SVC_SUBMIT, &record, sizeof(record), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct raw_reply reply;
		raw_reply_to(&k[i].r, serials[i], &reply);
		CHECK_EQ(reply.body, sizeof(struct svc_submit_reply));
		check_sum(&k[i], &reply.submit.status);
	}
}

static unsigned listed_version(ncclsvc_session *s, const struct raw *r)
{
	ncclsvc_session_info *list;
	unsigned version = 0;
	size_t n;
	CHECK_OK(ncclsvc_list_sessions(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].session == r->session)
			version = list[i].protocol;
	ncclsvc_list_free(list);
	return version;
}

static void tasks_run_between_all_versions(void **state)
{
	struct daemon d;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *watch = session_open(&d);
	for (unsigned first = SVC_PROTOCOL_MIN; first <= SVC_PROTOCOL_MAX; first++) {
		for (unsigned second = SVC_PROTOCOL_MIN; second <= SVC_PROTOCOL_MAX; second++) {
			struct rank k[2];
			open_pair(k, &d, first, second);
			for (int i = 0; i < 2 * ENTRIES; i++)
				sum_by_ring(k);
			sum_by_socket(k);
			CHECK_EQ(listed_version(watch, &k[0].r), first);
			CHECK_EQ(listed_version(watch, &k[1].r), second);
			close_rank(&k[0]);
			close_rank(&k[1]);
		}
	}
	ncclsvc_close(watch);
	daemon_stop(&d);
}

/* ---- Differences ---- */

static void the_end_of_an_epoch_is_longer_in_version_2(void **state)
{
	static const size_t lengths[] = {0, 24, 152, 152};
	struct daemon d;
	(void)state;
	daemon_start(&d, NULL);
	for (unsigned v = SVC_PROTOCOL_MIN; v <= SVC_PROTOCOL_MAX; v++) {
		struct rank k[2];
		struct raw_reply reply;
		open_pair(k, &d, v, SVC_PROTOCOL_MAX);
		close_rank(&k[1]);
		CHECK(raw_next(&k[0].r, &reply));
		CHECK_EQ(reply.header.opcode, SVC_EVENT_COMM);
		CHECK_EQ(reply.body, lengths[v]);
		CHECK_EQ(reply.event.reason, NCCLSVC_PEER_GONE);
		CHECK_EQ(reply.event.rank, 1);
		if (v > 1) {
			CHECK_EQ(reply.event.status.result, NCCLSVC_PEER_GONE);
			CHECK_EQ(reply.event.status.rank_a, 1);
			CHECK_EQ(reply.event.status.field, NCCLSVC_FIELD_NONE);
		}
		close_rank(&k[0]);
	}
	daemon_stop(&d);
}

static void version_1_has_no_join_cancel(void **state)
{
	struct daemon d;
	struct raw r;
	(void)state;
	daemon_start(&d, NULL);
	raw_open_version(&r, &d, 1);
	raw_refused(&r, SVC_JOIN_CANCEL, &(struct svc_join_cancel){.serial = 1},
		    sizeof(struct svc_join_cancel), NULL, 0, NCCLSVC_PROTOCOL,
		    "version 1 has no opcode 27");
	raw_refused(&r, SVC_STAGING, &(struct svc_staging){.comm = 1}, sizeof(struct svc_staging),
		    NULL, 0, NCCLSVC_PROTOCOL, "version 1 has no opcode 28");
	raw_join_alone(&r);
	raw_close(&r);
	daemon_stop(&d);
}

static void a_future_client_is_told_both_ranges(void **state)
{
	struct daemon d;
	struct relay relay;
	struct raw r;
	struct raw_reply reply;
	ncclsvc_session *s = NULL;
	(void)state;
	daemon_start(&d, NULL);
	const struct svc_hello hello = {.version_min = 7, .version_max = 9, .name = "future"};
	raw_connect(&r, &d);
	raw_call(&r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_VERSION);
	CHECK_EQ(reply.error.client_version_min, 7);
	CHECK_EQ(reply.error.client_version_max, 9);
	CHECK(strstr(reply.error.text, "versions 7 to 9, this daemon 1 to 3"));
	raw_ends(&r, NCCLSVC_VERSION);
	raw_close(&r);
	relay_start(&relay, &d, 7, 9);
	const ncclsvc_options o = {.size = sizeof(o), .socket = relay.behind.socket};
	CHECK_RESULT(ncclsvc_open(&o, &s), NCCLSVC_VERSION);
	CHECK(strstr(ncclsvc_last_error(), "daemon speaks protocol versions 1 to 3, this library"));
	relay_stop(&relay);
	daemon_stop(&d);
}

/* ---- The library and a daemon of the lowest version ---- */

/* The label stays local with this version. */
static void planned(ncclsvc_comm *comm, int other, int32_t *v)
{
	ncclsvc_plan *p;
	CHECK_OK(ncclsvc_plan_start(comm, &p));
	CHECK_OK(ncclsvc_plan_group_start(p));
	CHECK_OK(ncclsvc_plan_send(p, 1, NCCLSVC_INT32, other));
	CHECK_OK(ncclsvc_plan_label(p, "ours"));
	CHECK_OK(ncclsvc_plan_recv(p, NCCLSVC_PLAN_ANY, NCCLSVC_INT32, other));
	CHECK_OK(ncclsvc_plan_group_end(p));
	CHECK_OK(ncclsvc_plan_end(p, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(p));
	v[0] = 10 - other;
	CHECK_OK(ncclsvc_plan_submit_recv(p, v + 1, 1, NCCLSVC_INT32, other, NULL));
	CHECK_RESULT(ncclsvc_plan_reset(p, 0), NCCLSVC_TIMEOUT);
	CHECK(strstr(ncclsvc_last_error(), "Send \"ours\" to rank"));
	CHECK_OK(ncclsvc_plan_submit_send(p, v, 1, NCCLSVC_INT32, other, NULL));
	CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	CHECK_EQ(v[1], 9 + other);
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
}

/* In this version, plan entries are shorter and lists do not exist. */
static void plan(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm)
{
	const int64_t dim = 4;
	const ncclsvc_tensor t = {NULL, NCCLSVC_INT8, 1, &dim};
	const int peer = 1 - me->rank;
	ncclsvc_plan *p;
	for (int lists = 1; lists >= 0; lists--) {
		CHECK_OK(ncclsvc_plan_start(comm, &p));
		for (int g = 0; g < 3; g++) {
			CHECK_OK(ncclsvc_plan_group_start(p));
			CHECK_OK(ncclsvc_plan_send(p, 1 + (size_t)g, NCCLSVC_INT32, peer));
			CHECK_OK(ncclsvc_plan_recv(p, NCCLSVC_PLAN_ANY, 0, peer));
			if (lists)
				CHECK_OK(ncclsvc_plan_tensors_send(p, NCCLSVC_SHAPES_STATIC, 1, &t,
								   1, peer));
			CHECK_OK(ncclsvc_plan_group_end(p));
		}
		CHECK_RESULT(ncclsvc_plan_end(p, WAIT_MS),
			     lists ? NCCLSVC_UNSUPPORTED : NCCLSVC_OK);
		if (lists)
			CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
	}
	int32_t *v = shared(s, 4096);
	CHECK_OK(ncclsvc_plan_launch(p));
	for (int g = 0; g < 3; g++) {
		v[g] = me->rank + g;
		CHECK_OK(ncclsvc_plan_submit_send(p, v, 1 + (size_t)g, NCCLSVC_INT32, peer, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(p, v + 8, 1 + (size_t)g, NCCLSVC_INT32, peer,
						  NULL));
	}
	CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	CHECK_EQ(v[8], peer);
	CHECK_EQ(v[10], peer + 2);
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
}

static void work(struct client *me)
{
	ncclsvc_session *s = NULL;
	const ncclsvc_options o = {
		.size = sizeof(o), .socket = me->daemon->socket, .no_ring = me->arg != NULL};
	CHECK_OK(ncclsvc_open(&o, &s));
	ncclsvc_comm *comm = comm_join(me, s), *half;
	int32_t *v = shared(s, 4096);
	ncclsvc_task task;
	check_usable(s, comm);
	CHECK_OK(ncclsvc_comm_split(comm, me->rank, 0, WAIT_MS, &half));
	check_usable(s, half);
	planned(comm, 1 - me->rank, v);
	plan(me, s, comm);
	if (me->rank == 0) {
		say(me, READY);
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 1, comm, &task));
		wait_for(s, task, NCCLSVC_PEER_GONE);
		/* The event comes through the socket, later than the ring's status. */
		while (ncclsvc_comm_error(comm) != NCCLSVC_PEER_GONE)
			sleep_ms(1);
		CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
		CHECK(strstr(ncclsvc_last_error(), "rank 1"));
		CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
		check_usable(s, comm);
	} else if (me->nranks == 2) {
		CHECK_EQ(hear(me), GO); /* the test then kills this client */
	}
	ncclsvc_close(s);
}

static void restarted(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	check_usable(s, comm_join(me, s));
	ncclsvc_close(s);
}

static void the_library_works_with_the_lowest(void **state)
{
	struct daemon d;
	struct relay relay;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--log-level", "debug", NULL);
	relay_start(&relay, &d, SVC_PROTOCOL_MIN, SVC_PROTOCOL_MIN);
	for (int no_ring = 0; no_ring < 2; no_ring++) {
		clients_start(clients, 2, &relay.behind, work, no_ring ? &d : NULL);
		CHECK_EQ(hear(&clients[0]), READY);
		client_kill(&clients[1]);
		client_start(&clients[1], restarted);
		clients_end(clients, 2);
	}
	CHECK(daemon_logged(&d, "protocol version 1"));
	relay_stop(&relay);
	daemon_stop(&d);
}

/* ---- A communicator is left while a reattach waits for its other members ---- */

static void *reattaches(void *session)
{
	CHECK_OK(ncclsvc_reattach(session, WAIT_MS));
	return NULL;
}

static void leave_during_reattach(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm)
{
	pthread_t thread;
	ncclsvc_session *watch = session_open(me->daemon);
	CHECK_EQ(pthread_create(&thread, NULL, reattaches, s), 0);
	members_reach(watch, NCCLSVC_MEMBER_JOINING, 1);
	CHECK_OK(ncclsvc_comm_leave(comm));
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ncclsvc_close(watch);
}

/* Waits until the daemon's late answer has arrived and the library has given the rank back. */
static void give_back(struct client *me, ncclsvc_session *s)
{
	ncclsvc_session *watch = session_open(me->daemon);
	bool taken = true;
	while (taken) {
		ncclsvc_member_info *list;
		size_t n;
		CHECK_OK(ncclsvc_dispatch(s, 10));
		CHECK_OK(ncclsvc_list_members(watch, &list, &n));
		taken = false;
		for (size_t i = 0; i < n; i++)
			taken |= list[i].rank == 0 && list[i].state == NCCLSVC_MEMBER_JOINED;
		ncclsvc_list_free(list);
	}
	ncclsvc_close(watch);
}

/* A version 1 daemon holds the rank until the other members join; the library then gives the
 * rank back. */
static void leaves(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	say(me, READY);
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 0) {
		leave_during_reattach(me, s, comm);
		say(me, DONE);
		CHECK_EQ(hear(me), GO);
		give_back(me, s);
		comm = comm_join(me, s);
	} else {
		CHECK_EQ(hear(me), DONE);
		CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
		CHECK_OK(ncclsvc_barrier(comm, &task));
		say(me, READY);
		wait_for(s, task, NCCLSVC_PEER_GONE);
		CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void the_lowest_takes_no_join_back(void **state)
{
	struct daemon d;
	struct relay relay;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	relay_start(&relay, &d, 1, 1);
	clients_start(clients, 2, &relay.behind, leaves, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	daemon_restart(&d, NULL);
	say_all(clients, 2, GO);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], DONE);
	CHECK_EQ(hear(&clients[1]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	relay_stop(&relay);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tasks_run_between_all_versions),
		TEST(the_end_of_an_epoch_is_longer_in_version_2),
		TEST(version_1_has_no_join_cancel),
		TEST(a_future_client_is_told_both_ranges),
		TEST(the_library_works_with_the_lowest),
		TEST(the_lowest_takes_no_join_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
