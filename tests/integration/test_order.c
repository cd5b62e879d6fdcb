/* SPDX-License-Identifier: Apache-2.0
 * Tasks of one communicator run in order; communicators are independent. */
#include <string.h>

#include "harness.h"

/* A third rank never submits on the communicator of all three; the two others go on with theirs. */
static void beside_a_hang(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *all = comm_join(me, s), *pair = NULL;
	ncclsvc_task hanging = 0;
	CHECK_OK(ncclsvc_comm_split(all, me->rank < 2 ? 0 : -1, 0, WAIT_MS, &pair));
	CHECK((pair != NULL) == (me->rank < 2));
	if (pair) {
		int32_t *v = shared(s, 64);
		v[0] = 1;
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, all, &hanging));
		for (int i = 0; i < 500; i++)
			check_usable(s, pair);
		CHECK_RESULT(ncclsvc_test(s, hanging), NCCLSVC_IN_PROGRESS);
		CHECK_RESULT(ncclsvc_wait(s, hanging, 20), NCCLSVC_TIMEOUT);
		CHECK_EQ(v[0], 1);
		say(me, 1);
		wait_for(s, hanging, NCCLSVC_OK);
		CHECK_EQ(v[0], 3);
	} else {
		int32_t *v = shared(s, 64);
		v[0] = 1;
		CHECK_EQ(hear(me), 2);
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, all, &hanging));
		wait_for(s, hanging, NCCLSVC_OK);
		CHECK_EQ(v[0], 3);
	}
	ncclsvc_close(s);
}

static void a_hanging_communicator_holds_up_nobody(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, beside_a_hang, NULL);
	CHECK_EQ(hear(&clients[0]), 1);
	CHECK_EQ(hear(&clients[1]), 1);
	say(&clients[2], 2);
	clients_end(clients, 3);
	daemon_stop(&d);
}

#define BIG (UINT64_C(256) << 20)

/* Two ranks move large buffers; two others run small operations, which must not wait. */
static void big_or_small(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *all = comm_join(me, s), *mine;
	const size_t big = sanitized() ? BIG / 4 : BIG;
	CHECK_OK(ncclsvc_comm_split(all, me->rank / 2, 0, WAIT_MS, &mine));
	if (me->rank < 2) {
		char *buf = shared(s, big);
		ncclsvc_task first, last;
		memset(buf, me->rank + 1, big);
		say(me, 1);
		CHECK_OK(
			ncclsvc_all_reduce(buf, buf, big, NCCLSVC_INT8, NCCLSVC_SUM, mine, &first));
		for (int i = 0; i < 5; i++)
			CHECK_OK(ncclsvc_all_reduce(buf, buf, big, NCCLSVC_INT8, NCCLSVC_MAX, mine,
						    &last));
		wait_for(s, last, NCCLSVC_OK);
		ncclsvc_status st = status_of(s, last), begin = status_of(s, first);
		say(me, begin.started_ns);
		say(me, st.done_ns);
		CHECK_EQ(buf[0], 3);
		CHECK_EQ(buf[big - 1], 3);
	} else {
		CHECK_EQ(hear(me), 2);
		uint64_t worst = 0;
		for (int i = 0; i < 20; i++) { /* the same number on both sides */
			uint64_t start = now_ns();
			check_usable(s, mine);
			uint64_t took = now_ns() - start;
			worst = took > worst ? took : worst;
		}
		say(me, worst);
	}
	ncclsvc_close(s);
}

static void small_tasks_run_beside_big_ones(void **state)
{
	struct daemon d;
	struct client clients[4];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 4, &d, big_or_small, NULL);
	CHECK_EQ(hear(&clients[0]), 1);
	CHECK_EQ(hear(&clients[1]), 1);
	say(&clients[2], 2);
	say(&clients[3], 2);
	uint64_t started = hear(&clients[0]), done = hear(&clients[0]);
	for (int i = 2; i < 4; i++) {
		uint64_t worst = hear(&clients[i]);
		print_message("small tasks beside a run of %.0f ms of big ones: %.1f ms at worst\n",
			      (double)(done - started) / 1e6, (double)worst / 1e6);
		CHECK(worst < done - started);
	}
	clients_end(clients, 4);
	daemon_stop(&d);
}

/* Each task depends on the one before: any other order gives another value. */
static void chain(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	enum { TASKS = 600, N = 5000 };
	uint64_t *v = shared(s, N * sizeof(*v));
	ncclsvc_task tasks[TASKS];
	uint64_t expected = 5; /* odd: powers of it never vanish */
	for (int i = 0; i < N; i++)
		v[i] = 5;
	for (int i = 0; i < TASKS; i++) {
		bool sum = i % 3 != 0;
		/* Sizes change so that some run inline and some in chunks. */
		size_t n = i % 2 ? N : 1 + (size_t)i % 10;
		CHECK_OK(ncclsvc_all_reduce(v, v, n, NCCLSVC_UINT64,
					    sum ? NCCLSVC_SUM : NCCLSVC_PROD, comm, &tasks[i]));
		expected = sum ? expected * 3 : expected * expected * expected;
		if (i % 50 == 0)
			wait_for(s, tasks[i], NCCLSVC_OK);
	}
	wait_for(s, tasks[TASKS - 1], NCCLSVC_OK);
	CHECK(v[0] == expected);
	uint64_t before = 0;
	for (int i = 0; i < TASKS; i++) {
		/* Once the last task has ended, all have. */
		CHECK_OK(ncclsvc_test(s, tasks[i]));
		ncclsvc_status st = status_of(s, tasks[i]);
		CHECK(st.done_ns >= before);
		before = st.done_ns;
	}
	ncclsvc_close(s);
}

static void tasks_run_in_the_order_of_submission(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, chain, NULL);
	clients_end(clients, 3);
	daemon_stop(&d);
}

/* Split by colour and key: ranks and sizes are the same as in NCCL. */
static void splits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *part;
	/* Reversed by key; rank 4 takes no part. */
	int colour = me->rank == 4 ? -1 : me->rank % 2;
	CHECK_OK(ncclsvc_comm_split(comm, colour, -me->rank, WAIT_MS, &part));
	if (me->rank == 4) {
		CHECK(!part);
	} else {
		CHECK_EQ(ncclsvc_comm_size(part), 2);
		CHECK_EQ(ncclsvc_comm_rank(part), me->rank < 2 ? 1 : 0);
		check_usable(s, part);
	}
	/* Equal keys: by old rank. */
	CHECK_OK(ncclsvc_comm_split(comm, 7, 0, WAIT_MS, &part));
	CHECK_EQ(ncclsvc_comm_rank(part), me->rank);
	check_usable(s, part);
	CHECK_OK(ncclsvc_comm_leave(part));
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_split_ranks_by_key_and_old_rank(void **state)
{
	struct daemon d;
	struct client clients[5];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 5, &d, splits, NULL);
	clients_end(clients, 5);
	daemon_stop(&d);
}

static void world(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm;
	CHECK_OK(ncclsvc_comm_world(s, me->rank == 2 ? 2 : -1, WAIT_MS, &comm));
	CHECK_EQ(ncclsvc_comm_size(comm), me->nranks);
	say(me, (uint64_t)ncclsvc_comm_rank(comm));
	check_usable(s, comm);
	CHECK_EQ(hear(me), 1);
	ncclsvc_close(s);
}

static void the_world_has_the_daemons_ranks(void **state)
{
	struct daemon d;
	struct client clients[3];
	uint64_t seen = 0;
	(void)state;
	daemon_start(&d, "--ranks", "3", NULL);
	clients_start(clients, 3, &d, world, NULL);
	for (int i = 0; i < 3; i++)
		seen |= 1u << hear(&clients[i]);
	CHECK_EQ(seen, 7);
	say_all(clients, 3, 1);
	clients_end(clients, 3);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_hanging_communicator_holds_up_nobody),
		TEST(small_tasks_run_beside_big_ones),
		TEST(tasks_run_in_the_order_of_submission),
		TEST(a_split_ranks_by_key_and_old_rank),
		TEST(the_world_has_the_daemons_ranks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
