/* SPDX-License-Identifier: Apache-2.0
 * The planned service: what it does, and that nothing of what NcclService gets wrong is here. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "client/plan/ncclsvc_plan.h"
#include "harness.h"

#define N   1000
#define ANY NCCLSVC_PLAN_ANY, NCCLSVC_INT8

static void run_clients(int n, client_main *main)
{
	struct daemon d;
	struct client clients[8];
	daemon_start(&d, NULL);
	clients_start(clients, n, &d, main, NULL);
	clients_end(clients, n);
	daemon_stop(&d);
}

static void fill(int32_t *buf, int32_t base)
{
	for (int32_t i = 0; i < N; i++)
		buf[i] = base + i;
}

static void check(const int32_t *buf, int32_t base)
{
	for (int32_t i = 0; i < N; i++)
		CHECK_EQ(buf[i], base + i);
}

#define CHECK_SAYS(text)                                                                           \
	do {                                                                                       \
		if (!strstr(ncclsvc_last_error(), text))                                           \
			check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,             \
				     ncclsvc_last_error());                                        \
	} while (0)

struct desk {
	struct client *c;
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_plan *plan;
	int me, other; /* of two ranks */
};

static void desk_open(struct desk *d, struct client *me)
{
	*d = (struct desk){.c = me, .me = me->rank, .other = 1 - me->rank};
	d->s = session_open(me->daemon);
	d->comm = comm_join(me, d->s);
	CHECK_OK(ncclsvc_plan_start(d->comm, &d->plan));
}

static void desk_close(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_terminate(d->plan, WAIT_MS));
	check_usable(d->s, d->comm);
	ncclsvc_close(d->s);
}

static void launch(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

/* A Send to and a Recv from the other rank, in one group. */
static void plan_exchange(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_group_start(d->plan));
	CHECK_OK(ncclsvc_plan_send(d->plan, ANY, d->other));
	CHECK_OK(ncclsvc_plan_recv(d->plan, ANY, d->other));
	CHECK_OK(ncclsvc_plan_group_end(d->plan));
}

static void exchange_desk(struct desk *d, struct client *me)
{
	desk_open(d, me);
	plan_exchange(d);
	launch(d);
}

/* ---- The seed's own example: one thread, one group, one task after the other ---- */

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
		/* All Recvs first, or all Sends: their groups become whole only later. */
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

/* ---- From many threads, blocking, as in the seed ---- */

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
		/* It waits for what the others have yet to submit. */
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

/* ---- By socket ---- */

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

/* ---- Nothing ---- */

static void nothing(struct client *me)
{
	struct desk d;
	int32_t out = me->rank, in = -1;
	/* No group at all, then only empty ones: every step is over at once. */
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
	/* Empty groups around one that is not. */
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
	/* Nothing submitted: nothing to wait for. */
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
	/* Terminated after zero rounds, and at every stage before. */
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

/* ---- Wrong use ---- */

static void wrong_use(struct client *me)
{
	struct desk d;
	int32_t v = 7;
	desk_open(&d, me);
	ncclsvc_plan *p = d.plan;
	const ncclsvc_result bad = NCCLSVC_INVALID_ARGUMENT;
	CHECK_RESULT(ncclsvc_plan_start(NULL, &p), bad);
	CHECK_RESULT(ncclsvc_plan_start(d.comm, NULL), bad);
	CHECK_RESULT(ncclsvc_plan_group_start(NULL), bad);
	CHECK_RESULT(ncclsvc_plan_reset(NULL, 0), bad);
	CHECK_RESULT(ncclsvc_plan_wait(NULL, 1, 0), bad);
	/* Before the plan's end. */
	CHECK_RESULT(ncclsvc_plan_launch(p), bad);
	CHECK_SAYS("ncclsvc_plan_end first");
	CHECK_RESULT(ncclsvc_plan_reset(p, 0), bad);
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_RESULT(ncclsvc_plan_group_end(p), bad);
	CHECK_RESULT(ncclsvc_plan_send(p, ANY, d.other), bad);
	CHECK_SAYS("no group is open");
	CHECK_OK(ncclsvc_plan_group_start(p));
	CHECK_RESULT(ncclsvc_plan_group_start(p), bad);
	CHECK_RESULT(ncclsvc_plan_send(p, ANY, 2), bad);
	CHECK_RESULT(ncclsvc_plan_recv(p, ANY, -1), bad);
	CHECK_RESULT(ncclsvc_plan_recv(p, 1, (ncclsvc_type)99, d.other), bad);
	CHECK_RESULT(ncclsvc_plan_end(p, 0), bad);
	CHECK_SAYS("group 0 is open");
	CHECK_OK(ncclsvc_plan_send(p, 5, NCCLSVC_INT32, d.other));
	CHECK_OK(ncclsvc_plan_recv(p, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(p));
	CHECK_OK(ncclsvc_plan_end(p, WAIT_MS));
	/* After it. */
	CHECK_RESULT(ncclsvc_plan_group_start(p), bad);
	CHECK_SAYS("cannot be changed");
	CHECK_RESULT(ncclsvc_plan_send(p, ANY, d.other), bad);
	CHECK_RESULT(ncclsvc_plan_end(p, WAIT_MS), bad);
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_SAYS("not been launched");
	CHECK_OK(ncclsvc_plan_launch(p));
	CHECK_RESULT(ncclsvc_plan_launch(p), bad);
	CHECK_SAYS("already");
	/* A second plan beside it. */
	ncclsvc_plan *second;
	CHECK_OK(ncclsvc_plan_start(d.comm, &second));
	CHECK_RESULT(ncclsvc_plan_end(second, WAIT_MS), NCCLSVC_BUSY);
	CHECK_OK(ncclsvc_plan_terminate(second, WAIT_MS));
	/* Not planned, not as planned, not in a group, too many, and past the end. */
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.me, NULL), bad);
	CHECK_SAYS("is not planned");
	CHECK_RESULT(ncclsvc_plan_submit_send(p, &v, 1, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_SAYS("was planned with 5 int32");
	CHECK_OK(ncclsvc_group_begin(d.s));
	CHECK_RESULT(ncclsvc_plan_submit_recv(p, &v, 5, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_OK(ncclsvc_group_end(d.s));
	int32_t out[5] = {d.me}, in[5] = {-1};
	for (int round = 0; round < 3; round++) {
		CHECK_OK(ncclsvc_plan_submit_send(p, out, 5, NCCLSVC_INT32, d.other, NULL));
		CHECK_RESULT(ncclsvc_plan_submit_send(p, out, 5, NCCLSVC_INT32, d.other, NULL),
			     bad);
		CHECK_SAYS("were submitted in this iteration");
		CHECK_OK(ncclsvc_plan_submit_recv_and_wait(p, in, 5, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_RESULT(ncclsvc_plan_submit_recv(p, in, 5, NCCLSVC_INT32, d.other, NULL), bad);
		CHECK_EQ(in[0], d.other);
		CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	}
	/* The communicator goes before the plan. */
	CHECK_OK(ncclsvc_barrier(d.comm, NULL));
	CHECK_OK(ncclsvc_wait_all(d.s, WAIT_MS));
	CHECK_OK(ncclsvc_comm_leave(d.comm));
	CHECK_RESULT(ncclsvc_plan_submit_send(p, out, 5, NCCLSVC_INT32, d.other, NULL), bad);
	CHECK_SAYS("has been left");
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
	ncclsvc_close(d.s);
}

static void wrong_use_is_an_error_return(void **state)
{
	(void)state;
	run_clients(2, wrong_use);
}

/* ---- Timeouts: they say what lacks, and change nothing ---- */

static void timeouts(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = 0;
	ncclsvc_task send;
	exchange_desk(&d, me);
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, &send));
	CHECK_RESULT(ncclsvc_plan_test(d.plan, send), NCCLSVC_IN_PROGRESS);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, send, 50), NCCLSVC_TIMEOUT);
	CHECK_SAYS(me->rank ? "Recv from rank 0 in group 0" : "Recv from rank 1 in group 0");
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, 50), NCCLSVC_TIMEOUT);
	CHECK_SAYS("has not submitted the Recv");
	say(me, 1);
	CHECK_EQ(hear(me), 1);
	/* One rank whole, the other not. */
	if (d.me == 0) {
		CHECK_RESULT(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, 1,
							       50),
			     NCCLSVC_TIMEOUT);
		CHECK_SAYS("other ranks have not");
		CHECK_RESULT(ncclsvc_plan_reset(d.plan, 50), NCCLSVC_TIMEOUT);
		say(me, 2);
	} else {
		CHECK_EQ(hear(me), 2);
		CHECK_OK(
			ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, 0, WAIT_MS));
	}
	CHECK_OK(ncclsvc_plan_wait(d.plan, send, WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	CHECK_EQ(in, 1);
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 1);
	/* A deadline of the task itself: all learn, and the plan goes on. */
	CHECK_OK(ncclsvc_comm_set_timeout(d.comm, d.me == 0 ? 100 : NCCLSVC_NO_TIMEOUT));
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, d.other, &send));
	if (d.me == 0) {
		CHECK_RESULT(ncclsvc_plan_wait(d.plan, send, WAIT_MS), NCCLSVC_TIMEOUT);
		ncclsvc_status st = status_of(d.s, send);
		CHECK_EQ(st.result, NCCLSVC_TIMEOUT);
		CHECK_EQ(st.missing_count, 1);
		CHECK_EQ(st.missing[0], 0); /* itself */
		CHECK_OK(ncclsvc_comm_set_timeout(d.comm, NCCLSVC_NO_TIMEOUT));
	}
	CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, d.other, NULL));
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS),
		     d.me == 0 ? NCCLSVC_OK : NCCLSVC_TIMEOUT);
	for (int round = 0; round < 3; round++) {
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, d.other, NULL));
		CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, &out, 1, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void timeouts_say_what_lacks(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, timeouts, NULL);
	hear_all(clients, 2, 1);
	say_all(clients, 2, 1);
	CHECK_EQ(hear(&clients[0]), 2);
	say(&clients[1], 2);
	clients_end(clients, 2);
	daemon_stop(&d);
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
	CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, d.other, WAIT_MS));
	double spent = cpu_seconds() - before;
	if (d.me == 0 && spent > (sanitized() ? 0.3 : 0.1))
		check_failed(__FILE__, __LINE__, "0.6 s of waiting took %.3f s of CPU", spent);
	desk_close(&d);
}

static void who_waits_sleeps(void **state)
{
	(void)state;
	run_clients(2, idle_wait);
}

/* ---- Commit ---- */

static void commit_mismatch(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	/* A Send without its Recv. */
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_send(d.plan, ANY, 1 - me->rank));
	if (d.me == 1)
		CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, 0));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS("rank 1's Send to rank 0 (the Send no. 1 between the two, in its group 0) has no "
		   "Recv in the plan of rank 0");
	CHECK_RESULT(ncclsvc_plan_launch(d.plan), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_plan_group_start(d.plan), NCCLSVC_INVALID_ARGUMENT);
	desk_close(&d);
	/* Sizes. */
	desk_open(&d, me);
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(d.me ? ncclsvc_plan_recv(d.plan, 9, NCCLSVC_FLOAT32, 0)
		      : ncclsvc_plan_send(d.plan, 8, NCCLSVC_FLOAT32, 1));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS("8 float32");
	CHECK_SAYS("9 float32");
	desk_close(&d);
	/* Both receive first, each in a group of its own. */
	desk_open(&d, me);
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_recv(d.plan, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_send(d.plan, ANY, d.other));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_MISMATCH);
	CHECK_SAYS("never be carried out");
	CHECK_SAYS("rank 0 in its group 0 waits for rank 1's group 1");
	desk_close(&d);
}

static void plans_are_matched_at_commit(void **state)
{
	(void)state;
	run_clients(2, commit_mismatch);
}

static void commit_alone(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	if (d.me == 0) {
		CHECK_RESULT(ncclsvc_plan_end(d.plan, 100), NCCLSVC_TIMEOUT);
		CHECK_SAYS("had not committed their plan by the deadline: 1");
		say(me, 1);
		CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_PEER_GONE);
		CHECK_SAYS("rank 1");
		say(me, 2);
		CHECK_RESULT(ncclsvc_plan_end(d.plan, WAIT_MS), NCCLSVC_STALE_EPOCH);
		ncclsvc_close(d.s);
		return;
	}
	say(me, 1);
	hear(me);
}

static void a_commit_ends_by_deadline_and_by_death(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, commit_alone, NULL);
	hear_all(clients, 2, 1);
	sleep_ms(100);
	uint64_t then = now_ns();
	client_kill(&clients[1]);
	CHECK_EQ(hear(&clients[0]), 2);
	CHECK(now_ns() - then < (sanitized() ? 1000 : 100) * UINT64_C(1000000));
	clients_end(clients, 1);
	daemon_stop(&d);
}

/* ---- A member terminates while others go on ---- */

static void one_leaves(struct client *me)
{
	struct desk d;
	int32_t out = 1, in = 0;
	ncclsvc_task recv;
	exchange_desk(&d, me);
	if (d.me == 0) {
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &in, 1, NCCLSVC_INT32, 1, &recv));
		say(me, 1);
		CHECK_RESULT(ncclsvc_plan_wait(d.plan, recv, WAIT_MS), NCCLSVC_CANCELLED);
		CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_CANCELLED);
		/* And so is whatever comes later. */
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_RESULT(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, 1,
							       WAIT_MS),
			     NCCLSVC_CANCELLED);
		CHECK_RESULT(ncclsvc_plan_terminate(d.plan, WAIT_MS), NCCLSVC_CANCELLED);
	} else {
		/* Half a group: held, then cancelled with the plan. */
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &out, 1, NCCLSVC_INT32, 0, NULL));
		hear(me);
		CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	}
	CHECK_OK(ncclsvc_comm_error(d.comm));
	check_usable(d.s, d.comm);
	/* The next plan. */
	CHECK_OK(ncclsvc_plan_start(d.comm, &d.plan));
	plan_exchange(&d);
	launch(&d);
	CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, &out, 1, NCCLSVC_INT32, d.other,
						   WAIT_MS));
	CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, d.other, WAIT_MS));
	desk_close(&d);
}

static void a_terminated_plan_ends_the_others_tasks(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_leaves, NULL);
	CHECK_EQ(hear(&clients[0]), 1);
	say(&clients[1], 1);
	clients_end(clients, 2);
	daemon_stop(&d);
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
		check_usable(d.s, d.comm); /* while one is held */
		CHECK_OK(ncclsvc_plan_submit_send_and_wait(d.plan, &out, 1, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	/* A planned task never meets one that is not. */
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
	/* Rank 0's Recv waits for a Send that will not come. */
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
		TEST(wrong_use_is_an_error_return),
		TEST(timeouts_say_what_lacks),
		TEST(who_waits_sleeps),
		TEST(plans_are_matched_at_commit),
		TEST(a_commit_ends_by_deadline_and_by_death),
		TEST(a_terminated_plan_ends_the_others_tasks),
		TEST(plans_live_beside_other_tasks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
