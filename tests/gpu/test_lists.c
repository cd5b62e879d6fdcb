/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors in GPU memory: in stream order, in both modes, matching and refused.
 * test_lists_world.c tests lists of a world. */
#include <string.h>

#include "lists.h"

/* ---- Send and Recv ---- */

#define NEIGHBOUR    ((size_t)2 << 20) /* CUDA rounds allocations up to this */
#define NEIGHBOURS   16
#define BORDER_WORDS 256

/* Sends two adjacent tensors in different allocations from rank 0 to rank 1: a CUDA copy must stay
 * within one allocation. */
static void across_a_border(struct desk *d)
{
	const int64_t dim = BORDER_WORDS;
	CUdeviceptr p[NEIGHBOURS], border = 0;
	for (int i = 0; i < NEIGHBOURS; i++)
		CHECK_CU(cu.cuMemAlloc(&p[i], NEIGHBOUR));
	for (int i = 0; i < NEIGHBOURS * NEIGHBOURS; i++)
		if (p[i / NEIGHBOURS] == p[i % NEIGHBOURS] + NEIGHBOUR)
			border = p[i / NEIGHBOURS];
	CHECK(border || !setup.fake);
	if (!border) {
		report("no two allocations lie side by side here");
		border = p[0] + 4 * BORDER_WORDS;
	}
	const CUdeviceptr below = border - 4 * BORDER_WORDS;
	const ncclsvc_tensor list[] = {{at(below), NCCLSVC_UINT32, 1, &dim},
				       {at(border), NCCLSVC_UINT32, 1, &dim}};
	ncclsvc_message m = desk_message(d, 1 - d->r.rank, NCCLSVC_SHAPES_STATIC, 7);
	m.n = 2;
	m.tensors = list;
	CHECK_CU(cu.cuMemsetD32Async(below, d->r.rank ? 0 : 5, BORDER_WORDS, d->r.stream));
	CHECK_CU(cu.cuMemsetD32Async(border, d->r.rank ? 0 : 6, BORDER_WORDS, d->r.stream));
	CHECK_OK(d->r.rank ? ncclsvc_tensors_recv(d->lists, &m, WAIT_MS, NULL)
			   : ncclsvc_tensors_send(d->lists, &m, WAIT_MS, NULL));
	CHECK(gpu_stream_ends(d->r.stream, WAIT_MS));
	gpu_check(below, 5, BORDER_WORDS, "the first allocation's");
	gpu_check(border, 6, BORDER_WORDS, "the second one's");
	for (int i = 0; i < NEIGHBOURS; i++)
		CHECK_CU(cu.cuMemFree(p[i]));
}

static void send_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	for (uint32_t round = 0; round < 4; round++) {
		stage("round %u", round);
		desk_hand_on(&d, NCCLSVC_SHAPES_STATIC, 100 * round, round % 2);
		desk_hand_on(&d, NCCLSVC_SHAPES_AHEAD, 100 * round + 50, round % 2);
	}
	stage("across a border");
	if (c->rank < 2)
		across_a_border(&d);
	desk_close(&d);
}

static void test_send(void)
{
	ranks_run(ranks_count(), send_rank, NULL);
}

/* The host does not wait; the GPU does. */
static void stream_order_rank(struct client *c)
{
	enum { ROUNDS = 8 };
	struct desk d;
	ncclsvc_request *requests[ROUNDS];
	desk_open(&d, c);
	for (uint32_t k = 0; c->rank < 2 && k < ROUNDS; k++) {
		ncclsvc_message m = desk_message(&d, 1 - c->rank, NCCLSVC_SHAPES_STATIC, k);
		if (c->rank == 0) {
			desk_fill(&d, 10 * k, true);
			CHECK_OK(ncclsvc_tensors_isend(d.lists, &m, &requests[k]));
			desk_fill(&d, 0xbad, false); /* runs after the packing */
		} else {
			desk_fill(&d, 0xbad, false);
			CHECK_OK(ncclsvc_tensors_irecv(d.lists, &m, &requests[k]));
			CHECK_CU(cu.cuMemcpyDtoDAsync(d.copy + k * 4, d.memory[2] + 4 * k, 4,
						      d.r.stream));
		}
	}
	for (int k = 0; c->rank < 2 && k < ROUNDS; k++) {
		CHECK_OK(ncclsvc_request_wait(requests[k], WAIT_MS));
		CHECK_OK(ncclsvc_request_free(requests[k]));
	}
	CHECK(gpu_stream_ends(d.r.stream, WAIT_MS));
	for (uint32_t k = 0; c->rank == 1 && k < ROUNDS; k++)
		gpu_check(d.copy + k * 4, 10 * k + 2, 1, "what was copied behind the Recv");
	desk_close(&d);
}

static void test_stream_order(void)
{
	ranks_run(2, stream_order_rank, NULL);
}

/* ---- Disagreement ---- */

struct clash {
	const char *what;
	ncclsvc_shapes shapes[2];
	int64_t tag[2];
	bool no_signal[2];
	ncclsvc_result result[2];
	const char *why[2];
};

#define S NCCLSVC_SHAPES_STATIC
#define A NCCLSVC_SHAPES_AHEAD
#define MISMATCHES                                                                                 \
	{                                                                                          \
		NCCLSVC_MISMATCH, NCCLSVC_MISMATCH                                                 \
	}
#define REFUSED                                                                                    \
	{                                                                                          \
		NCCLSVC_INVALID_ARGUMENT, NCCLSVC_INVALID_ARGUMENT                                 \
	}

static const struct clash clashes[] = {
	{"mode", {A, S}, {1, 1}, {false}, MISMATCHES, {"mode differs", "mode differs"}},
	{"the other mode", {S, A}, {1, 1}, {false}, MISMATCHES, {"mode differs", "mode differs"}},
	{"tag", {S, S}, {1, 2}, {false}, MISMATCHES, {"tag differs", "tag differs"}},
	{"tag ahead", {A, A}, {1, 2}, {false}, MISMATCHES, {"tag differs", "tag differs"}},
	{"sender's signal",
	 {S, S},
	 {1, 1},
	 {true, false},
	 REFUSED,
	 {"input_signal", "input_signal"}},
	{"sender's signal, ahead",
	 {A, S},
	 {1, 1},
	 {true, false},
	 REFUSED,
	 {"input_signal", "input_signal"}},
	{"receiver's signal", {S, S}, {1, 1}, {false, true}, REFUSED, {"rank 1", "input_signal"}},
	{"receiver's signal, ahead",
	 {A, A},
	 {1, 1},
	 {false, true},
	 REFUSED,
	 {"rank 1", "input_signal"}},
	{"sender ahead, refused static",
	 {A, S},
	 {1, 1},
	 {false, true},
	 REFUSED,
	 {"rank 1", "input_signal"}},
};

static void clash_rank(struct client *c)
{
	struct desk d;
	const int k = c->rank;
	desk_open(&d, c);
	for (size_t i = 0; k < 2 && i < sizeof(clashes) / sizeof(clashes[0]); i++) {
		const struct clash *x = &clashes[i];
		ncclsvc_message m = desk_message(&d, 1 - k, x->shapes[k], x->tag[k]);
		m.input_signal = !x->no_signal[k];
		m.allocate = k && x->shapes[k] == A ? desk_allocate : NULL;
		m.arg = &d;
		stage("%s", x->what);
		desk_fill(&d, 7, false);
		ncclsvc_result r = k ? ncclsvc_tensors_recv(d.lists, &m, WAIT_MS, NULL)
				     : ncclsvc_tensors_send(d.lists, &m, WAIT_MS, NULL);
		if (r != x->result[k])
			check_failed(__FILE__, __LINE__, "%s: %s: %s", x->what,
				     ncclsvc_result_name(r), ncclsvc_last_error());
		says(x->why[k]);
		desk_check(&d, 7, "what no list was to touch");
		/* Both ranks are still in step, on both communicators. */
		for (int mode = S; mode <= A; mode++) {
			desk_fill(&d, k ? 0 : 40, false);
			m = desk_message(&d, 1 - k, (ncclsvc_shapes)mode, 5);
			m.allocate = k && mode == A ? desk_allocate : NULL;
			m.arg = &d;
			CHECK_OK(k ? ncclsvc_tensors_recv(d.lists, &m, WAIT_MS, NULL)
				   : ncclsvc_tensors_send(d.lists, &m, WAIT_MS, NULL));
			desk_check(&d, 40, "the list after it");
		}
	}
	desk_close(&d);
}

static void test_clash(void)
{
	ranks_run(2, clash_rank, NULL);
}

/* A tensor that is not in device memory is refused, and the peer is notified. */
static void host_memory_rank(struct client *c)
{
	struct desk d;
	static uint32_t words[1000];
	desk_open(&d, c);
	ncclsvc_message m = desk_message(&d, 1 - c->rank, S, 1);
	ncclsvc_tensor t = {words, NCCLSVC_UINT32, 1, &dims[0]};
	m.n = 1;
	if (c->rank == 0)
		m.tensors = &t;
	CHECK_RESULT(c->rank ? ncclsvc_tensors_recv(d.lists, &m, WAIT_MS, NULL)
			     : ncclsvc_tensors_send(d.lists, &m, WAIT_MS, NULL),
		     NCCLSVC_UNSUPPORTED);
	says(c->rank ? "rank 0" : "not device memory");
	t.data = at(d.memory[0]);
	CHECK_RESULT(ncclsvc_tensors_all_reduce(d.lists, &t, NULL, c->rank ? 1 : 0, NCCLSVC_SUM,
						WAIT_MS, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	says(c->rank ? "rank 0" : "at least one");
	rank_check_usable(&d.r);
	desk_close(&d);
}

static void test_host_memory(void)
{
	ranks_run(2, host_memory_rank, NULL);
}

/* ---- Collectives ---- */

/* Sizes of three tensors that no border between the shares of up to 4 ranks cuts: the first is rank
 * 0's whole share. */
static int64_t fitting[TENSORS];

static void fit(int n)
{
	fitting[0] = n == 2 ? 64 : 32;
	fitting[1] = 10;
	fitting[2] = 20;
}

static void collective_rank(struct client *c)
{
	struct desk d;
	const int n = c->nranks;
	CUdeviceptr out[TENSORS], whole;
	ncclsvc_tensor in[TENSORS], to[TENSORS];
	uint32_t ranks = (uint32_t)(n * (n + 1) / 2);
	desk_open(&d, c);
	CUstream s = d.r.stream;
	stage("AllReduce");
	CHECK_CU(cu.cuMemAlloc(&whole, 3000 * 4));
	const int64_t part = 100;
	for (int i = 0; i < TENSORS; i++)
		in[i] = (ncclsvc_tensor){at(whole + (CUdeviceptr)(100 + i * 1000) * 4),
					 NCCLSVC_UINT32, 1, &part};
	for (int round = 1; round < 4; round++) {
		CHECK_CU(cu.cuMemsetD32Async(whole, 0xbad, 3000, s));
		gpu_delay(s, d.scratch, SCRATCH, 20);
		CHECK_CU(cu.cuMemsetD32Async(whole, (unsigned)(round * (c->rank + 1)), 3000, s));
		CHECK_OK(ncclsvc_tensors_all_reduce(d.lists, in, NULL, TENSORS, NCCLSVC_SUM,
						    WAIT_MS, NULL));
		const uint32_t own = (uint32_t)(round * (c->rank + 1));
		gpu_check(whole, own, 100, "what is before the tensors");
		for (int i = 0; i < TENSORS; i++) {
			gpu_check((CUdeviceptr)(uintptr_t)in[i].data, (uint32_t)round * ranks, 100,
				  "the sum");
			gpu_check((CUdeviceptr)(uintptr_t)in[i].data + 400, own,
				  i < TENSORS - 1 ? 900 : 800, "what is behind it");
		}
	}
	stage("AllReduce of tensors in a row");
	const uint64_t copied = ncclsvc_tensors_copied(d.lists);
	CHECK_CU(cu.cuMemsetD32Async(whole, (unsigned)c->rank + 1, 3000, s));
	for (int i = 0; i < TENSORS; i++)
		in[i].data = at(whole + (CUdeviceptr)(100 + i * 100) * 4);
	CHECK_OK(
		ncclsvc_tensors_all_reduce(d.lists, in, NULL, TENSORS, NCCLSVC_SUM, WAIT_MS, NULL));
	gpu_check(whole + 400, ranks, 100 * TENSORS, "the sum");
	CHECK_EQ(ncclsvc_tensors_copied(d.lists), copied);
	CHECK_CU(cu.cuMemFree(whole));

	fit(n);
	uint64_t counts[TENSORS];
	int owners[TENSORS];
	for (int i = 0; i < TENSORS; i++) {
		counts[i] = (uint64_t)fitting[i];
		in[i] = (ncclsvc_tensor){at(d.memory[i == 1 ? 2 : 0] + (i == 2 ? 3200 : 0)),
					 NCCLSVC_UINT32, 1, &fitting[i]};
		CHECK_CU(cu.cuMemAlloc(&out[i], 5000 * 4));
		to[i] = (ncclsvc_tensor){at(out[i]), NCCLSVC_UINT32, 1, &fitting[i]};
	}
	CHECK_OK(ncclsvc_partition_tensors(counts, TENSORS, n, NULL, owners));
	for (int alias = 0; alias < 2; alias++) {
		const ncclsvc_tensor *result = alias ? in : to;
		for (int scatter = 0; scatter < 2; scatter++) {
			stage(scatter ? "ReduceScatter" : "AllGather");
			desk_fill(&d, 0xbad, true);
			for (int i = 0; i < TENSORS; i++)
				if (fitting[i])
					CHECK_CU(cu.cuMemsetD32Async(
						(CUdeviceptr)(uintptr_t)in[i].data,
						(unsigned)(10 * (c->rank + 1) + i),
						(size_t)fitting[i], s));
			ncclsvc_request *r;
			CHECK_OK(scatter ? ncclsvc_tensors_reduce_scatter(
						   d.lists, in, result, TENSORS, NCCLSVC_SUM, 0, &r)
					 : ncclsvc_tensors_all_gather(d.lists, in, result, TENSORS,
								      0, &r));
			CHECK_OK(ncclsvc_request_wait(r, WAIT_MS));
			CHECK_OK(ncclsvc_request_free(r));
			for (int i = 0; i < TENSORS; i++) {
				uint32_t want = 10 * ranks + (uint32_t)(n * i);
				if (!scatter)
					want = (uint32_t)(10 * (owners[i] + 1) + i);
				else if (owners[i] != c->rank)
					want = (uint32_t)(10 * (c->rank + 1) + i);
				gpu_check((CUdeviceptr)(uintptr_t)result[i].data, want,
					  (size_t)fitting[i], "the result");
			}
		}
	}
	for (int i = 0; i < TENSORS; i++)
		CHECK_CU(cu.cuMemFree(out[i]));
	desk_close(&d);
}

static void test_collectives(void)
{
	ranks_run(ranks_count(), collective_rank, NULL);
}

static void refused_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	desk_fill(&d, 3, false);
	/* 1000, 1 and 5000 words: the last lies across a border, whatever the number of ranks. */
	CHECK_RESULT(ncclsvc_tensors_all_gather(d.lists, d.tensors, NULL, TENSORS, WAIT_MS, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	says("across the border");
	CHECK_RESULT(ncclsvc_tensors_reduce_scatter(d.lists, d.tensors, NULL,
						    c->rank ? TENSORS : TENSORS - 1, NCCLSVC_SUM,
						    WAIT_MS, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	desk_check(&d, 3, "what no list was to touch");
	rank_check_usable(&d.r);
	desk_close(&d);
}

static void test_refused(void)
{
	ranks_run(ranks_count(), refused_rank, NULL);
}

/* ---- Lists in one piece ---- */

static ncclsvc_result one_piece(ncclsvc_tensor *tensors, size_t n, void *arg)
{
	struct desk *d = arg;
	void *memory;
	ncclsvc_result r = ncclsvc_tensors_allocate(d->lists, tensors, n, &memory);
	for (size_t i = 0; !r && i < n; i++)
		d->tensors[i].data = tensors[i].data;
	return r;
}

static void one_piece_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	const uint64_t before = ncclsvc_tensors_copied(d.lists);
	for (int mode = S; mode <= A; mode++) {
		ncclsvc_tensor own[TENSORS];
		memcpy(own, d.tensors, sizeof(own));
		CHECK_OK(one_piece(d.tensors, c->rank && mode == A ? 0 : TENSORS, &d));
		CHECK(!((uintptr_t)d.tensors[1].data % 4));
		ncclsvc_message m = desk_message(&d, 1 - c->rank, (ncclsvc_shapes)mode, 3);
		m.flags = c->rank ? NCCLSVC_MESSAGE_ONE_BUFFER : 0;
		m.allocate = c->rank && mode == A ? one_piece : NULL;
		m.arg = &d;
		for (int i = 0; c->rank == 0 && i < TENSORS; i++)
			CHECK_CU(cu.cuMemsetD32Async((CUdeviceptr)(uintptr_t)d.tensors[i].data,
						     (uint32_t)(60 + i), (size_t)dims[i],
						     d.r.stream));
		CHECK_OK(c->rank ? ncclsvc_tensors_recv(d.lists, &m, WAIT_MS, NULL)
				 : ncclsvc_tensors_send(d.lists, &m, WAIT_MS, NULL));
		for (int i = 0; i < TENSORS; i++)
			gpu_check((CUdeviceptr)(uintptr_t)d.tensors[i].data, (uint32_t)(60 + i),
				  (size_t)dims[i], "a list in one piece");
		CHECK_OK(ncclsvc_mem_free(d.r.session, d.tensors[0].data));
		memcpy(d.tensors, own, sizeof(own));
	}
	CHECK(ncclsvc_tensors_copied(d.lists) == before);
	desk_close(&d);
}

static void test_one_piece(void)
{
	ranks_run(2, one_piece_rank, NULL);
}

/* ---- More bytes than an int can count ---- */

#define LARGE ((int64_t)1 << 31)

static void large_rank(struct client *c)
{
	struct rank r;
	ncclsvc_tensors *lists;
	CUdeviceptr p, q;
	const int64_t large = LARGE + 4, small = 1000;
	rank_open(&r, c);
	CHECK_OK(ncclsvc_tensors_open(r.comm, WAIT_MS, &lists));
	CHECK_CU(cu.cuMemAlloc(&p, (size_t)large));
	CHECK_CU(cu.cuMemAlloc(&q, (size_t)small * 4));
	/* With q first, the tensors are not adjacent in list order, and all is copied. */
	ncclsvc_tensor t[] = {{at(q), NCCLSVC_UINT32, 1, &small},
			      {at(p), NCCLSVC_UINT8, 1, &large}};
	CHECK_CU(cu.cuMemsetD8Async(p, (unsigned char)(c->rank ? 0 : 0x5a), (size_t)large,
				    r.stream));
	CHECK_CU(cu.cuMemsetD32Async(q, c->rank ? 0 : 0xa5, (size_t)small, r.stream));
	ncclsvc_message m = {.size = sizeof(m),
			     .input_signal = true,
			     .remote_rank = 1 - c->rank,
			     .shapes = NCCLSVC_SHAPES_STATIC,
			     .n = 2,
			     .tensors = t};
	CHECK_OK(c->rank ? ncclsvc_tensors_recv(lists, &m, 60000, NULL)
			 : ncclsvc_tensors_send(lists, &m, 60000, NULL));
	CHECK(ncclsvc_tensors_copied(lists) == (uint64_t)large + (uint64_t)small * 4);
	gpu_check(q, 0xa5, (size_t)small, "the small tensor");
	gpu_check(p, 0x5a5a5a5a, 1000, "the large tensor's start");
	gpu_check(p + (CUdeviceptr)LARGE - 3996, 0x5a5a5a5a, 1000, "the large tensor's end");
	ncclsvc_task task;
	CHECK_OK(ncclsvc_barrier(r.comm, &task));
	rank_wait(&r, task);
	CHECK_OK(ncclsvc_tensors_close(lists));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(q));
	rank_close(&r);
}

static void test_large(void)
{
	ranks_run(2, large_rank, NULL);
}

const struct gpu_test list_tests[] = {
	{"lists/send", test_send, 2, 60, TEST_QUICK},
	{"lists/stream_order", test_stream_order, 2, 60, TEST_QUICK},
	{"lists/disagree", test_clash, 2, 60, TEST_QUICK},
	{"lists/host_memory", test_host_memory, 2, 60, TEST_QUICK},
	{"lists/collectives", test_collectives, 2, 60, TEST_QUICK},
	{"lists/refused", test_refused, 2, 60, 0},
	{"lists/one_piece", test_one_piece, 2, 60, TEST_QUICK},
	{"lists/large", test_large, 2, 120, TEST_REAL},
	{0},
};
