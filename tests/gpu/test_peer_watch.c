/* SPDX-License-Identifier: Apache-2.0
 * How the daemon handles the control blocks of a communicator whose members use kernels. The test
 * writes to the control blocks what the library and its kernels would. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/names.h"
#include "scene.h"
#include "watch.h"

#define MS		  1000000ull
#define QUIET_MS	  1000 /* after that, the daemon checks once a second */
#define HEADER(op, count) peer_header(op, NCCLSVC_UINT32, NCCLSVC_SUM, 0, count)

/* ---- The library's part ---- */

/* Launches kernel `seq`, an AllReduce of 8 words with this number, from 0. Only collectives
 * are launched, so kernels and rounds are counted alike. */
static void launch(struct scene *s, int rank, uint32_t seq, uint64_t number, uint64_t timeout_ns)
{
	struct peer_control *p = scene_control(s, rank);
	p->entered = seq;
	p->history[p->records % PEER_HISTORY] =
		(struct peer_record){.operation = number,
				     .collective = (uint32_t)number,
				     .header = HEADER(NCCLSVC_ALL_REDUCE, 8),
				     .launched_ns = now_ns(),
				     .timeout_ns = timeout_ns,
				     .kernel_seq = seq,
				     .coll_seq = seq};
	atomic_store_explicit(&p->records, p->records + 1, memory_order_release);
	atomic_store_explicit(&p->reached, seq, memory_order_release);
	scene_submitted(s, rank, number + 1);
}

/* Reports that a kernel waits. */
static void begin(struct scene *s, int rank, uint32_t seq)
{
	struct peer_control *p = scene_control(s, rank);
	p->coll_seq = p->coll_launch_seq = seq;
	atomic_store_explicit(&p->begun, (uint64_t)seq << 32 | seq, memory_order_release);
}

static void end(struct scene *s, int rank, uint32_t seq)
{
	atomic_store_explicit(&scene_control(s, rank)->ended, seq, memory_order_release);
}

static void is_missing(const ncclsvc_status *st, int waits, int missing)
{
	CHECK_EQ(st->rank_a, waits);
	CHECK_EQ(st->pid_a, (int)getpid());
	CHECK_EQ(st->missing_count, 1);
	CHECK_EQ(st->missing[0], missing);
	CHECK_EQ(st->rank_b, missing);
	CHECK(st->pid_b > 0);
}

/* For the first failures only: the daemon limits its lines about one user's failures. */
static void logged(struct scene *s, const char *text)
{
	CHECK(daemon_logged(s->c->daemon, text));
}

/* ---- The heartbeat ---- */

static uint32_t heartbeat(struct scene *s, int rank)
{
	return atomic_load_explicit(&scene_control(s, rank)->heartbeat, memory_order_acquire);
}

static void beats(struct scene *s, uint32_t times)
{
	const uint32_t before[2] = {heartbeat(s, 0), heartbeat(s, 1)};
	for (uint64_t until = now_ns() + WAIT_MS * MS;
	     heartbeat(s, 0) - before[0] < times || heartbeat(s, 1) - before[1] < times;
	     sleep_ms(1))
		CHECK(now_ns() < until);
}

static void signs_of_life(struct scene *s)
{
	stage("signs of life");
	scene_open(s);
	beats(s, 2);
	sleep_ms(QUIET_MS + 200);
	const uint32_t before = heartbeat(s, 0);
	sleep_ms(1500);
	CHECK(heartbeat(s, 0) - before <= 3); /* quiet */
	launch(s, 0, 1, 0, 0);
	begin(s, 0, 1);
	beats(s, 2);
	const uint64_t from = now_ns();
	beats(s, 10);
	CHECK(setup.fake || now_ns() - from < 3000 * MS);
	end(s, 0, 1);
	scene_quiet(s);
}

/* ---- Deadlines ---- */

static void deadlines(struct scene *s)
{
	stage("a rank that has not launched the operation");
	for (uint32_t k = 1; k < 100; k++)
		launch(s, 0, k, k - 1, 200 * MS);
	for (uint32_t k = 1; k < 99; k++)
		launch(s, 1, k, k - 1, 0);
	const uint64_t from = now_ns();
	begin(s, 0, 99);
	ncclsvc_status st = scene_ends(s, NCCLSVC_TIMEOUT);
	CHECK(now_ns() - from >= 200 * MS);
	is_missing(&st, 0, 1);
	logged(s,
	       "AllReduce #98 of rank 0 waits on the GPU for rank 1, which has not submitted it: "
	       "TIMEOUT: the deadline passed waiting for rank 1");

	stage("a rank whose stream is busy");
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	launch(s, 1, 1, 0, 200 * MS);
	begin(s, 1, 1);
	st = scene_ends(s, NCCLSVC_TIMEOUT);
	is_missing(&st, 1, 0);
	logged(s, "for rank 0, whose stream has not reached it");

	stage("kernels that do not end");
	scene_open(s);
	for (int k = 0; k < 2; k++) {
		launch(s, k, 1, 0, 200 * MS);
		begin(s, k, 1);
	}
	st = scene_ends(s, NCCLSVC_TIMEOUT);
	CHECK_EQ(st.missing_count, 0);
	logged(s, "has begun on all GPUs, but does not end");

	stage("a record that is overwritten");
	scene_open(s);
	for (uint32_t k = 1; k < 3 * PEER_HISTORY; k++)
		launch(s, 0, k, k - 1, 200 * MS);
	begin(s, 0, 1);
	st = scene_ends(s, NCCLSVC_TIMEOUT);
	is_missing(&st, 0, 1);

	stage("sequence numbers that wrap around");
	scene_open(s);
	launch(s, 1, UINT32_MAX, 0, 0);
	launch(s, 0, peer_seq_after(UINT32_MAX), 1, 200 * MS);
	begin(s, 1, UINT32_MAX);
	begin(s, 0, peer_seq_after(UINT32_MAX));
	st = scene_ends(s, NCCLSVC_TIMEOUT);
	is_missing(&st, 0, 1);

	stage("no deadline");
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	begin(s, 0, 1);
	scene_quiet(s);
	stage("a deadline of a kernel that has ended");
	end(s, 0, 1);
	launch(s, 0, 2, 1, 200 * MS);
	begin(s, 0, 2);
	end(s, 0, 2);
	scene_quiet(s);
}

/* ---- Ranks that leave or die ---- */

static void leave(struct scene *s, int rank)
{
	struct raw_reply reply;
	struct svc_leave request = {.comm = s->m[rank].joined.comm};
	raw_call(&s->m[rank].raw, SVC_LEAVE, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
}

static void is_gone(struct scene *s)
{
	peer_wait_aborted(s->controls);
	const ncclsvc_status st = scene_reported(s, 0);
	CHECK_EQ(st.result, NCCLSVC_PEER_GONE);
	CHECK_EQ(st.rank_a, 1);
	scene_close(s);
}

static void ranks_that_go(struct scene *s)
{
	stage("a rank that leaves without launching the operation");
	launch(s, 0, 3, 2, 0);
	leave(s, 1);
	scene_quiet(s);
	begin(s, 0, 3);
	is_gone(s);
	logged(s, "for rank 1, which has not submitted it: PEER_GONE");

	stage("a rank that leaves after launching the operation");
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	launch(s, 1, 1, 0, 0);
	begin(s, 0, 1);
	leave(s, 1);
	scene_quiet(s);
	stage("the same rank dies");
	raw_close(&s->m[1].raw);
	is_gone(s);
	logged(s, "for rank 1, whose process has ended: PEER_GONE");
	scene_member(s, 1);
}

/* ---- Ranks that disagree ---- */

static uint32_t submit(struct scene *s, int rank, int op, uint64_t count)
{
	struct svc_record r = {.comm = s->m[rank].joined.comm,
			       .epoch = s->m[rank].joined.epoch,
			       .op = (uint8_t)op,
			       .type = NCCLSVC_UINT32,
			       .peer = -1,
			       .count = count};
	if (op != NCCLSVC_BARRIER)
		r.src_region = r.dst_region = s->m[rank].staging;
	return raw_send(&s->m[rank].raw, SVC_SUBMIT, &r, sizeof(r), NULL, 0);
}

/* Rank 0 waits in an AllReduce of 8 words, and rank 1 submits another operation, which it counts
 * before or after that: both fail alike. */
static void disagrees(struct scene *s, int op, uint64_t count, bool counts_first, unsigned field,
		      uint64_t a, uint64_t b)
{
	struct raw_reply reply;
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	begin(s, 0, 1);
	if (counts_first) {
		scene_submitted(s, 1, 1);
		scene_quiet(s);
	}
	const uint32_t request_id = submit(s, 1, op, count);
	scene_submitted(s, 1, 1);
	peer_wait_aborted(s->controls);
	raw_reply_to(&s->m[1].raw, request_id, &reply);
	const ncclsvc_status st = scene_reported(s, 0), *task = &reply.submit.status;
	CHECK_EQ(st.result, NCCLSVC_MISMATCH);
	CHECK_EQ(st.rank_a, 0);
	CHECK_EQ(st.rank_b, 1);
	CHECK_EQ(st.pid_b, (int)getpid());
	CHECK_EQ(st.field, field);
	CHECK_EQ(st.value_a, a);
	CHECK_EQ(st.value_b, b);
	CHECK_EQ(task->result, NCCLSVC_MISMATCH);
	CHECK_EQ(task->rank_b, 1);
	CHECK_EQ(task->field, field);
	CHECK_EQ(task->value_b, b);
	scene_close(s);
}

static void break_off(struct scene *s)
{
	scene_control(s, 1)->abort = 1;
	const ncclsvc_status st = scene_ends(s, NCCLSVC_PEER_GONE);
	CHECK_EQ(st.rank_a, 1);
}

static void ranks_that_disagree(struct scene *s)
{
	stage("another operation");
	disagrees(s, NCCLSVC_BARRIER, 0, false, NCCLSVC_FIELD_OP, NCCLSVC_ALL_REDUCE,
		  NCCLSVC_BARRIER);
	stage("another count");
	disagrees(s, NCCLSVC_ALL_REDUCE, 1000, false, NCCLSVC_FIELD_COUNT, 8, 1000);
	stage("another count, by a rank that was paused while it submitted");
	disagrees(s, NCCLSVC_ALL_REDUCE, 1000, true, NCCLSVC_FIELD_COUNT, 8, 1000);
	stage("the same operation on another transport");
	disagrees(s, NCCLSVC_ALL_REDUCE, 8, false, NCCLSVC_FIELD_ORDER, NCCLSVC_ALL_REDUCE,
		  NCCLSVC_ALL_REDUCE);

	stage("an operation that is not pending");
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	begin(s, 0, 1);
	scene_submitted(s, 1, 1);
	const ncclsvc_status st = scene_ends(s, NCCLSVC_MISMATCH);
	CHECK_EQ(st.field, NCCLSVC_FIELD_OP);
	CHECK_EQ(st.value_b, 0);
	char sentence[SVC_TEXT_BYTES];
	svc_status_sentence(&st, sentence, sizeof(sentence));
	CHECK(strstr(sentence, "has a different operation"));

	stage("a rank that has chosen a kernel, but not launched it yet");
	scene_open(s);
	scene_control(s, 1)->entered = 1;
	scene_submitted(s, 1, 3);
	launch(s, 0, 1, 0, 0);
	begin(s, 0, 1);
	scene_quiet(s);
	stage("a rank that aborts its kernels");
	break_off(s);

	stage("a rank that is behind");
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	launch(s, 1, 1, 0, 0);
	scene_submitted(s, 1, 7); /* six operations on NCCL */
	launch(s, 0, 2, 7, 0);
	begin(s, 0, 2);
	scene_quiet(s);
	break_off(s);
}

/* ---- Inspection ---- */

static void is_shown(const ncclsvc_task_info *t, int rank, uint64_t seq, unsigned state,
		     int waits_for)
{
	CHECK_EQ(t->task, 0);
	CHECK_EQ(t->rank, rank);
	CHECK_EQ(t->seq, seq);
	CHECK_EQ(t->kernel, seq + 1);
	CHECK_EQ(t->state, state);
	CHECK_EQ(t->op, NCCLSVC_ALL_REDUCE);
	CHECK_EQ(t->count, 8);
	CHECK_EQ(t->bytes, 32);
	CHECK_EQ(t->waits_count, waits_for >= 0);
	if (waits_for >= 0)
		CHECK_EQ(t->waits_for[0], waits_for);
}

/* The number of all communicators' pending tasks. */
static uint64_t pending(ncclsvc_session *session)
{
	ncclsvc_comm_info *list;
	size_t n;
	uint64_t pending = 0;
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++)
		pending += list[i].pending;
	ncclsvc_list_free(list);
	return pending;
}

/* Checks which ranks wait; due has a bit for each. */
static void ranks_wait(ncclsvc_session *session, unsigned due)
{
	ncclsvc_member_info *list;
	size_t n;
	unsigned waiting = 0;
	CHECK_OK(ncclsvc_list_members(session, &list, &n));
	for (size_t i = 0; i < n; i++)
		waiting |= (list[i].waiting_ns > 0) << list[i].rank;
	ncclsvc_list_free(list);
	CHECK_EQ(waiting, due);
}

/* Lists the tasks, and checks their number in the list and in the communicators' counts. */
static ncclsvc_task_info *tasks(ncclsvc_session *session, size_t due)
{
	ncclsvc_task_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_tasks(session, &list, &n));
	CHECK_EQ(n, due);
	CHECK_EQ(pending(session), due);
	return list;
}

static void inspection(struct scene *s)
{
	ncclsvc_session *session = session_open(s->c->daemon);
	stage("operations that are over");
	scene_open(s);
	for (uint32_t k = 1; k < 5; k++)
		launch(s, 0, k, k - 1, 0);
	launch(s, 1, 1, 0, 0);
	ncclsvc_list_free(tasks(session, 0));
	ranks_wait(session, 0);

	stage("a rank that has not launched the operation");
	begin(s, 0, 2);
	ncclsvc_task_info *list = tasks(session, 3);
	is_shown(&list[0], 0, 1, NCCLSVC_WAITING_PEERS, 1);
	is_shown(&list[1], 0, 2, NCCLSVC_QUEUED, -1);
	is_shown(&list[2], 0, 3, NCCLSVC_QUEUED, -1);
	ncclsvc_list_free(list);
	ranks_wait(session, 1);
	why_says(s->c->daemon, "rank 1");

	stage("a rank whose stream has not reached the operation");
	launch(s, 1, 2, 1, 0);
	list = tasks(session, 4);
	is_shown(&list[0], 0, 1, NCCLSVC_LAUNCHED, -1);
	is_shown(&list[3], 1, 1, NCCLSVC_WAITING_INPUT, -1);
	ncclsvc_list_free(list);
	ranks_wait(session, 3);
	why_says(s->c->daemon, "on the GPUs for the stream of rank 1");

	stage("kernels that do not end");
	begin(s, 1, 2);
	why_says(s->c->daemon, "its kernels have run on all GPUs for");

	stage("more operations than fit into a message");
	for (uint32_t k = 5; k < 2 + PEER_HISTORY - 2; k++)
		launch(s, 0, k, k - 1, 0);
	list = tasks(session, PEER_HISTORY - 2 + 1);
	is_shown(&list[PEER_HISTORY - 3], 0, PEER_HISTORY - 2, NCCLSVC_QUEUED, -1);
	ncclsvc_list_free(list);
	end(s, 0, 2);
	end(s, 1, 2);
	ncclsvc_list_free(tasks(session, 0));
	ncclsvc_close(session);
	scene_quiet(s);
}

/* ---- The flight recorder ---- */

/* The rank's operation with this number in the newest epoch. */
static ncclsvc_operation_info recorded(ncclsvc_session *session, int rank, uint64_t seq)
{
	ncclsvc_operation_info *list, found = {0};
	size_t n;
	CHECK_OK(ncclsvc_list_operations(session, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].transport == NCCLSVC_OPERATION_KERNEL && list[i].rank == rank &&
		    list[i].seq == seq && list[i].epoch >= found.epoch)
			found = list[i];
	ncclsvc_list_free(list);
	CHECK(found.comm);
	CHECK_EQ(found.op, NCCLSVC_ALL_REDUCE);
	CHECK_EQ(found.count, 8);
	CHECK_EQ(found.bytes, 32);
	CHECK_EQ(found.kernel, seq + 1);
	CHECK_EQ(found.collective, seq);
	CHECK_EQ(found.pid, (int)getpid());
	CHECK(found.submitted_ns && found.submitted_ns <= now_ns());
	return found;
}

static void is_recorded(ncclsvc_session *session, int rank, uint64_t seq, unsigned state,
			int result, bool started, bool done)
{
	const ncclsvc_operation_info x = recorded(session, rank, seq);
	CHECK_EQ(x.state, state);
	CHECK_EQ(x.result, result);
	CHECK_EQ(x.started_ns != 0, started);
	CHECK_EQ(x.done_ns != 0, done);
}

static void operations(struct scene *s)
{
	ncclsvc_session *session = session_open(s->c->daemon);
	stage("operations of an epoch that runs");
	scene_open(s);
	launch(s, 0, 1, 0, 0);
	launch(s, 1, 1, 0, 0);
	launch(s, 0, 2, 1, 1000 * MS);
	launch(s, 0, 3, 2, 0);
	begin(s, 0, 2);
	for (uint64_t until = now_ns() + WAIT_MS * MS; !recorded(session, 0, 1).started_ns;)
		CHECK(now_ns() < until);
	is_recorded(session, 0, 0, NCCLSVC_DONE, NCCLSVC_OK, false, false);
	is_recorded(session, 0, 1, NCCLSVC_WAITING_PEERS, NCCLSVC_IN_PROGRESS, true, false);
	is_recorded(session, 0, 2, NCCLSVC_QUEUED, NCCLSVC_IN_PROGRESS, false, false);
	is_recorded(session, 1, 0, NCCLSVC_DONE, NCCLSVC_OK, false, false);

	stage("operations of an epoch that is over");
	scene_ends(s, NCCLSVC_TIMEOUT);
	is_recorded(session, 0, 0, NCCLSVC_DONE, NCCLSVC_OK, false, false);
	is_recorded(session, 0, 1, NCCLSVC_FAILED, NCCLSVC_TIMEOUT, true, true);
	is_recorded(session, 0, 2, NCCLSVC_FAILED, NCCLSVC_TIMEOUT, false, true);
	is_recorded(session, 1, 0, NCCLSVC_DONE, NCCLSVC_OK, false, false);
	ncclsvc_close(session);
}

/* ---- Control blocks with random content ---- */

/* Writes random words, except where the daemon writes. */
static void scribble(struct scene *s, uint64_t *state)
{
	for (int i = 0; i < 2000; i++) {
		uint32_t *words = (uint32_t *)(void *)scene_control(s, (int)(draw(state) % 2));
		const uint32_t at = draw(state) % (PEER_CONTROL_BYTES / 4), value = draw(state);
		if (at >= offsetof(struct peer_control, begun) / 4)
			words[at] = value & 8 ? value : value & 6;
	}
}

static void rubbish(struct scene *s)
{
	uint64_t state = setup.seed;
	ncclsvc_session *session = session_open(s->c->daemon);
	stage("random content in the control blocks");
	for (uint64_t until = now_ns() + 1500 * MS; now_ns() < until; sleep_ms(1)) {
		ncclsvc_task_info *list;
		size_t n;
		scribble(s, &state);
		CHECK_OK(ncclsvc_list_tasks(session, &list, &n));
		ncclsvc_list_free(list);
		ncclsvc_operation_info *operations;
		CHECK_OK(ncclsvc_list_operations(session, &operations, &n));
		ncclsvc_list_free(operations);
		CHECK(pending(session) <= 2 * PEER_HISTORY);
		if (!scene_over(s))
			continue;
		scene_reported(s, 0);
		scene_reported(s, 1);
		scene_close(s);
		scene_open(s);
	}
	ncclsvc_close(session);
	scene_close(s);
}

static void watch_rank(struct client *c)
{
	struct scene s = {.c = c};
	CHECK_OK(ncclsvc_unique_id_create(&s.id));
	scene_member(&s, 0);
	scene_member(&s, 1);
	signs_of_life(&s);
	deadlines(&s);
	ranks_that_go(&s);
	ranks_that_disagree(&s);
	operations(&s);
	inspection(&s);
	rubbish(&s);
	raw_close(&s.m[0].raw);
	raw_close(&s.m[1].raw);
}

static void test_watch(void)
{
	ranks_run(1, watch_rank, NULL);
}

const struct gpu_test peer_watch_tests[] = {
	{"peer/watch", test_watch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
