/* SPDX-License-Identifier: Apache-2.0
 * Send, Recv and task groups. */
#include <string.h>

#include "harness_raw.h"

#define N 1000

static void fill(int32_t *buf, size_t n, int32_t base)
{
	for (size_t i = 0; i < n; i++)
		buf[i] = base + (int32_t)i;
}

static void check(const int32_t *buf, size_t n, int32_t base)
{
	for (size_t i = 0; i < n; i++)
		CHECK_EQ(buf[i], base + (int32_t)i);
}

static void run_clients(int n, client_main *main)
{
	struct daemon d;
	struct client clients[8];
	daemon_start(&d, NULL);
	clients_start(clients, n, &d, main, NULL);
	clients_end(clients, n);
	daemon_stop(&d);
}

/* ---- One pair ---- */

static void send_or_receive(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *buf = shared(s, N * sizeof(*buf));
	static const size_t counts[] = {0, 1, 999, N};
	ncclsvc_task task;
	for (int round = 0; round < 20; round++) {
		size_t n = counts[round % 4];
		memset(buf, 0, N * sizeof(*buf));
		if (me->rank == 0) {
			fill(buf, n, round);
			CHECK_OK(ncclsvc_send(buf, n, NCCLSVC_INT32, 1, comm, &task));
		} else {
			CHECK_OK(ncclsvc_recv(buf, n, NCCLSVC_INT32, 0, comm, &task));
		}
		wait_for(s, task, NCCLSVC_OK);
		check(buf, n, round);
		for (size_t i = n; i < N; i++)
			CHECK_EQ(buf[i], 0);
	}
	ncclsvc_close(s);
}

static void a_send_matches_its_recv(void **state)
{
	(void)state;
	run_clients(2, send_or_receive);
}

/* ---- Exchange in a group, every rank with every other ---- */

static void exchange(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int n = me->nranks;
	int32_t *out = shared(s, (size_t)n * N * 4), *in = shared(s, (size_t)n * N * 4);
	for (int round = 0; round < 10; round++) {
		ncclsvc_task tasks[16];
		memset(in, 0, (size_t)n * N * 4);
		CHECK_OK(ncclsvc_group_begin(s));
		/* With itself, too. Odd ranks receive first: the order within a group is free. */
		for (int half = 0; half < 2; half++)
			for (int peer = 0; peer < n; peer++) {
				bool sends = (half + me->rank) % 2 == 0;
				size_t at = (size_t)peer * N;
				fill(out + at, N, me->rank * 1000 + peer * 100000 + round);
				CHECK_OK(sends ? ncclsvc_send(out + at, N, NCCLSVC_INT32, peer,
							      comm, &tasks[half * n + peer])
					       : ncclsvc_recv(in + at, N, NCCLSVC_INT32, peer, comm,
							      &tasks[half * n + peer]));
			}
		CHECK_OK(ncclsvc_group_end(s));
		for (int i = 0; i < 2 * n; i++)
			wait_for(s, tasks[i], NCCLSVC_OK);
		for (int peer = 0; peer < n; peer++)
			check(in + (size_t)peer * N, N, peer * 1000 + me->rank * 100000 + round);
	}
	check_usable(s, comm); /* no rank leaves while others still exchange */
	ncclsvc_close(s);
}

static void all_pairs_exchange_in_a_group(void **state)
{
	(void)state;
	run_clients(1, exchange);
	run_clients(2, exchange);
	run_clients(5, exchange);
}

/* ---- A group larger than one task group of the daemon ---- */

enum { LARGE_GROUP = 9000 };

static void send_all(ncclsvc_comm *comm, const int32_t *out, int peer)
{
	for (int i = 0; i < LARGE_GROUP; i++)
		CHECK_OK(ncclsvc_send(out + i, 1, NCCLSVC_INT32, peer, comm, NULL));
}

static void recv_all(ncclsvc_comm *comm, int32_t *in, int peer)
{
	for (int i = 0; i < LARGE_GROUP; i++)
		CHECK_OK(ncclsvc_recv(in + i, 1, NCCLSVC_INT32, peer, comm, NULL));
}

static void exchange_much(struct client *me)
{
	ncclsvc_session *s = session_with_ring(me->daemon, 32768);
	ncclsvc_task sum = 0;
	ncclsvc_comm *comm = comm_join(me, s);
	const int peer = 1 - me->rank;
	int32_t *out = shared(s, LARGE_GROUP * 4), *in = shared(s, LARGE_GROUP * 4);
	int32_t *total = shared(s, 4);
	for (int round = 0; round < 3; round++) {
		fill(out, LARGE_GROUP, me->rank * 1000000 + round);
		memset(in, 0, LARGE_GROUP * 4);
		*total = 1;
		CHECK_OK(ncclsvc_group_begin(s));
		if (me->rank)
			recv_all(comm, in, peer);
		CHECK_OK(ncclsvc_all_reduce(total, total, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					    &sum));
		send_all(comm, out, peer);
		if (!me->rank)
			recv_all(comm, in, peer);
		CHECK_OK(ncclsvc_group_end(s));
		CHECK_OK(ncclsvc_wait_all(s, WAIT_MS));
		check(in, LARGE_GROUP, peer * 1000000 + round);
		CHECK_EQ(*total, 2);
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_large_group_is_submitted_whole(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--ring-max", "32768", NULL);
	clients_start(clients, 2, &d, exchange_much, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Matching order ---- */

static void in_order(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	enum { SENDS = 200 };
	int32_t *buf = shared(s, SENDS * 4);
	ncclsvc_task task = 0;
	for (int i = 0; i < SENDS; i++) {
		buf[i] = me->rank == 0 ? i * 7 : -1;
		if (me->rank == 0)
			CHECK_OK(ncclsvc_send(&buf[i], 1, NCCLSVC_INT32, 1, comm, &task));
	}
	if (me->rank == 1) {
		/* Half of them one by one, half in a group: the k-th matches the k-th. */
		for (int i = 0; i < SENDS / 2; i++)
			CHECK_OK(ncclsvc_recv(&buf[i], 1, NCCLSVC_INT32, 0, comm, &task));
		CHECK_OK(ncclsvc_group_begin(s));
		for (int i = SENDS / 2; i < SENDS; i++)
			CHECK_OK(ncclsvc_recv(&buf[i], 1, NCCLSVC_INT32, 0, comm, &task));
		CHECK_OK(ncclsvc_group_end(s));
	}
	CHECK_OK(ncclsvc_wait_all(s, WAIT_MS));
	for (int i = 0; i < SENDS; i++)
		CHECK_EQ(buf[i], i * 7);
	ncclsvc_close(s);
}

static void the_kth_send_matches_the_kth_recv(void **state)
{
	(void)state;
	run_clients(2, in_order);
}

/* ---- Groups of collectives and over communicators ---- */

static void group_over_communicators(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *whole = comm_join(me, s), *half;
	CHECK_OK(ncclsvc_comm_split(whole, me->rank % 2, me->rank, WAIT_MS, &half));
	CHECK_EQ(ncclsvc_comm_size(half), 2);
	CHECK_EQ(ncclsvc_comm_rank(half), me->rank / 2);
	int32_t *v = shared(s, 64);
	for (int round = 0; round < 10; round++) {
		v[0] = v[1] = v[2] = me->rank + 1;
		v[3] = me->rank;
		v[4] = -1;
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_all_reduce(&v[0], &v[0], 1, NCCLSVC_INT32, NCCLSVC_SUM, whole,
					    NULL));
		CHECK_OK(ncclsvc_all_reduce(&v[1], &v[1], 1, NCCLSVC_INT32, NCCLSVC_SUM, half,
					    NULL));
		CHECK_OK(ncclsvc_all_reduce(&v[2], &v[2], 1, NCCLSVC_INT32, NCCLSVC_MAX, whole,
					    NULL));
		CHECK_OK(ncclsvc_send(&v[3], 1, NCCLSVC_INT32, (me->rank + 1) % 4, whole, NULL));
		CHECK_OK(ncclsvc_recv(&v[4], 1, NCCLSVC_INT32, (me->rank + 3) % 4, whole, NULL));
		CHECK_OK(ncclsvc_group_end(s));
		CHECK_OK(ncclsvc_wait_all(s, WAIT_MS));
		CHECK_EQ(v[0], 10);
		CHECK_EQ(v[1], me->rank % 2 ? 6 : 4);
		CHECK_EQ(v[2], 4);
		CHECK_EQ(v[4], (me->rank + 3) % 4);
	}
	check_usable(s, whole);
	ncclsvc_close(s);
}

static void a_group_spans_communicators(void **state)
{
	(void)state;
	run_clients(4, group_over_communicators);
}

static void refused_group(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task = 0;
	if (me->rank == 0) {
		v[0] = 77;
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_send(&v[0], 1, NCCLSVC_INT32, 1, comm, &task));
		CHECK_RESULT(ncclsvc_send(&v[0], 1, NCCLSVC_INT32, 5, comm, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		CHECK_RESULT(ncclsvc_group_end(s), NCCLSVC_INVALID_ARGUMENT);
		CHECK_RESULT(ncclsvc_group_end(s), NCCLSVC_INVALID_ARGUMENT);
	}
	/* Nothing of the group was submitted: the next tasks match. */
	check_usable(s, comm);
	CHECK_RESULT(ncclsvc_group_begin(s), NCCLSVC_OK);
	CHECK_RESULT(ncclsvc_group_begin(s), NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(ncclsvc_group_end(s));
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_refused_group_submits_nothing(void **state)
{
	(void)state;
	run_clients(2, refused_group);
}

/* ---- Deadlocks ---- */

static void head_to_head(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task send, recv;
	v[1] = -1;
	CHECK_OK(ncclsvc_send(&v[0], 1, NCCLSVC_INT32, 1 - me->rank, comm, &send));
	wait_for(s, send, NCCLSVC_MISMATCH);
	ncclsvc_status st = status_of(s, send);
	CHECK_EQ(st.field, NCCLSVC_FIELD_ORDER);
	CHECK_EQ(st.rank_a + st.rank_b, 1);
	CHECK(st.pid_a > 0 && st.pid_b > 0 && st.pid_a != st.pid_b);
	CHECK_EQ(st.value_a, NCCLSVC_SEND);
	CHECK_EQ(st.started_ns, 0);
	/* In a group it is no deadlock. */
	v[0] = me->rank;
	CHECK_OK(ncclsvc_group_begin(s));
	CHECK_OK(ncclsvc_send(&v[0], 1, NCCLSVC_INT32, 1 - me->rank, comm, &send));
	CHECK_OK(ncclsvc_recv(&v[1], 1, NCCLSVC_INT32, 1 - me->rank, comm, &recv));
	CHECK_OK(ncclsvc_group_end(s));
	wait_for(s, send, NCCLSVC_OK);
	wait_for(s, recv, NCCLSVC_OK);
	CHECK_EQ(v[1], 1 - me->rank);
	ncclsvc_close(s);
}

static void two_sends_head_to_head_are_found(void **state)
{
	(void)state;
	run_clients(2, head_to_head);
}

/* Rank 0 calls AllReduce while the others wait for a Send from it. */
static void crossed(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	for (int round = 0; round < 4; round++) {
		/* The group's second AllReduce, unknown to the other nodes, must not match a later
		 * one. */
		CHECK_OK(ncclsvc_group_begin(s));
		for (int i = 0; i <= round % 2 && me->rank == 0; i++)
			CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
						    &task));
		if (me->rank)
			CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 0, comm, &task));
		CHECK_OK(ncclsvc_group_end(s));
		wait_for(s, task, NCCLSVC_MISMATCH);
		unsigned field = status_of(s, task).field;
		CHECK(field == NCCLSVC_FIELD_OP || field == NCCLSVC_FIELD_ORDER);
		check_usable(s, comm);
	}
	ncclsvc_close(s);
}

static void a_collective_against_recvs_is_found(void **state)
{
	(void)state;
	run_clients(4, crossed);
}

static void ring_of_recvs(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	int next = (me->rank + 1) % me->nranks;
	CHECK_OK(ncclsvc_recv(&v[0], 1, NCCLSVC_INT32, next, comm, &task));
	wait_for(s, task, NCCLSVC_MISMATCH);
	CHECK_EQ(status_of(s, task).field, NCCLSVC_FIELD_ORDER);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_ring_of_recvs_is_found(void **state)
{
	(void)state;
	run_clients(4, ring_of_recvs);
}

/* ---- A pair that disagrees ---- */

static void disagree(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	v[0] = v[1] = 42 + me->rank;
	if (me->rank == 0)
		CHECK_OK(ncclsvc_send(v, 2, NCCLSVC_INT32, 1, comm, &task));
	else
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 0, comm, &task));
	wait_for(s, task, NCCLSVC_MISMATCH);
	ncclsvc_status st = status_of(s, task);
	CHECK_EQ(st.field, NCCLSVC_FIELD_COUNT);
	CHECK_EQ(st.rank_a, 0);
	CHECK_EQ(st.rank_b, 1);
	CHECK_EQ(st.value_a, 2);
	CHECK_EQ(st.value_b, 1);
	CHECK_EQ(v[0], 42 + me->rank);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_send_and_recv_of_other_counts_mismatch(void **state)
{
	(void)state;
	run_clients(2, disagree);
}

/* ---- A pair whose first half has timed out ---- */

static void too_late(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *other;
	CHECK_OK(ncclsvc_comm_split(comm, 0, me->rank, WAIT_MS, &other));
	int32_t *v = shared(s, 64);
	for (int round = 0; round < 3; round++) {
		ncclsvc_task tasks[2], matched;
		v[0] = me->rank;
		v[1] = -1;
		/* Rank 1 submits after rank 0's deadline has passed. */
		if (me->rank == 1) {
			CHECK_OK(ncclsvc_barrier(other, &matched));
			wait_for(s, matched, NCCLSVC_OK);
		}
		CHECK_OK(ncclsvc_comm_set_timeout(comm, me->rank == 0 ? 50 : NCCLSVC_NO_TIMEOUT));
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_send(&v[0], 1, NCCLSVC_INT32, 1 - me->rank, comm, &tasks[0]));
		CHECK_OK(ncclsvc_recv(&v[1], 1, NCCLSVC_INT32, 1 - me->rank, comm, &tasks[1]));
		CHECK_OK(ncclsvc_group_end(s));
		for (int i = 0; i < 2; i++) {
			wait_for(s, tasks[i], NCCLSVC_TIMEOUT);
			CHECK_EQ(status_of(s, tasks[i]).rank_a, 0);
		}
		if (me->rank == 0) {
			CHECK_OK(ncclsvc_barrier(other, &matched));
			wait_for(s, matched, NCCLSVC_OK);
		}
		CHECK_EQ(v[1], -1);
		CHECK_OK(ncclsvc_comm_set_timeout(comm, NCCLSVC_NO_TIMEOUT));
		check_usable(s, comm);
	}
	ncclsvc_close(s);
}

static void tasks_after_a_deadline_get_its_status(void **state)
{
	(void)state;
	run_clients(2, too_late);
}

/* ---- A group that arrives in parts ---- */

static void join_two(struct raw *r, struct svc_join_reply *comms)
{
	ncclsvc_unique_id id;
	uint32_t request_ids[2];
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		struct svc_join join = raw_join_request(&id, 2, i);
		request_ids[i] = raw_send(&r[i], SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct raw_reply reply;
		raw_reply_to(&r[i], request_ids[i], &reply);
		CHECK_EQ(reply.header.result, 0);
		comms[i] = reply.join;
	}
}

static struct svc_record empty(const struct svc_join_reply *comm, uint8_t op, int peer)
{
	return (struct svc_record){
		.comm = comm->comm, .epoch = comm->epoch, .op = op, .peer = peer};
}

/* The scheduler reuses an ended task's slot at once. Publishing, which arms a waiting task's
 * deadline, must skip a slot that a new task has taken: here the new task's group is incomplete,
 * and its deadline, armed too early, used to outlive the task. */
static void a_task_inherits_nothing(void **state)
{
	struct daemon d;
	struct raw r[2];
	struct svc_join_reply comms[2];
	(void)state;
	daemon_start(&d, NULL);
	for (int i = 0; i < 2; i++) {
		raw_open(&r[i], &d);
		raw_attach(&r[i], 16);
	}
	struct svc_join_reply alone = raw_join_alone(&r[0]);
	join_two(r, comms);
	uint64_t recv = raw_ring_submit(&r[1], empty(&comms[1], NCCLSVC_RECV, 0));
	struct svc_record first = empty(&alone, NCCLSVC_SEND, 0);
	struct svc_record second = empty(&alone, NCCLSVC_RECV, 0);
	struct svc_record part = empty(&comms[0], NCCLSVC_SEND, 1);
	first.flags = part.flags = SVC_TASK_MORE;
	part.timeout_ns = UINT64_C(100000000);
	raw_ring_submit(&r[0], first);
	raw_ring_submit(&r[0], second);
	uint64_t sent = raw_ring_submit(&r[0], part);
	sleep_ms(50);
	uint64_t last = raw_ring_submit(&r[0], empty(&comms[0], NCCLSVC_RECV, 1));
	CHECK_EQ(raw_ring_wait(&r[0], sent).result, 0);
	CHECK_EQ(raw_ring_wait(&r[1], recv).result, 0);
	sleep_ms(200);
	CHECK_EQ(raw_ring_wait(&r[0], sent).result, 0);
	raw_ring_submit(&r[1], empty(&comms[1], NCCLSVC_SEND, 0));
	CHECK_EQ(raw_ring_wait(&r[0], last).result, 0);
	for (int i = 0; i < 2; i++)
		raw_close(&r[i]);
	daemon_stop(&d);
}

/* ---- Many, with deadlines ---- */

#define STORM 30000

static void storm(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	const int n = me->nranks, to = (me->rank + 1) % n, from = (me->rank + n - 1) % n;
	CHECK_OK(ncclsvc_comm_set_timeout(comm, WAIT_MS));
	for (int32_t round = 0; round < STORM; round++) {
		ncclsvc_task sent, received;
		v[0] = round * n + me->rank;
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_send(&v[0], 1, NCCLSVC_INT32, to, comm, &sent));
		CHECK_OK(ncclsvc_recv(&v[1], 1, NCCLSVC_INT32, from, comm, &received));
		CHECK_OK(ncclsvc_group_end(s));
		wait_for(s, received, NCCLSVC_OK);
		wait_for(s, sent, NCCLSVC_OK);
		CHECK_EQ(v[1], round * n + from);
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_ring_runs_for_long(void **state)
{
	(void)state;
	run_clients(4, storm);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_send_matches_its_recv),
		TEST(all_pairs_exchange_in_a_group),
		TEST(a_large_group_is_submitted_whole),
		TEST(the_kth_send_matches_the_kth_recv),
		TEST(a_group_spans_communicators),
		TEST(a_refused_group_submits_nothing),
		TEST(two_sends_head_to_head_are_found),
		TEST(a_ring_of_recvs_is_found),
		TEST(a_collective_against_recvs_is_found),
		TEST(a_send_and_recv_of_other_counts_mismatch),
		TEST(tasks_after_a_deadline_get_its_status),
		TEST(a_task_inherits_nothing),
		TEST(a_ring_runs_for_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
