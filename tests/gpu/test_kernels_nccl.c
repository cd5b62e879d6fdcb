/* SPDX-License-Identifier: Apache-2.0
 * Messages in kernels, sent and received by NCCL programs on the drop-in. */
#include "dropin_calls.h"
#include "kernels.h"

#define EACH	  4 /* messages from one rank to another, in a group */
#define ROUNDS	  10
#define MOST	  40000 /* words of a message, at most */
#define STREAMS	  2	/* Sends are on one, Recvs on the other */
#define BOX_BYTES ((size_t)2 * EACH * RANKS_MAX * MOST * sizeof(uint32_t))

static const size_t sizes[] = {1, SMALL, MOST, 0, 3000};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* A rank's GPU, with room for each message that it sends or receives. */
struct box {
	int gpu, n;
	ncclComm_t comm;
	CUstream streams[STREAMS];
	CUdeviceptr p;
};

static void box_open(struct box *b, int gpu, int n)
{
	*b = (struct box){.gpu = gpu, .n = n};
	gpu_use(gpu);
	CHECK_CU(cu.cuMemAlloc(&b->p, BOX_BYTES));
	for (int i = 0; i < STREAMS; i++)
		b->streams[i] = gpu_stream();
}

static void box_close(struct box *b)
{
	gpu_use(b->gpu);
	CHECK_NC(nc.ncclCommDestroy(b->comm));
	CHECK_CU(cu.cuMemFree(b->p));
	for (int i = 0; i < STREAMS; i++)
		CHECK_CU(cu.cuStreamDestroy(b->streams[i]));
}

static CUdeviceptr place(const struct box *b, int peer, int i, bool sends)
{
	const size_t number = ((size_t)peer * EACH + (size_t)i) * 2 + sends;
	return b->p + number * MOST * sizeof(uint32_t);
}

static size_t words_of(int from, int to, int i, uint32_t round)
{
	return sizes[((unsigned)(from + 2 * to + i) + round) % SIZES];
}

static uint32_t value_of(int from, int to, int i, uint32_t round)
{
	return round * 10000 + (unsigned)(i * 1000 + from * 20 + to + 1);
}

static void fill(struct box *b, uint32_t round)
{
	gpu_use(b->gpu);
	for (int k = 0; k < b->n; k++)
		for (int i = 0; i < EACH; i++) {
			CHECK_CU(cu.cuMemsetD32Async(place(b, k, i, true),
						     value_of(b->gpu, k, i, round), MOST,
						     b->streams[0]));
			CHECK_CU(
				cu.cuMemsetD32Async(place(b, k, i, false), 0, MOST, b->streams[1]));
		}
}

static void message(struct box *b, int peer, int i, bool sends, uint32_t round)
{
	const CUdeviceptr p = place(b, peer, i, sends);
	if (sends)
		CHECK_NC(nc.ncclSend(at(p), words_of(b->gpu, peer, i, round), NCCLSVC_UINT32, peer,
				     b->comm, b->streams[0]));
	else
		CHECK_NC(nc.ncclRecv(at(p), words_of(peer, b->gpu, i, round), NCCLSVC_UINT32, peer,
				     b->comm, b->streams[1]));
}

static void check(struct box *b, uint32_t round)
{
	gpu_use(b->gpu);
	for (int i = 0; i < STREAMS; i++)
		CHECK(gpu_stream_ends(b->streams[i], WAIT_MS));
	for (int k = 0; k < b->n; k++)
		for (int i = 0; i < EACH; i++) {
			const CUdeviceptr p = place(b, k, i, false);
			const size_t words = words_of(k, b->gpu, i, round);
			gpu_check(p, value_of(k, b->gpu, i, round), words, "a message");
			if (words < MOST)
				gpu_check(p + words * sizeof(uint32_t), 0, 1, "the word behind it");
		}
}

/* ---- One process for each rank ---- */

static void pair_rank(struct client *c)
{
	struct box b;
	dropin_open(c->daemon);
	box_open(&b, c->rank, c->nranks);
	stage("joining");
	CHECK_NC(nc.ncclCommInitRank(&b.comm, c->nranks, dropin_id(c), c->rank));
	for (uint32_t round = 0; round < ROUNDS; round++) {
		stage("round %u", round);
		fill(&b, round);
		CHECK_NC(nc.ncclGroupStart());
		for (int i = 0; i < EACH; i++)
			for (int k = 0; k < b.n; k++) {
				message(&b, k, i, round & 1, round);
				message(&b, k, i, !(round & 1), round);
			}
		CHECK_NC(nc.ncclGroupEnd());
		check(&b, round);
	}
	dropin_check_usable(b.comm);
	box_close(&b);
}

static void test_processes(void)
{
	kernels_run(ranks_count(), pair_rank, NULL);
}

/* ---- One thread for all ranks, all Recvs first ---- */

static void all_messages(struct box *boxes, int n, bool sends, uint32_t round)
{
	for (int i = 0; i < EACH; i++)
		for (int k = 0; k < n; k++)
			for (int b = 0; b < n; b++)
				message(&boxes[b], k, i, sends, round);
}

static void thread_of_all(struct client *c)
{
	struct box boxes[RANKS_MAX];
	ncclComm_t comms[RANKS_MAX];
	const int n = *(const int *)c->arg;
	dropin_open(c->daemon);
	for (int i = 0; i < n; i++)
		box_open(&boxes[i], i, n);
	CHECK_NC(nc.ncclCommInitAll(comms, n, NULL));
	for (int i = 0; i < n; i++)
		boxes[i].comm = comms[i];
	for (uint32_t round = 0; round < ROUNDS; round++) {
		stage("round %u", round);
		for (int i = 0; i < n; i++)
			fill(&boxes[i], round);
		CHECK_NC(nc.ncclGroupStart());
		all_messages(boxes, n, false, round);
		all_messages(boxes, n, true, round);
		CHECK_NC(nc.ncclGroupEnd());
		for (int i = 0; i < n; i++)
			check(&boxes[i], round);
	}
	for (int i = 0; i < n; i++)
		box_close(&boxes[i]);
}

static void test_one_thread(void)
{
	int n = ranks_count();
	kernels_run(1, thread_of_all, &n);
}

const struct gpu_test kernel_nccl_tests[] = {
	{"kernels/messages/nccl", test_processes, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/nccl/4", test_processes, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/one_thread", test_one_thread, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/one_thread/4", test_one_thread, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
