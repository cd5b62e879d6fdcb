/* SPDX-License-Identifier: Apache-2.0
 * Groups with more operations than a task group of the daemon, or a session's ring, can hold, as in
 * programs that move a model's weights. */
#include <stdlib.h>

#include "dropin_calls.h"

#define MOST 15000 /* Sends to a rank, and Recvs from it, at most */

/* A rank's operations may come in any order, except those of one kind with the same peer. */
enum order { SENDS_FIRST, RECVS_FIRST, IN_TURN, AT_RANDOM, ORDERS };

struct part {
	int peer;
	bool sends;
	unsigned next; /* number of the next message */
};

struct mail {
	int rank, n;
	unsigned each;
	uint32_t *sent, *received; /* on the host: [n][each] */
	CUdeviceptr send, recv;
	ncclComm_t comm;
	CUstream stream;
	struct part parts[2 * RANKS_MAX];
	int nparts;
};

static uint32_t value_of(int from, int to, unsigned i)
{
	return (uint32_t)(from * RANKS_MAX + to) * MOST + i + 1;
}

static size_t place(const struct mail *m, int peer, unsigned i)
{
	return (size_t)peer * m->each + i;
}

static void add(struct mail *m, const struct part *p)
{
	const size_t at_byte = place(m, p->peer, p->next) * sizeof(uint32_t);
	if (p->sends)
		CHECK_NC(nc.ncclSend(at(m->send + at_byte), 1, NCCLSVC_UINT32, p->peer, m->comm,
				     m->stream));
	else
		CHECK_NC(nc.ncclRecv(at(m->recv + at_byte), 1, NCCLSVC_UINT32, p->peer, m->comm,
				     m->stream));
}

/* Operations of one kind with one peer form a part. */
static void make_parts(struct mail *m, bool sends_first)
{
	m->nparts = 0;
	for (int kind = 0; kind < 2; kind++)
		for (int peer = 0; peer < m->n; peer++)
			if (peer != m->rank)
				m->parts[m->nparts++] = (struct part){
					.peer = peer, .sends = (kind == 0) == sends_first};
}

static int next_part(struct mail *m, enum order order, int last, uint64_t *state)
{
	int k = order == AT_RANDOM ? (int)(draw(state) % (unsigned)m->nparts)
		: order == IN_TURN ? last + 1
				   : last;
	for (int i = 0; i < m->nparts; i++, k++)
		if (m->parts[k % m->nparts].next < m->each)
			break;
	return k % m->nparts;
}

static void add_all(struct mail *m, enum order order)
{
	uint64_t state = setup.seed + (unsigned)m->rank;
	make_parts(m, order == SENDS_FIRST);
	for (unsigned i = 0, last = 0; i < (unsigned)m->nparts * m->each; i++) {
		last = (unsigned)next_part(m, order, (int)last, &state);
		add(m, &m->parts[last]);
		m->parts[last].next++;
	}
}

static void exchange(struct mail *m, enum order order)
{
	const size_t bytes = (size_t)m->n * m->each * sizeof(uint32_t);
	CHECK_CU(cu.cuMemsetD32Async(m->recv, 0, bytes / sizeof(uint32_t), m->stream));
	CHECK_NC(nc.ncclGroupStart());
	add_all(m, order);
	const uint64_t began = now_ns();
	CHECK_NC(nc.ncclGroupEnd());
	const uint64_t submitted = now_ns();
	CHECK(gpu_stream_ends(m->stream, WAIT_MS));
	if (!m->rank)
		report("%u Sends and Recvs with each of %d: %.0f ms, ncclGroupEnd %.0f ms", m->each,
		       m->n - 1, (double)(now_ns() - began) / 1e6,
		       (double)(submitted - began) / 1e6);
	CHECK_CU(cu.cuMemcpyDtoH(m->received, m->recv, bytes));
	for (int peer = 0; peer < m->n; peer++)
		for (unsigned i = 0; peer != m->rank && i < m->each; i++)
			CHECK_EQ(m->received[place(m, peer, i)], value_of(peer, m->rank, i));
}

static void mail_open(struct mail *m, struct client *c, unsigned each)
{
	const size_t bytes = (size_t)c->nranks * each * sizeof(uint32_t);
	*m = (struct mail){.rank = c->rank, .n = c->nranks, .each = each};
	m->sent = malloc(bytes);
	m->received = malloc(bytes);
	CHECK(m->sent && m->received);
	for (int peer = 0; peer < m->n; peer++)
		for (unsigned i = 0; i < each; i++)
			m->sent[place(m, peer, i)] = value_of(m->rank, peer, i);
	gpu_use(c->rank);
	m->stream = gpu_stream();
	CHECK_CU(cu.cuMemAlloc(&m->send, bytes));
	CHECK_CU(cu.cuMemAlloc(&m->recv, bytes));
	CHECK_CU(cu.cuMemcpyHtoD(m->send, m->sent, bytes));
	m->comm = dropin_join(c);
}

static void mail_close(struct mail *m)
{
	dropin_check_usable(m->comm);
	CHECK_NC(nc.ncclCommDestroy(m->comm));
	CHECK_CU(cu.cuMemFree(m->send));
	CHECK_CU(cu.cuMemFree(m->recv));
	CHECK_CU(cu.cuStreamDestroy(m->stream));
	free(m->sent);
	free(m->received);
}

static void groups_rank(struct client *c)
{
	struct mail m;
	const unsigned *each = c->arg;
	mail_open(&m, c, *each);
	for (int order = 0; order < (setup.quick ? 1 : ORDERS); order++) {
		stage("order %d", order);
		exchange(&m, (enum order)((order + c->rank) % ORDERS));
	}
	mail_close(&m);
}

static void test_9000(void)
{
	unsigned each = 9000;
	ranks_run(2, groups_rank, &each);
}

static void test_15000(void)
{
	unsigned each = MOST;
	ranks_run(2, groups_rank, &each);
}

static void test_all_ranks(void)
{
	unsigned each = 3000;
	ranks_run(ranks_count(), groups_rank, &each);
}

const struct gpu_test nccl_group_tests[] = {
	{"nccl/group_of_18000", test_9000, 2, 300, TEST_QUICK},
	{"nccl/group_of_18000_on_nccl", test_9000, 2, 300, TEST_QUICK | TEST_NCCL},
	{"nccl/group_of_30000", test_15000, 2, 300, 0},
	{"nccl/group_of_30000_on_nccl", test_15000, 2, 300, TEST_NCCL},
	{"nccl/groups_of_all_ranks", test_all_ranks, 3, 300, 0},
	{"nccl/groups_of_all_ranks_on_nccl", test_all_ranks, 3, 300, TEST_NCCL},
	{0},
};
