/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors in GPU memory in all directions at once, by one thread: in task groups, and in
 * plans. */
#include <stdlib.h>

#include "lists.h"
#include "ncclsvc_plan.h"

#define S     NCCLSVC_SHAPES_STATIC
#define A     NCCLSVC_SHAPES_AHEAD
#define WORDS 3000 /* of a plain operation */

/* A ring: each rank sends to the next one, and receives from the previous one. */
struct ring {
	struct desk d; /* has the tensors to send */
	int next, last;
	struct desk in; /* only for the tensors to receive */
	CUdeviceptr plain_out, plain_in;
	ncclsvc_request *sent, *got;
};

static void ring_open(struct ring *r, struct client *c)
{
	desk_open(&r->d, c);
	r->next = (c->rank + 1) % c->nranks;
	r->last = (c->rank + c->nranks - 1) % c->nranks;
	r->in = r->d;
	for (int i = 0; i < TENSORS; i++) {
		CHECK_CU(cu.cuMemAlloc(&r->in.memory[i], (size_t)dims[i] * 4));
		r->in.tensors[i].data = at(r->in.memory[i]);
	}
	CHECK_CU(cu.cuMemAlloc(&r->plain_out, WORDS * 4));
	CHECK_CU(cu.cuMemAlloc(&r->plain_in, WORDS * 4));
}

static void ring_close(struct ring *r)
{
	for (int i = 0; i < TENSORS; i++)
		CHECK_CU(cu.cuMemFree(r->in.memory[i]));
	CHECK_CU(cu.cuMemFree(r->plain_out));
	CHECK_CU(cu.cuMemFree(r->plain_in));
	desk_close(&r->d);
}

/* The sender's mode in this round. */
static ncclsvc_shapes mode_of(int rank, int round)
{
	return round >> rank % 2 & 1 ? A : S;
}

static uint32_t value_of(int rank, int round)
{
	return (uint32_t)(1000 * (rank + 1) + 10 * round);
}

/* The values to send come late on the stream, and the receive buffers hold garbage until then. */
static void ring_fill(struct ring *r, int round)
{
	const CUstream s = r->d.r.stream;
	desk_fill(&r->in, 0xbad, false);
	CHECK_CU(cu.cuMemsetD32Async(r->plain_in, 0xbad, WORDS, s));
	desk_fill(&r->d, value_of(r->d.r.rank, round), true);
	CHECK_CU(cu.cuMemsetD32Async(r->plain_out, value_of(r->d.r.rank, round) + 7, WORDS, s));
}

static ncclsvc_message ring_message(struct ring *r, bool send, int round)
{
	const int from = send ? r->d.r.rank : r->last;
	ncclsvc_message m = desk_message(send ? &r->d : &r->in, send ? r->next : r->last,
					 mode_of(from, round), from);
	m.allocate = !send && m.shapes == A ? desk_allocate : NULL;
	m.arg = &r->in;
	return m;
}

static void ring_end(struct ring *r, int round, bool plain)
{
	CHECK_OK(ncclsvc_request_wait(round % 2 ? r->sent : r->got, WAIT_MS));
	CHECK_OK(ncclsvc_request_wait(round % 2 ? r->got : r->sent, WAIT_MS));
	CHECK_OK(ncclsvc_request_free(r->sent));
	CHECK_OK(ncclsvc_request_free(r->got));
	desk_check(&r->in, value_of(r->last, round), "what came from the last rank");
	if (plain)
		gpu_check(r->plain_in, value_of(r->last, round) + 7, WORDS, "the plain one");
}

/* ---- Task groups ---- */

static void group_of(struct ring *r, int round, bool plain)
{
	ncclsvc_session *s = r->d.r.session;
	const ncclsvc_message out = ring_message(r, true, round),
			      in = ring_message(r, false, round);
	CHECK_OK(ncclsvc_group_begin(s));
	CHECK_OK(ncclsvc_tensors_isend(r->d.lists, &out, &r->sent));
	if (plain) {
		CHECK_OK(ncclsvc_send(at(r->plain_out), WORDS, NCCLSVC_UINT32, r->next, r->d.r.comm,
				      NULL));
		CHECK_OK(ncclsvc_recv(at(r->plain_in), WORDS, NCCLSVC_UINT32, r->last, r->d.r.comm,
				      NULL));
	}
	CHECK_OK(ncclsvc_tensors_irecv(r->d.lists, &in, &r->got));
	CHECK_OK(ncclsvc_group_end(s));
}

static void group_rank(struct client *c)
{
	struct ring r;
	ring_open(&r, c);
	for (int round = 0; round < 16; round++) {
		stage("round %d", round);
		const unsigned flags = round % 3 ? 0 : NCCLSVC_STREAM_DETACHED;
		const bool plain = round / 4 % 2;
		CHECK_OK(ncclsvc_stream_set(r.d.r.session, r.d.r.stream, flags));
		ring_fill(&r, round);
		group_of(&r, round, plain);
		if (round % 4 == 0) /* no list has SHAPES_AHEAD: all are in stream order */
			desk_check(&r.in, value_of(r.last, round), "what the stream waited for");
		/* The lists keep the stream that was set when they were begun. */
		CHECK_OK(ncclsvc_stream_set(r.d.r.session, NULL, 0));
		ring_end(&r, round, plain && !flags);
	}
	CHECK_OK(ncclsvc_stream_set(r.d.r.session, r.d.r.stream, 0));
	ring_close(&r);
}

static void test_groups(void)
{
	ranks_run(ranks_count(), group_rank, NULL);
}

/* ---- Refusals ---- */

/* In each direction, rank 0's first list is refused by the call, or fails because of its tag. */
static void refused_rank(struct client *c)
{
	struct ring r;
	const bool guilty = c->rank == 0;
	ring_open(&r, c);
	for (int i = 0; i < 16; i++) {
		stage("case %d", i);
		const bool send = (i >> 3 & 1) == guilty, by_tag = i & 4;
		ncclsvc_request *first = NULL;
		ncclsvc_message m = ring_message(&r, send, i & 1 ? 3 : 0);
		ring_fill(&r, i & 2 ? 3 : 0);
		m.input_signal = by_tag || !guilty;
		m.tag = by_tag && guilty ? 99 : 7;
		CHECK_OK(ncclsvc_group_begin(r.d.r.session));
		CHECK_RESULT(send ? ncclsvc_tensors_isend(r.d.lists, &m, &first)
				  : ncclsvc_tensors_irecv(r.d.lists, &m, &first),
			     m.input_signal ? NCCLSVC_OK : NCCLSVC_INVALID_ARGUMENT);
		for (int out = 0; out < 2; out++) {
			m = ring_message(&r, out, i & 2 ? 3 : 0);
			CHECK_OK(out ? ncclsvc_tensors_isend(r.d.lists, &m, &r.sent)
				     : ncclsvc_tensors_irecv(r.d.lists, &m, &r.got));
		}
		CHECK_OK(ncclsvc_group_end(r.d.r.session));
		ring_end(&r, i & 2 ? 3 : 0, false);
		if (first) {
			CHECK_RESULT(ncclsvc_request_wait(first, WAIT_MS),
				     by_tag ? NCCLSVC_MISMATCH : NCCLSVC_INVALID_ARGUMENT);
			says(by_tag ? "tag differs" : "rank 0");
			CHECK_OK(ncclsvc_request_free(first));
		}
	}
	ring_close(&r);
}

static void test_refused(void)
{
	ranks_run(2, refused_rank, NULL);
}

/* ---- Copies that a failed list leaves on its stream ---- */

enum { LOST = 333, SENT = 111, KEPT = 5, OTHER_TAG = 99, COPIED_MS = 100 };

/* The first list's copy waits on its stream until the second list, on another stream, has been
 * copied. */
static void leave_behind(struct ring *r, bool by_group)
{
	ncclsvc_session *s = r->d.r.session;
	const CUstream late = gpu_stream(), other = gpu_stream();
	const uint64_t open = 1;
	CUdeviceptr gate;
	const ncclsvc_message lost = desk_message(&r->in, 1, S, KEPT),
			      kept = desk_message(&r->d, 1, S, KEPT);
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(open)));
	gpu_fill(gate, 0, 2);
	CHECK_CU(cu.cuStreamWaitValue64(late, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK_OK(ncclsvc_stream_set(s, late, 0));
	if (by_group)
		CHECK_OK(ncclsvc_group_begin(s));
	CHECK_OK(ncclsvc_tensors_isend(r->d.lists, &lost, &r->sent));
	if (by_group)
		CHECK_OK(ncclsvc_group_abandon(s));
	CHECK_RESULT(ncclsvc_request_wait(r->sent, WAIT_MS),
		     by_group ? NCCLSVC_CANCELLED : NCCLSVC_MISMATCH);
	CHECK_OK(ncclsvc_request_free(r->sent));
	CHECK_RESULT(ncclsvc_tensors_close(r->d.lists), NCCLSVC_BUSY);
	CHECK_OK(ncclsvc_stream_set(s, other, 0));
	CHECK_OK(ncclsvc_tensors_isend(r->d.lists, &kept, &r->sent));
	sleep_ms(COPIED_MS);
	gpu_put(gate, &open, sizeof(open));
	CHECK(gpu_stream_ends(late, WAIT_MS));
	say(r->d.r.c, 1);
	CHECK_OK(ncclsvc_request_wait(r->sent, WAIT_MS));
	CHECK_OK(ncclsvc_request_free(r->sent));
	CHECK_OK(ncclsvc_stream_set(s, r->d.r.stream, 0));
	CHECK_CU(cu.cuMemFree(gate));
}

static void receive_second(struct ring *r, bool by_group)
{
	bool done;
	ncclsvc_message m = desk_message(&r->in, 0, S, OTHER_TAG);
	if (!by_group)
		CHECK_RESULT(ncclsvc_tensors_recv(r->d.lists, &m, WAIT_MS, &done),
			     NCCLSVC_MISMATCH);
	CHECK_EQ(hear(r->d.r.c), 1);
	m.tag = KEPT;
	CHECK_OK(ncclsvc_tensors_recv(r->d.lists, &m, WAIT_MS, &done));
	desk_check(&r->in, SENT, "the second list");
}

static void left_rank(struct client *c)
{
	struct ring r;
	const bool *by_group = c->arg;
	ring_open(&r, c);
	desk_fill(&r.d, SENT, false);
	desk_fill(&r.in, LOST, false);
	CHECK(gpu_stream_ends(r.d.r.stream, WAIT_MS));
	if (c->rank == 0)
		leave_behind(&r, *by_group);
	else
		receive_second(&r, *by_group);
	ring_close(&r);
}

/* The first list fails: its group is abandoned, or its tag does not match. */
static void test_left(void)
{
	for (int i = 0; i < 2; i++) {
		bool by_group = i;
		struct daemon d;
		struct client ranks[2];
		gpu_daemon_start(&d);
		clients_start(ranks, 2, &d, left_rank, &by_group);
		CHECK_EQ(hear(&ranks[0]), 1);
		say(&ranks[1], 1);
		ranks_end(ranks, 2);
		gpu_daemon_stop(&d);
	}
}

/* ---- Plans ---- */

enum { ROUNDS = 5 }; /* groups of a plan: each pair of modes, and one after them */

/* While a list waits for its shapes, tasks of a later group on its stream are refused. */
static void submit_plain(struct ring *r, ncclsvc_plan *p, int round)
{
	const bool ahead = mode_of(r->d.r.rank, round) == A && mode_of(r->last, round) == A;
	for (int i = 0; i < 1 + ahead; i++)
		CHECK_RESULT(ncclsvc_plan_submit_send(p, at(r->plain_out), WORDS, NCCLSVC_UINT32,
						      r->next, NULL),
			     i ? NCCLSVC_BUSY : NCCLSVC_OK);
	if (ahead)
		says("waits for its shapes");
}

static void plan_rank(struct client *c)
{
	struct ring r;
	ncclsvc_plan *p;
	ring_open(&r, c);
	CHECK_OK(ncclsvc_plan_start(r.d.r.comm, &p));
	for (int round = 0; round < ROUNDS; round++) {
		CHECK_OK(ncclsvc_plan_group_start(p));
		CHECK_OK(ncclsvc_plan_tensors_send(p, mode_of(c->rank, round), c->rank, r.d.tensors,
						   TENSORS, r.next));
		CHECK_OK(ncclsvc_plan_tensors_recv(p, mode_of(r.last, round), r.last, r.in.tensors,
						   TENSORS, r.last));
		CHECK_OK(ncclsvc_plan_send(p, WORDS, NCCLSVC_UINT32, r.next));
		CHECK_OK(ncclsvc_plan_recv(p, NCCLSVC_PLAN_ANY, 0, r.last));
		CHECK_OK(ncclsvc_plan_group_end(p));
	}
	CHECK_OK(ncclsvc_plan_end(p, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(p));
	for (int i = 0; i < 3; i++) {
		for (int round = 0; round < ROUNDS; round++) {
			stage("iteration %d, group %d", i, round);
			ring_fill(&r, round);
			const ncclsvc_message out = ring_message(&r, true, round),
					      in = ring_message(&r, false, round);
			const bool first = (i + c->rank) % 2;
			for (int half = 0; half < 2; half++) {
				CHECK_OK((half == 0) == first ? ncclsvc_plan_submit_tensors_send(
									p, r.d.lists, &out, &r.sent)
							      : ncclsvc_plan_submit_tensors_recv(
									p, r.d.lists, &in, &r.got));
				if (half == 0)
					submit_plain(&r, p, round);
			}
			ncclsvc_task task;
			CHECK_OK(ncclsvc_plan_submit_recv(p, at(r.plain_in), WORDS, NCCLSVC_UINT32,
							  r.last, &task));
			ring_end(&r, round, false);
			CHECK_OK(ncclsvc_plan_wait(p, task, WAIT_MS));
			gpu_check(r.plain_in, value_of(r.last, round) + 7, WORDS, "the plain one");
		}
		CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	}
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
	ring_close(&r);
}

static void test_planned(void)
{
	ranks_run(ranks_count(), plan_rank, NULL);
}

const struct gpu_test list_together_tests[] = {
	{"lists/groups", test_groups, 2, 120, TEST_QUICK},
	{"lists/groups_refused", test_refused, 2, 120, TEST_QUICK},
	{"lists/left", test_left, 2, 120, TEST_QUICK},
	{"lists/planned", test_planned, 2, 120, TEST_QUICK},
	{0},
};
