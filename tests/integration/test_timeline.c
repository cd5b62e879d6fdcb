/* SPDX-License-Identifier: Apache-2.0
 * Timelines: a task waits until one counter reaches a value, and raises another when it ends. */
#include <pthread.h>

#include "harness.h"

enum { READY = 1, GO };

/* Waits until the tasks' end has raised the timeline to the value. Their status comes first. */
static void reaches(const ncclsvc_timeline *timeline, uint64_t value)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     ncclsvc_timeline_done(timeline) < value; sleep_ms(1))
		CHECK(now_ns() < end);
	CHECK_EQ(ncclsvc_timeline_done(timeline), value);
}

struct later {
	ncclsvc_timeline *timeline;
	int32_t *input;
	int32_t value;
};

static void *fill_and_signal(void *arg)
{
	struct later *l = arg;
	sleep_ms(50);
	*l->input = l->value;
	CHECK_OK(ncclsvc_timeline_signal(l->timeline, 1));
	return NULL;
}

static void produces_later(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_timeline *timeline;
	int32_t *v = shared(s, 64);
	ncclsvc_task task, after;
	pthread_t thread;
	CHECK_OK(ncclsvc_timeline_create(s, &timeline));
	CHECK_EQ(ncclsvc_timeline_done(timeline), 0);
	CHECK_OK(ncclsvc_timeline_set(s, timeline, 1));
	v[0] = -100;
	CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	CHECK_OK(ncclsvc_timeline_set(s, NULL, 0));
	v[1] = 1;
	CHECK_OK(ncclsvc_all_reduce(v + 1, v + 1, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &after));
	CHECK_RESULT(ncclsvc_timeline_destroy(timeline), NCCLSVC_BUSY);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_RESULT(ncclsvc_test(s, task), NCCLSVC_IN_PROGRESS);
	CHECK_RESULT(ncclsvc_wait(s, after, 10), NCCLSVC_TIMEOUT);
	CHECK_EQ(ncclsvc_timeline_done(timeline), 0);
	struct later later = {timeline, v, me->rank + 1};
	CHECK_EQ(pthread_create(&thread, NULL, fill_and_signal, &later), 0);
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(v[0], 3);
	reaches(timeline, 1);
	wait_for(s, after, NCCLSVC_OK);
	CHECK_EQ(v[1], 2);
	CHECK_OK(ncclsvc_timeline_destroy(timeline));
	ncclsvc_close(s);
}

static void a_task_waits_until_its_input_is_ready(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, produces_later, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_INPUT, 2);
	tasks_reach(s, NCCLSVC_QUEUED, 2);
	ncclsvc_close(s);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* A pipeline queued ahead: step n may start when ready >= n. */
static void queued_ahead(struct client *me)
{
	enum { STEPS = 200 };
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_timeline *timeline;
	int32_t *v = shared(s, STEPS * sizeof(*v));
	ncclsvc_task last = 0;
	CHECK_OK(ncclsvc_timeline_create(s, &timeline));
	for (int i = 0; i < STEPS; i++) {
		CHECK_OK(ncclsvc_timeline_set(s, timeline, (uint64_t)i + 1));
		CHECK_OK(ncclsvc_all_reduce(&v[i], &v[i], 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					    &last));
	}
	for (int i = 0; i < STEPS; i++) {
		v[i] = i + me->rank;
		CHECK_OK(ncclsvc_timeline_signal(timeline, (uint64_t)i + 1));
		if (i % 20)
			continue;
		reaches(timeline, (uint64_t)i + 1);
		CHECK_EQ(v[i], 2 * i + 1);
	}
	wait_for(s, last, NCCLSVC_OK);
	for (int i = 0; i < STEPS; i++)
		CHECK_EQ(v[i], 2 * i + 1);
	/* A signal never decreases the counter. */
	CHECK_OK(ncclsvc_timeline_signal(timeline, 1));
	CHECK_OK(ncclsvc_timeline_set(s, timeline, STEPS));
	CHECK_OK(ncclsvc_barrier(comm, &last));
	wait_for(s, last, NCCLSVC_OK);
	CHECK_OK(ncclsvc_timeline_set(s, NULL, 0));
	ncclsvc_close(s);
}

static void steps_are_queued_ahead(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, queued_ahead, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void fails_in_wait(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_timeline *timeline;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_timeline_create(s, &timeline));
	CHECK_OK(ncclsvc_comm_set_timeout(comm, 100));
	CHECK_OK(ncclsvc_timeline_set(s, timeline, 7));
	CHECK_OK(ncclsvc_barrier(comm, &task));
	wait_for(s, task, NCCLSVC_TIMEOUT);
	/* No stream may hang forever. */
	reaches(timeline, 7);
	ncclsvc_close(s);
}

static void a_failed_task_releases_its_timeline(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(&client, 1, &d, fails_in_wait, NULL);
	clients_end(&client, 1);
	daemon_stop(&d);
}

static void many_timelines(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_timeline *t[64];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 63; i++)
			CHECK_OK(ncclsvc_timeline_create(s, &t[i]));
		CHECK_RESULT(ncclsvc_timeline_create(s, &t[63]), NCCLSVC_LIMIT);
		for (int i = 0; i < 63; i++)
			CHECK_OK(ncclsvc_timeline_destroy(t[i]));
	}
	/* A reused timeline starts from 0. */
	CHECK_OK(ncclsvc_timeline_create(s, &t[0]));
	CHECK_OK(ncclsvc_timeline_signal(t[0], 5));
	CHECK_OK(ncclsvc_timeline_destroy(t[0]));
	for (int i = 0; i < 63; i++) {
		CHECK_OK(ncclsvc_timeline_create(s, &t[i]));
		CHECK_EQ(ncclsvc_timeline_done(t[i]), 0);
	}
	ncclsvc_close(s);
}

static void a_session_has_63_timelines(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(&client, 1, &d, many_timelines, NULL);
	clients_end(&client, 1);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_task_waits_until_its_input_is_ready),
		TEST(steps_are_queued_ahead),
		TEST(a_failed_task_releases_its_timeline),
		TEST(a_session_has_63_timelines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
