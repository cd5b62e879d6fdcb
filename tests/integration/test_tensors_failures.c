/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors whose peer is late, dies, does not use lists, or sends false announcements; and
 * whose daemon ends. */
#include <string.h>

#include "harness_raw.h"
#include "tensor_ranks.h"

enum { READY = 1, GO };

/* ---- Absent peers ---- */

static void late(struct client *me)
{
	struct side x = side_open(me);
	bool sender = me->rank == 0;
	for (int mode = NCCLSVC_SHAPES_STATIC; mode <= NCCLSVC_SHAPES_AHEAD; mode++) {
		struct got got = {0};
		ncclsvc_tensor t[5];
		size_t n = some_list(t);
		memory_of(t, n, 1);
		ncclsvc_message m = message(&x, (ncclsvc_shapes)mode, 1, n, t);
		m.allocate = sender ? NULL : allocate;
		m.arg = &got;
		if (sender)
			CHECK_EQ(hear(me), GO);
		/* The communicator's own timeout applies to every message of a list. */
		CHECK_OK(ncclsvc_comm_set_timeout(x.comm, sender ? WAIT_MS : 50));
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, NCCLSVC_NO_TIMEOUT, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, NCCLSVC_NO_TIMEOUT, NULL),
			     NCCLSVC_TIMEOUT);
		says("deadline");
		ncclsvc_status st;
		CHECK_OK(ncclsvc_last_status(&st));
		CHECK(st.result == NCCLSVC_TIMEOUT && st.number);
		memory_free(t, n);
		got_free(&got);
		if (!sender)
			say(me, READY);
		check_in_step(&x, 5);
	}
	side_close(&x);
}

static void a_deadline_ends_it_on_both_sides(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, late, NULL);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(hear(&clients[1]), READY);
		say(&clients[0], GO);
	}
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void left_behind(struct client *me)
{
	struct side x = side_open(me);
	ncclsvc_tensor t[5];
	size_t n = some_list(t);
	struct got got = {0};
	say(me, READY);
	if (me->rank == 0) {
		CHECK_EQ(hear(me), GO); /* the replacement; the test kills the first client here */
	} else {
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 1, n, t);
		m.allocate = allocate;
		m.arg = &got;
		CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL), NCCLSVC_PEER_GONE);
		/* The error is local or remote, depending on what has arrived. */
		ncclsvc_result r = ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL);
		CHECK(r == NCCLSVC_STALE_EPOCH || r == NCCLSVC_PEER_GONE);
		say(me, READY);
		CHECK_OK(ncclsvc_comm_rejoin(x.comm, WAIT_MS));
		CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	}
	check_in_step(&x, 8);
	side_close(&x);
}

static void a_peer_that_dies_is_an_error(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, left_behind, NULL);
	hear_all(clients, 2, READY);
	clients_ask(&clients[1], 1); /* the receiver waits */
	client_kill(&clients[0]);
	CHECK_EQ(hear(&clients[1]), READY);
	client_start(&clients[0], left_behind);
	CHECK_EQ(hear(&clients[0]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void daemon_goes(struct client *me)
{
	struct side x = side_open(me);
	ncclsvc_tensor t[5];
	size_t n = some_list(t);
	check_in_step(&x, 1);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	memory_of(t, n, 1);
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, n, t);
	CHECK_RESULT(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL)
			      : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL),
		     NCCLSVC_DAEMON_LOST);
	memory_free(t, n);
	CHECK_OK(ncclsvc_reattach(x.s, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	check_in_step(&x, 2);
	side_close(&x);
}

static void lists_outlive_the_daemon(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, daemon_goes, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	say_all(clients, 2, GO);
	sleep_ms(50);
	daemon_restart(&d, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Peers that do not send lists, or lie ---- */

static void plain_peer(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 4;
	float data[4] = {1, 1, 1, 1};
	ncclsvc_task task;
	ncclsvc_tensor t = {data, NCCLSVC_FLOAT32, 1, &dim};
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 1, &t);
	if (me->rank == 0) {
		/* The plain Recv has matched the list's data; nothing has matched its
		 * announcement. */
		CHECK_RESULT(ncclsvc_tensors_send(x.lists, &m, 300, NULL), NCCLSVC_TIMEOUT);
		says("lists on ");
		says("rank 1");
		say(me, READY);
		CHECK_OK(ncclsvc_send(data, 16, NCCLSVC_UINT8, 1, x.comm, &task));
		wait_for(x.s, task, NCCLSVC_MISMATCH);
	} else {
		data[0] = 7;
		CHECK_OK(ncclsvc_recv(data, 16, NCCLSVC_UINT8, 0, x.comm, &task));
		wait_for(x.s, task, NCCLSVC_MISMATCH);
		CHECK(data[0] == 7);
		/* This rank's list meets the peer's plain Send. */
		CHECK_EQ(hear(me), GO);
		CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL), NCCLSVC_TIMEOUT);
	}
	check_in_step(&x, 8);
	side_close(&x);
}

static void a_list_does_not_match_a_plain_recv(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, plain_peer, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	say(&clients[1], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Rank 0 speaks the protocol by hand. Its k-th list announces values that no library would send. */
#define LIES	4
#define TENSORS UINT64_C(0x3173726f736e6574)
static const uint64_t lies[LIES][8] = {
	{0},
	{TENSORS, 2},
	{TENSORS, 1, UINT64_MAX, 0},
	{TENSORS, 1, 1, 4, 1, NCCLSVC_FLOAT32, UINT64_MAX},
};
static const ncclsvc_result lie_results[LIES] = {NCCLSVC_PROTOCOL, NCCLSVC_MISMATCH,
						 NCCLSVC_PROTOCOL, NCCLSVC_INVALID_ARGUMENT};

static void receive_lies(struct client *me)
{
	if (me->rank == 0)
		return; /* the test itself acts as this rank */
	struct side x = side_open(me);
	for (int i = 0; i < LIES; i++) {
		struct got got = {0};
		const ncclsvc_tensor t = {NULL, NCCLSVC_FLOAT32, -1, NULL};
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 3, 1, &t);
		m.allocate = allocate;
		m.arg = &got;
		ncclsvc_result r = ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL);
		CHECK_EQ(r, lie_results[i]);
		CHECK_EQ(got.calls, 0);
		say(me, READY);
	}
	CHECK_EQ(hear(me), GO);
	ncclsvc_tensors_close(x.lists);
	ncclsvc_close(x.s);
}

static struct svc_join_reply joined(struct raw *r, const ncclsvc_unique_id *id)
{
	struct raw_reply reply;
	struct svc_join join = raw_join_request(id, 2, 0);
	raw_call(r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.join;
}

/* Returns the id of the second communicator, which the other rank joins. */
static ncclsvc_unique_id id_beside(struct daemon *d, const ncclsvc_unique_id *id)
{
	ncclsvc_session *s = session_open(d);
	ncclsvc_unique_id beside;
	for (bool found = false; !found; sleep_ms(5)) {
		ncclsvc_comm_info *list;
		size_t n;
		CHECK_OK(ncclsvc_list_comms(s, &list, &n));
		for (size_t i = 0; i < n; i++) {
			if (list[i].nranks != 2 || !memcmp(list[i].id, id->bytes, sizeof(*id)))
				continue;
			memcpy(beside.bytes, list[i].id, sizeof(beside));
			found = true;
		}
		ncclsvc_list_free(list);
	}
	ncclsvc_close(s);
	return beside;
}

static void lies_do_not_reach_the_receiver(void **state)
{
	struct daemon d;
	struct client c[2];
	struct raw r;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(c, 2, &d, receive_lies, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 64);
	const struct svc_join_reply comm = joined(&r, &c[1].id);
	const ncclsvc_unique_id id = id_beside(&d, &c[1].id);
	const struct svc_join_reply beside = joined(&r, &id);
	struct raw_region region = raw_region(&r, SVC_PAGE);
	uint64_t *words = region.base;
	for (int i = 0; i < LIES; i++) {
		memset(words, 0, SVC_PAGE);
		memcpy(words, lies[i], sizeof(lies[i]));
		struct svc_record send = {
			.comm = beside.comm,
			.epoch = beside.epoch,
			.op = NCCLSVC_SEND,
			.type = NCCLSVC_UINT64,
			.peer = 1,
			.count = 128,
			.src_region = region.id,
			.flags = SVC_TASK_AGREE,
			.agreement = UINT64_C(2) << 60,
			.tag = 3,
		};
		CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, send)).result, NCCLSVC_OK);
		/* The receiver refuses the data. */
		send.comm = comm.comm;
		send.epoch = comm.epoch;
		send.count = 0;
		ncclsvc_status st = raw_ring_wait(&r, raw_ring_submit(&r, send));
		CHECK_EQ(st.result, lie_results[i]);
		CHECK_EQ(st.field, NCCLSVC_FIELD_REFUSAL);
		CHECK_EQ(st.value_a, lie_results[i] == NCCLSVC_MISMATCH ? NCCLSVC_REFUSAL_SHAPES
									: NCCLSVC_REFUSAL_NONE);
		CHECK_EQ(st.rank_a, 1);
		CHECK_EQ(hear(&c[1]), READY);
	}
	say(&c[1], GO);
	clients_end(c, 2);
	raw_region_close(&region);
	raw_close(&r);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_deadline_ends_it_on_both_sides), TEST(a_peer_that_dies_is_an_error),
		TEST(lists_outlive_the_daemon),		TEST(a_list_does_not_match_a_plain_recv),
		TEST(lies_do_not_reach_the_receiver),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
