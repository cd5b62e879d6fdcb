/* SPDX-License-Identifier: Apache-2.0
 * Calls for single tensors, memory for lists, and callbacks' sentences. */
#include <string.h>

#include "tensor_ranks.h"

#define N 6

static void check_row(const float *x, float first)
{
	for (int i = 0; i < N; i++)
		CHECK(x[i] == first + (float)i);
}

static void fill_row(float *x, float first)
{
	for (int i = 0; i < N; i++)
		x[i] = first + (float)i;
}

/* ---- One tensor ---- */

static void one_tensor(struct client *me)
{
	struct side x = side_open(me);
	const bool sender = me->rank == 0;
	float row[N] = {0};
	int64_t scalar = sender ? 77 : 0;
	if (sender)
		fill_row(row, 1);
	CHECK_OK(sender ? ncclsvc_tensor_send(x.lists, NCCLSVC_TENSOR(row, NCCLSVC_FLOAT32, 2, 3),
					      1, 9, WAIT_MS)
			: ncclsvc_tensor_recv(x.lists, NCCLSVC_TENSOR(row, NCCLSVC_FLOAT32, 2, 3),
					      0, 9, WAIT_MS));
	check_row(row, 1);
	/* A scalar; it is equivalent to a list of one tensor. */
	const ncclsvc_tensor t = NCCLSVC_TENSOR(&scalar, NCCLSVC_INT64);
	CHECK_EQ(t.ndims, 0);
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 10, 1, &t);
	CHECK_OK(sender ? ncclsvc_tensor_send(x.lists, t, 1, 10, WAIT_MS)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	CHECK_EQ(scalar, 77);
	/* Both sides learn about the difference. */
	ncclsvc_tensor other = sender ? NCCLSVC_TENSOR(row, NCCLSVC_FLOAT32, 2, 3)
				      : NCCLSVC_TENSOR(row, NCCLSVC_FLOAT32, 3, 2);
	CHECK_RESULT(sender ? ncclsvc_tensor_send(x.lists, other, 1, 1, WAIT_MS)
			    : ncclsvc_tensor_recv(x.lists, other, 0, 1, WAIT_MS),
		     NCCLSVC_MISMATCH);
	CHECK(!strstr(ncclsvc_last_error(), "MISMATCH"));
	ncclsvc_status st;
	CHECK_OK(ncclsvc_last_status(&st));
	CHECK_EQ(st.result, NCCLSVC_MISMATCH);
	CHECK_EQ(st.field, NCCLSVC_FIELD_AGREEMENT);
	CHECK(st.rank_a + st.rank_b == 1 && st.pid_a > 0 && st.pid_b > 0 && st.pid_a != st.pid_b);
	CHECK_RESULT(ncclsvc_tensor_send(NULL, t, 1, 1, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensor_send(x.lists, t, (INT64_C(1) << 32) + x.peer, 1, 0),
		     NCCLSVC_INVALID_ARGUMENT);
	says("remote_rank is 429496729");
	check_in_step(&x, 3);
	side_close(&x);
}

static void one_tensor_takes_one_line(void **state)
{
	(void)state;
	run_pair(one_tensor);
}

/* The caller frees its dimensions and list before the request ends. */
static void gone_dims(struct client *me)
{
	struct side x = side_open(me);
	float row[N] = {0};
	ncclsvc_request *request = NULL;
	if (me->rank == 0)
		fill_row(row, 4);
	{
		int64_t dims[2] = {2, 3};
		ncclsvc_tensor t = {row, NCCLSVC_FLOAT32, 2, dims};
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 1, &t);
		CHECK_OK(me->rank ? ncclsvc_tensors_irecv(x.lists, &m, &request)
				  : ncclsvc_tensors_isend(x.lists, &m, &request));
		memset(dims, 0xee, sizeof(dims));
		memset(&t, 0xee, sizeof(t));
		memset(&m, 0xee, sizeof(m));
	}
	CHECK_OK(ncclsvc_request_wait(request, WAIT_MS));
	check_row(row, 4);
	CHECK_OK(ncclsvc_request_free(request));
	side_close(&x);
}

static void requests_keep_no_pointer_to_dims(void **state)
{
	(void)state;
	run_pair(gone_dims);
}

static void of_a_part(struct client *me)
{
	struct side x = side_open(me);
	ncclsvc_comm *part;
	ncclsvc_tensors *lists;
	float row[N] = {0};
	CHECK_OK(ncclsvc_comm_split(x.comm, 0, -me->rank, WAIT_MS, &part));
	CHECK_OK(ncclsvc_tensors_open(part, WAIT_MS, &lists));
	if (me->rank == 0)
		fill_row(row, 8);
	const ncclsvc_tensor t = NCCLSVC_TENSOR(row, NCCLSVC_FLOAT32, N);
	/* The part has the reverse order. */
	CHECK_OK(me->rank ? ncclsvc_tensor_recv(lists, t, 1, 0, WAIT_MS)
			  : ncclsvc_tensor_send(lists, t, 0, 0, WAIT_MS));
	check_row(row, 8);
	check_in_step(&x, 2);
	CHECK_OK(ncclsvc_tensors_close(lists));
	side_close(&x);
}

static void a_split_has_lists_of_its_own(void **state)
{
	(void)state;
	run_pair(of_a_part);
}

/* ---- Memory for a list ---- */

static void in_one_piece(struct client *me)
{
	struct side x = side_open(me);
	const bool sender = me->rank == 0;
	ncclsvc_tensor t[] = {NCCLSVC_TENSOR(NULL, NCCLSVC_FLOAT32, N),
			      NCCLSVC_TENSOR(NULL, NCCLSVC_INT8, 0, 5),
			      NCCLSVC_TENSOR(NULL, NCCLSVC_FLOAT32, N)};
	void *memory = NULL;
	CHECK_OK(ncclsvc_tensors_allocate(x.lists, t, 3, &memory));
	CHECK(t[0].data == memory && !t[1].data);
	CHECK_EQ((char *)t[2].data - (char *)memory, NCCLSVC_TENSOR_ALIGNMENT);
	if (sender) {
		fill_row(t[0].data, 10);
		fill_row(t[2].data, 20);
	}
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 3, t);
	m.flags = sender ? 0 : NCCLSVC_MESSAGE_ONE_BUFFER;
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	check_row(t[0].data, 10);
	check_row(t[2].data, 20);
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), 0);
	CHECK_OK(ncclsvc_mem_free(x.s, memory));
	/* An empty allocation, and invalid lists. */
	CHECK_OK(ncclsvc_tensors_allocate(x.lists, &t[1], 1, &memory));
	CHECK(!memory && !t[1].data);
	CHECK_OK(ncclsvc_tensors_allocate(x.lists, NULL, 0, &memory));
	ncclsvc_tensor bad[] = {NCCLSVC_TENSOR(&x, NCCLSVC_INT8, 4),
				NCCLSVC_TENSOR(&x, NCCLSVC_INT8, -4)};
	CHECK_RESULT(ncclsvc_tensors_allocate(x.lists, bad, 2, &memory), NCCLSVC_INVALID_ARGUMENT);
	says("tensor 1: a tensor's dimension 0 is -4");
	CHECK(bad[0].data == &x && !memory);
	bad[1] = NCCLSVC_TENSOR(NULL, NCCLSVC_INT8, INT64_MAX);
	CHECK_RESULT(ncclsvc_tensors_allocate(x.lists, bad, 2, &memory), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_allocate(x.lists, bad, 1, NULL), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_allocate(NULL, bad, 1, &memory), NCCLSVC_INVALID_ARGUMENT);
	side_close(&x);
}

static void a_list_in_one_piece_goes_as_it_lies(void **state)
{
	(void)state;
	run_pair(in_one_piece);
}

/* ---- Callbacks ---- */

struct incoming {
	ncclsvc_tensors *lists;
	int how;
	void *memory;
	float *row;
};

enum { ALLOCATES, SAYS_WHY, SAYS_TOO_MUCH, LEAVES_IT_TO_A_CALL, SAYS_NOTHING, LIES, HOWS };

static ncclsvc_result take(ncclsvc_tensor *t, size_t n, void *arg)
{
	struct incoming *in = arg;
	char much[4096];
	switch (in->how) {
	case SAYS_WHY:
		return ncclsvc_set_error(NCCLSVC_LIMIT, "cache\t%d\nis full", 7);
	case SAYS_TOO_MUCH:
		memset(much, 'x', sizeof(much));
		much[sizeof(much) - 1] = '\0';
		return ncclsvc_set_error(NCCLSVC_LIMIT, "%s", much);
	case LEAVES_IT_TO_A_CALL:
		return ncclsvc_tensors_allocate(in->lists, NULL, 1, &in->memory);
	case SAYS_NOTHING:
		return NCCLSVC_UNSUPPORTED;
	case LIES: /* a DAEMON_LOST from the peer does not concern the sender */
		return ncclsvc_set_error(NCCLSVC_DAEMON_LOST, "the cache's daemon is lost");
	}
	ncclsvc_result r = ncclsvc_tensors_allocate(in->lists, t, n, &in->memory);
	in->row = t[0].data;
	return r;
}

static const struct {
	ncclsvc_result result;
	const char *text; /* for the receiver */
} told[HOWS] = {
	[SAYS_WHY] = {NCCLSVC_LIMIT, "callback failed: cache 7 is full"},
	[SAYS_TOO_MUCH] = {NCCLSVC_LIMIT, "callback failed: xxxx"},
	[LEAVES_IT_TO_A_CALL] = {NCCLSVC_INVALID_ARGUMENT, "callback failed: the tensors are NULL"},
	[SAYS_NOTHING] = {NCCLSVC_UNSUPPORTED, "callback failed: not supported"},
	[LIES] = {NCCLSVC_INVALID_ARGUMENT, "callback failed: the cache's daemon is lost"},
};

static void callbacks(struct client *me)
{
	struct side x = side_open(me);
	const bool sender = me->rank == 0;
	float row[N];
	fill_row(row, 5);
	for (int how = 0; how < HOWS; how++) {
		struct incoming in = {.lists = x.lists, .how = how};
		const ncclsvc_tensor t = sender ? NCCLSVC_TENSOR(row, NCCLSVC_FLOAT32, N)
						: NCCLSVC_TENSOR(NULL, NCCLSVC_FLOAT32, -1);
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 1, 1, &t);
		m.allocate = sender ? NULL : take;
		m.arg = &in;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL),
			     told[how].result);
		if (how == ALLOCATES && !sender) {
			check_row(in.row, 5);
			CHECK_OK(ncclsvc_mem_free(x.s, in.memory));
		} else if (how != ALLOCATES) {
			says(sender ? "refused the list: its allocate callback failed"
				    : told[how].text);
			CHECK(strlen(ncclsvc_last_error()) < 1024);
		}
		check_in_step(&x, 4);
	}
	side_close(&x);
}

static void a_callbacks_error_reaches_the_caller(void **state)
{
	(void)state;
	run_pair(callbacks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_tensor_takes_one_line),
		TEST(requests_keep_no_pointer_to_dims),
		TEST(a_split_has_lists_of_its_own),
		TEST(a_list_in_one_piece_goes_as_it_lies),
		TEST(a_callbacks_error_reaches_the_caller),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
