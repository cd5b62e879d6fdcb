/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors from rank to rank, in host memory: both modes, waited for or not.
 * test_tensors_errors.c and test_tensors_failures.c test failures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor_ranks.h"

enum { READY = 1, GO };

/* ---- Static shapes ---- */

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

/* Submitted by message instead of through the ring. */
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

/* ---- Without copies ---- */

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
	/* Two adjacent tensors: no copies. */
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 2, t);
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), 0);
	CHECK_EQ(memory[265], 0x11);
	CHECK_EQ(memory[266], sender ? 0x11 : 0x22);
	/* With a gap, the receiver keeps the gap's contents, */
	memset(memory, sender ? 0x33 : 0x44, 4096);
	m.n = 3;
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), sender ? 0 : 256 + 10 + 4);
	CHECK_EQ(memory[265], 0x33);
	CHECK_EQ(memory[266], sender ? 0x33 : 0x44);
	CHECK_EQ(memory[515], 0x33);
	CHECK_EQ(memory[516], sender ? 0x33 : 0x44);
	/* unless the receiver allows the gap to be overwritten. */
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

/* Two allocations that are adjacent by chance are not one. */
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
	/* Two tensors that do not form one buffer and fill the library's buffer; then smaller
	 * tensors. */
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

/* The trace that a profiler records, in order. */
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

/* ---- Shapes ahead ---- */

static void shapes_ahead(struct client *me)
{
	struct side x = side_open(me);
	struct got got = {0};
	/* From an empty list to more tensors than the first message can announce. */
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

/* ---- Two elements per byte ---- */

static void packed(struct client *me)
{
	static const int64_t dims[] = {3, 3}, bytes[] = {5};
	struct side x = side_open(me);
	const bool sender = me->rank == 0;
	for (unsigned type = NCCLSVC_INT4; type <= NCCLSVC_UINT4; type++) {
		char memory[6] = {0};
		ncclsvc_tensor t = {memory, (ncclsvc_type)type, 2, dims};
		memcpy(memory, sender ? "abcdef" : "-----.", sizeof(memory));
		CHECK_OK(sender ? ncclsvc_tensor_send(x.lists, t, 1, 7, WAIT_MS)
				: ncclsvc_tensor_recv(x.lists, t, 0, 7, WAIT_MS));
		CHECK(sender || !memcmp(memory, "abcde.", sizeof(memory)));
		struct got got = {0};
		ncclsvc_tensor any = {NULL, (ncclsvc_type)type, -1, NULL};
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 7, 1, sender ? &t : &any);
		m.allocate = sender ? NULL : allocate;
		m.arg = &got;
		CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, WAIT_MS, NULL)
				: ncclsvc_tensors_recv(x.lists, &m, WAIT_MS, NULL));
		if (!sender) {
			CHECK(got.tensors[0].type == type && got.tensors[0].dims[1] == 3);
			CHECK(!memcmp(got.tensors[0].data, memory, 5));
		}
		got_free(&got);
		/* The same number of bytes, but a different type. */
		ncclsvc_tensor plain = {memory, NCCLSVC_UINT8, 1, bytes};
		CHECK_RESULT(sender ? ncclsvc_tensor_send(x.lists, t, 1, 7, WAIT_MS)
				    : ncclsvc_tensor_recv(x.lists, plain, 0, 7, WAIT_MS),
			     NCCLSVC_MISMATCH);
		CHECK_RESULT(ncclsvc_tensors_all_reduce(x.lists, &t, NULL, 1, NCCLSVC_SUM, WAIT_MS,
							NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says("int4");
		check_in_step(&x, type);
	}
	side_close(&x);
}

static void lists_of_packed_types(void **state)
{
	(void)state;
	run_pair(packed);
}

/* ---- Non-blocking calls ---- */

static void not_waiting(struct client *me)
{
	struct side x = side_open(me);
	enum { ROUNDS = 12 };
	ncclsvc_request *r[ROUNDS];
	ncclsvc_tensor t[ROUNDS][5];
	bool sender = me->rank == 0;
	struct got got = {0};
	size_t n = 0;
	/* Many requests at once, which end in order. */
	for (unsigned i = 0; i < ROUNDS; i++) {
		n = some_list(t[i]);
		memory_of(t[i], n, sender ? i + 1 : 0);
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, i, n, t[i]);
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
		if (i != 3) /* ncclsvc_close frees the remaining request */
			CHECK_OK(ncclsvc_request_free(r[i]));
	}
	/* The receiver starts first and has to wait. */
	n = some_list(t[0]);
	if (sender) {
		CHECK_EQ(hear(me), GO);
		memory_of(t[0], n, 77);
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 1, n, t[0]);
		CHECK_OK(ncclsvc_tensors_isend(x.lists, &m, &r[0]));
		while (ncclsvc_request_test(r[0]) == NCCLSVC_IN_PROGRESS)
			sleep_ms(1);
		CHECK_OK(ncclsvc_request_test(r[0]));
		memory_free(t[0], n);
		check_in_step(&x, 78);
	} else {
		ncclsvc_message m = message(&x, NCCLSVC_SHAPES_AHEAD, 1, n, t[0]);
		m.allocate = allocate;
		m.arg = &got;
		CHECK_OK(ncclsvc_tensors_irecv(x.lists, &m, &r[0]));
		CHECK_RESULT(ncclsvc_request_test(r[0]), NCCLSVC_IN_PROGRESS);
		CHECK_RESULT(ncclsvc_request_wait(r[0], 30), NCCLSVC_TIMEOUT);
		CHECK_RESULT(ncclsvc_request_free(r[0]), NCCLSVC_BUSY);
		CHECK_RESULT(ncclsvc_tensors_close(x.lists), NCCLSVC_BUSY);
		/* A later request is held back; waiting for it also advances the first. */
		memory_of(t[1], some_list(t[1]), 0);
		ncclsvc_message after = message(&x, NCCLSVC_SHAPES_STATIC, 5, n, t[1]);
		CHECK_OK(ncclsvc_tensors_irecv(x.lists, &after, &r[1]));
		CHECK_RESULT(ncclsvc_request_wait(r[1], 30), NCCLSVC_TIMEOUT);
		CHECK_EQ(got.calls, 0);
		say(me, READY);
		CHECK_OK(ncclsvc_request_wait(r[1], WAIT_MS));
		check_list(t[1], n, 78);
		memory_free(t[1], n);
		CHECK_OK(ncclsvc_request_free(r[1]));
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lists_of_static_shapes),
		TEST(lists_by_socket),
		TEST(a_list_that_is_one_buffer_is_not_copied),
		TEST(tensors_of_two_allocations_are_not_one_buffer),
		TEST(gaps_carry_nothing_of_former_lists),
		TEST(the_phases_show_in_a_profiler),
		TEST(lists_with_their_shapes_ahead),
		TEST(lists_of_packed_types),
		TEST(lists_under_way),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
