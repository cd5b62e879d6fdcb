/* SPDX-License-Identifier: Apache-2.0
 * Plans with several threads waiting for iterations. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plan_desk.h"

#define GROUPS 4
#define ROUNDS 30

struct resetting {
	ncclsvc_plan *plan;
	pthread_t thread;
	_Atomic pid_t tid;
	ncclsvc_result result;
	char why[256];
};

static void *reset(void *arg)
{
	struct resetting *r = arg;
	atomic_store(&r->tid, gettid());
	r->result = ncclsvc_plan_reset(r->plan, 5000);
	snprintf(r->why, sizeof(r->why), "%s", ncclsvc_last_error());
	return NULL;
}

static void reset_begin(struct resetting *r, ncclsvc_plan *plan)
{
	r->plan = plan;
	atomic_store(&r->tid, 0);
	CHECK_EQ(pthread_create(&r->thread, NULL, reset, r), 0);
}

static void reset_end(struct resetting *r, ncclsvc_result expected)
{
	CHECK_EQ(pthread_join(r->thread, NULL), 0);
	if (r->result != expected)
		check_failed(__FILE__, __LINE__, "reset gives %s, not %s: %s",
			     ncclsvc_result_name(r->result), ncclsvc_result_name(expected), r->why);
}

/* Rank 1 sends slightly late, so that all threads of rank 0 wait. */
static void several_reset(struct client *me)
{
	struct desk d;
	struct resetting r[3];
	desk_open(&d, me);
	int32_t *v = shared(d.s, GROUPS * 4);
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d.plan));
		if (d.me)
			CHECK_OK(ncclsvc_plan_send(d.plan, ANY, 0));
		else
			CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, 1));
		CHECK_OK(ncclsvc_plan_group_end(d.plan));
	}
	launch(&d);
	for (int round = 0; round < ROUNDS; round++) {
		if (d.me)
			sleep_ms(10);
		for (int g = 0; g < GROUPS; g++)
			CHECK_OK(d.me ? ncclsvc_plan_submit_send(d.plan, v + g, 1, NCCLSVC_INT32, 0,
								 NULL)
				      : ncclsvc_plan_submit_recv(d.plan, v + g, 1, NCCLSVC_INT32, 1,
								 NULL));
		int n = d.me ? 1 : 3;
		for (int i = 0; i < n; i++)
			reset_begin(&r[i], d.plan);
		for (int i = 0; i < n; i++)
			reset_end(&r[i], NCCLSVC_OK);
		CHECK_EQ(ncclsvc_plan_iterations(d.plan), round + 1);
	}
	desk_close(&d);
}

static void threads_that_reset_see_one_end(void **state)
{
	(void)state;
	run_clients(2, several_reset);
}

/* Waits on another communicator until the other rank has come as far. */
static void meet(struct desk *d, uint8_t round)
{
	ncclsvc_task task;
	ncclsvc_comm *comm;
	ncclsvc_unique_id id = d->c->id;
	id.bytes[2] ^= 1 + round;
	CHECK_OK(ncclsvc_comm_join(d->s, &id, 2, d->me, WAIT_MS, &comm));
	CHECK_OK(ncclsvc_barrier(comm, &task));
	wait_for(d->s, task, NCCLSVC_OK);
}

/* Rank 1 leaves before all tasks are submitted, and while submitted tasks wait for rank 0. */
static void leaves(struct client *me)
{
	struct desk d;
	struct resetting r;
	for (uint8_t whole = 0; whole < 2; whole++) {
		exchange_desk(&d, me);
		int32_t *v = shared(d.s, 8);
		if (!d.me) {
			meet(&d, whole);
			CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
			ncclsvc_close(d.s);
			continue;
		}
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, v, 1, NCCLSVC_INT8, 0, NULL));
		if (whole)
			CHECK_OK(ncclsvc_plan_submit_send(d.plan, v + 1, 1, NCCLSVC_INT8, 0, NULL));
		reset_begin(&r, d.plan);
		wait_until_asleep(&r.tid);
		CHECK_OK(ncclsvc_comm_leave(d.comm));
		meet(&d, whole);
		reset_end(&r, whole ? NCCLSVC_CANCELLED : NCCLSVC_INVALID_ARGUMENT);
		CHECK(whole || strstr(r.why, "left"));
		CHECK_RESULT(ncclsvc_plan_submit_send(d.plan, v + 1, 1, NCCLSVC_INT8, 0, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
		ncclsvc_close(d.s);
	}
}

static void a_communicator_is_left_while_a_thread_resets(void **state)
{
	(void)state;
	run_clients(2, leaves);
}

/* Threads wait for the launch, and continue when the plan ends: each call returns, with any result.
 */
struct submitting {
	struct desk *d;
	bool send;
	pthread_barrier_t *begun;
	_Atomic pid_t tid;
};

static void *submit_one(void *arg)
{
	struct submitting *x = arg;
	int32_t v = 0;
	atomic_store(&x->tid, gettid());
	pthread_barrier_wait(x->begun);
	if (x->send)
		ncclsvc_plan_submit_send_and_wait(x->d->plan, &v, 1, NCCLSVC_INT8, x->d->other,
						  WAIT_MS);
	else
		ncclsvc_plan_submit_recv_and_wait(x->d->plan, &v, 1, NCCLSVC_INT8, x->d->other,
						  WAIT_MS);
	return NULL;
}

static void ends(struct client *me)
{
	struct desk d;
	pthread_t threads[2];
	pthread_barrier_t begun;
	struct submitting x[2] = {{&d, true, &begun, 0}, {&d, false, &begun, 0}};
	CHECK_EQ(pthread_barrier_init(&begun, NULL, 3), 0);
	desk_open(&d, me);
	for (int round = 0; round < ROUNDS / 3; round++) {
		plan_exchange(&d);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_create(&threads[i], NULL, submit_one, &x[i]), 0);
		pthread_barrier_wait(&begun);
		for (int i = 0; i < 2; i++)
			wait_until_asleep(&x[i].tid);
		CHECK_OK(ncclsvc_plan_set_strict(d.plan, round % 2));
		launch(&d);
		ncclsvc_plan_terminate(d.plan, WAIT_MS);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_join(threads[i], NULL), 0);
		ncclsvc_comm_error(d.comm);
		CHECK_OK(ncclsvc_plan_start(d.comm, &d.plan));
	}
	desk_close(&d);
}

static void a_plan_ends_while_threads_submit(void **state)
{
	(void)state;
	run_clients(2, ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(threads_that_reset_see_one_end),
		TEST(a_communicator_is_left_while_a_thread_resets),
		TEST(a_plan_ends_while_threads_submit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
