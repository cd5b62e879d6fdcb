/* SPDX-License-Identifier: Apache-2.0
 * NCCL programs on the drop-in: a process with several GPUs, several processes, and groups that mix
 * streams and communicators. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dropin.h"

#define COUNT 3001
#define BYTES ((size_t)COUNT * 8 * RANKS_MAX)

/* A GPU's rank, and what it works with. */
struct seat {
	int gpu;
	ncclComm_t comm;
	CUstream stream;
	CUdeviceptr send, recv;
	struct call call;
};

static void seat_open(struct seat *s, int gpu)
{
	s->gpu = gpu;
	gpu_use(gpu);
	s->stream = gpu_stream();
	CHECK_CU(cu.cuMemAlloc(&s->send, BYTES));
	CHECK_CU(cu.cuMemAlloc(&s->recv, BYTES));
}

static void seat_close(struct seat *s)
{
	gpu_use(s->gpu);
	CHECK_NC(nc.ncclCommDestroy(s->comm));
	CHECK_CU(cu.cuMemFree(s->send));
	CHECK_CU(cu.cuMemFree(s->recv));
	CHECK_CU(cu.cuStreamDestroy(s->stream));
}

/* ---- Values ---- */

static void fill(const struct seat *s)
{
	const struct call *c = &s->call;
	size_t size = ncclsvc_type_size(c->type), n = call_sends(c);
	char *host = malloc(BYTES);
	CHECK(host);
	for (size_t i = 0; i < n; i++)
		value_store(host, i, c->type, value_input(c, c->rank, i));
	gpu_put(s->send, host, n * size);
	free(host);
}

static void verify(const struct seat *s)
{
	const struct call *c = &s->call;
	size_t size = ncclsvc_type_size(c->type), n = call_receives(c);
	char *host = malloc(BYTES);
	CHECK(host);
	gpu_get(host, s->recv, n * size);
	for (size_t i = 0; i < n; i++) {
		bool exact;
		double want = value_expected(c, i, &exact), is = value_load(host, i, c->type);
		if (!value_close(c, is, want, exact))
			check_failed(__FILE__, __LINE__,
				     "%s of %s, %s, rank %d: element %zu is %g, not %g",
				     ncclsvc_op_name(c->op), ncclsvc_type_name(c->type),
				     ncclsvc_redop_name(c->redop), c->rank, i, is, want);
	}
	free(host);
}

typedef void each_call(struct seat *seats, int n, const struct call *call);

static void each_of(each_call *run, struct seat *seats, int n, int ranks, ncclsvc_op op)
{
	for (int type = 0; type < TYPES; type++)
		for (int redop = 0; redop < (op_reduces(op) ? REDOPS : 1); redop++) {
			struct call c = {.op = op,
					 .type = (ncclsvc_type)type,
					 .redop = (ncclsvc_redop)redop,
					 .count = 1 + (size_t)(type * 977 + redop) % COUNT,
					 .n = ranks,
					 .root = (type + redop) % ranks};
			if (setup.quick && (type + redop + op) % 4)
				continue;
			stage("%s of %s, %s", ncclsvc_op_name(op), ncclsvc_type_name(c.type),
			      ncclsvc_redop_name(c.redop));
			run(seats, n, &c);
		}
}

static void every_call(each_call *run, struct seat *seats, int n, int ranks)
{
	for (int op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_SCATTER; op++)
		each_of(run, seats, n, ranks, (ncclsvc_op)op);
}

/* As a thread that drives all its GPUs has to: in a group. seats are ranks first, first + 1, ... */
static void run_call(struct seat *seats, int n, const struct call *call)
{
	int first;
	CHECK_NC(nc.ncclCommUserRank(seats[0].comm, &first));
	for (int i = 0; i < n; i++) {
		seats[i].call = *call;
		seats[i].call.rank = first + i;
		gpu_use(seats[i].gpu);
		fill(&seats[i]);
	}
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < n; i++)
		CHECK_NC(dropin_call(&seats[i].call, seats[i].send, seats[i].recv, seats[i].comm,
				     seats[i].stream));
	CHECK_NC(nc.ncclGroupEnd());
	for (int i = 0; i < n; i++) {
		gpu_use(seats[i].gpu);
		CHECK(gpu_stream_ends(seats[i].stream, WAIT_MS));
		verify(&seats[i]);
	}
}

/* ---- One process, several GPUs ---- */

static void one_process(struct client *c)
{
	struct seat seats[RANKS_MAX];
	ncclComm_t comms[RANKS_MAX];
	const int n = *(const int *)c->arg;
	int devices[RANKS_MAX], is, version = 0;
	dropin_open(c->daemon);
	for (int i = 0; i < n; i++) {
		seat_open(&seats[i], i);
		devices[i] = n - 1 - i;
	}
	CHECK_NC(nc.ncclGetVersion(&version));
	CHECK(version >= NCCL_VERSION_NEEDED);
	stage("ncclCommInitAll");
	devices[0] = n > 1 ? devices[1] : 0;
	if (n > 1)
		CHECK_NC_IS(nc.ncclCommInitAll(comms, n, devices), ncclInvalidUsage);
	CHECK_NC(nc.ncclCommInitAll(comms, n, NULL));
	for (int i = 0; i < n; i++) {
		seats[i].comm = comms[i];
		CHECK_NC(nc.ncclCommUserRank(comms[i], &is));
		CHECK_EQ(is, i);
		CHECK_NC(nc.ncclCommCount(comms[i], &is));
		CHECK_EQ(is, n);
		CHECK_NC(nc.ncclCommCuDevice(comms[i], &is));
		CHECK_EQ(is, i);
	}
	every_call(run_call, seats, n, n);
	stage("without a group, one after the other");
	for (int i = 0; i < n; i++) {
		gpu_use(i);
		CHECK_CU(cu.cuMemsetD32Async(seats[i].send, (unsigned)i + 1, COUNT,
					     seats[i].stream));
		CHECK_NC(nc.ncclAllReduce(at(seats[i].send), at(seats[i].recv), COUNT,
					  NCCLSVC_UINT32, NCCLSVC_SUM, comms[i], seats[i].stream));
	}
	for (int i = 0; i < n; i++) {
		gpu_use(i);
		CHECK(gpu_stream_ends(seats[i].stream, WAIT_MS));
		gpu_check(seats[i].recv, (uint32_t)(n * (n + 1) / 2), COUNT, "the sum");
	}
	for (int i = 0; i < n; i++)
		seat_close(&seats[i]);
}

static void test_one_process(void)
{
	int n = crew_size();
	crew_run(1, one_process, &n);
}

/* ---- Several processes ---- */

static void join_as(struct seat *s, struct client *c)
{
	seat_open(s, c->rank);
	stage("ncclCommInitRank");
	CHECK_NC(nc.ncclCommInitRank(&s->comm, c->nranks, dropin_id(c), c->rank));
}

/* The next one's data, and one's own. */
static void exchange(struct seat *s, int rank, int n)
{
	const int next = (rank + 1) % n, before = (rank + n - 1) % n;
	CHECK_CU(cu.cuMemsetD32Async(s->send, (unsigned)rank + 50, COUNT, s->stream));
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclSend(at(s->send), COUNT, NCCLSVC_INT32, next, s->comm, s->stream));
	CHECK_NC(nc.ncclRecv(at(s->recv), COUNT, NCCLSVC_INT32, before, s->comm, s->stream));
	CHECK_NC(nc.ncclGroupEnd());
	CHECK_NC(nc.ncclSend(at(s->send), COUNT, NCCLSVC_INT32, rank, s->comm, s->stream));
	CHECK_NC(nc.ncclRecv(at(s->recv + COUNT * 4), COUNT, NCCLSVC_INT32, rank, s->comm,
			     s->stream));
	CHECK_NC(nc.ncclGroupEnd());
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
	gpu_check(s->recv, (uint32_t)before + 50, COUNT, "what the rank before has sent");
	gpu_check(s->recv + COUNT * 4, (uint32_t)rank + 50, COUNT, "what this rank sent itself");
}

/* More than any queue holds, and nobody waits. */
static void flood(struct seat *s, int n)
{
	const int rounds = setup.fake ? 1200 : 20000;
	CHECK_CU(cu.cuMemsetD32Async(s->send, 1, COUNT, s->stream));
	for (int i = 0; i < rounds; i++)
		CHECK_NC(nc.ncclAllReduce(at(s->send), at(s->recv), COUNT, NCCLSVC_UINT32,
					  NCCLSVC_SUM, s->comm, s->stream));
	CHECK(gpu_stream_ends(s->stream, 3 * WAIT_MS));
	gpu_check(s->recv, (uint32_t)n, COUNT, "the last of many");
}

static void processes_rank(struct client *c)
{
	struct seat s;
	ncclResult_t error;
	dropin_open(c->daemon);
	join_as(&s, c);
	every_call(run_call, &s, 1, c->nranks);
	stage("Send and Recv");
	for (int i = 0; i < 10; i++)
		exchange(&s, c->rank, c->nranks);
	stage("more than the ring holds");
	flood(&s, c->nranks);
	CHECK_NC(nc.ncclCommGetAsyncError(s.comm, &error));
	CHECK_EQ(error, ncclSuccess);
	stage("ncclCommFinalize");
	CHECK_NC(nc.ncclAllReduce(at(s.send), at(s.recv), COUNT, NCCLSVC_UINT32, NCCLSVC_SUM,
				  s.comm, s.stream));
	CHECK_NC(nc.ncclCommFinalize(s.comm));
	CHECK_CU(cu.cuStreamSynchronize(s.stream));
	CHECK_NC_IS(nc.ncclAllReduce(at(s.send), at(s.recv), COUNT, NCCLSVC_UINT32, NCCLSVC_SUM,
				     s.comm, s.stream),
		    ncclInvalidUsage);
	CHECK_SAYS(NULL, "finalized");
	seat_close(&s);
}

static void test_processes(void)
{
	crew_run(crew_size(), processes_rank, NULL);
}

/* ---- Groups over streams and communicators ---- */

#define STREAMS 3
#define COMMS	3
#define PARTS	(STREAMS * COMMS)

static CUdeviceptr part(CUdeviceptr base, int i)
{
	return base + (CUdeviceptr)i * COUNT * 4;
}

/* A communicator's tasks are in one order on all ranks: those of each are shuffled among others. */
static void shuffled(uint64_t *state, int order[PARTS])
{
	int next[COMMS] = {0};
	for (int i = 0; i < PARTS;) {
		int k = (int)(draw(state) % COMMS);
		if (next[k] < STREAMS)
			order[i++] = k * STREAMS + next[k]++;
	}
}

static void mixed_rank(struct client *c)
{
	struct seat s;
	ncclComm_t comms[COMMS];
	CUstream streams[STREAMS];
	const unsigned n = (unsigned)c->nranks, sum = n * (n + 1) / 2;
	uint64_t state = setup.seed + (unsigned)c->rank;
	dropin_open(c->daemon);
	join_as(&s, c);
	stage("inits and splits in one group");
	comms[0] = s.comm;
	ncclUniqueId id = dropin_id(c);
	id.internal[0] ^= 1;
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclCommInitRank(&comms[1], (int)n, id, c->rank));
	CHECK_NC(nc.ncclCommSplit(s.comm, 0, c->rank, &comms[2], NULL));
	CHECK_NC(nc.ncclGroupEnd());
	for (int i = 0; i < STREAMS; i++)
		streams[i] = gpu_stream();
	for (int round = 0; round < (setup.quick ? 20 : 200); round++) {
		int order[PARTS];
		stage("group %d", round);
		shuffled(&state, order);
		for (int i = 0; i < PARTS; i++)
			CHECK_CU(cu.cuMemsetD32Async(part(s.send, i),
						     (unsigned)((c->rank + 1) * (i + 1)), COUNT,
						     streams[i % STREAMS]));
		CHECK_NC(nc.ncclGroupStart());
		for (int i = 0; i < PARTS; i++) {
			const int k = order[i];
			CHECK_NC(nc.ncclAllReduce(at(part(s.send, k)), at(part(s.recv, k)), COUNT,
						  NCCLSVC_UINT32, NCCLSVC_SUM, comms[k / STREAMS],
						  streams[k % STREAMS]));
		}
		CHECK_NC(nc.ncclGroupEnd());
		for (int i = 0; i < STREAMS; i++)
			CHECK(gpu_stream_ends(streams[i], WAIT_MS));
		for (int i = 0; i < PARTS; i++)
			gpu_check(part(s.recv, i), sum * (unsigned)(i + 1), COUNT, "a sum");
	}
	CHECK_NC(nc.ncclCommDestroy(comms[1]));
	CHECK_NC(nc.ncclCommDestroy(comms[2]));
	seat_close(&s);
}

static void test_mixed(void)
{
	crew_run(crew_size(), mixed_rank, NULL);
}

/* One process has them all, and each is in two communicators. */
static void mixed_process(struct client *c)
{
	struct seat seats[RANKS_MAX];
	ncclComm_t first[RANKS_MAX], second[RANKS_MAX];
	const int n = *(const int *)c->arg;
	const unsigned sum = (unsigned)(n * (n + 1) / 2);
	dropin_open(c->daemon);
	for (int i = 0; i < n; i++)
		seat_open(&seats[i], i);
	CHECK_NC(nc.ncclCommInitAll(first, n, NULL));
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < n; i++)
		CHECK_NC(nc.ncclCommSplit(first[i], 0, n - i, &second[i], NULL));
	CHECK_NC(nc.ncclGroupEnd());
	for (int round = 0; round < 20; round++) {
		stage("group %d", round);
		for (int i = 0; i < n; i++) {
			gpu_use(i);
			CHECK_CU(cu.cuMemsetD32Async(seats[i].send, (unsigned)i + 1, 2 * COUNT,
						     seats[i].stream));
		}
		CHECK_NC(nc.ncclGroupStart());
		for (int i = 0; i < n; i++) {
			CHECK_NC(nc.ncclAllReduce(at(seats[i].send), at(seats[i].recv), COUNT,
						  NCCLSVC_UINT32, NCCLSVC_SUM, first[i],
						  seats[i].stream));
			CHECK_NC(nc.ncclSend(at(part(seats[i].send, 1)), COUNT, NCCLSVC_UINT32,
					     (n - 1 - i + 1) % n, second[i], seats[i].stream));
			CHECK_NC(nc.ncclRecv(at(part(seats[i].recv, 1)), COUNT, NCCLSVC_UINT32,
					     (n - 1 - i + n - 1) % n, second[i], seats[i].stream));
		}
		CHECK_NC(nc.ncclGroupEnd());
		for (int i = 0; i < n; i++) {
			gpu_use(i);
			CHECK(gpu_stream_ends(seats[i].stream, WAIT_MS));
			gpu_check(seats[i].recv, sum, COUNT, "the sum");
			/* In the second, ranks are the other way round. */
			gpu_check(part(seats[i].recv, 1), (uint32_t)((i + 1) % n) + 1, COUNT,
				  "what the neighbour has sent");
		}
	}
	for (int i = 0; i < n; i++) {
		seats[i].comm = first[i];
		CHECK_NC(nc.ncclCommDestroy(second[i]));
	}
	for (int i = 0; i < n; i++)
		seat_close(&seats[i]);
}

static void test_mixed_process(void)
{
	int n = crew_size();
	crew_run(1, mixed_process, &n);
}

/* More pairs of streams and communicators than a session has timelines for. */
#define MANY 70

static void streams_rank(struct client *c)
{
	struct seat s;
	CUstream streams[MANY];
	dropin_open(c->daemon);
	join_as(&s, c);
	for (int i = 0; i < MANY; i++)
		streams[i] = gpu_stream();
	CHECK_CU(cu.cuMemsetD32Async(s.send, 1, COUNT, s.stream));
	CHECK_CU(cu.cuStreamSynchronize(s.stream));
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < MANY; i++)
			CHECK_NC(nc.ncclAllReduce(at(s.send), at(part(s.recv, i % 8)), COUNT,
						  NCCLSVC_UINT32, NCCLSVC_SUM, s.comm, streams[i]));
	for (int i = 0; i < MANY; i++)
		CHECK(gpu_stream_ends(streams[i], WAIT_MS));
	for (int i = 0; i < 8; i++)
		gpu_check(part(s.recv, i), (uint32_t)c->nranks, COUNT, "a sum");
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < MANY; i++)
		CHECK_NC(nc.ncclAllReduce(at(s.send), at(s.recv), COUNT, NCCLSVC_UINT32,
					  NCCLSVC_SUM, s.comm, streams[i]));
	CHECK_NC_IS(nc.ncclGroupEnd(), ncclInvalidUsage);
	CHECK_SAYS(NULL, "pairs");
	for (int i = 0; i < MANY; i++)
		CHECK_CU(cu.cuStreamDestroy(streams[i]));
	seat_close(&s);
}

static void test_streams(void)
{
	crew_run(2, streams_rank, NULL);
}

/* ---- Reductions with a scalar ---- */

#define BIT(type) (1u << (type))
static const unsigned scaled_types = BIT(NCCLSVC_FLOAT32) | BIT(NCCLSVC_FLOAT16) |
				     BIT(NCCLSVC_FLOAT64) | BIT(NCCLSVC_BFLOAT16) |
				     BIT(NCCLSVC_INT32) | BIT(NCCLSVC_UINT64);

static void fill_with(CUdeviceptr p, int type, double value, size_t n)
{
	char *host = malloc(n * 8);
	CHECK(host);
	for (size_t i = 0; i < n; i++)
		value_store(host, i, (ncclsvc_type)type, value);
	gpu_put(p, host, n * ncclsvc_type_size((unsigned)type));
	free(host);
}

static void verify_all(CUdeviceptr p, int type, double value, size_t n)
{
	char *host = malloc(n * 8);
	CHECK(host);
	gpu_get(host, p, n * ncclsvc_type_size((unsigned)type));
	for (size_t i = 0; i < n; i++)
		if (value_load(host, i, (ncclsvc_type)type) != value)
			check_failed(__FILE__, __LINE__, "%s: element %zu is %g, not %g",
				     ncclsvc_type_name((unsigned)type), i,
				     value_load(host, i, (ncclsvc_type)type), value);
	free(host);
}

/* Every rank has a scalar of its own; the reduction is gone before the task is done. */
static void scaled(struct seat *s, int rank, int n, int type, bool on_device, double by)
{
	char scalar[8] = {0};
	ncclRedOp_t op;
	CUdeviceptr where = part(s->recv, 6);
	value_store(scalar, 0, (ncclsvc_type)type, by * (rank + 1));
	gpu_put(where, scalar, sizeof(scalar));
	fill_with(s->send, type, 2, COUNT);
	CHECK_NC(nc.ncclRedOpCreatePreMulSum(&op, on_device ? at(where) : scalar, type,
					     on_device ? ncclScalarDevice : ncclScalarHostImmediate,
					     s->comm));
	CHECK_NC(nc.ncclAllReduce(at(s->send), at(s->recv), COUNT, type, op, s->comm, s->stream));
	CHECK_NC(nc.ncclReduceScatter(at(s->send), at(s->recv + COUNT * 8), COUNT / (size_t)n, type,
				      op, s->comm, s->stream));
	CHECK_NC(nc.ncclRedOpDestroy(op, s->comm));
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
	verify_all(s->recv, type, by * n * (n + 1), COUNT);
	verify_all(s->recv + COUNT * 8, type, by * n * (n + 1), COUNT / (size_t)n);
}

static void scaled_rank(struct client *c)
{
	struct seat s;
	ncclComm_t alone;
	ncclRedOp_t ops[48], more;
	float one = 1;
	dropin_open(c->daemon);
	join_as(&s, c);
	for (int type = 0; type < TYPES; type++)
		for (int k = 0; k < 2 && scaled_types & BIT(type); k++) {
			stage("%s, on the %s", ncclsvc_type_name((unsigned)type),
			      k ? "device" : "host");
			scaled(&s, c->rank, c->nranks, type, k, 1);
			scaled(&s, c->rank, c->nranks, type, k, 2);
		}
	stage("more than there is room for");
	for (int i = 0; i < 100; i++)
		scaled(&s, c->rank, c->nranks, NCCLSVC_FLOAT32, false, i + 1);
	for (int i = 0; i < 48; i++) {
		float by = (float)i + 0.5f;
		CHECK_NC(nc.ncclRedOpCreatePreMulSum(&ops[i], &by, NCCLSVC_FLOAT32,
						     ncclScalarHostImmediate, s.comm));
	}
	CHECK_NC_IS(nc.ncclRedOpCreatePreMulSum(&more, &one, NCCLSVC_FLOAT32,
						ncclScalarHostImmediate, s.comm),
		    ncclInvalidUsage);
	for (int i = 0; i < 48; i++)
		CHECK_NC(nc.ncclRedOpDestroy(ops[i], s.comm));
	CHECK_NC_IS(nc.ncclRedOpDestroy(ops[0], s.comm), ncclInvalidArgument);
	stage("what it is not for");
	CHECK_NC(nc.ncclRedOpCreatePreMulSum(&more, &one, NCCLSVC_FLOAT32, ncclScalarHostImmediate,
					     s.comm));
	CHECK_NC_IS(
		nc.ncclAllReduce(at(s.send), at(s.recv), 1, NCCLSVC_INT32, more, s.comm, s.stream),
		ncclInvalidArgument);
	CHECK_SAYS(NULL, "another data type");
	CHECK_NC(nc.ncclRedOpDestroy(more, s.comm));
	CHECK_NC_IS(nc.ncclAllReduce(at(s.send), at(s.recv), 1, NCCLSVC_FLOAT32, more, s.comm,
				     s.stream),
		    ncclInvalidArgument);
	stage("one rank");
	CHECK_NC(nc.ncclCommSplit(s.comm, c->rank, 0, &alone, NULL));
	struct seat self = s;
	self.comm = alone;
	scaled(&self, 0, 1, NCCLSVC_FLOAT32, false, 3);
	CHECK_NC(nc.ncclCommDestroy(alone));
	stage("a sum where others have it");
	CHECK_NC(nc.ncclRedOpCreatePreMulSum(&more, &one, NCCLSVC_FLOAT32, ncclScalarHostImmediate,
					     s.comm));
	CHECK_NC(nc.ncclAllReduce(at(s.send), at(s.recv), 1, NCCLSVC_FLOAT32,
				  c->rank ? more : NCCLSVC_SUM, s.comm, s.stream));
	CHECK_EQ(dropin_fails(s.comm, WAIT_MS), ncclInvalidUsage);
	CHECK_SAYS(s.comm, "premulsum");
	seat_close(&s);
}

static void test_scaled(void)
{
	crew_run(crew_size(), scaled_rank, NULL);
}

/* ---- Windows ---- */

static uint32_t windows_of(ncclsvc_session *s)
{
	ncclsvc_member_info *list;
	size_t n;
	uint32_t windows = 0;
	CHECK_OK(ncclsvc_list_members(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == getpid())
			windows += list[i].windows;
	ncclsvc_list_free(list);
	return windows;
}

/* The pauses are for windows to come. */
static void sum_often(const struct seat *s, ncclComm_t comm, void *p)
{
	for (unsigned k = 1; k <= 100; k++) {
		sleep_ms(k > 16);
		CHECK_CU(cu.cuMemsetD32Async((uintptr_t)p, k, 64, s->stream));
		CHECK_NC(nc.ncclAllReduce(p, p, 64, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, s->stream));
		CHECK_CU(cu.cuStreamSynchronize(s->stream));
	}
}

/* The ranks go on alike. */
static bool all_have_windows(const struct seat *s, ncclsvc_session *look, int n)
{
	uint32_t have;
	CHECK_CU(cu.cuMemsetD32Async(s->send, windows_of(look) > 0, 1, s->stream));
	CHECK_NC(nc.ncclAllReduce(at(s->send), at(s->recv), 1, NCCLSVC_UINT32, NCCLSVC_SUM, s->comm,
				  s->stream));
	CHECK_CU(cu.cuStreamSynchronize(s->stream));
	gpu_get(&have, s->recv, sizeof(have));
	return have == (uint32_t)n;
}

/* NCCL's symmetric kernels are for what was registered, on that communicator: else, sums would end
 * in other bits than plain NCCL's. */
static void windows_rank(struct client *c)
{
	struct seat s;
	ncclComm_t other;
	ncclWindow_t window;
	void *p;
	dropin_open(c->daemon);
	join_as(&s, c);
	ncclsvc_session *look = session_open(c->daemon);
	CHECK_NC(nc.ncclCommSplit(s.comm, 0, c->rank, &other, NULL));
	CHECK_NC(nc.ncclMemAlloc(&p, BYTES));
	stage("lent memory that is no window");
	sum_often(&s, s.comm, p);
	CHECK_EQ(windows_of(look), 0);
	stage("a window of another communicator");
	CHECK_NC(nc.ncclCommWindowRegister(other, p, BYTES, &window, 1));
	sum_often(&s, s.comm, p);
	CHECK_EQ(windows_of(look), 0);
	stage("a window");
	bool come = false;
	for (int i = 0; i < 50 && !come; i++) {
		sum_often(&s, other, p);
		come = all_have_windows(&s, look, c->nranks);
	}
	if (!come)
		report("NCCL gives no windows on these GPUs");
	CHECK(come || !setup.fake);
	CHECK_NC(nc.ncclCommWindowDeregister(other, window));
	CHECK_NC_IS(nc.ncclCommWindowDeregister(other, window), ncclInvalidArgument);
	CHECK_NC(nc.ncclMemFree(p));
	CHECK_NC(nc.ncclCommDestroy(other));
	dropin_check_usable(s.comm);
	ncclsvc_close(look);
	seat_close(&s);
}

static void test_nccl_windows(void)
{
	crew_run(crew_size(), windows_rank, NULL);
}

const struct gpu_test nccl_tests[] = {
	{"nccl/windows", test_nccl_windows, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/one_process", test_one_process, 1, 300, TEST_QUICK},
	{"nccl/processes", test_processes, 2, 300, TEST_QUICK},
	{"nccl/mixed", test_mixed, 2, 300, TEST_QUICK},
	{"nccl/mixed_process", test_mixed_process, 2, 120, TEST_QUICK},
	{"nccl/streams", test_streams, 2, 120, TEST_QUICK},
	{"nccl/premulsum", test_scaled, 2, 120, TEST_QUICK},
	{0},
};
