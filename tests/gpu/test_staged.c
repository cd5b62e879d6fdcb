/* SPDX-License-Identifier: Apache-2.0
 * transport = mpi: device memory staged through host memory, on one node and between two. Tests
 * errors that are specific to chunks, slots and their order. test_staged_again.c repeats other
 * tests, and test_staged_failures.c tests deaths. */
#include <stdlib.h>

#include "staged_setup.h"
#include "values.h"

enum word { READY = 1, GO };

static void nodes_run(client_main *main)
{
	struct cluster c;
	struct client ranks[RANKS_MAX];
	int n = setup.gpus < 4 ? 2 : 4;
	staged_nodes_start(&c, n / 2);
	cluster_clients(ranks, n, &c, IN_BLOCKS, main, NULL);
	ranks_end(ranks, n);
	stage("stopping the daemons");
	cluster_stop(&c);
}

/* ---- More than a chunk ---- */

#define COUNT_MAX (MIB + MIB / 2 + 17) /* several chunks, the last with only a few elements */

struct bench {
	struct rank r;
	CUdeviceptr send, recv;
	char *image;
};

static void check_result(struct bench *b, const struct call *c, CUdeviceptr at)
{
	bool exact;
	size_t n = call_receives(c);
	gpu_get(b->image, at, n * ncclsvc_type_size(c->type));
	for (size_t i = 0; i < n; i++) {
		double want = value_expected(c, i, &exact), is = value_load(b->image, i, c->type);
		if (!value_close(c, is, want, exact))
			check_failed(__FILE__, __LINE__, "element %zu of %zu is %g, not %g", i, n,
				     is, want);
	}
}

static void run_call(struct bench *b, const struct call *c)
{
	const size_t size = ncclsvc_type_size(c->type), all = c->count * (size_t)c->n * size;
	const size_t shift = c->in_place ? call_shift(c) * size : 0;
	bool send_larger = call_sends(c) > call_receives(c);
	CUdeviceptr from = b->send, to = c->in_place ? b->send : b->recv;
	ncclsvc_task task;
	from += c->in_place && !send_larger ? shift : 0;
	to += c->in_place && send_larger ? shift : 0;
	stage("%s %s, %zu elements, root %d, %s", ncclsvc_op_name(c->op),
	      ncclsvc_type_name(c->type), c->count, c->root,
	      c->in_place ? "in place" : "out of place");
	for (size_t i = 0; i < call_sends(c); i++)
		value_store(b->image, i, c->type, value_input(c, c->rank, i));
	CHECK_CU(cu.cuMemsetD8Async(b->send, 0xa5, all, b->r.stream));
	CHECK_CU(cu.cuMemsetD8Async(b->recv, 0xa5, all, b->r.stream));
	CHECK_CU(cu.cuMemcpyHtoDAsync(from, b->image, call_sends(c) * size, b->r.stream));
	CHECK_OK(call_submit(c, b->r.comm, call_sends(c) ? from : 0, call_receives(c) ? to : 0,
			     &task));
	CHECK(gpu_stream_ends(b->r.stream, WAIT_MS));
	rank_wait(&b->r, task);
	check_result(b, c, to);
}

static void chunks_rank(struct client *client)
{
	static const size_t counts[] = {0, 3, MIB / 4 + 1, COUNT_MAX};
	static const ncclsvc_type types[] = {NCCLSVC_FLOAT32, NCCLSVC_BFLOAT16, NCCLSVC_INT8,
					     NCCLSVC_FLOAT64};
	static const ncclsvc_redop redops[] = {NCCLSVC_SUM, NCCLSVC_MAX, NCCLSVC_AVG};
	struct bench b;
	unsigned calls = 0;
	rank_open(&b.r, client);
	const size_t bytes = COUNT_MAX * 8 * (size_t)b.r.n;
	CHECK_CU(cu.cuMemAlloc(&b.send, bytes));
	CHECK_CU(cu.cuMemAlloc(&b.recv, bytes));
	b.image = malloc(bytes);
	CHECK(b.image);
	for (int op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_SCATTER; op++)
		for (size_t k = 0; k < 2 * sizeof(counts) / sizeof(counts[0]); k++) {
			struct call c = {.op = (ncclsvc_op)op,
					 .count = counts[k / 2],
					 .rank = b.r.rank,
					 .n = b.r.n,
					 .in_place = k % 2,
					 .type = types[((size_t)op + k) % 4],
					 .redop = redops[((size_t)op + k) % 3],
					 .root = (op + (int)k) % b.r.n};
			if (setup.quick && c.in_place == (c.op % 2) && c.op != NCCLSVC_ALL_TO_ALL)
				continue;
			if (!op_reduces(c.op))
				c.redop = NCCLSVC_SUM;
			run_call(&b, &c);
			calls++;
		}
	if (!b.r.rank)
		report("%u calls", calls);
	CHECK_CU(cu.cuMemFree(b.send));
	CHECK_CU(cu.cuMemFree(b.recv));
	free(b.image);
	rank_close(&b.r);
}

static void test_chunks(void)
{
	stage_memory(NULL);
	ranks_run(ranks_count(), chunks_rank, NULL);
}

static void test_chunks_across(void)
{
	stage_memory(NULL);
	nodes_run(chunks_rank);
}

/* ---- More than fits into the slots ---- */

#define LETTERS 9
#define WORDS	(MIB + 3) /* of a message: more than a slot holds */

struct post {
	struct rank r;
	ncclsvc_comm *comms[3];
	CUdeviceptr out, in;
};

#define BYTES (WORDS * sizeof(uint32_t))

/* On one communicator, every rank sends to every rank, including itself, in one group. */
static void write_letters(struct post *p, int which)
{
	const struct rank *r = &p->r;
	CHECK_OK(ncclsvc_group_begin(r->session));
	for (int i = which; i < LETTERS; i += 2)
		for (int k = 0; k < r->n; k++) {
			int peer = which ? r->n - 1 - k : k;
			CHECK_OK(ncclsvc_send(at(p->out + (size_t)k * BYTES), WORDS, NCCLSVC_UINT32,
					      peer, p->comms[which], NULL));
			CHECK_OK(ncclsvc_recv(at(p->in + (size_t)(k * LETTERS + i) * BYTES), WORDS,
					      NCCLSVC_UINT32, peer, p->comms[which], NULL));
		}
	CHECK_OK(ncclsvc_group_end(r->session));
}

/* Half of the ranks begin with one communicator, the others with the other one. So all messages
 * start when both have reached their second communicator, in different orders on different
 * nodes. */
static void scarce_rank(struct client *c)
{
	struct post p;
	struct rank *r = &p.r;
	ncclsvc_task task;
	rank_open(r, c);
	p.comms[0] = r->comm;
	CHECK_OK(ncclsvc_comm_split(r->comm, 0, r->n - r->rank, WAIT_MS, &p.comms[1]));
	CHECK_OK(ncclsvc_comm_split(r->comm, 0, r->rank, WAIT_MS, &p.comms[2]));
	CUstream streams[] = {gpu_stream(), gpu_stream()};
	CHECK_CU(cu.cuMemAlloc(&p.out, BYTES * (size_t)r->n));
	CHECK_CU(cu.cuMemAlloc(&p.in, BYTES * LETTERS * (size_t)r->n));
	for (int round = 0; round < 3; round++) {
		stage("round %d", round);
		for (int k = 0; k < r->n; k++)
			gpu_fill(p.out + (size_t)k * BYTES,
				 (uint32_t)(round * 10000 + r->rank * 100 + k), WORDS);
		gpu_fill(p.in, 0xa5a5a5a5, WORDS * LETTERS * (size_t)r->n);
		for (int half = 0; half < 2; half++) {
			int which = (half + r->rank) % 2;
			CHECK_OK(ncclsvc_stream_set(r->session, streams[which], 0));
			write_letters(&p, which);
			CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
			CHECK_OK(ncclsvc_barrier(p.comms[2], &task));
			rank_wait(r, task);
		}
		for (int i = 0; i < 2; i++)
			CHECK(gpu_stream_ends(streams[i], WAIT_MS));
		for (int k = 0; k < r->n; k++)
			for (int i = 0; i < LETTERS; i++)
				gpu_check(p.in + (size_t)(k * LETTERS + i) * BYTES,
					  (uint32_t)(round * 10000 + k * 100 + r->rank), WORDS,
					  "a letter");
		rank_sync(r);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_OK(ncclsvc_comm_leave(p.comms[i + 1]));
		CHECK_CU(cu.cuStreamDestroy(streams[i]));
	}
	CHECK_CU(cu.cuMemFree(p.out));
	CHECK_CU(cu.cuMemFree(p.in));
	rank_close(r);
}

static void test_scarce(void)
{
	stage_memory("8M");
	ranks_run(ranks_count(), scarce_rank, NULL);
}

static void test_scarce_across(void)
{
	stage_memory("8M");
	nodes_run(scarce_rank);
}

/* ---- Ends in a different order ---- */

/* In a group on one stream, the second operation ends long before the first. The stream waits for
 * both. */
static void ends_rank(struct client *c)
{
	const size_t words = 1000;
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * words * 4));
	gpu_fill(p, 0xdeadbeef, words);
	gpu_fill(p + words * 4, 7, words);
	if (!r.rank) {
		CHECK_OK(ncclsvc_group_begin(r.session));
		CHECK_OK(ncclsvc_recv(at(p), words, NCCLSVC_UINT32, 1, r.comm, NULL));
		CHECK_OK(ncclsvc_send(at(p + words * 4), words, NCCLSVC_UINT32, 1, r.comm, NULL));
		CHECK_OK(ncclsvc_group_end(r.session));
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(p, 7, words, "what came last");
		rank_sync(&r);
	} else {
		CHECK_OK(ncclsvc_recv(at(p), words, NCCLSVC_UINT32, 0, r.comm, &task));
		rank_wait(&r, task);
		sleep_ms(50);
		CHECK_OK(ncclsvc_send(at(p), words, NCCLSVC_UINT32, 0, r.comm, &task));
		rank_sync(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_ends(void)
{
	stage_memory(NULL);
	ranks_run(2, ends_rank, NULL);
}

/* ---- Inputs that arrive in a different order ---- */

/* Two collectives of one group; on one rank, the first one's stream is busy for a while. */
static void held_rank(struct client *c)
{
	const size_t words = 100000;
	struct rank r;
	CUdeviceptr p, scratch;
	CUstream streams[2];
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * words * 4));
	CHECK_CU(cu.cuMemAlloc(&scratch, 16 * MIB));
	for (int i = 0; i < 2; i++)
		streams[i] = gpu_stream();
	for (int round = 0; round < 8; round++) {
		stage("round %d", round);
		if (r.rank == round % r.n)
			gpu_delay(streams[0], scratch, 16 * MIB, 20);
		for (unsigned i = 0; i < 2; i++)
			CHECK_CU(cu.cuMemsetD32Async(p + i * words * 4, i + 1, words, streams[i]));
		CHECK_OK(ncclsvc_group_begin(r.session));
		for (unsigned i = 0; i < 2; i++) {
			void *at_i = at(p + i * words * 4);
			CHECK_OK(ncclsvc_stream_set(r.session, streams[i], 0));
			CHECK_OK(ncclsvc_all_reduce(at_i, at_i, words, NCCLSVC_UINT32, NCCLSVC_SUM,
						    r.comm, NULL));
		}
		CHECK_OK(ncclsvc_group_end(r.session));
		for (unsigned i = 0; i < 2; i++) {
			CHECK(gpu_stream_ends(streams[i], WAIT_MS));
			gpu_check(p + i * words * 4, (i + 1) * (uint32_t)r.n, words, "a sum");
		}
	}
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	for (int i = 0; i < 2; i++)
		CHECK_CU(cu.cuStreamDestroy(streams[i]));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(scratch));
	rank_close(&r);
}

static void test_held(void)
{
	stage_memory(NULL);
	ranks_run(ranks_count(), held_rank, NULL);
}

/* ---- More than 2 GiB ---- */

static void big_rank(struct client *c)
{
	const size_t count = (UINT64_C(1) << 31) + 4099, step = 65521;
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	rank_open(&r, c);
	bool enough = gpu_unused_memory() >= count + 64 * MIB;
	say(c, enough);
	if (hear(c) != GO) {
		rank_close(&r);
		return;
	}
	CHECK_CU(cu.cuMemAlloc(&p, count));
	CHECK_CU(cu.cuMemsetD8Async(p, r.rank ? 0xa5 : 1, count, r.stream));
	for (size_t i = 0; !r.rank && i < count; i += step * 1000)
		CHECK_CU(cu.cuMemsetD8Async(p + i, (unsigned char)(i / step / 1000 + 2), 1,
					    r.stream));
	stage("%zu bytes", count);
	CHECK_OK(r.rank ? ncclsvc_recv(at(p), count, NCCLSVC_INT8, 0, r.comm, &task)
			: ncclsvc_send(at(p), count, NCCLSVC_INT8, 1, r.comm, &task));
	CHECK_OK(ncclsvc_wait(r.session, task, 300000));
	stage("reading it");
	char *part = malloc(step);
	CHECK(part);
	for (size_t i = 0; i < count; i += step) {
		size_t n = count - i < step ? count - i : step;
		gpu_get(part, p + i, n);
		bool marked = i / step % 1000 == 0;
		for (size_t k = 0; k < n; k++) {
			char want = !k && marked ? (char)(i / step / 1000 + 2) : 1;
			if (part[k] != want)
				check_failed(__FILE__, __LINE__, "byte %zu is %d, not %d", i + k,
					     part[k], want);
		}
	}
	free(part);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void big_run(struct client *ranks)
{
	bool enough = true;
	for (int i = 0; i < 2; i++)
		enough = hear(&ranks[i]) && enough;
	say_all(ranks, 2, enough ? GO : READY);
	ranks_end(ranks, 2);
	if (!enough)
		skip_test("less than 2 GiB of GPU memory is free");
}

static void test_big(void)
{
	struct daemon d;
	struct client ranks[2];
	stage_memory(NULL);
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, big_rank, NULL);
	big_run(ranks);
	gpu_daemon_stop(&d);
}

static void test_big_across(void)
{
	struct cluster c;
	struct client ranks[2];
	stage_memory(NULL);
	staged_nodes_start(&c, 1);
	cluster_clients(ranks, 2, &c, IN_BLOCKS, big_rank, NULL);
	big_run(ranks);
	cluster_stop(&c);
}

/* ---- Limits of staging ---- */

static void refused_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	rank_open(&r, c);
	CHECK_EQ(device_info(r.session, 0).transport, NCCLSVC_TRANSPORT_MPI);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	gpu_fill(p, 0x01010101, 1024);
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_FLOAT8E4M3, NCCLSVC_SUM, r.comm,
				    &task));
	wait_for(r.session, task, NCCLSVC_UNSUPPORTED);
	CHECK_OK(ncclsvc_broadcast(at(p), at(p), 64, NCCLSVC_FLOAT8E4M3, 0, r.comm, &task));
	rank_wait(&r, task);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_refused(void)
{
	stage_memory(NULL);
	ranks_run(1, refused_rank, NULL);
}

const struct gpu_test staged_tests[] = {
	{"staged/chunks", test_chunks, 2, 120, TEST_ONE_NODE},
	{"staged/scarce", test_scarce, 2, 120, TEST_ONE_NODE},
	{"staged/ends", test_ends, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/held", test_held, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/big", test_big, 2, 300, TEST_ONE_NODE},
	{"staged/refused", test_refused, 1, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/chunks", test_chunks_across, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/scarce", test_scarce_across, 2, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/big", test_big_across, 2, 300, TEST_ONE_NODE},
	{0},
};
