/* SPDX-License-Identifier: Apache-2.0
 * Plans in normal use. */
#include <pthread.h>
#include <time.h>

#include "plan_desk.h"

/* ---- One thread, one group, one task after the other ---- */

static void example(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	int32_t *out = shared(d.s, N * 4), *in = shared(d.s, N * 4);
	int32_t plain_out[N], plain_in[N];
	plan_exchange(&d);
	launch(&d);
	for (int round = 0; round < 20; round++) {
		bool plain = round % 2;
		int32_t *from = plain ? plain_out : out, *to = plain ? plain_in : in;
		fill(from, d.me * 100000 + round);
		memset(to, 0, N * 4);
		CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, from, N, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		fill(from, -1); /* the buffer is free again */
		CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, to, N, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		check(to, d.other * 100000 + round);
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		CHECK_EQ(ncclsvc_plan_iterations(d.plan), round + 1);
	}
	desk_close(&d);
}

static void the_seeds_example_works_on_one_thread(void **state)
{
	(void)state;
	run_clients(2, example);
}

/* ---- Non-blocking, in any order ---- */

enum { GROUPS = 6, ROUNDS = 10 };

/* A ring in each group; rank 0 plans Send first, the others Recv. */
static void plan_rings(struct desk *d, int n)
{
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d->plan));
		for (int half = 0; half < 2; half++)
			CHECK_OK((half == 0) == (d->me == 0)
					 ? ncclsvc_plan_send(d->plan, N, NCCLSVC_INT32,
							     (d->me + 1) % n)
					 : ncclsvc_plan_recv(d->plan, N, NCCLSVC_INT32,
							     (d->me + n - 1) % n));
		CHECK_OK(ncclsvc_plan_group_end(d->plan));
	}
}

static void any_order(struct client *me)
{
	struct desk d;
	int n = me->nranks;
	desk_open(&d, me);
	int32_t *out = shared(d.s, GROUPS * N * 4), *in = shared(d.s, GROUPS * N * 4);
	plan_rings(&d, n);
	launch(&d);
	for (int round = 0; round < ROUNDS; round++) {
		ncclsvc_task sends[GROUPS], recvs[GROUPS];
		memset(in, 0, GROUPS * N * 4);
		for (int g = 0; g < GROUPS; g++)
			fill(out + g * N, d.me * 10000 + g * 1000000 + round);
		/* All Recvs first, or all Sends: no group is complete until the second half. */
		for (int half = 0; half < 2; half++)
			for (int g = 0; g < GROUPS; g++)
				CHECK_OK((half + round + d.me) % 2
						 ? ncclsvc_plan_submit_send(
							   d.plan, out + g * N, N, NCCLSVC_INT32,
							   (d.me + 1) % n, &sends[g])
						 : ncclsvc_plan_submit_recv(
							   d.plan, in + g * N, N, NCCLSVC_INT32,
							   (d.me + n - 1) % n, &recvs[g]));
		CHECK_OK(ncclsvc_plan_wait(d.plan, recvs[GROUPS - 1], WAIT_MS));
		CHECK_OK(ncclsvc_plan_test(d.plan, sends[0]));
		for (int g = 0; g < GROUPS; g++) {
			CHECK_OK(ncclsvc_test(d.s, recvs[g])); /* strictly in plan order */
			check(in + g * N, (d.me + n - 1) % n * 10000 + g * 1000000 + round);
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void tasks_may_come_in_any_order(void **state)
{
	(void)state;
	run_clients(1, any_order);
	run_clients(2, any_order);
	run_clients(4, any_order);
}

/* ---- From many threads, blocking ---- */

struct worker {
	struct desk *d;
	int32_t *buf;
	bool sends;
	pthread_t thread;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct desk *d = w->d;
	int n = d->c->nranks;
	for (int g = 0; g < GROUPS; g++) {
		if (w->sends)
			CHECK_OK(ncclsvc_plan_submit_send_and_wait(d->plan, w->buf + g * N, N,
								   NCCLSVC_INT32, (d->me + 1) % n,
								   WAIT_MS));
		else
			CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d->plan, w->buf + g * N, N,
								   NCCLSVC_INT32,
								   (d->me + n - 1) % n, WAIT_MS));
	}
	return NULL;
}

static void threads(struct client *me)
{
	struct desk d;
	int n = me->nranks;
	desk_open(&d, me);
	int32_t *out = shared(d.s, GROUPS * N * 4), *in = shared(d.s, GROUPS * N * 4);
	plan_rings(&d, n);
	launch(&d);
	for (int round = 0; round < ROUNDS; round++) {
		struct worker w[2] = {{&d, out, true, 0}, {&d, in, false, 0}};
		memset(in, 0, GROUPS * N * 4);
		for (int g = 0; g < GROUPS; g++)
			fill(out + g * N, d.me * 10000 + g * 1000000 + round);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
		/* Reset waits for the tasks that other threads have yet to submit. */
		while (ncclsvc_plan_iterations(d.plan) == (uint64_t)round)
			CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_join(w[i].thread, NULL), 0);
		for (int g = 0; g < GROUPS; g++)
			check(in + g * N, (d.me + n - 1) % n * 10000 + g * 1000000 + round);
	}
	desk_close(&d);
}

static void threads_submit_and_wait(void **state)
{
	(void)state;
	run_clients(3, threads);
}

/* ---- Through the socket ---- */

static void by_socket(struct client *me)
{
	ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .no_ring = true};
	struct desk d = {.c = me, .me = me->rank, .other = 1 - me->rank};
	int32_t out[N], in[N];
	CHECK_OK(ncclsvc_open(&options, &d.s));
	d.comm = comm_join(me, d.s);
	CHECK_OK(ncclsvc_plan_start(d.comm, &d.plan));
	plan_exchange(&d);
	plan_exchange(&d);
	launch(&d);
	for (int round = 0; round < 5; round++) {
		for (int g = 0; g < 2; g++) {
			fill(out, d.me * 1000 + round * 10 + g);
			CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, out, N, NCCLSVC_INT32,
								   d.other, WAIT_MS));
			CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, in, N, NCCLSVC_INT32,
								   d.other, WAIT_MS));
			check(in, d.other * 1000 + round * 10 + g);
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void sessions_without_a_ring_have_plans_too(void **state)
{
	(void)state;
	run_clients(2, by_socket);
}

/* ---- Several of one kind in one group ---- */

static void alike(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	int32_t *out = shared(d.s, 3 * 4), *in = shared(d.s, 3 * 4);
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	for (int i = 0; i < 3; i++)
		CHECK_OK(ncclsvc_plan_send(d.plan, ANY, d.other));
	for (int i = 0; i < 3; i++)
		CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	launch(&d);
	for (int i = 0; i < 3; i++) {
		out[i] = d.me * 10 + i;
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in[i], 1, NCCLSVC_INT32, d.other, NULL));
		CHECK_OK(
			ncclsvc_plan_submit_send(d.plan, &out[i], 1, NCCLSVC_INT32, d.other, NULL));
	}
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	for (int i = 0; i < 3; i++)
		CHECK_EQ(in[i], d.other * 10 + i);
	desk_close(&d);
}

static void several_alike_in_a_group(void **state)
{
	(void)state;
	run_clients(2, alike);
}

/* ---- Empty plans and groups ---- */

static void nothing(struct client *me)
{
	struct desk d;
	int32_t out = me->rank, in = -1;
	/* Without groups, or with empty groups only, each step ends at once. */
	for (int groups = 0; groups < 3; groups += 2) {
		desk_open(&d, me);
		for (int g = 0; g < groups; g++) {
			CHECK_OK(ncclsvc_plan_group_start(d.plan));
			CHECK_OK(ncclsvc_plan_group_end(d.plan));
		}
		launch(&d);
		for (uint64_t i = 1; i <= 3; i++) {
			CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
			CHECK_EQ(ncclsvc_plan_iterations(d.plan), i);
		}
		desk_close(&d);
	}
	/* Empty groups around a non-empty one. */
	desk_open(&d, me);
	for (int g = 0; g < 5; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d.plan));
		if (g == 2) {
			CHECK_OK(ncclsvc_plan_send(d.plan, ANY, d.other));
			CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, d.other));
		}
		CHECK_OK(ncclsvc_plan_group_end(d.plan));
	}
	launch(&d);
	/* With nothing submitted, reset has nothing to wait for. */
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 0);
	for (int i = 0; i < 3; i++) {
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_EQ(in, d.other);
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
	/* Terminate after zero rounds, and at every stage before that. */
	for (int stage = 0; stage < 4; stage++) {
		desk_open(&d, me);
		if (stage > 0)
			plan_exchange(&d);
		if (stage > 1)
			CHECK_OK(ncclsvc_plan_end(d.plan, WAIT_MS));
		if (stage > 2)
			CHECK_OK(ncclsvc_plan_launch(d.plan));
		desk_close(&d);
	}
	CHECK_OK(ncclsvc_plan_terminate(NULL, 0));
}

static void empty_plans_and_groups_are_over_at_once(void **state)
{
	(void)state;
	run_clients(2, nothing);
}

/* ---- Waiting costs nothing ---- */

static double cpu_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void idle_wait(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = 0;
	exchange_desk(&d, me);
	if (d.me == 1)
		sleep_ms(600);
	double before = cpu_seconds();
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, NULL));
	CHECK_OK(
		ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, d.other, WAIT_MS));
	double spent = cpu_seconds() - before;
	if (d.me == 0 && spent > (sanitized() ? 0.3 : 0.1))
		check_failed(__FILE__, __LINE__, "0.6 s of waiting took %.3f s of CPU", spent);
	desk_close(&d);
}

static void waiting_threads_sleep(void **state)
{
	(void)state;
	run_clients(2, idle_wait);
}

/* ---- Beside other tasks of the communicator ---- */

static void beside(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = 0;
	ncclsvc_task task;
	exchange_desk(&d, me);
	for (int round = 0; round < 20; round++) {
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, d.other, NULL));
		check_usable(d.s, d.comm); /* while one task is held */
		CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, &out, 1, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	/* A planned task never matches an unplanned one. */
	if (d.me == 0) {
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, &task));
		CHECK_RESULT(ncclsvc_wait(d.s, task, WAIT_MS), NCCLSVC_MISMATCH);
		CHECK_EQ(status_of(d.s, task).field, NCCLSVC_FIELD_PLAN);
		CHECK_SAYS("plan");
	} else {
		CHECK_OK(ncclsvc_recv(&in, 1, NCCLSVC_INT32, 0, d.comm, &task));
		CHECK_RESULT(ncclsvc_wait(d.s, task, WAIT_MS), NCCLSVC_MISMATCH);
	}
	/* Rank 0's Recv waits for a Send that never comes. */
	CHECK_RESULT(ncclsvc_plan_terminate(d.plan, WAIT_MS),
		     d.me ? NCCLSVC_OK : NCCLSVC_CANCELLED);
	check_usable(d.s, d.comm);
	ncclsvc_close(d.s);
}

static void plans_live_beside_other_tasks(void **state)
{
	(void)state;
	run_clients(2, beside);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_seeds_example_works_on_one_thread),
		TEST(tasks_may_come_in_any_order),
		TEST(threads_submit_and_wait),
		TEST(sessions_without_a_ring_have_plans_too),
		TEST(several_alike_in_a_group),
		TEST(empty_plans_and_groups_are_over_at_once),
		TEST(waiting_threads_sleep),
		TEST(plans_live_beside_other_tasks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
