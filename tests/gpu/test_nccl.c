/* SPDX-License-Identifier: Apache-2.0
 * NCCL programs on the drop-in: a process with several GPUs, several processes, and groups that mix
 * streams and communicators. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dropin_calls.h"

/* ---- Values ---- */

static void fill(const struct member *s)
{
	const struct call *c = &s->call;
	size_t size = ncclsvc_type_size(c->type), n = call_sends(c);
	char *host = malloc(MEMBER_BYTES);
	CHECK(host);
	for (size_t i = 0; i < n; i++)
		value_store(host, i, c->type, value_input(c, c->rank, i));
	gpu_put(s->send, host, n * size);
	free(host);
}

static void verify(const struct member *s)
{
	const struct call *c = &s->call;
	size_t size = ncclsvc_type_size(c->type), n = call_receives(c);
	char *host = malloc(MEMBER_BYTES);
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

typedef void each_call(struct member *members, int n, const struct call *call);

static void each_of(each_call *run, struct member *members, int n, int ranks, ncclsvc_op op)
{
	for (int type = 0; type < TYPES; type++)
		for (int redop = 0; redop < (op_reduces(op) ? REDOPS : 1); redop++) {
			struct call c = {.op = op,
					 .type = (ncclsvc_type)type,
					 .redop = (ncclsvc_redop)redop,
					 .count = 1 + (size_t)(type * 977 + redop) % MEMBER_COUNT,
					 .n = ranks,
					 .root = (type + redop) % ranks};
			if (setup.quick && (type + redop + op) % 4)
				continue;
			stage("%s of %s, %s", ncclsvc_op_name(op), ncclsvc_type_name(c.type),
			      ncclsvc_redop_name(c.redop));
			run(members, n, &c);
		}
}

static void every_call(each_call *run, struct member *members, int n, int ranks)
{
	for (int op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_SCATTER; op++)
		each_of(run, members, n, ranks, (ncclsvc_op)op);
}

/* Runs the call on all members in one group, since one thread drives all their GPUs. The members
 * have consecutive ranks. */
static void run_call(struct member *members, int n, const struct call *call)
{
	int first;
	CHECK_NC(nc.ncclCommUserRank(members[0].comm, &first));
	for (int i = 0; i < n; i++) {
		members[i].call = *call;
		members[i].call.rank = first + i;
		gpu_use(members[i].gpu);
		fill(&members[i]);
	}
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < n; i++)
		CHECK_NC(dropin_call(&members[i].call, members[i].send, members[i].recv,
				     members[i].comm, members[i].stream));
	CHECK_NC(nc.ncclGroupEnd());
	for (int i = 0; i < n; i++) {
		gpu_use(members[i].gpu);
		CHECK(gpu_stream_ends(members[i].stream, WAIT_MS));
		verify(&members[i]);
	}
}

/* ---- One process, several GPUs ---- */

static void one_process(struct client *c)
{
	struct member members[RANKS_MAX];
	ncclComm_t comms[RANKS_MAX];
	const int n = *(const int *)c->arg;
	int is, version = 0;
	dropin_open(c->daemon);
	for (int i = 0; i < n; i++)
		member_open(&members[i], i);
	CHECK_NC(nc.ncclGetVersion(&version));
	CHECK(version >= NCCL_VERSION_NEEDED);
	stage("ncclCommInitAll");
	CHECK_NC(nc.ncclCommInitAll(comms, n, NULL));
	for (int i = 0; i < n; i++) {
		members[i].comm = comms[i];
		CHECK_NC(nc.ncclCommUserRank(comms[i], &is));
		CHECK_EQ(is, i);
		CHECK_NC(nc.ncclCommCount(comms[i], &is));
		CHECK_EQ(is, n);
		CHECK_NC(nc.ncclCommCuDevice(comms[i], &is));
		CHECK_EQ(is, i);
	}
	every_call(run_call, members, n, n);
	stage("without a group, one after the other");
	for (int i = 0; i < n; i++) {
		gpu_use(i);
		CHECK_CU(cu.cuMemsetD32Async(members[i].send, (unsigned)i + 1, MEMBER_COUNT,
					     members[i].stream));
		CHECK_NC(nc.ncclAllReduce(at(members[i].send), at(members[i].recv), MEMBER_COUNT,
					  NCCLSVC_UINT32, NCCLSVC_SUM, comms[i],
					  members[i].stream));
	}
	for (int i = 0; i < n; i++) {
		gpu_use(i);
		CHECK(gpu_stream_ends(members[i].stream, WAIT_MS));
		gpu_check(members[i].recv, (uint32_t)(n * (n + 1) / 2), MEMBER_COUNT, "the sum");
	}
	for (int i = 0; i < n; i++)
		member_close(&members[i]);
}

static void test_one_process(void)
{
	int n = ranks_count();
	ranks_run(1, one_process, &n);
}

/* ---- Several processes ---- */

/* Sends to the next rank and to itself, in nested groups. */
static void exchange(struct member *s, int rank, int n)
{
	const int next = (rank + 1) % n, before = (rank + n - 1) % n;
	CHECK_CU(cu.cuMemsetD32Async(s->send, (unsigned)rank + 50, MEMBER_COUNT, s->stream));
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclSend(at(s->send), MEMBER_COUNT, NCCLSVC_INT32, next, s->comm, s->stream));
	CHECK_NC(nc.ncclRecv(at(s->recv), MEMBER_COUNT, NCCLSVC_INT32, before, s->comm, s->stream));
	CHECK_NC(nc.ncclGroupEnd());
	CHECK_NC(nc.ncclSend(at(s->send), MEMBER_COUNT, NCCLSVC_INT32, rank, s->comm, s->stream));
	CHECK_NC(nc.ncclRecv(at(s->recv + MEMBER_COUNT * 4), MEMBER_COUNT, NCCLSVC_INT32, rank,
			     s->comm, s->stream));
	CHECK_NC(nc.ncclGroupEnd());
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
	gpu_check(s->recv, (uint32_t)before + 50, MEMBER_COUNT, "what the rank before has sent");
	gpu_check(s->recv + MEMBER_COUNT * 4, (uint32_t)rank + 50, MEMBER_COUNT,
		  "what this rank sent itself");
}

/* Submits more operations than any queue holds, without waiting. */
static void flood(struct member *s, int n)
{
	const int rounds = setup.fake ? 1200 : 20000;
	CHECK_CU(cu.cuMemsetD32Async(s->send, 1, MEMBER_COUNT, s->stream));
	for (int i = 0; i < rounds; i++)
		CHECK_NC(nc.ncclAllReduce(at(s->send), at(s->recv), MEMBER_COUNT, NCCLSVC_UINT32,
					  NCCLSVC_SUM, s->comm, s->stream));
	CHECK(gpu_stream_ends(s->stream, 3 * WAIT_MS));
	gpu_check(s->recv, (uint32_t)n, MEMBER_COUNT, "the last of many");
}

static void processes_rank(struct client *c)
{
	struct member s;
	ncclResult_t error;
	dropin_open(c->daemon);
	member_join(&s, c);
	every_call(run_call, &s, 1, c->nranks);
	stage("Send and Recv");
	for (int i = 0; i < 10; i++)
		exchange(&s, c->rank, c->nranks);
	stage("more than the ring holds");
	flood(&s, c->nranks);
	CHECK_NC(nc.ncclCommGetAsyncError(s.comm, &error));
	CHECK_EQ(error, ncclSuccess);
	stage("ncclCommFinalize");
	CHECK_NC(nc.ncclAllReduce(at(s.send), at(s.recv), MEMBER_COUNT, NCCLSVC_UINT32, NCCLSVC_SUM,
				  s.comm, s.stream));
	CHECK_NC(nc.ncclCommFinalize(s.comm));
	CHECK_CU(cu.cuStreamSynchronize(s.stream));
	CHECK_NC_IS(nc.ncclAllReduce(at(s.send), at(s.recv), MEMBER_COUNT, NCCLSVC_UINT32,
				     NCCLSVC_SUM, s.comm, s.stream),
		    ncclInvalidUsage);
	CHECK_SAYS(NULL, "finalized");
	member_close(&s);
}

static void test_processes(void)
{
	ranks_run(ranks_count(), processes_rank, NULL);
}

/* ---- Groups over streams and communicators ---- */

#define STREAMS 3
#define COMMS	3
#define PARTS	(STREAMS * COMMS)

static CUdeviceptr part(CUdeviceptr base, int i)
{
	return base + (CUdeviceptr)i * MEMBER_COUNT * 4;
}

/* Draws an order of the parts: each communicator's tasks are in the same order on all ranks, but
 * interleaved at random with the others'. */
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
	struct member s;
	ncclComm_t comms[COMMS];
	CUstream streams[STREAMS];
	const unsigned n = (unsigned)c->nranks, sum = n * (n + 1) / 2;
	uint64_t state = setup.seed + (unsigned)c->rank;
	dropin_open(c->daemon);
	member_join(&s, c);
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
						     (unsigned)((c->rank + 1) * (i + 1)),
						     MEMBER_COUNT, streams[i % STREAMS]));
		CHECK_NC(nc.ncclGroupStart());
		for (int i = 0; i < PARTS; i++) {
			const int k = order[i];
			CHECK_NC(nc.ncclAllReduce(at(part(s.send, k)), at(part(s.recv, k)),
						  MEMBER_COUNT, NCCLSVC_UINT32, NCCLSVC_SUM,
						  comms[k / STREAMS], streams[k % STREAMS]));
		}
		CHECK_NC(nc.ncclGroupEnd());
		for (int i = 0; i < STREAMS; i++)
			CHECK(gpu_stream_ends(streams[i], WAIT_MS));
		for (int i = 0; i < PARTS; i++)
			gpu_check(part(s.recv, i), sum * (unsigned)(i + 1), MEMBER_COUNT, "a sum");
	}
	CHECK_NC(nc.ncclCommDestroy(comms[1]));
	CHECK_NC(nc.ncclCommDestroy(comms[2]));
	member_close(&s);
}

static void test_mixed(void)
{
	ranks_run(ranks_count(), mixed_rank, NULL);
}

/* One process has all ranks, and each is in two communicators. */
static void mixed_process(struct client *c)
{
	struct member members[RANKS_MAX];
	ncclComm_t first[RANKS_MAX], second[RANKS_MAX];
	const int n = *(const int *)c->arg;
	const unsigned sum = (unsigned)(n * (n + 1) / 2);
	dropin_open(c->daemon);
	for (int i = 0; i < n; i++)
		member_open(&members[i], i);
	CHECK_NC(nc.ncclCommInitAll(first, n, NULL));
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < n; i++)
		CHECK_NC(nc.ncclCommSplit(first[i], 0, n - i, &second[i], NULL));
	CHECK_NC(nc.ncclGroupEnd());
	for (int round = 0; round < 20; round++) {
		stage("group %d", round);
		for (int i = 0; i < n; i++) {
			gpu_use(i);
			CHECK_CU(cu.cuMemsetD32Async(members[i].send, (unsigned)i + 1,
						     2 * MEMBER_COUNT, members[i].stream));
		}
		CHECK_NC(nc.ncclGroupStart());
		for (int i = 0; i < n; i++) {
			CHECK_NC(nc.ncclAllReduce(at(members[i].send), at(members[i].recv),
						  MEMBER_COUNT, NCCLSVC_UINT32, NCCLSVC_SUM,
						  first[i], members[i].stream));
			CHECK_NC(nc.ncclSend(at(part(members[i].send, 1)), MEMBER_COUNT,
					     NCCLSVC_UINT32, (n - 1 - i + 1) % n, second[i],
					     members[i].stream));
			CHECK_NC(nc.ncclRecv(at(part(members[i].recv, 1)), MEMBER_COUNT,
					     NCCLSVC_UINT32, (n - 1 - i + n - 1) % n, second[i],
					     members[i].stream));
		}
		CHECK_NC(nc.ncclGroupEnd());
		for (int i = 0; i < n; i++) {
			gpu_use(i);
			CHECK(gpu_stream_ends(members[i].stream, WAIT_MS));
			gpu_check(members[i].recv, sum, MEMBER_COUNT, "the sum");
			/* In the second communicator, ranks are reversed. */
			gpu_check(part(members[i].recv, 1), (uint32_t)((i + 1) % n) + 1,
				  MEMBER_COUNT, "what the neighbour has sent");
		}
	}
	for (int i = 0; i < n; i++) {
		members[i].comm = first[i];
		CHECK_NC(nc.ncclCommDestroy(second[i]));
	}
	for (int i = 0; i < n; i++)
		member_close(&members[i]);
}

static void test_mixed_process(void)
{
	int n = ranks_count();
	ranks_run(1, mixed_process, &n);
}

/* More pairs of streams and communicators than a session has timelines for. */
#define MANY 70

static void streams_rank(struct client *c)
{
	struct member s;
	CUstream streams[MANY];
	dropin_open(c->daemon);
	member_join(&s, c);
	for (int i = 0; i < MANY; i++)
		streams[i] = gpu_stream();
	CHECK_CU(cu.cuMemsetD32Async(s.send, 1, MEMBER_COUNT, s.stream));
	CHECK_CU(cu.cuStreamSynchronize(s.stream));
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < MANY; i++)
			CHECK_NC(nc.ncclAllReduce(at(s.send), at(part(s.recv, i % 8)), MEMBER_COUNT,
						  NCCLSVC_UINT32, NCCLSVC_SUM, s.comm, streams[i]));
	for (int i = 0; i < MANY; i++)
		CHECK(gpu_stream_ends(streams[i], WAIT_MS));
	for (int i = 0; i < 8; i++)
		gpu_check(part(s.recv, i), (uint32_t)c->nranks, MEMBER_COUNT, "a sum");
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < MANY; i++)
		CHECK_NC(nc.ncclAllReduce(at(s.send), at(s.recv), MEMBER_COUNT, NCCLSVC_UINT32,
					  NCCLSVC_SUM, s.comm, streams[i]));
	CHECK_NC_IS(nc.ncclGroupEnd(), ncclInvalidUsage);
	CHECK_SAYS(NULL, "pairs");
	for (int i = 0; i < MANY; i++)
		CHECK_CU(cu.cuStreamDestroy(streams[i]));
	member_close(&s);
}

static void test_streams(void)
{
	ranks_run(2, streams_rank, NULL);
}

/* ---- Calls that NCCL accepts ---- */

/* Uses one buffer, with each operation's in-place offset. */
static void in_place(const struct member *s, const struct call *call)
{
	struct member is = *s;
	is.call = *call;
	const size_t shift = call_shift(call) * ncclsvc_type_size(call->type);
	const bool send_larger = call_sends(call) >= call_receives(call);
	is.send = s->recv + (send_larger ? 0 : shift);
	is.recv = s->recv + (send_larger ? shift : 0);
	fill(&is);
	CHECK_NC(dropin_call(&is.call, is.send, is.recv, is.comm, is.stream));
	CHECK(gpu_stream_ends(is.stream, WAIT_MS));
	verify(&is);
}

/* Buffers that a rank does not use may be invalid. */
static void unused(const struct member *s, const struct call *call)
{
	struct member is = *s;
	is.call = *call;
	if (!call_sends(call))
		is.send = 8;
	if (!call_receives(call))
		is.recv = 8;
	if (call_sends(call))
		fill(&is);
	CHECK_NC(dropin_call(&is.call, is.send, is.recv, is.comm, is.stream));
	CHECK(gpu_stream_ends(is.stream, WAIT_MS));
	if (call_receives(call))
		verify(&is);
}

static void empty(const struct member *s, const struct call *call)
{
	struct call c = *call;
	c.count = 0;
	for (int grouped = 0; grouped < 2; grouped++) {
		if (grouped)
			CHECK_NC(nc.ncclGroupStart());
		CHECK_NC(dropin_call(&c, 0, 0, s->comm, s->stream));
		if (grouped)
			CHECK_NC(nc.ncclGroupEnd());
	}
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
}

/* The result is undefined, as in NCCL, but the call is accepted and ends. */
static void exchange_in_place(const struct member *s, int rank, int n)
{
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclSend(at(s->send), MEMBER_COUNT, NCCLSVC_INT32, (rank + 1) % n, s->comm,
			     s->stream));
	CHECK_NC(nc.ncclRecv(at(s->send), MEMBER_COUNT, NCCLSVC_INT32, (rank + n - 1) % n, s->comm,
			     s->stream));
	CHECK_NC(nc.ncclGroupEnd());
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
}

static void accepted_rank(struct client *c)
{
	struct member s;
	dropin_open(c->daemon);
	member_join(&s, c);
	for (int op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_SCATTER; op++) {
		for (int root = 0; root < c->nranks; root++) {
			struct call call = {.op = (ncclsvc_op)op,
					    .type = NCCLSVC_INT32,
					    .count = 1000,
					    .rank = c->rank,
					    .n = c->nranks,
					    .root = root};
			if (op == NCCLSVC_BARRIER || op == NCCLSVC_SEND || op == NCCLSVC_RECV)
				continue;
			stage("%s", ncclsvc_op_name((unsigned)op));
			in_place(&s, &call);
			unused(&s, &call);
			empty(&s, &call);
		}
	}
	stage("Send and Recv");
	exchange_in_place(&s, c->rank, c->nranks);
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclGroupEnd());
	member_close(&s);
}

static void test_accepted(void)
{
	ranks_run(ranks_count(), accepted_rank, NULL);
}

const struct gpu_test nccl_tests[] = {
	{"nccl/one_process", test_one_process, 1, 300, TEST_QUICK},
	{"nccl/processes", test_processes, 2, 300, TEST_QUICK},
	{"nccl/mixed", test_mixed, 2, 300, TEST_QUICK},
	{"nccl/mixed_process", test_mixed_process, 2, 120, TEST_QUICK},
	{"nccl/streams", test_streams, 2, 120, TEST_QUICK},
	{"nccl/accepted", test_accepted, 2, 120, TEST_QUICK},
	{0},
};
