/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors from rank to rank, on the host: both modes, what is agreed and what is refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/tensors/ncclsvc_tensors.h"
#include "harness_raw.h"

enum { READY = 1, GO };

struct side {
	struct client *me;
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_tensors *lists;
	int peer;
};

static struct side side_on(struct client *me, ncclsvc_session *s)
{
	struct side x = {.me = me, .s = s, .peer = 1 - me->rank};
	x.comm = comm_join(me, x.s);
	CHECK_OK(ncclsvc_tensors_open(x.comm, WAIT_MS, &x.lists));
	return x;
}

static struct side side_open(struct client *me)
{
	return side_on(me, session_open(me->daemon));
}

static void side_close(struct side *x)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_error(x->comm));
	CHECK_OK(ncclsvc_barrier(x->comm, &task));
	wait_for(x->s, task, NCCLSVC_OK);
	CHECK_OK(ncclsvc_tensors_close(x->lists));
	ncclsvc_close(x->s);
}

static void run_pair(client_main *main)
{
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, main, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static ncclsvc_message message(const struct side *x, ncclsvc_shapes shapes, int64_t tag, size_t n,
			       const ncclsvc_tensor *tensors)
{
	return (ncclsvc_message){.size = sizeof(ncclsvc_message),
				 .input_signal = true,
				 .remote_rank = x->peer,
				 .tag = tag,
				 .shapes = shapes,
				 .n = n,
				 .tensors = tensors};
}

static void says(const char *text)
{
	if (!strstr(ncclsvc_last_error(), text))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,
			     ncclsvc_last_error());
}

static void fill(void *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		((unsigned char *)at)[i] = (unsigned char)(seed * 31 + i * 7 + i / 251);
}

static void check_filled(const void *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		CHECK_EQ(((const unsigned char *)at)[i],
			 (unsigned char)(seed * 31 + i * 7 + i / 251));
}

static size_t bytes_of(const ncclsvc_tensor *t)
{
	uint64_t bytes;
	CHECK_OK(ncclsvc_tensor_size(t, NULL, &bytes));
	return bytes;
}

/* ---- What the receiver allocates ---- */

struct got {
	size_t n;
	ncclsvc_tensor tensors[256];
	int64_t dims[256][4];
	ncclsvc_result refuse;
	int calls;
};

static ncclsvc_result allocate(ncclsvc_tensor *tensors, size_t n, void *arg)
{
	struct got *g = arg;
	g->calls++;
	if (g->refuse)
		return g->refuse;
	g->n = n;
	for (size_t i = 0; i < n; i++) {
		tensors[i].data = malloc(bytes_of(&tensors[i]) + 1);
		g->tensors[i] = tensors[i];
		CHECK(tensors[i].ndims <= 4);
		for (int k = 0; k < tensors[i].ndims; k++)
			g->dims[i][k] = tensors[i].dims[k];
		g->tensors[i].dims = g->dims[i];
	}
	return NCCLSVC_OK;
}

static void got_free(struct got *g)
{
	for (size_t i = 0; i < g->n; i++)
		free(g->tensors[i].data);
	*g = (struct got){0};
}

/* ---- Static shapes ---- */

static const int64_t dims_a[] = {2, 3}, dims_b[] = {4}, dims_none[] = {5, 0},
		     dims_big[] = {123, 77};

static size_t some_list(ncclsvc_tensor *t)
{
	t[0] = (ncclsvc_tensor){.type = NCCLSVC_FLOAT32, .ndims = 2, .dims = dims_a};
	t[1] = (ncclsvc_tensor){.type = NCCLSVC_FLOAT64, .ndims = 0};
	t[2] = (ncclsvc_tensor){.type = NCCLSVC_INT8, .ndims = 1, .dims = dims_b};
	t[3] = (ncclsvc_tensor){.type = NCCLSVC_INT64, .ndims = 2, .dims = dims_none};
	t[4] = (ncclsvc_tensor){.type = NCCLSVC_BFLOAT16, .ndims = 2, .dims = dims_big};
	return 5;
}

static void memory_of(ncclsvc_tensor *t, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++) {
		size_t bytes = bytes_of(&t[i]);
		t[i].data = bytes ? malloc(bytes) : NULL;
		if (bytes)
			fill(t[i].data, bytes, seed ? seed + (unsigned)i : 1000);
	}
}

static void check_list(ncclsvc_tensor *t, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		check_filled(t[i].data, bytes_of(&t[i]), seed + (unsigned)i);
}

static void memory_free(ncclsvc_tensor *t, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(t[i].data);
}

/* One good list from rank 0 to rank 1: whatever was before, both are in step. */
static void check_in_step(struct side *x, unsigned seed)
{
	ncclsvc_tensor t[5];
	size_t n = some_list(t);
	bool sender = x->me->rank == 0, done = false;
	memory_of(t, n, sender ? seed : 0);
	ncclsvc_message m = message(x, NCCLSVC_SHAPES_STATIC, 5, n, t);
	CHECK_OK(sender ? ncclsvc_tensors_send(x->lists, &m, WAIT_MS, &done)
			: ncclsvc_tensors_recv(x->lists, &m, WAIT_MS, &done));
	CHECK(done);
	check_list(t, n, seed);
	memory_free(t, n);
}

static void static_lists(struct client *me)
{
	struct side x = side_open(me);
	for (unsigned round = 1; round < 20; round++)
		check_in_step(&x, round);
	/* An empty list is a message, too. */
	bool done = false;
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, -1, 0, NULL);
	CHECK_OK(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, &done)
			  : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, &done));
	CHECK(done);
	check_in_step(&x, 99);
	side_close(&x);
}

static void lists_of_static_shapes(void **state)
{
	(void)state;
	run_pair(static_lists);
}

/* Submitted by message, as by ring. */
static void without_ring(struct client *me)
{
	const ncclsvc_options o = {
		.size = sizeof(o), .socket = me->daemon->socket, .no_ring = true};
	ncclsvc_session *s;
	CHECK_OK(ncclsvc_open(&o, &s));
	struct side x = side_on(me, s);
	check_in_step(&x, 1);
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, me->rank, 0, NULL);
	CHECK_RESULT(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL)
			      : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL),
		     NCCLSVC_MISMATCH);
	says("tag differs");
	m.input_signal = me->rank;
	CHECK_RESULT(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL)
			      : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	check_in_step(&x, 2);
	side_close(&x);
}

static void lists_by_socket(void **state)
{
	(void)state;
	run_pair(without_ring);
}

/* ---- As it lies ---- */

static void zero_copy(struct client *me)
{
	struct side x = side_open(me);
	const int64_t whole[] = {256}, part[] = {10};
	char *memory = shared(x.s, 4096);
	bool sender = me->rank == 0;
	ncclsvc_tensor t[] = {{memory, NCCLSVC_INT8, 1, whole},
			      {memory + 256, NCCLSVC_INT8, 1, part},
			      {memory + 512, NCCLSVC_INT32, 0, NULL}};
	memset(memory, sender ? 0x11 : 0x22, 4096);
	/* Two without gaps: nobody copies. */
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 2, t);
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), 0);
	CHECK_EQ(memory[265], 0x11);
	CHECK_EQ(memory[266], sender ? 0x11 : 0x22);
	/* With a gap: the receiver keeps what is there, */
	memset(memory, sender ? 0x33 : 0x44, 4096);
	m.n = 3;
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), sender ? 0 : 256 + 10 + 4);
	CHECK_EQ(memory[265], 0x33);
	CHECK_EQ(memory[266], sender ? 0x33 : 0x44);
	CHECK_EQ(memory[515], 0x33);
	CHECK_EQ(memory[516], sender ? 0x33 : 0x44);
	/* unless it says that the gap is nobody's. */
	m.flags = NCCLSVC_MESSAGE_ONE_BUFFER;
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), sender ? 0 : 256 + 10 + 4);
	CHECK_EQ(memory[266], 0x33);
	side_close(&x);
}

static void a_list_that_is_one_buffer_is_not_copied(void **state)
{
	(void)state;
	run_pair(zero_copy);
}

/* Two allocations that happen to lie side by side are not one. */
static void neighbours(struct client *me)
{
	struct side x = side_open(me);
	const int64_t page[] = {4096};
	char *low = NULL, *at[16];
	for (int i = 0; i < 16 && !low; i++) {
		at[i] = shared(x.s, 4096);
		for (int k = 0; k < i && !low; k++)
			low = at[i] + 4096 == at[k] ? at[i] : at[k] + 4096 == at[i] ? at[k] : NULL;
	}
	if (!low)
		low = shared(x.s, 8192);
	ncclsvc_tensor t[] = {{low, NCCLSVC_INT8, 1, page}, {low + 4096, NCCLSVC_INT8, 1, page}};
	memset(low, me->rank == 0 ? 0x55 : 0x66, 8192);
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 2, t);
	CHECK_OK(me->rank == 0 ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			       : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	for (int i = 0; i < 8192; i++)
		CHECK_EQ(low[i], 0x55);
	side_close(&x);
}

static void tensors_of_two_allocations_are_not_one_buffer(void **state)
{
	(void)state;
	run_pair(neighbours);
}

static void no_leak(struct client *me)
{
	struct side x = side_open(me);
	bool sender = me->rank == 0;
	const int64_t large[] = {2048}, small[] = {3};
	char *plain = malloc(4096), *one = shared(x.s, 4096);
	memset(plain, 0x5c, 4096);
	/* Two tensors that do not lie like a buffer, and fill the sender's own; then smaller ones.
	 */
	ncclsvc_tensor t[] = {{plain + 2048, NCCLSVC_INT8, 1, large},
			      {plain, NCCLSVC_INT8, 1, large}};
	for (int round = 0; round < 2; round++) {
		ncclsvc_tensor in[] = {t[0], t[1]};
		uint64_t offsets[2], sizes[2], total;
		for (int i = 0; i < 2; i++) {
			t[i].dims = in[i].dims = round ? small : large;
			sizes[i] = bytes_of(&in[i]);
		}
		CHECK_OK(ncclsvc_aggregate(sizes, 2, offsets, &total));
		memset(one, 0x77, 4096);
		for (int i = 0; i < 2; i++)
			in[i].data = one + offsets[i];
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 2, sender ? t : in);
		m.flags = NCCLSVC_MESSAGE_ONE_BUFFER;
		CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
		for (size_t i = 0; !sender && i < total; i++)
			CHECK_EQ(one[i], i % 256 < 3 || !round ? 0x5c : 0);
	}
	free(plain);
	side_close(&x);
}

static void gaps_carry_nothing_of_former_lists(void **state)
{
	(void)state;
	run_pair(no_leak);
}

/* What a profiler sees, in order. */
static void profiled(struct client *me)
{
	static const char *const phases[2] = {
		"PreSend tag 5 peer 1\nSendMemcpy tag 5 peer 1\n-\n-\nSend tag 5 peer 1\n-\n"
		"PostSend tag 5 peer 1\n-\n",
		"PreRecv tag 5 peer 0\n-\nRecv tag 5 peer 0\nRecvMemcpy tag 5 peer 0\n-\n-\n"
		"PostRecv tag 5 peer 0\n-\n",
	};
	char path[160], text[4096];
	snprintf(path, sizeof(path), "%s/nvtx.%d", me->daemon->dir, me->rank);
	setenv("NVTX_INJECTION64_PATH", program("NVTX_RECORDER"), 1);
	setenv("NVTX_RECORD", path, 1);
	struct side x = side_open(me);
	check_in_step(&x, 1);
	FILE *f = fopen(path, "r");
	CHECK(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	unlink(path);
	if (strcmp(text, phases[me->rank]))
		check_failed(__FILE__, __LINE__, "the profiler saw:\n%s", text);
	side_close(&x);
}

static void the_phases_show_in_a_profiler(void **state)
{
	(void)state;
	if (!getenv("NVTX_RECORDER"))
		skip_because("the library was built without NVTX");
	run_pair(profiled);
}

#define LARGE ((int64_t)1 << 31)

static void large(struct client *me)
{
	struct side x = side_open(me);
	const int64_t much = LARGE + 8, few = 10;
	const bool sender = me->rank == 0;
	char *a = malloc((size_t)much), b[40];
	CHECK(a);
	/* The small one first: as they lie, they are no buffer. */
	const ncclsvc_tensor t[] = {{b, NCCLSVC_INT32, 1, &few}, {a, NCCLSVC_INT8, 1, &much}};
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 2, t);
	memset(a, sender ? 0x31 : 0, (size_t)much);
	memset(b, sender ? 0x32 : 0, sizeof(b));
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, -1, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, -1, NULL));
	CHECK(ncclsvc_tensors_copied(x.lists) == (uint64_t)much + sizeof(b));
	CHECK_EQ(b[39], 0x32);
	for (int64_t i = 0; i < much; i += i < LARGE - 4096 ? 4093 : 1)
		CHECK_EQ(a[i], 0x31);
	free(a);
	side_close(&x);
}

static void a_list_that_no_int_counts(void **state)
{
	(void)state;
	if (!getenv("NCCLSVC_TEST_LARGE"))
		skip_because("NCCLSVC_TEST_LARGE is not set: it takes 9 GiB of memory");
	run_pair(large);
}

/* ---- Shapes ahead ---- */

static void shapes_ahead(struct client *me)
{
	struct side x = side_open(me);
	struct got got = {0};
	/* From nothing to more than fits into the first message. */
	static const size_t sizes[] = {0, 1, 3, 31, 60, 61, 200};
	for (unsigned round = 0; round < sizeof(sizes) / sizeof(sizes[0]); round++) {
		const size_t n = sizes[round];
		ncclsvc_tensor t[256];
		int64_t dims[256][2];
		bool done = false;
		for (size_t i = 0; i < n; i++) {
			dims[i][0] = (int64_t)(i % 5 + round);
			dims[i][1] = (int64_t)i;
			t[i] = (ncclsvc_tensor){.type = i % 2 ? NCCLSVC_FLOAT16 : NCCLSVC_FLOAT64,
						.ndims = (int)(i % 3),
						.dims = dims[i]};
		}
		if (me->rank == 0) {
			memory_of(t, n, round + 1);
			ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, round, n, t);
			CHECK_OK(ncclsvc_tensors_send(x.lists, &m, WAIT_MS, &done));
			memory_free(t, n);
		} else {
			for (size_t i = 0; i < n; i++)
				t[i].ndims = -1;
			ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, round, n, t);
			m.allocate = allocate;
			m.arg = &got;
			CHECK_OK(ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, &done));
			CHECK_EQ(got.calls, 1);
			CHECK_EQ(got.n, n);
			for (size_t i = 0; i < n; i++) {
				CHECK_EQ(got.tensors[i].ndims, i % 3);
				for (size_t k = 0; k < i % 3; k++)
					CHECK_EQ(got.tensors[i].dims[k], dims[i][k]);
			}
			check_list(got.tensors, n, round + 1);
			got_free(&got);
		}
		CHECK(done);
	}
	check_in_step(&x, 3);
	side_close(&x);
}

static void lists_with_their_shapes_ahead(void **state)
{
	(void)state;
	run_pair(shapes_ahead);
}

/* ---- Disagreement ---- */

/* One call on each side, and how they end. */
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
	 {"types or shapes", "types or shapes"}},
	{"type of one size",
	 {S, S},
	 {1, 1},
	 {F, NCCLSVC_INT32},
	 {4, 4},
	 BOTH_MISMATCH,
	 {"types or shapes", "types or shapes"}},
	{"a type that is not allowed",
	 {A, A},
	 {1, 1},
	 {F, NCCLSVC_INT32},
	 {4, -1},
	 {NCCLSVC_INVALID_ARGUMENT, NCCLSVC_MISMATCH},
	 {"rank 1 (pid ", "sender has float32, the receiver allows int32"}},
	{"a shape that is not allowed",
	 {A, A},
	 {1, 1},
	 {F, F},
	 {4, 3},
	 {NCCLSVC_INVALID_ARGUMENT, NCCLSVC_MISMATCH},
	 {"refuses", "a dimension of tensor 0 differs"}},
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

static void sides_that_disagree_are_told_and_go_on(void **state)
{
	(void)state;
	run_pair(clashing);
}

/* ---- Refusals ---- */

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
		/* The sender's signal is false: the receiver is told. */
		m.input_signal = !sender;
		done = true;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, &done)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, &done),
			     NCCLSVC_INVALID_ARGUMENT);
		says(sender ? "input_signal is false" : "rank 0 (pid ");
		CHECK(!done);
		got_free(&got);
		check_in_step(&x, 1);
		/* The receiver's is. */
		m.input_signal = sender;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says(sender ? "rank 1 (pid " : "input_signal is false");
		check_in_step(&x, 2);
		/* The receiver's allocate refuses. */
		got.refuse = NCCLSVC_NO_MEMORY;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &good, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &good, WAIT_MS, NULL),
			     sender ? NCCLSVC_INVALID_ARGUMENT : NCCLSVC_NO_MEMORY);
		says(sender ? "rank 1 (pid " : "allocate refused");
		got_free(&got);
		check_in_step(&x, 3);
		/* The sender's tensor is none. */
		m = good;
		t.type = sender ? (ncclsvc_type)77 : F;
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says(sender ? "tensor 0: a tensor's type is 77" : "rank 0 (pid ");
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
	/* The signal comes first. */
	m.input_signal = false;
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	says("input_signal");
	m.input_signal = true;
	m.remote_rank = 2;
	CHECK_RESULT(ncclsvc_tensors_irecv(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	says("remote_rank is 2");
	m.remote_rank = -1;
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	m.size--;
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
	says("message.size");
	m.size++;
	m.remote_rank = x.peer;
	CHECK_OK(ncclsvc_group_begin(x.s));
	CHECK_RESULT(ncclsvc_tensors_isend(x.lists, &m, &r), NCCLSVC_INVALID_ARGUMENT);
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
	CHECK_RESULT(ncclsvc_tensors_rejoin(NULL, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_close(NULL));
	CHECK_OK(ncclsvc_request_free(NULL));
	/* None of these took a turn. */
	check_in_step(&x, 9);
	side_close(&x);
}

static void calls_without_a_peer_are_refused_here(void **state)
{
	(void)state;
	run_pair(alone);
}

/* ---- Without waiting ---- */

static void not_waiting(struct client *me)
{
	struct side x = side_open(me);
	enum { ROUNDS = 12 };
	ncclsvc_request *r[ROUNDS];
	ncclsvc_tensor t[ROUNDS][5];
	bool sender = me->rank == 0;
	struct got got = {0};
	size_t n = 0;
	/* Many at once, which end in order. */
	for (unsigned i = 0; i < ROUNDS; i++) {
		n = some_list(t[i]);
		memory_of(t[i], n, sender ? i + 1 : 0);
		ncclsvc_message m = message(&x, S, i, n, t[i]);
		CHECK_OK(sender ? ncclsvc_tensors_isend(x.lists, &m, &r[i])
				: ncclsvc_tensors_irecv(x.lists, &m, &r[i]));
	}
	CHECK_OK(ncclsvc_request_wait(r[ROUNDS - 1], WAIT_MS));
	for (unsigned i = 0; i < ROUNDS; i++) {
		CHECK_OK(ncclsvc_request_wait(r[i], WAIT_MS));
		CHECK_OK(ncclsvc_request_wait(r[i], 0));
		CHECK_OK(ncclsvc_request_test(r[i]));
		check_list(t[i], n, i + 1);
		memory_free(t[i], n);
		if (i != 3) /* close frees what is forgotten */
			CHECK_OK(ncclsvc_request_free(r[i]));
	}
	/* The receiver comes first, and has to wait. */
	n = some_list(t[0]);
	if (sender) {
		CHECK_EQ(hear(me), GO);
		memory_of(t[0], n, 77);
		ncclsvc_message m = message(&x, A, 1, n, t[0]);
		CHECK_OK(ncclsvc_tensors_isend(x.lists, &m, &r[0]));
		while (ncclsvc_request_test(r[0]) == NCCLSVC_IN_PROGRESS)
			sleep_ms(1);
		CHECK_OK(ncclsvc_request_test(r[0]));
		memory_free(t[0], n);
	} else {
		ncclsvc_message m = message(&x, A, 1, n, t[0]);
		m.allocate = allocate;
		m.arg = &got;
		CHECK_OK(ncclsvc_tensors_irecv(x.lists, &m, &r[0]));
		CHECK_RESULT(ncclsvc_request_test(r[0]), NCCLSVC_IN_PROGRESS);
		CHECK_RESULT(ncclsvc_request_wait(r[0], 30), NCCLSVC_TIMEOUT);
		CHECK_RESULT(ncclsvc_request_free(r[0]), NCCLSVC_BUSY);
		CHECK_RESULT(ncclsvc_tensors_close(x.lists), NCCLSVC_BUSY);
		CHECK_RESULT(ncclsvc_tensors_irecv(x.lists, &m, &r[1]), NCCLSVC_BUSY);
		says("under way with rank 0");
		CHECK_RESULT(ncclsvc_tensors_all_gather(x.lists, t[0], NULL, n, WAIT_MS, NULL),
			     NCCLSVC_BUSY);
		CHECK_EQ(got.calls, 0);
		say(me, READY);
		CHECK_OK(ncclsvc_request_wait(r[0], WAIT_MS));
		check_list(got.tensors, n, 77);
		got_free(&got);
	}
	CHECK_OK(ncclsvc_request_free(r[0]));
	check_in_step(&x, 5);
	side_close(&x);
}

static void lists_under_way(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, not_waiting, NULL);
	CHECK_EQ(hear(&clients[1]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Those who do not come ---- */

static void late(struct client *me)
{
	struct side x = side_open(me);
	bool sender = me->rank == 0;
	for (int mode = S; mode <= A; mode++) {
		struct got got = {0};
		ncclsvc_tensor t[5];
		size_t n = some_list(t);
		memory_of(t, n, 1);
		ncclsvc_message m = message(&x, (ncclsvc_shapes)mode, 1, n, t);
		m.allocate = sender ? NULL : allocate;
		m.arg = &got;
		if (sender)
			CHECK_EQ(hear(me), GO);
		CHECK_RESULT(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				    : ncclsvc_tensors_recv(x.lists, &m, 50, NULL),
			     NCCLSVC_TIMEOUT);
		says("deadline");
		memory_free(t, n);
		got_free(&got);
		if (!sender)
			say(me, READY);
		check_in_step(&x, 5);
	}
	side_close(&x);
}

static void a_deadline_ends_it_on_both_sides(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, late, NULL);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(hear(&clients[1]), READY);
		say(&clients[0], GO);
	}
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void left_behind(struct client *me)
{
	struct side x = side_open(me);
	ncclsvc_tensor t[5];
	size_t n = some_list(t);
	struct got got = {0};
	say(me, READY);
	if (me->rank == 0) {
		CHECK_EQ(hear(me), GO); /* the new one; the first is killed here */
	} else {
		ncclsvc_message m = message(&x, A, 1, n, t);
		m.allocate = allocate;
		m.arg = &got;
		CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL), NCCLSVC_PEER_GONE);
		/* Here or there, as it has been heard of. */
		ncclsvc_result r = ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL);
		CHECK(r == NCCLSVC_STALE_EPOCH || r == NCCLSVC_PEER_GONE);
		say(me, READY);
		CHECK_OK(ncclsvc_comm_rejoin(x.comm, WAIT_MS));
		CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	}
	check_in_step(&x, 8);
	side_close(&x);
}

static void a_peer_that_dies_is_an_error(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, left_behind, NULL);
	hear_all(clients, 2, READY);
	clients_ask(&clients[1], 1); /* the receiver waits */
	client_kill(&clients[0]);
	CHECK_EQ(hear(&clients[1]), READY);
	client_start(&clients[0], left_behind);
	CHECK_EQ(hear(&clients[0]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void daemon_goes(struct client *me)
{
	struct side x = side_open(me);
	ncclsvc_tensor t[5];
	size_t n = some_list(t);
	check_in_step(&x, 1);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	memory_of(t, n, 1);
	ncclsvc_message m = message(&x, S, 1, n, t);
	CHECK_RESULT(me->rank ? ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL)
			      : ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL),
		     NCCLSVC_DAEMON_LOST);
	memory_free(t, n);
	CHECK_OK(ncclsvc_reattach(x.s, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	check_in_step(&x, 2);
	side_close(&x);
}

static void lists_outlive_the_daemon(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, daemon_goes, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	say_all(clients, 2, GO);
	sleep_ms(50);
	daemon_restart(&d, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Peers that are no list, or lie ---- */

static void plain_peer(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 4;
	float data[4] = {1, 1, 1, 1};
	ncclsvc_task task;
	ncclsvc_tensor t = {data, F, 1, &dim};
	ncclsvc_message m = message(&x, S, 1, 1, &t);
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL), NCCLSVC_MISMATCH);
		says("rank 1");
		says("no list of tensors");
	} else {
		data[0] = 7;
		CHECK_OK(ncclsvc_recv(data, 16, NCCLSVC_UINT8, 0, x.comm, &task));
		wait_for(x.s, task, NCCLSVC_MISMATCH);
		CHECK(data[0] == 7);
	}
	check_in_step(&x, 8);
	side_close(&x);
}

static void a_list_does_not_meet_a_plain_recv(void **state)
{
	(void)state;
	run_pair(plain_peer);
}

/* Rank 0 speaks the protocol by hand, and says what no library would. */
static void receive_lies(struct client *me)
{
	if (me->rank == 0)
		return; /* the test itself is this rank */
	struct side x = side_open(me);
	for (int i = 0; i < 4; i++) {
		struct got got = {0};
		const ncclsvc_tensor t = {NULL, F, -1, NULL};
		ncclsvc_message m = message(&x, A, 3, 1, &t);
		m.allocate = allocate;
		m.arg = &got;
		ncclsvc_result r = ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL);
		CHECK(r == NCCLSVC_PROTOCOL || r == NCCLSVC_MISMATCH ||
		      r == NCCLSVC_INVALID_ARGUMENT);
		CHECK_EQ(got.calls, 0);
		say(me, READY);
	}
	CHECK_EQ(hear(me), GO);
	ncclsvc_tensors_close(x.lists);
	ncclsvc_close(x.s);
}

static void lies_do_not_reach_the_receiver(void **state)
{
	struct daemon d;
	struct client c[2];
	struct raw r;
	struct raw_reply reply;
	(void)state;
	daemon_start(&d, NULL);
	clients_start(c, 2, &d, receive_lies, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 64);
	struct svc_join join = raw_join_request(&c[1].id, 2, 0);
	raw_call(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct raw_region region = raw_region(&r, SVC_PAGE);
	uint64_t *words = region.base;
	for (int i = 0; i < 4; i++) {
		static const uint64_t lies[4][8] = {
			{0},
			{UINT64_C(0x3173726f736e6574), 2},
			{UINT64_C(0x3173726f736e6574), 1, UINT64_MAX, 0},
			{UINT64_C(0x3173726f736e6574), 1, 1, 4, 1, NCCLSVC_FLOAT32, UINT64_MAX},
		};
		memset(words, 0, SVC_PAGE);
		memcpy(words, lies[i], sizeof(lies[i]));
		struct svc_record send = {
			.comm = reply.join.comm,
			.epoch = reply.join.epoch,
			.op = NCCLSVC_SEND,
			.type = NCCLSVC_UINT64,
			.peer = 1,
			.count = 128,
			.src_region = region.id,
			.flags = SVC_TASK_AGREE,
			.agreement = UINT64_C(2) << 60 | UINT64_C(3) << 40,
		};
		CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, send)).result, NCCLSVC_OK);
		/* The receiver refuses the data. */
		send.count = 0;
		ncclsvc_status st = raw_ring_wait(&r, raw_ring_submit(&r, send));
		CHECK_EQ(st.result, NCCLSVC_INVALID_ARGUMENT);
		CHECK_EQ(st.rank_a, 1);
		CHECK_EQ(hear(&c[1]), READY);
	}
	say(&c[1], GO);
	clients_end(c, 2);
	raw_region_close(&region);
	raw_close(&r);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lists_of_static_shapes),
		TEST(lists_by_socket),
		TEST(a_list_that_is_one_buffer_is_not_copied),
		TEST(tensors_of_two_allocations_are_not_one_buffer),
		TEST(gaps_carry_nothing_of_former_lists),
		TEST(the_phases_show_in_a_profiler),
		TEST(a_list_that_no_int_counts),
		TEST(lists_with_their_shapes_ahead),
		TEST(sides_that_disagree_are_told_and_go_on),
		TEST(a_refusal_is_the_peers_error_too),
		TEST(calls_without_a_peer_are_refused_here),
		TEST(lists_under_way),
		TEST(a_deadline_ends_it_on_both_sides),
		TEST(a_peer_that_dies_is_an_error),
		TEST(lists_outlive_the_daemon),
		TEST(a_list_does_not_meet_a_plain_recv),
		TEST(lies_do_not_reach_the_receiver),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
