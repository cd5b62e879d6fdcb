/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors whose peer is late, dies, is no list, or lies; and whose daemon ends. */
#include <string.h>

#include "harness_raw.h"
#include "tensors.h"

enum { READY = 1, GO };

/* ---- Those who do not come ---- */

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
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, 50, NULL),
			     NCCLSVC_TIMEOUT);
		says("deadline");
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
		CHECK_EQ(hear(me), GO); /* the new one; the first is killed here */
	} else {
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 1, n, t);
		m.allocate = allocate;
		m.arg = &got;
		CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL), NCCLSVC_PEER_GONE);
		/* Here or there, as it has been heard of. */
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

/* ---- Peers that are no list, or lie ---- */

static void plain_peer(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 4;
	float data[4] = {1, 1, 1, 1};
	ncclsvc_task task;
	ncclsvc_tensor t = {data, NCCLSVC_FLOAT32, 1, &dim};
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 1, &t);
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL), NCCLSVC_MISMATCH);
		says("rank 1");
		says("no list of tensors");
	} else {
		data[0] = 7;
		CHECK_OK(ncclsvc_recv(data, 16, NCCLSVC_UINT8, 0, x.comm, &task));
		wait_for(x.s, task, NCCLSVC_MISMATCH);
		CHECK(data[0] == 7);
	}
	check_in_step(&x, 8);
	side_close(&x);
}

static void a_list_does_not_match_a_plain_recv(void **state)
{
	(void)state;
	run_pair(plain_peer);
}

/* Rank 0 speaks the protocol by hand, and says what no library would. */
static void receive_lies(struct client *me)
{
	if (me->rank == 0)
		return; /* the test itself is this rank */
	struct side x = side_open(me);
	for (int i = 0; i < 4; i++) {
		struct got got = {0};
		const ncclsvc_tensor t = {NULL, NCCLSVC_FLOAT32, -1, NULL};
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 3, 1, &t);
		m.allocate = allocate;
		m.arg = &got;
		ncclsvc_result r = ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL);
		CHECK(r == NCCLSVC_PROTOCOL || r == NCCLSVC_MISMATCH ||
		      r == NCCLSVC_INVALID_ARGUMENT);
		CHECK_EQ(got.calls, 0);
		say(me, READY);
	}
	CHECK_EQ(hear(me), GO);
	ncclsvc_tensors_close(x.lists);
	ncclsvc_close(x.s);
}

static void lies_do_not_reach_the_receiver(void **state)
{
	struct daemon d;
	struct client c[2];
	struct raw r;
	struct raw_reply reply;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(c, 2, &d, receive_lies, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 64);
	struct svc_join join = raw_join_request(&c[1].id, 2, 0);
	raw_call(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct raw_region region = raw_region(&r, SVC_PAGE);
	uint64_t *words = region.base;
	for (int i = 0; i < 4; i++) {
		static const uint64_t lies[4][8] = {
			{0},
			{UINT64_C(0x3173726f736e6574), 2},
			{UINT64_C(0x3173726f736e6574), 1, UINT64_MAX, 0},
			{UINT64_C(0x3173726f736e6574), 1, 1, 4, 1, NCCLSVC_FLOAT32, UINT64_MAX},
		};
		memset(words, 0, SVC_PAGE);
		memcpy(words, lies[i], sizeof(lies[i]));
		struct svc_record send = {
			.comm = reply.join.comm,
			.epoch = reply.join.epoch,
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
		send.count = 0;
		ncclsvc_status st = raw_ring_wait(&r, raw_ring_submit(&r, send));
		CHECK_EQ(st.result, NCCLSVC_INVALID_ARGUMENT);
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
