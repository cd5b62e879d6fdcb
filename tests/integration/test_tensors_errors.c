/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors that are refused: sides that disagree, and invalid calls. */
#include <stdio.h>
#include <string.h>

#include "tensor_ranks.h"

/* ---- Disagreement ---- */

/* One call on each side, and their results. */
struct clash {
	const char *what;
	ncclsvc_shapes shapes[2];
	int64_t tag[2];
	ncclsvc_type type[2];
	int64_t dim[2];
	ncclsvc_result result[2];
	const char *why[2];
};

#define S NCCLSVC_SHAPES_STATIC
#define A NCCLSVC_SHAPES_AHEAD
#define F NCCLSVC_FLOAT32
#define BOTH_MISMATCH                                                                              \
	{                                                                                          \
		NCCLSVC_MISMATCH, NCCLSVC_MISMATCH                                                 \
	}

static const struct clash clashes[] = {
	{"mode",
	 {A, S},
	 {1, 1},
	 {F, F},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"mode differs: rank 0", "shapes ahead, rank 1"}},
	{"the other mode",
	 {S, A},
	 {1, 1},
	 {F, F},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"mode differs", "static shapes, rank 1"}},
	{"tag", {S, S}, {1, 2}, {F, F}, {4, 4}, BOTH_MISMATCH, {"tag differs", "tag differs"}},
	{"tag in its high bits",
	 {S, S},
	 {1, INT64_C(1) << 20},
	 {F, F},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"has 1048576", "has 1048576"}},
	{"tag's sign",
	 {S, S},
	 {INT64_MIN, -1},
	 {F, F},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"has -9223372036854775808", "has -1"}},
	{"tag ahead",
	 {A, A},
	 {1, INT64_MIN},
	 {F, F},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"tag differs", "tag differs"}},
	{"shape",
	 {S, S},
	 {1, 1},
	 {F, F},
	 {4, 5},
	 BOTH_MISMATCH,
	 {"dimension 0 of tensor 0 differs: rank 0 (pid ", " has 4, rank 1 (pid "}},
	{"type of one size",
	 {S, S},
	 {1, 1},
	 {F, NCCLSVC_INT32},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"type of tensor 0 differs: rank 0 (pid ", " has int32"}},
	{"a type that is not allowed",
	 {A, A},
	 {1, 1},
	 {F, NCCLSVC_INT32},
	 {4, -1},
	 BOTH_MISMATCH,
	 {"it says: type of tensor 0 differs: the sender has float32",
	  "sender has float32, the receiver allows int32"}},
	{"a shape that is not allowed",
	 {A, A},
	 {1, 1},
	 {F, F},
	 {4, 3},
	 BOTH_MISMATCH,
	 {"it says: dimension 0 of tensor 0 differs: the sender has 4, the receiver allows 3",
	  "dimension 0 of tensor 0 differs"}},
};

static void clashing(struct client *me)
{
	struct side x = side_open(me);
	const int k = me->rank;
	for (size_t i = 0; i < sizeof(clashes) / sizeof(clashes[0]); i++) {
		const struct clash *c = &clashes[i];
		float data[8] = {1, 2, 3};
		struct got got = {0};
		bool done = true;
		ncclsvc_tensor t = {data, c->type[k], 1, &c->dim[k]};
		ncclsvc_message m = message(&x, c->shapes[k], c->tag[k], 1, &t);
		if (k && c->shapes[k] == A) {
			m.allocate = allocate;
			m.arg = &got;
		}
		ncclsvc_result r = k ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, &done)
				     : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, &done);
		if (r != c->result[k])
			check_failed(__FILE__, __LINE__, "%s: %s: %s", c->what,
				     ncclsvc_result_name(r), ncclsvc_last_error());
		says(c->why[k]);
		CHECK(!done);
		CHECK_EQ(got.calls, 0);
		CHECK(data[0] == 1 && data[1] == 2);
		check_in_step(&x, (unsigned)i + 50);
	}
	side_close(&x);
}

static void sides_that_disagree_get_the_reason_and_go_on(void **state)
{
	(void)state;
	run_pair(clashing);
}

/* Rank 0's list is announced in two messages; rank 1 expects one tensor. */
static void of_other_lengths(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 4;
	float data[4] = {0};
	ncclsvc_tensor t[200];
	for (size_t i = 0; i < 200; i++)
		t[i] = (ncclsvc_tensor){data, F, 1, &dim};
	ncclsvc_message m = message(&x, A, 1, me->rank ? 1 : 200, t);
	m.allocate = me->rank ? allocate : NULL;
	CHECK_RESULT(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL)
			      : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL),
		     NCCLSVC_MISMATCH);
	says(me->rank ? "the sender has 200, the receiver 1" : "rank 1");
	check_in_step(&x, 3);
	side_close(&x);
}

static void another_number_of_tensors(void **state)
{
	(void)state;
	run_pair(of_other_lengths);
}

/* Only one of many tensors differs, or only their number does. */
static void of_long_lists(struct client *me)
{
	enum { LONG = 1000 };
	static const size_t places[] = {0, 31, 777, LONG - 1};
	struct side x = side_open(me);
	const int64_t usual[] = {2, 1}, odd[] = {1, 2};
	static float data[2 * LONG];
	static ncclsvc_tensor t[LONG];
	char want[64];
	for (size_t k = 0; k < 5; k++) {
		const size_t n = k == 4 && me->rank ? LONG - 1 : LONG;
		for (size_t i = 0; i < LONG; i++)
			t[i] = (ncclsvc_tensor){data + 2 * i, F, 2,
						me->rank && k < 4 && i == places[k] ? odd : usual};
		ncclsvc_message m = message(&x, S, 1, n, t);
		CHECK_RESULT(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL)
				      : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL),
			     NCCLSVC_MISMATCH);
		if (k < 4)
			snprintf(want, sizeof(want), "dimension 0 of tensor %zu differs: rank 0 ",
				 places[k]);
		says(k < 4 ? want : "number of tensors differs: rank 0 ");
		says(k < 4 ? " has 2, rank 1 " : " has 1000, rank 1 ");
		check_in_step(&x, (unsigned)k + 3);
	}
	side_close(&x);
}

static void the_first_tensor_that_differs_is_named(void **state)
{
	(void)state;
	run_pair(of_long_lists);
}

/* ---- Refusals ---- */

/* Checks which side refused. rank: the refusing rank, whose process the test knows; -1: this
 * side. */
static void check_refusal(int rank, ncclsvc_refusal why)
{
	ncclsvc_status st;
	CHECK_OK(ncclsvc_last_status(&st));
	CHECK_EQ(st.rank_a, rank);
	CHECK_EQ(st.field, rank < 0 ? NCCLSVC_FIELD_NONE : NCCLSVC_FIELD_REFUSAL);
	CHECK_EQ(st.value_a, rank < 0 ? 0 : why);
	CHECK(rank < 0 ? !st.pid_a && !st.number : st.pid_a > 0 && st.number);
}

static void refusing(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 4;
	float data[4] = {0};
	bool done, sender = me->rank == 0;
	struct got got = {0};
	ncclsvc_tensor t = {data, F, 1, &dim};
	for (int mode = S; mode <= A; mode++) {
		ncclsvc_message good = message(&x, (ncclsvc_shapes)mode, 1, 1, &t), m = good;
		good.allocate = m.allocate = sender ? NULL : allocate;
		good.arg = m.arg = &got;
		/* The sender's signal is false: the receiver is notified. */
		m.input_signal = !sender;
		done = true;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, &done)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, &done),
			     NCCLSVC_INVALID_ARGUMENT);
		says("input_signal is false");
		check_refusal(sender ? -1 : 0, NCCLSVC_REFUSAL_SIGNAL);
		CHECK(!done);
		got_free(&got);
		check_in_step(&x, 1);
		/* The receiver's signal is false. */
		m.input_signal = sender;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says("input_signal is false");
		check_refusal(sender ? 1 : -1, NCCLSVC_REFUSAL_SIGNAL);
		check_in_step(&x, 2);
		/* The receiver's allocate refuses. */
		got.refuse = NCCLSVC_NO_MEMORY;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &good, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &good, WAIT_MS, NULL),
			     NCCLSVC_NO_MEMORY);
		says(sender ? "its allocate callback failed: out of memory"
			    : "the receiver's allocate callback failed: out of memory");
		check_refusal(sender ? 1 : -1, NCCLSVC_REFUSAL_ALLOCATE);
		got_free(&got);
		check_in_step(&x, 3);
		/* The sender's tensor is invalid. */
		m = good;
		t.type = sender ? (ncclsvc_type)77 : F;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says(sender ? "tensor 0: a tensor has the unknown type 77" : "rank 0 (pid ");
		check_refusal(sender ? -1 : 0, NCCLSVC_REFUSAL_NONE);
		t.type = F;
		got_free(&got);
		t.data = sender ? NULL : data;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says(sender ? "tensor 0 is at" : "rank 0 (pid ");
		t.data = data;
		got_free(&got);
		check_in_step(&x, 4);
	}
	side_close(&x);
}

static void a_refusal_is_the_peers_error_too(void **state)
{
	(void)state;
	run_pair(refusing);
}

static void alone(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 4;
	float data[4];
	bool done = true;
	ncclsvc_tensor t = {data, F, 1, &dim};
	ncclsvc_message m = message(&x, S, 1, 1, &t);
	ncclsvc_request *r = NULL;
	m.remote_rank = me->rank;
	CHECK_RESULT(ncclsvc_tensors_send(x.lists, &m, WAIT_MS, &done), NCCLSVC_INVALID_ARGUMENT);
	char words[64];
	snprintf(words, sizeof(words), "sending data to rank %d on the rank %d", me->rank,
		 me->rank);
	says(words);
	CHECK(!done);
	CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL), NCCLSVC_INVALID_ARGUMENT);
	says("receiving data from rank");
	/* The signal is checked first. */
	m.input_signal = false;
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	says("input_signal");
	m.input_signal = true;
	m.remote_rank = 2;
	CHECK_RESULT(ncclsvc_tensors_irecv(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	says("remote_rank is 2");
	/* All 64 bits of the rank are checked. */
	const int64_t far[] = {-1, (INT64_C(1) << 32) + x.peer, INT64_MIN + x.peer, INT64_MAX};
	for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
		m.remote_rank = far[i];
		CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
		snprintf(words, sizeof(words), "remote_rank is %lld:", (long long)far[i]);
		says(words);
	}
	m.size--;
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	says("message.size");
	m.size++;
	m.remote_rank = x.peer;
	CHECK_OK(ncclsvc_group_begin(x.s));
	CHECK_RESULT(ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL), NCCLSVC_INVALID_ARGUMENT);
	says("task group");
	CHECK_OK(ncclsvc_group_end(x.s));
	ncclsvc_timeline *timeline;
	CHECK_OK(ncclsvc_timeline_create(x.s, &timeline));
	CHECK_OK(ncclsvc_timeline_set(x.s, timeline, 1));
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_UNSUPPORTED);
	CHECK_OK(ncclsvc_timeline_set(x.s, NULL, 0));
	CHECK_RESULT(ncclsvc_tensors_isend(NULL, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, NULL, &r), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, NULL), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_open(NULL, 0, &x.lists), NCCLSVC_INVALID_ARGUMENT);
	ncclsvc_tensors *again = NULL;
	CHECK_RESULT(ncclsvc_tensors_open(x.comm, WAIT_MS, &again), NCCLSVC_RANK_TAKEN);
	says("this rank already has lists on communicator");
	CHECK_RESULT(ncclsvc_tensors_rejoin(NULL, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_close(NULL));
	CHECK_OK(ncclsvc_request_free(NULL));
	/* None of the refused calls took a turn. */
	check_in_step(&x, 9);
	side_close(&x);
}

/* Calls every list function from within allocate, which then succeeds. */
struct nesting {
	struct side *x;
	ncclsvc_request *other;
	struct got got;
};

static ncclsvc_result allocate_nested(ncclsvc_tensor *tensors, size_t n, void *arg)
{
	struct nesting *in = arg;
	struct side *x = in->x;
	const int64_t dim = 4;
	float data[4] = {0};
	ncclsvc_tensor t = {data, F, 1, &dim};
	ncclsvc_message m = message(x, S, 1, 1, &t);
	ncclsvc_request *r = NULL;
	void *memory;
	CHECK_RESULT(ncclsvc_tensors_recv(x->lists, &m, WAIT_MS, NULL), NCCLSVC_INVALID_ARGUMENT);
	says("within allocate");
	CHECK_RESULT(ncclsvc_tensors_isend(x->lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_all_reduce(x->lists, &t, NULL, 1, NCCLSVC_SUM, WAIT_MS, &r),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_request_wait(in->other, WAIT_MS), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_request_test(in->other), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_request_free(in->other), NCCLSVC_BUSY);
	CHECK_RESULT(ncclsvc_tensors_rejoin(x->lists, WAIT_MS), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_close(x->lists), NCCLSVC_BUSY);
	CHECK_OK(ncclsvc_tensors_allocate(x->lists, &t, 1, &memory));
	CHECK_OK(ncclsvc_mem_free(x->s, memory));
	return allocate(tensors, n, &in->got);
}

static void nested(struct client *me)
{
	struct side x = side_open(me);
	struct nesting in = {.x = &x};
	const int64_t dim = 4;
	float data[2][4] = {{1, 2, 3, 4}, {0}};
	ncclsvc_tensor t[2] = {{data[0], F, 1, &dim}, {data[1], F, 1, &dim}};
	ncclsvc_message m = message(&x, A, 1, 1, &t[0]), next = message(&x, S, 2, 1, &t[1]);
	ncclsvc_request *r;
	if (me->rank) {
		m.allocate = allocate_nested;
		m.arg = &in;
	}
	CHECK_OK(ncclsvc_group_begin(x.s));
	CHECK_OK(me->rank ? ncclsvc_tensors_irecv(x.lists, &m, &r)
			  : ncclsvc_tensors_isend(x.lists, &m, &r));
	CHECK_OK(me->rank ? ncclsvc_tensors_irecv(x.lists, &next, &in.other)
			  : ncclsvc_tensors_isend(x.lists, &next, &in.other));
	CHECK_OK(ncclsvc_group_end(x.s));
	CHECK_OK(ncclsvc_request_wait(r, WAIT_MS));
	CHECK_EQ(in.got.calls, me->rank);
	if (me->rank)
		CHECK(!memcmp(in.got.tensors[0].data, data[0], sizeof(data[0])));
	CHECK_OK(ncclsvc_request_wait(in.other, WAIT_MS));
	CHECK_OK(ncclsvc_request_free(r));
	CHECK_OK(ncclsvc_request_free(in.other));
	got_free(&in.got);
	check_in_step(&x, 4);
	side_close(&x);
}

static void list_functions_within_allocate_are_refused(void **state)
{
	(void)state;
	run_pair(nested);
}

static void calls_without_a_peer_are_refused_here(void **state)
{
	(void)state;
	run_pair(alone);
}

/* ---- No room ---- */

enum { PENDING = 7, HELD = 1, FREE };

/* The daemon does not admit rank 0's first list, and must not mistake the next list for it. */
static void short_of_room(struct client *me)
{
	struct side x = side_open(me);
	ncclsvc_comm *other;
	ncclsvc_task tasks[PENDING];
	int32_t v[PENDING] = {0};
	float f = 1;
	const int64_t one = 1;
	const ncclsvc_tensor t = {&f, F, 1, &one};
	CHECK_OK(ncclsvc_comm_split(x.comm, 0, me->rank, WAIT_MS, &other));
	for (int i = 0; me->rank == 0 && i < PENDING; i++)
		CHECK_OK(ncclsvc_recv(&v[i], 1, NCCLSVC_INT32, 1, other, &tasks[i]));
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_tensor_send(x.lists, t, 1, 1, WAIT_MS), NCCLSVC_LIMIT);
		says("user_tasks_max");
		say(me, HELD);
	} else {
		CHECK_EQ(hear(me), FREE);
	}
	for (int i = 0; i < PENDING; i++) {
		if (me->rank)
			CHECK_OK(ncclsvc_send(&v[i], 1, NCCLSVC_INT32, 0, other, &tasks[i]));
		wait_for(x.s, tasks[i], NCCLSVC_OK);
	}
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_tensor_send(x.lists, t, 1, 1, WAIT_MS), NCCLSVC_STALE_EPOCH);
		says("did not take its turn");
		CHECK_OK(ncclsvc_tensors_close(x.lists));
		CHECK_OK(ncclsvc_comm_leave(x.comm));
		x = side_on(me, x.s);
	} else {
		/* The error is local or remote, depending on what has arrived. */
		const ncclsvc_result r = ncclsvc_tensor_recv(x.lists, t, 0, 1, WAIT_MS);
		CHECK(r == NCCLSVC_STALE_EPOCH || r == NCCLSVC_PEER_GONE);
		CHECK_OK(ncclsvc_comm_rejoin(x.comm, WAIT_MS));
		CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	}
	check_in_step(&x, 3);
	CHECK_OK(ncclsvc_comm_leave(other));
	side_close(&x);
}

static void a_list_without_room_is_not_overtaken(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--user-tasks-max", "8", NULL);
	clients_start(clients, 2, &d, short_of_room, NULL);
	CHECK_EQ(hear(&clients[0]), HELD);
	say(&clients[1], FREE);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sides_that_disagree_get_the_reason_and_go_on),
		TEST(another_number_of_tensors),
		TEST(the_first_tensor_that_differs_is_named),
		TEST(a_refusal_is_the_peers_error_too),
		TEST(calls_without_a_peer_are_refused_here),
		TEST(list_functions_within_allocate_are_refused),
		TEST(a_list_without_room_is_not_overtaken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
