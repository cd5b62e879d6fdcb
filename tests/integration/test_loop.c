/* SPDX-License-Identifier: Apache-2.0
 * Completion by event loop, and sessions used by several threads. */
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "harness.h"

#define TASKS 10000

/* ---- get_fd, poll, dispatch ---- */

struct loop {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	int32_t *v;
	unsigned char seen[TASKS + 1];
	unsigned submitted, done;
};

static void submit_more(struct loop *l)
{
	while (l->submitted < TASKS) {
		ncclsvc_task task;
		ncclsvc_result r = ncclsvc_all_reduce(&l->v[l->submitted], &l->v[l->submitted], 1,
						      NCCLSVC_INT32, NCCLSVC_SUM, l->comm, &task);
		if (r == NCCLSVC_AGAIN)
			return;
		CHECK_OK(r);
		l->submitted++;
		CHECK_EQ(task, l->submitted);
	}
}

static void on_done(ncclsvc_task task, ncclsvc_result result, void *arg)
{
	struct loop *l = arg;
	CHECK_OK(result);
	CHECK(task >= 1 && task <= TASKS);
	CHECK_EQ(l->seen[task], 0);
	l->seen[task] = 1;
	l->done++;
	submit_more(l); /* a callback may submit */
}

static void runs_a_loop(struct client *me)
{
	static struct loop l;
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = me->daemon->socket,
				   .ring_entries = 64,
				   .timeout_ms = WAIT_MS};
	CHECK_OK(ncclsvc_open(&options, &l.session));
	l.comm = comm_join(me, l.session);
	l.v = shared(l.session, TASKS * sizeof(*l.v));
	for (int i = 0; i < TASKS; i++)
		l.v[i] = i + me->rank;
	ncclsvc_set_callback(l.session, on_done, &l);
	struct pollfd p = {.fd = ncclsvc_get_fd(l.session), .events = POLLIN};
	CHECK(p.fd >= 0);
	submit_more(&l);
	while (l.done < TASKS) {
		CHECK_EQ(poll(&p, 1, WAIT_MS), 1); /* a lost completion hangs here */
		CHECK_OK(ncclsvc_dispatch(l.session, 0));
	}
	CHECK_EQ(l.done, TASKS);
	for (int i = 0; i < TASKS; i++)
		CHECK_EQ(l.v[i], 2 * i + 1);
	/* No completion is left: apart from a late wake-up, the fd stays silent. */
	int woken = 0;
	while (poll(&p, 1, 50) == 1) {
		CHECK(++woken < 10);
		CHECK_OK(ncclsvc_dispatch(l.session, 0));
	}
	say(me, 1);
	CHECK_EQ(hear(me), 2); /* leaving is an event for the other member */
	ncclsvc_close(l.session);
}

static void no_completion_is_lost(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	time_limit(240);
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, runs_a_loop, NULL);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(hear_within(&clients[i], 200000), 1);
	say_all(clients, 2, 2);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Rare tasks, so that both sides sleep in between: each must wake the other. */
static void sleeps_between(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	struct pollfd p = {.fd = ncclsvc_get_fd(s), .events = POLLIN};
	for (int i = 0; i < 40; i++) {
		ncclsvc_task task;
		sleep_ms((unsigned)(i % 5) * 7);
		CHECK_OK(ncclsvc_barrier(comm, &task));
		if (i % 2) {
			wait_for(s, task, NCCLSVC_OK);
			continue;
		}
		while (ncclsvc_test(s, task) == NCCLSVC_IN_PROGRESS) {
			CHECK_EQ(poll(&p, 1, WAIT_MS), 1);
			CHECK_OK(ncclsvc_dispatch(s, 0));
		}
		CHECK_OK(ncclsvc_test(s, task));
	}
	ncclsvc_close(s);
}

static void sleepers_are_woken(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, sleeps_between, NULL);
	clients_end(clients, 3);
	daemon_stop(&d);
}

/* ---- No ring ---- */

static void without_ring(struct client *me)
{
	ncclsvc_session *s;
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = me->daemon->socket,
				   .no_ring = me->rank == 0,
				   .timeout_ms = WAIT_MS};
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 4096);
	ncclsvc_task tasks[100];
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 100; i++) {
			v[i] = i;
			CHECK_OK(ncclsvc_all_reduce(&v[i], &v[i], 1, NCCLSVC_INT32, NCCLSVC_SUM,
						    comm, &tasks[i]));
		}
		for (int i = 0; i < 100; i++) {
			wait_for(s, tasks[i], NCCLSVC_OK);
			CHECK_EQ(v[i], 2 * i);
		}
	}
	ncclsvc_timeline *timeline;
	if (me->rank == 0)
		CHECK_RESULT(ncclsvc_timeline_create(s, &timeline), NCCLSVC_UNSUPPORTED);
	ncclsvc_close(s);
}

static void a_session_without_ring_matches_one_with(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, without_ring, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Threads ---- */

#define THREADS 4
#define ROUNDS	300

struct worker {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	int nranks, index;
	const struct client *me;
	pthread_t thread;
};

static void reduce_rounds(struct worker *w)
{
	int32_t *v = shared(w->session, 4096);
	for (int i = 0; i < ROUNDS; i++) {
		ncclsvc_task task;
		v[0] = w->index * 1000 + i;
		CHECK_OK(ncclsvc_all_reduce(v, v + 1, 1, NCCLSVC_INT32, NCCLSVC_SUM, w->comm,
					    &task));
		wait_for(w->session, task, NCCLSVC_OK);
		CHECK_EQ(v[1], w->nranks * (w->index * 1000 + i));
	}
	CHECK_OK(ncclsvc_mem_free(w->session, v));
}

static void *thread_of_one_session(void *arg)
{
	reduce_rounds(arg);
	return NULL;
}

/* All threads on one session, each with a communicator of its own. */
static void threads_share(struct client *me)
{
	struct worker w[THREADS];
	ncclsvc_session *s = session_open(me->daemon);
	for (int i = 0; i < THREADS; i++) {
		ncclsvc_unique_id id = me->id;
		id.bytes[0] ^= (uint8_t)(i + 1);
		w[i] = (struct worker){.session = s, .nranks = me->nranks, .index = i, .me = me};
		CHECK_OK(ncclsvc_comm_join(s, &id, me->nranks, me->rank, WAIT_MS, &w[i].comm));
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&w[i].thread, NULL, thread_of_one_session, &w[i]), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(w[i].thread, NULL), 0);
	ncclsvc_close(s);
}

static void threads_share_a_session(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	time_limit(180);
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, threads_share, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Each thread a rank with its own session, all in one process. */
static void *thread_as_rank(void *arg)
{
	struct worker *w = arg;
	w->session = session_open(w->me->daemon);
	CHECK_OK(ncclsvc_comm_join(w->session, &w->me->id, THREADS, w->index, WAIT_MS, &w->comm));
	w->index = 0;
	reduce_rounds(w);
	ncclsvc_close(w->session);
	return NULL;
}

static void threads_are_ranks(struct client *me)
{
	struct worker w[THREADS];
	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){.nranks = THREADS, .index = i, .me = me};
		CHECK_EQ(pthread_create(&w[i].thread, NULL, thread_as_rank, &w[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(w[i].thread, NULL), 0);
}

static void a_process_has_several_sessions(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	time_limit(180);
	daemon_start(&d, NULL);
	clients_start(&client, 1, &d, threads_are_ranks, NULL);
	clients_end(&client, 1);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(no_completion_is_lost),
		TEST(sleepers_are_woken),
		TEST(a_session_without_ring_matches_one_with),
		TEST(threads_share_a_session),
		TEST(a_process_has_several_sessions),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
