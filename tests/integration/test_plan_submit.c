/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc_plan_submit: what it refuses, groups by index, stable buffers, submissions before the
 * launch, and strict plans. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "plan_desk.h"

enum { READY = 1, GO };

static ncclsvc_planned task_of(const struct desk *d, ncclsvc_op op, int32_t *buf, size_t n,
			       uint32_t group, unsigned flags)
{
	const bool sends = op == NCCLSVC_SEND;
	return (ncclsvc_planned){.size = sizeof(ncclsvc_planned),
				 .op = op,
				 .type = NCCLSVC_INT32,
				 .sendbuf = sends ? buf : NULL,
				 .recvbuf = sends ? NULL : buf,
				 .count = n,
				 .peer = d->other,
				 .group = group,
				 .flags = flags};
}

static ncclsvc_result submit(const struct desk *d, ncclsvc_op op, int32_t *v, uint32_t group,
			     unsigned flags)
{
	const ncclsvc_planned x = task_of(d, op, v, 1, group, flags);
	return ncclsvc_plan_submit(d->plan, &x, WAIT_MS, NULL);
}

static ncclsvc_result refused(const struct desk *d, const ncclsvc_planned *x)
{
	ncclsvc_task task = 77;
	const ncclsvc_result r = ncclsvc_plan_submit(d->plan, x, WAIT_MS, &task);
	CHECK_EQ(task, 0);
	return r;
}

/* ---- Refusals ---- */

static void bad(struct client *me)
{
	struct desk d;
	int32_t v = 1, w = 0;
	exchange_desk(&d, me);
	const ncclsvc_result no = NCCLSVC_INVALID_ARGUMENT;
	const ncclsvc_planned good = task_of(&d, NCCLSVC_SEND, &v, 1, NCCLSVC_PLAN_FIRST, 0);
	ncclsvc_planned x = good;
	CHECK_RESULT(refused(&d, NULL), no);
	CHECK_RESULT(ncclsvc_plan_submit(NULL, &good, 0, NULL), no);
	x.size = sizeof(x) - 1;
	CHECK_RESULT(refused(&d, &x), no);
	CHECK_SAYS("sizeof(ncclsvc_planned)");
	x = good;
	x.flags = 4;
	CHECK_RESULT(refused(&d, &x), no);
	CHECK_SAYS("the flags are 0x4");
	x = good;
	x.op = NCCLSVC_BARRIER;
	CHECK_RESULT(refused(&d, &x), no);
	CHECK_SAYS("NCCLSVC_SEND or NCCLSVC_RECV");
	x = good;
	x.recvbuf = &w;
	CHECK_RESULT(refused(&d, &x), no);
	CHECK_SAYS("a Send has no recvbuf");
	x.op = NCCLSVC_RECV;
	CHECK_RESULT(refused(&d, &x), no);
	CHECK_SAYS("a Recv has no sendbuf");
	x = good;
	x.type = (ncclsvc_type)99;
	CHECK_RESULT(refused(&d, &x), no);
	x = good;
	x.sendbuf = NULL;
	CHECK_RESULT(refused(&d, &x), no);
	x = good;
	x.peer = d.me;
	CHECK_RESULT(refused(&d, &x), no);
	CHECK_SAYS("is not in the plan");
	/* No refused task has taken the place. */
	ncclsvc_task task = 0;
	CHECK_OK(ncclsvc_plan_submit(d.plan, &good, 0, &task));
	CHECK(task != 0);
	CHECK_OK(submit(&d, NCCLSVC_RECV, &w, NCCLSVC_PLAN_FIRST, NCCLSVC_PLANNED_WAIT));
	CHECK_OK(ncclsvc_plan_wait(d.plan, task, WAIT_MS));
	CHECK_EQ(w, 1);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	desk_close(&d);
}

static void bad_submissions_are_refused(void **state)
{
	(void)state;
	run_clients(2, bad);
}

/* ---- Groups by their index ---- */

enum { GROUPS = 4 };

static void grouped(struct client *me)
{
	struct desk d;
	int32_t out[GROUPS], in[GROUPS];
	const ncclsvc_result no = NCCLSVC_INVALID_ARGUMENT;
	desk_open(&d, me);
	for (int g = 0; g < GROUPS; g++)
		plan_exchange(&d);
	launch(&d);
	for (int round = 0; round < 4; round++) {
		/* In reverse, except the last, which takes the first free place. */
		for (int i = 0; i < GROUPS; i++) {
			const int g = i < GROUPS - 1 ? GROUPS - 1 - i : 0;
			const uint32_t at = g ? (uint32_t)g : NCCLSVC_PLAN_FIRST;
			out[g] = d.me * 1000 + round * 10 + g;
			CHECK_OK(submit(&d, NCCLSVC_SEND, &out[g], at, 0));
			CHECK_OK(submit(&d, NCCLSVC_RECV, &in[g], at, 0));
			if (i)
				continue;
			CHECK_RESULT(submit(&d, NCCLSVC_SEND, &out[g], at, 0), no);
			CHECK_SAYS("no free slot in group 3 of this iteration, which has 2 tasks: "
				   "Send to rank");
			CHECK_SAYS("(submitted)");
			CHECK_RESULT(submit(&d, NCCLSVC_RECV, &in[0], GROUPS, 0), no);
			CHECK_SAYS("there is no group 4: the plan has 4");
		}
		CHECK_RESULT(submit(&d, NCCLSVC_RECV, &in[0], NCCLSVC_PLAN_FIRST, 0), no);
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		for (int g = 0; g < GROUPS; g++)
			CHECK_EQ(in[g], d.other * 1000 + round * 10 + g);
	}
	desk_close(&d);
}

static void a_group_is_named_by_its_index(void **state)
{
	(void)state;
	run_clients(2, grouped);
}

/* Groups with many tasks of one kind: the message omits some of them. */
static void many(struct client *me)
{
	struct desk d;
	int32_t v[6] = {0};
	desk_open(&d, me);
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	for (int i = 0; i < 6; i++)
		CHECK_OK(d.me ? ncclsvc_plan_recv(d.plan, ANY, 0)
			      : ncclsvc_plan_send(d.plan, ANY, 1));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	launch(&d);
	const ncclsvc_op op = d.me ? NCCLSVC_RECV : NCCLSVC_SEND;
	CHECK_RESULT(submit(&d, op, v, 1, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_SAYS("no free slot in group 1 of this iteration, which has 0 tasks");
	for (int i = 0; i < 6; i++) {
		v[i] = d.me ? 0 : i;
		CHECK_OK(submit(&d, op, &v[i], 0, 0));
	}
	CHECK_RESULT(submit(&d, op, v, 0, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_SAYS("which has 6 tasks");
	CHECK_SAYS("and 2 more");
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	for (int i = 0; i < 6; i++)
		CHECK_EQ(v[i], i);
	desk_close(&d);
}

static void alike_tasks_of_a_group_go_in_order(void **state)
{
	(void)state;
	run_clients(2, many);
}

/* ---- Buffers that must not change ---- */

static void stable(struct client *me)
{
	struct desk d;
	exchange_desk(&d, me);
	int32_t *out = shared(d.s, N * 4), *in = shared(d.s, N * 4), plain[N];
	for (int round = 0; round < 6; round++) {
		const bool copies = round % 3 != 0;
		int32_t *from = round % 3 == 1 ? plain : out;
		const unsigned flags = round % 3 == 2 ? 0 : NCCLSVC_PLANNED_STABLE;
		ncclsvc_planned x = task_of(&d, NCCLSVC_SEND, from, N, NCCLSVC_PLAN_FIRST,
					    NCCLSVC_PLANNED_WAIT | flags);
		fill(from, d.me * 100000 + round);
		CHECK_OK(ncclsvc_plan_submit(d.plan, &x, WAIT_MS, NULL));
		/* Deliberately changes the buffer, to detect whether a copy was made. */
		fill(from, d.me * 100000 + 50000 + round);
		x = task_of(&d, NCCLSVC_RECV, in, N, NCCLSVC_PLAN_FIRST, NCCLSVC_PLANNED_WAIT);
		CHECK_OK(ncclsvc_plan_submit(d.plan, &x, WAIT_MS, NULL));
		check(in, d.other * 100000 + (copies ? 0 : 50000) + round);
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void stable_session_memory_is_not_copied(void **state)
{
	(void)state;
	run_clients(2, stable);
}

/* ---- Labels ---- */

static void label_errors(ncclsvc_plan *p)
{
	static const char *const wrong[] = {"123456789012345678901234", "a\nb", "\xc3\xa4", NULL};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		CHECK_RESULT(ncclsvc_plan_label(p, wrong[i]), NCCLSVC_INVALID_ARGUMENT);
		CHECK_SAYS(wrong[i] ? "up to 23 printable" : "the label is NULL");
	}
}

static void labels(struct client *me)
{
	struct desk d;
	int32_t v = 0;
	desk_open(&d, me);
	CHECK_RESULT(ncclsvc_plan_label(NULL, "x"), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_plan_label(d.plan, "x"), NCCLSVC_INVALID_ARGUMENT);
	CHECK_SAYS("no task is planned yet");
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	CHECK_OK(ncclsvc_plan_send(d.plan, ANY, d.other));
	CHECK_OK(ncclsvc_plan_label(d.plan, "of another name"));
	CHECK_OK(ncclsvc_plan_label(d.plan, "12345678901234567890123"));
	label_errors(d.plan);
	CHECK_OK(ncclsvc_plan_recv(d.plan, 1, NCCLSVC_INT32, d.other));
	CHECK_OK(ncclsvc_plan_label(d.plan, "x"));
	CHECK_OK(ncclsvc_plan_label(d.plan, ""));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	launch(&d);
	CHECK_RESULT(ncclsvc_plan_label(d.plan, "x"), NCCLSVC_INVALID_ARGUMENT);
	CHECK_SAYS("cannot be changed");
	CHECK_OK(submit(&d, NCCLSVC_RECV, &v, 0, 0));
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, 0), NCCLSVC_TIMEOUT);
	CHECK_SAYS("has not submitted the Send \"12345678901234567890123\" to rank");
	CHECK_OK(submit(&d, NCCLSVC_SEND, &v, 0, 0));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	/* The task itself fails: the other task of its group is late. */
	CHECK_OK(ncclsvc_comm_set_timeout(d.comm, 50));
	CHECK_OK(submit(&d, NCCLSVC_SEND, &v, 0, 0));
	sleep_ms(100);
	CHECK_OK(submit(&d, NCCLSVC_RECV, &v, 0, 0));
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_TIMEOUT);
	CHECK_SAYS("Send \"12345678901234567890123\" #");
	desk_close(&d);
}

static void labels_name_tasks_in_errors(void **state)
{
	(void)state;
	run_clients(2, labels);
}

/* ---- Threads that block ---- */

struct blocking {
	const struct desk *d;
	ncclsvc_op op;
	int32_t *buf;
	size_t n;
	int timeout_ms;
	pthread_t thread;
	ncclsvc_result result;
	ncclsvc_task task;
	char why[256];
	_Atomic pid_t tid;
	_Atomic bool returned;
};

static void *block(void *arg)
{
	struct blocking *b = arg;
	atomic_store(&b->tid, gettid());
	const ncclsvc_planned x =
		task_of(b->d, b->op, b->buf, b->n, NCCLSVC_PLAN_FIRST, NCCLSVC_PLANNED_WAIT);
	b->result = ncclsvc_plan_submit(b->d->plan, &x, b->timeout_ms, &b->task);
	snprintf(b->why, sizeof(b->why), "%s", ncclsvc_last_error());
	atomic_store(&b->returned, true);
	return NULL;
}

static void begin(struct blocking *b, const struct desk *d, ncclsvc_op op, int32_t *buf, size_t n,
		  int timeout_ms)
{
	*b = (struct blocking){.d = d, .op = op, .buf = buf, .n = n, .timeout_ms = timeout_ms};
	CHECK_EQ(pthread_create(&b->thread, NULL, block, b), 0);
}

static void end(struct blocking *b, ncclsvc_result due, const char *why)
{
	CHECK_EQ(pthread_join(b->thread, NULL), 0);
	if (b->result != due || !strstr(b->why, why))
		check_failed(__FILE__, __LINE__, "%s, not %s with \"%s\": %s",
			     ncclsvc_result_name(b->result), ncclsvc_result_name(due), why, b->why);
}

/* ---- Before the launch ---- */

static void early(struct client *me)
{
	struct desk d;
	struct blocking b[2];
	int32_t out[N], in[N];
	desk_open(&d, me);
	fill(out, d.me);
	/* Starting before anything is planned. */
	begin(&b[0], &d, NCCLSVC_SEND, out, N, WAIT_MS);
	sleep_ms(20);
	plan_exchange(&d);
	begin(&b[1], &d, NCCLSVC_RECV, in, N, -1);
	sleep_ms(20);
	CHECK_OK(ncclsvc_plan_end(d.plan, WAIT_MS));
	sleep_ms(20);
	CHECK(!atomic_load(&b[0].returned) && !atomic_load(&b[1].returned));
	CHECK_OK(ncclsvc_plan_launch(d.plan));
	end(&b[0], NCCLSVC_OK, "");
	end(&b[1], NCCLSVC_OK, "");
	check(in, d.other);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	desk_close(&d);
}

static void submissions_wait_for_the_launch(void **state)
{
	(void)state;
	run_clients(2, early);
}

static void too_early(struct client *me)
{
	struct desk d;
	int32_t out = me->rank, in = -1;
	desk_open(&d, me);
	plan_exchange(&d);
	CHECK_OK(ncclsvc_plan_end(d.plan, WAIT_MS));
	/* A call that does not block fails at once. */
	CHECK_RESULT(submit(&d, NCCLSVC_SEND, &out, 0, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_SAYS("has not been launched");
	for (int ms = 0; ms <= 50; ms += 50) {
		const uint64_t then = now_ns();
		CHECK_RESULT(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32,
							       d.other, ms),
			     NCCLSVC_TIMEOUT);
		CHECK_SAYS("ncclsvc_plan_submit_recv_and_wait: the plan was not launched");
		CHECK(now_ns() - then >= (uint64_t)ms * 1000000);
	}
	/* The failed calls took no place. */
	CHECK_OK(ncclsvc_plan_launch(d.plan));
	CHECK_OK(submit(&d, NCCLSVC_SEND, &out, 0, 0));
	CHECK_OK(submit(&d, NCCLSVC_RECV, &in, 0, NCCLSVC_PLANNED_WAIT));
	CHECK_EQ(in, d.other);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	desk_close(&d);
}

static void the_wait_for_the_launch_has_a_deadline(void **state)
{
	(void)state;
	run_clients(2, too_early);
}

/* The thread that should launch the plan terminates it, or leaves its communicator. */
static void never(struct client *me)
{
	struct desk d;
	struct blocking b[2];
	int32_t v = 0;
	for (int leaves = 0; leaves < 2; leaves++) {
		desk_open(&d, me);
		plan_exchange(&d);
		CHECK_OK(ncclsvc_plan_end(d.plan, WAIT_MS));
		for (int i = 0; i < 2; i++)
			begin(&b[i], &d, i ? NCCLSVC_RECV : NCCLSVC_SEND, &v, 1, -1);
		for (int i = 0; i < 2; i++)
			wait_until_asleep(&b[i].tid);
		if (leaves) {
			CHECK_OK(ncclsvc_barrier(d.comm, NULL)); /* both threads wait by now */
			CHECK_OK(ncclsvc_wait_all(d.s, WAIT_MS));
			CHECK_OK(ncclsvc_comm_leave(d.comm));
		} else {
			CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
		}
		for (int i = 0; i < 2; i++) {
			/* The other rank may have left a moment earlier. */
			CHECK_EQ(pthread_join(b[i].thread, NULL), 0);
			const bool gone = leaves && (b[i].result == NCCLSVC_STALE_EPOCH ||
						     b[i].result == NCCLSVC_PEER_GONE);
			CHECK(gone || b[i].result == NCCLSVC_INVALID_ARGUMENT);
			CHECK(gone || strstr(b[i].why, leaves ? "left" : "terminated"));
			CHECK_EQ(b[i].task, 0);
		}
		if (leaves)
			CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
		else
			check_usable(d.s, d.comm); /* the other rank has terminated, too */
		ncclsvc_close(d.s);
	}
}

static void the_wait_for_the_launch_ends_with_the_plan(void **state)
{
	(void)state;
	run_clients(2, never);
}

static void orphaned(struct client *me)
{
	struct desk d;
	struct blocking b;
	int32_t v = 0;
	desk_open(&d, me);
	begin(&b, &d, NCCLSVC_SEND, &v, 1, -1);
	wait_until_asleep(&b.tid);
	say(me, READY);
	if (me->rank == 1)
		hear(me); /* the test kills this client here */
	end(&b, NCCLSVC_PEER_GONE, "rank 1");
	CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	ncclsvc_close(d.s);
}

static void the_wait_for_the_launch_ends_with_the_epoch(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, orphaned, NULL);
	hear_all(clients, 2, READY);
	client_kill(&clients[1]);
	clients_end(clients, 1);
	daemon_stop(&d);
}

/* ---- Strict plans ---- */

static void strict_desk(struct desk *d, struct client *me)
{
	desk_open(d, me);
	CHECK_OK(ncclsvc_plan_set_strict(d->plan, true));
	plan_exchange(d);
	launch(d);
	CHECK_RESULT(ncclsvc_plan_set_strict(d->plan, false), NCCLSVC_INVALID_ARGUMENT);
	CHECK_SAYS("is already launched");
	CHECK_RESULT(ncclsvc_plan_set_strict(NULL, false), NCCLSVC_INVALID_ARGUMENT);
}

static void strict(struct client *me)
{
	struct desk d;
	struct blocking b[2];
	strict_desk(&d, me);
	int32_t *out = shared(d.s, N * 4), *in = shared(d.s, N * 4);
	for (int round = 0; round < 10; round++) {
		const int first = round % 2;
		fill(out, -1);
		begin(&b[first], &d, first ? NCCLSVC_RECV : NCCLSVC_SEND, first ? in : out, N,
		      WAIT_MS);
		sleep_ms(round < 2 ? 50 : 0);
		/* Neither call has returned, and the Send has not been copied. */
		CHECK(!atomic_load(&b[first].returned));
		fill(out, d.me * 100000 + round);
		begin(&b[!first], &d, first ? NCCLSVC_SEND : NCCLSVC_RECV, first ? out : in, N,
		      WAIT_MS);
		end(&b[0], NCCLSVC_OK, "");
		CHECK_OK(ncclsvc_plan_test(d.plan, b[0].task)); /* all tasks of the group */
		end(&b[1], NCCLSVC_OK, "");
		check(in, d.other * 100000 + round);
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void strict_submissions_return_with_their_group(void **state)
{
	(void)state;
	run_clients(2, strict);
}

static void strict_alone(struct client *me)
{
	struct desk d;
	int32_t out = 10 + me->rank, in = 0;
	strict_desk(&d, me);
	for (int round = 0; round < 2; round++) {
		const ncclsvc_planned x = task_of(&d, NCCLSVC_SEND, &out, 1, 0,
						  NCCLSVC_PLANNED_WAIT | NCCLSVC_PLANNED_STABLE);
		ncclsvc_task task = 0;
		CHECK_RESULT(ncclsvc_plan_submit(d.plan, &x, 50, &task), NCCLSVC_TIMEOUT);
		CHECK_SAYS("group 0 of the plan: this rank has not submitted the Recv from rank");
		CHECK(task != 0);
		/* The plan still exists and continues. */
		CHECK_OK(ncclsvc_plan_submit_recv_and_wait(d.plan, &in, 1, NCCLSVC_INT32, d.other,
							   WAIT_MS));
		CHECK_EQ(in, 10 + d.other);
		CHECK_OK(ncclsvc_plan_wait(d.plan, task, WAIT_MS));
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void a_strict_thread_alone_gets_a_timeout(void **state)
{
	(void)state;
	run_clients(2, strict_alone);
}

/* Rank 0 sends one element too many; its Recv is valid. */
static void strict_errors(struct client *me)
{
	struct desk d;
	struct blocking b[2];
	int32_t out[2] = {me->rank, 0}, in = -1;
	strict_desk(&d, me);
	begin(&b[0], &d, NCCLSVC_SEND, out, d.me ? 1 : 2, WAIT_MS);
	begin(&b[1], &d, NCCLSVC_RECV, &in, 1, WAIT_MS);
	end(&b[0], d.me ? NCCLSVC_OK : NCCLSVC_MISMATCH, "");
	end(&b[1], d.me ? NCCLSVC_MISMATCH : NCCLSVC_OK, "");
	if (!d.me)
		CHECK_EQ(in, 1);
	/* Each failure has been reported. */
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	desk_close(&d);
}

static void a_strict_submission_has_its_own_error(void **state)
{
	(void)state;
	run_clients(2, strict_errors);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bad_submissions_are_refused),
		TEST(a_group_is_named_by_its_index),
		TEST(alike_tasks_of_a_group_go_in_order),
		TEST(stable_session_memory_is_not_copied),
		TEST(labels_name_tasks_in_errors),
		TEST(submissions_wait_for_the_launch),
		TEST(the_wait_for_the_launch_has_a_deadline),
		TEST(the_wait_for_the_launch_ends_with_the_plan),
		TEST(the_wait_for_the_launch_ends_with_the_epoch),
		TEST(strict_submissions_return_with_their_group),
		TEST(a_strict_thread_alone_gets_a_timeout),
		TEST(a_strict_submission_has_its_own_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
