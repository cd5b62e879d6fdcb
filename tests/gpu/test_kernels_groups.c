/* SPDX-License-Identifier: Apache-2.0
 * Groups of messages, most of them in kernels: of all sizes, between all ranks, with collectives,
 * on several streams and communicators. */
#include <string.h>

#include "kernels.h"

#define STREAMS	   3
#define COMMS	   2
#define EACH	   12 /* messages per pair, at most */
#define MAIL_BYTES ((size_t)96 << 20)
#define SUM_BYTES  (SMALL * sizeof(uint32_t))

/* In words. Messages above 2 MiB use NCCL. */
static const size_t sizes[] = {1,    0,	   64,	  1023, 2,   1024, 20000, (size_t)1 << 20,
			       1025, 4096, 70001, 3,	500, 0,	   33,	  ((size_t)1 << 20) + 1};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct group {
	const char *what;
	unsigned each;	     /* messages from one rank to another */
	bool oneself;	     /* also from a rank to itself */
	bool receives_first; /* all Recvs come before all Sends */
	unsigned streams;    /* that operations take turns on */
	unsigned detached;   /* a bit for each detached stream */
	unsigned comms;
	bool small, large; /* with collectives in kernels, and on NCCL */
	unsigned largest;  /* how many of the sizes are used */
};

static const struct group groups[] = {
	{.what = "one of each", .each = 1, .streams = 1, .comms = 1, .largest = 3},
	{.what = "many", .each = EACH, .oneself = true, .streams = 1, .comms = 1, .largest = 6},
	{.what = "Recvs first",
	 .each = EACH,
	 .receives_first = true,
	 .streams = 1,
	 .comms = 1,
	 .largest = 3},
	{.what = "Recvs first, and to itself",
	 .each = EACH,
	 .oneself = true,
	 .receives_first = true,
	 .streams = 1,
	 .comms = 1,
	 .largest = 7},
	{.what = "beside NCCL",
	 .each = EACH / 2,
	 .oneself = true,
	 .streams = 1,
	 .comms = 1,
	 .largest = SIZES},
	{.what = "with a sum", .each = 3, .streams = 1, .comms = 1, .small = true, .largest = 7},
	{.what = "with sums and NCCL",
	 .each = 5,
	 .receives_first = true,
	 .streams = 1,
	 .comms = 1,
	 .small = true,
	 .large = true,
	 .largest = SIZES},
	{.what = "on streams", .each = 6, .streams = STREAMS, .comms = 1, .largest = 7},
	{.what = "on streams, beside NCCL",
	 .each = 4,
	 .streams = 2,
	 .comms = 1,
	 .large = true,
	 .largest = SIZES},
	{.what = "detached", .each = 6, .streams = 1, .detached = 1, .comms = 1, .largest = 7},
	{.what = "some detached",
	 .each = 5,
	 .receives_first = true,
	 .streams = 3,
	 .detached = 2,
	 .comms = 1,
	 .largest = 7},
	{.what = "some detached, beside NCCL",
	 .each = 3,
	 .receives_first = true,
	 .streams = 3,
	 .detached = 2,
	 .comms = 1,
	 .largest = SIZES},
	{.what = "of two communicators",
	 .each = 5,
	 .receives_first = true,
	 .streams = 2,
	 .comms = COMMS,
	 .small = true,
	 .largest = 7},
	{.what = "of two communicators, beside NCCL",
	 .each = 3,
	 .oneself = true,
	 .streams = 1,
	 .comms = COMMS,
	 .small = true,
	 .large = true,
	 .largest = SIZES},
};
#define GROUPS (sizeof(groups) / sizeof(groups[0]))

struct mail {
	struct rank r;
	ncclsvc_comm *comms[COMMS]; /* in the second one, ranks are in reverse order */
	CUstream streams[STREAMS];
	CUdeviceptr p, sums, large;
	const struct group *group;
	uint32_t round;
	unsigned n; /* messages so far */
	size_t at;  /* offset in p */
};

static int rank_in(const struct mail *m, unsigned comm)
{
	return comm ? m->r.n - 1 - m->r.rank : m->r.rank;
}

static size_t words_of(const struct mail *m, unsigned i, int from, int to)
{
	return sizes[(i + 3 * (unsigned)from + 5 * (unsigned)to + m->round) % m->group->largest];
}

static uint32_t value_of(const struct mail *m, unsigned i, int from, int to, unsigned comm)
{
	return m->round * 100000 + i * 1000 + (unsigned)from * 100 + (unsigned)to * 10 + comm + 1;
}

/* ---- This rank's messages of a group ---- */

typedef void message_do(struct mail *m, unsigned i, int peer, unsigned comm, bool sends);

static void ways(struct mail *m, message_do *act, unsigned i, bool sends)
{
	for (unsigned comm = 0; comm < m->group->comms; comm++)
		for (int k = 0; k < m->r.n; k++)
			if (k != rank_in(m, comm) || m->group->oneself)
				act(m, i, k, comm, sends);
}

static void each_message(struct mail *m, message_do *act)
{
	const struct group *g = m->group;
	m->n = 0;
	m->at = 0;
	for (unsigned i = 0; i < g->each; i++) {
		if (!g->receives_first)
			ways(m, act, i, true);
		ways(m, act, i, false);
	}
	for (unsigned i = 0; g->receives_first && i < g->each; i++)
		ways(m, act, i, true);
}

/* The next message's buffer, and its stream. */
static CUdeviceptr next_place(struct mail *m, size_t words, unsigned *stream)
{
	const CUdeviceptr p = m->p + m->at;
	m->at += (words + 1) * sizeof(uint32_t);
	CHECK(m->at <= MAIL_BYTES);
	*stream = m->n++ % m->group->streams;
	return p;
}

static size_t words_here(const struct mail *m, unsigned i, int peer, unsigned comm, bool sends)
{
	const int me = rank_in(m, comm);
	return sends ? words_of(m, i, me, peer) : words_of(m, i, peer, me);
}

static void fill(struct mail *m, unsigned i, int peer, unsigned comm, bool sends)
{
	unsigned stream;
	const size_t words = words_here(m, i, peer, comm, sends);
	const CUdeviceptr p = next_place(m, words, &stream);
	const uint32_t value = sends ? value_of(m, i, rank_in(m, comm), peer, comm) : 0;
	CHECK_CU(cu.cuMemsetD32Async(p, value, words + 1, m->streams[stream]));
}

static void use_stream(struct mail *m, unsigned stream)
{
	CHECK_OK(
		ncclsvc_stream_set(m->r.session, m->streams[stream],
				   m->group->detached >> stream & 1 ? NCCLSVC_STREAM_DETACHED : 0));
}

static void submit(struct mail *m, unsigned i, int peer, unsigned comm, bool sends)
{
	unsigned stream;
	const size_t words = words_here(m, i, peer, comm, sends);
	const CUdeviceptr p = next_place(m, words, &stream);
	use_stream(m, stream);
	if (sends)
		CHECK_OK(ncclsvc_send(at(p), words, NCCLSVC_UINT32, peer, m->comms[comm], NULL));
	else
		CHECK_OK(ncclsvc_recv(at(p), words, NCCLSVC_UINT32, peer, m->comms[comm], NULL));
}

static void check(struct mail *m, unsigned i, int peer, unsigned comm, bool sends)
{
	unsigned stream;
	const size_t words = words_here(m, i, peer, comm, sends);
	const CUdeviceptr p = next_place(m, words, &stream);
	if (sends)
		return;
	gpu_check(p, value_of(m, i, peer, rank_in(m, comm), comm), words, "a message");
	gpu_check(p + words * sizeof(uint32_t), 0, 1, "the word behind a message");
}

/* ---- A group ---- */

static void sum(ncclsvc_comm *comm, CUdeviceptr p, size_t words)
{
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), words, NCCLSVC_UINT32, NCCLSVC_SUM, comm, NULL));
}

/* One small sum before the messages, all others behind them. */
static void collectives(struct mail *m, bool before)
{
	const struct group *g = m->group;
	use_stream(m, 0);
	if (g->small && before)
		sum(m->comms[0], m->sums, SMALL);
	for (unsigned i = 1; g->small && !before && i < g->comms; i++)
		sum(m->comms[i], m->sums + i * SUM_BYTES, SMALL);
	if (g->large && !before)
		sum(m->comms[0], m->large, LARGE_WORDS);
}

static void check_sums(struct mail *m)
{
	const struct group *g = m->group;
	const uint32_t n = (uint32_t)m->r.n;
	for (unsigned i = 0; g->small && i < g->comms; i++)
		gpu_check(m->sums + i * SUM_BYTES, n * (m->round + i), SMALL, "a small sum");
	if (g->large)
		gpu_check(m->large, n * m->round, LARGE_WORDS, "a large sum");
}

static void prepare(struct mail *m)
{
	for (unsigned i = 0; i < COMMS; i++)
		CHECK_CU(cu.cuMemsetD32Async(m->sums + i * SUM_BYTES, m->round + i, SMALL,
					     m->streams[0]));
	if (m->group->large)
		CHECK_CU(cu.cuMemsetD32Async(m->large, m->round, LARGE_WORDS, m->streams[0]));
	each_message(m, fill);
}

static void run(struct mail *m)
{
	stage("%s, round %u", m->group->what, m->round);
	prepare(m);
	CHECK_OK(ncclsvc_group_begin(m->r.session));
	collectives(m, true);
	each_message(m, submit);
	collectives(m, false);
	CHECK_OK(ncclsvc_group_end(m->r.session));
	for (int i = 0; i < STREAMS; i++) /* not for detached operations */
		CHECK(gpu_stream_ends(m->streams[i], WAIT_MS));
	if (m->group->detached)
		CHECK_OK(ncclsvc_wait_all(m->r.session, WAIT_MS));
	each_message(m, check);
	check_sums(m);
	CHECK_OK(ncclsvc_wait_all(m->r.session, WAIT_MS));
}

static void groups_rank(struct client *c)
{
	struct mail m = {0};
	rank_open(&m.r, c);
	m.comms[0] = m.r.comm;
	CHECK_OK(ncclsvc_comm_split(m.r.comm, 0, -m.r.rank, WAIT_MS, &m.comms[1]));
	for (int i = 0; i < STREAMS; i++)
		m.streams[i] = gpu_stream();
	CHECK_CU(cu.cuMemAlloc(&m.p, MAIL_BYTES));
	CHECK_CU(cu.cuMemAlloc(&m.sums, COMMS * SUM_BYTES));
	CHECK_CU(cu.cuMemAlloc(&m.large, LARGE));
	for (m.round = 1; m.round <= 2; m.round++)
		for (size_t i = 0; i < GROUPS; i++) {
			m.group = &groups[i];
			run(&m);
		}
	CHECK_OK(ncclsvc_stream_set(m.r.session, m.r.stream, 0));
	rank_check_usable(&m.r);
	for (int i = 0; i < STREAMS; i++)
		CHECK_CU(cu.cuStreamDestroy(m.streams[i]));
	CHECK_CU(cu.cuMemFree(m.p));
	CHECK_CU(cu.cuMemFree(m.sums));
	CHECK_CU(cu.cuMemFree(m.large));
	CHECK_OK(ncclsvc_comm_leave(m.comms[1]));
	rank_close(&m.r);
}

static void test_groups(void)
{
	kernels_run(ranks_count(), groups_rank, NULL);
}

static void test_groups_8(void)
{
	kernels_run(8, groups_rank, NULL);
}

const struct gpu_test kernel_group_tests[] = {
	{"kernels/messages/groups", test_groups, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/groups/4", test_groups, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/groups/8", test_groups_8, 8, 240, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
