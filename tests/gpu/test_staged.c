/* SPDX-License-Identifier: Apache-2.0
 * transport = mpi: device memory staged through host memory, on one node and between two. Other
 * tests once more, and what only chunks, slots and several nodes can get wrong. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/cluster.h"
#include "values.h"

#define MIB ((size_t)1 << 20)

enum word { READY = 1, GO };

static void stage_memory(const char *bytes)
{
	setup.staged = true;
	setenv("NCCLSVCD_TRANSPORT", "mpi", 1);
	if (bytes)
		setenv("NCCLSVCD_STAGING_BYTES", bytes, 1);
}

static void need_mpi(void)
{
	char *const argv[] = {"/bin/sh", "-c", "command -v mpirun", NULL};
	static char out[4096];
	if (getenv("NCCLSVC_TEST_NO_MPI") || run_program(argv, out, sizeof(out)))
		skip_test("needs Open MPI");
}

/* ---- Other tests ---- */

/* nodes: 0: one daemon; else that many, with all GPUs each, and the ranks on them in turn. */
static void again(const struct gpu_test *table, const char *name, const char *nodes)
{
	stage_memory(NULL);
	if (nodes) {
		need_mpi();
		setenv("NCCLSVC_TEST_NODES", nodes, 1);
	}
	while (table->name && strcmp(table->name, name) != 0)
		table++;
	CHECK(table->name);
	table->run();
}

#define AGAIN(function, table, name)                                                               \
	static void function(void)                                                                 \
	{                                                                                          \
		again(table, name, NULL);                                                          \
	}                                                                                          \
	static void function##_across(void)                                                        \
	{                                                                                          \
		again(table, name, "2");                                                           \
	}

AGAIN(values_2, values_tests, "values/2")
AGAIN(values_4, values_tests, "values/4")
AGAIN(random_2, random_tests, "random/2")
AGAIN(random_4, random_tests, "random/4")
AGAIN(same_stream, order_tests, "order/same_stream")
AGAIN(other_stream, order_tests, "order/other_stream")
AGAIN(exchange, order_tests, "groups/exchange")
AGAIN(mixed, order_tests, "groups/mixed")
AGAIN(mismatch, member_tests, "members/mismatch")
AGAIN(timeout, member_tests, "members/timeout")
AGAIN(trainer_inside, failure_tests, "failures/trainer_inside")
AGAIN(trainer_waiting, failure_tests, "failures/trainer_waiting")

#define ONCE_MORE(function, table, name)                                                           \
	static void function(void)                                                                 \
	{                                                                                          \
		again(table, name, NULL);                                                          \
	}

ONCE_MORE(values_1, values_tests, "values/1")
ONCE_MORE(worker_inside, failure_tests, "failures/worker_inside")
ONCE_MORE(worker_idle, failure_tests, "failures/worker_idle")
ONCE_MORE(lost_inside, lost_tests, "lost/inside")
ONCE_MORE(plan_streams, plan_tests, "plan/streams")
ONCE_MORE(drop_in, nccl_tests, "nccl/mixed")
ONCE_MORE(memory_again, memory_tests, "memory/again")

/* ---- Several daemons with GPUs of their own ---- */

static const char *const both_mpi[] = {"mpi", "mpi", "mpi", "mpi"};

static void nodes_start(struct cluster *c, int gpus)
{
	need_mpi();
	stage("starting the daemons");
	cluster_start_staged(c, 2, gpus, both_mpi, NULL);
}

static void nodes_run(client_main *main)
{
	struct cluster c;
	struct client ranks[RANKS_MAX];
	int n = setup.gpus < 4 ? 2 : 4;
	nodes_start(&c, n / 2);
	cluster_clients(ranks, n, &c, IN_BLOCKS, main, NULL);
	crew_end(ranks, n);
	stage("stopping the daemons");
	cluster_stop(&c);
}

/* ---- More than a chunk ---- */

#define COUNT_MAX (MIB + MIB / 2 + 17) /* several chunks, and a last one of a few elements */

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
			if (c.in_place && c.op == NCCLSVC_ALL_TO_ALL)
				continue;
			if (setup.quick && c.in_place == (c.op % 2))
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
	crew_run(crew_size(), chunks_rank, NULL);
}

static void test_chunks_across(void)
{
	stage_memory(NULL);
	nodes_run(chunks_rank);
}

/* ---- More than fits into the slots ---- */

#define LETTERS 9
#define WORDS	(MIB + 3) /* of a letter: more than a slot has */

struct post {
	struct rank r;
	ncclsvc_comm *comms[3];
	CUdeviceptr out, in;
};

#define BYTES (WORDS * sizeof(uint32_t))

/* On one communicator, everybody sends to everybody, itself included, in one group. */
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

/* Half of the ranks begin with one communicator, half with the other, so all starts when both have
 * come to their second: and then in different orders on different nodes. */
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
	crew_run(crew_size(), scarce_rank, NULL);
}

static void test_scarce_across(void)
{
	stage_memory("8M");
	nodes_run(scarce_rank);
}

/* ---- Ends in another order ---- */

/* Of a group on one stream, the second is over long before the first: the stream waits for both. */
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
	crew_run(2, ends_rank, NULL);
}

/* ---- Inputs that come in another order ---- */

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
	crew_run(crew_size(), held_rank, NULL);
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
	crew_end(ranks, 2);
	if (!enough)
		skip_test("less than 2 GiB of GPU memory are free");
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
	nodes_start(&c, 1);
	cluster_clients(ranks, 2, &c, IN_BLOCKS, big_rank, NULL);
	big_run(ranks);
	cluster_stop(&c);
}

/* ---- Deaths, seen from the other node ---- */

#define BETWEEN UINT64_C(1000) /* no task told who it was */

static void at_work(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	const size_t bytes = 24 * MIB;
	ncclsvc_task task = 0;
	ncclsvc_result result = NCCLSVC_OK;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, bytes));
	rank_check_usable(&r);
	say(c, (uint64_t)device_info(r.session, 0).pid);
	stage("at work");
	while (!result) {
		result = ncclsvc_all_reduce(at(p), at(p), bytes / 4, NCCLSVC_UINT32, NCCLSVC_SUM,
					    r.comm, &task);
		if (!result)
			result = ncclsvc_wait(r.session, task, WAIT_MS);
	}
	say(c, now_ns());
	/* Between two tasks it is told of the epoch's end, not of a task's. */
	bool between = result == NCCLSVC_STALE_EPOCH;
	if (between)
		result = ncclsvc_comm_error(r.comm);
	say(c, (uint64_t)-result);
	ncclsvc_status st = {0};
	if (result != NCCLSVC_DAEMON_LOST && !between)
		st = status_of(r.session, task);
	say(c, between				? BETWEEN
	       : st.field == NCCLSVC_FIELD_NODE ? 100 + st.value_a
						: (uint64_t)st.rank_a);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	if (hear(c) == GO) {
		stage("rejoining");
		CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
		rank_check_usable(&r);
		rank_check_usable(&r);
		CHECK_CU(cu.cuMemFree(p));
		rank_close(&r);
	}
}

/* Beside the survivors. */
static void restarted(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	rank_check_usable(&r);
	rank_check_usable(&r);
	rank_close(&r);
}

enum victim { TRAINER, WORKER, DAEMON };

/* Rank 1, its worker or its daemon, all on node 1, is killed. */
static void kill_one(enum victim victim)
{
	struct cluster c;
	struct client ranks[2];
	pid_t workers[2];
	stage_memory(NULL);
	nodes_start(&c, 1);
	cluster_clients(ranks, 2, &c, IN_BLOCKS, at_work, NULL);
	for (int i = 0; i < 2; i++)
		workers[i] = (pid_t)hear(&ranks[i]);
	sleep_ms(60);
	uint64_t killed = now_ns();
	if (victim == TRAINER)
		client_kill(&ranks[1]);
	else if (victim == WORKER)
		CHECK_EQ(kill(workers[1], SIGKILL), 0);
	else
		cluster_kill(&c, 1);
	for (int i = 0; i < (victim == TRAINER ? 1 : 2); i++) {
		const ncclsvc_result want = victim == WORKER ? NCCLSVC_WORKER_LOST
					    : i		     ? NCCLSVC_DAEMON_LOST
							     : NCCLSVC_PEER_GONE;
		uint64_t told = hear(&ranks[i]) - killed;
		ncclsvc_result is = -(int)hear(&ranks[i]);
		uint64_t who = hear(&ranks[i]);
		report("rank %d: %s after %llu ms", i, ncclsvc_result_name(is),
		       (unsigned long long)(told / 1000000));
		CHECK_EQ(is, want);
		CHECK(is == NCCLSVC_DAEMON_LOST || who == BETWEEN ||
		      who == (victim == DAEMON ? 101 : 1));
		CHECK(told / 1000000 <= limit_ms(i ? 1000 : 200));
	}
	if (victim == TRAINER)
		client_start(&ranks[1], restarted);
	for (int i = 0; i < (victim == TRAINER ? 1 : 2); i++)
		say(&ranks[i], victim == DAEMON ? READY : GO);
	crew_end(ranks, 2);
	cluster_stop(&c);
}

static void test_trainer(void)
{
	kill_one(TRAINER);
}

static void test_worker(void)
{
	kill_one(WORKER);
}

static void test_daemon(void)
{
	kill_one(DAEMON);
}

/* ---- What it is not ---- */

static void differing_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->rank);
	ncclsvc_result result =
		ncclsvc_comm_join_device(r.session, &c->id, r.n, r.rank, r.gpu, 1000, &r.comm);
	/* The one that comes second is told; then the first waits in vain. */
	if (result == NCCLSVC_MISMATCH)
		CHECK(strstr(ncclsvc_last_error(), "transport") &&
		      strstr(ncclsvc_last_error(), "node 0") &&
		      strstr(ncclsvc_last_error(), "node 1"));
	else
		CHECK_EQ(result, NCCLSVC_TIMEOUT);
	say(c, result == NCCLSVC_MISMATCH);
	ncclsvc_close(r.session);
}

static void test_differing(void)
{
	static const char *const transports[] = {"nccl", "mpi"};
	struct cluster c;
	struct client ranks[2];
	need_mpi();
	cluster_start_staged(&c, 2, 0, transports, NULL);
	cluster_clients(ranks, 2, &c, IN_BLOCKS, differing_rank, NULL);
	CHECK_EQ(hear(&ranks[0]) + hear(&ranks[1]), 1);
	crew_end(ranks, 2);
	cluster_stop(&c);
}

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
	crew_run(1, refused_rank, NULL);
}

const struct gpu_test staged_tests[] = {
	{"staged/values/1", values_1, 1, 120, TEST_ONE_NODE},
	{"staged/values/2", values_2, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/values/4", values_4, 4, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/random/2", random_2, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"staged/random/4", random_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/chunks", test_chunks, 2, 120, TEST_ONE_NODE},
	{"staged/scarce", test_scarce, 2, 120, TEST_ONE_NODE},
	{"staged/ends", test_ends, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/held", test_held, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/big", test_big, 2, 300, TEST_ONE_NODE},
	{"staged/same_stream", same_stream, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/other_stream", other_stream, 2, 60, TEST_ONE_NODE},
	{"staged/exchange", exchange, 2, 60, TEST_ONE_NODE},
	{"staged/mixed", mixed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/plan", plan_streams, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/drop_in", drop_in, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/memory", memory_again, 2, 60, TEST_ONE_NODE},
	{"staged/mismatch", mismatch, 2, 60, TEST_ONE_NODE},
	{"staged/timeout", timeout, 2, 60, TEST_ONE_NODE},
	{"staged/refused", test_refused, 1, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/trainer_inside", trainer_inside, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/trainer_waiting", trainer_waiting, 2, 120, TEST_ONE_NODE},
	{"staged/worker_inside", worker_inside, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/worker_idle", worker_idle, 2, 120, TEST_ONE_NODE},
	{"staged/lost", lost_inside, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/values/2", values_2_across, 2, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/values/4", values_4_across, 4, 240, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/random/2", random_2_across, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/random/4", random_4_across, 4, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/chunks", test_chunks_across, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/scarce", test_scarce_across, 2, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/big", test_big_across, 2, 300, TEST_ONE_NODE},
	{"staged/nodes/same_stream", same_stream_across, 2, 60, TEST_ONE_NODE},
	{"staged/nodes/other_stream", other_stream_across, 2, 60, TEST_ONE_NODE},
	{"staged/nodes/exchange", exchange_across, 2, 60, TEST_ONE_NODE},
	{"staged/nodes/mixed", mixed_across, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/mismatch", mismatch_across, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/timeout", timeout_across, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/trainer_inside", trainer_inside_across, 2, 120, TEST_ONE_NODE},
	{"staged/nodes/trainer_waiting", trainer_waiting_across, 2, 120, TEST_ONE_NODE},
	{"staged/nodes/trainer", test_trainer, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/worker", test_worker, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/daemon", test_daemon, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/differing", test_differing, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
