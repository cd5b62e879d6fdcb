/* SPDX-License-Identifier: Apache-2.0
 * The flight recorder's records of operations on the direct transport and on NCCL, of live ranks
 * and of one that was killed. */
#include "kernels.h"

enum { READY = 1, GO };
#define KERNELS 5

/* The process's operation with this count. */
static ncclsvc_operation_info find(ncclsvc_session *session, int32_t pid, size_t count)
{
	ncclsvc_operation_info *list, found = {0};
	size_t n;
	CHECK_OK(ncclsvc_list_operations(session, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == pid && list[i].count == count)
			found = list[i];
	ncclsvc_list_free(list);
	CHECK(found.comm);
	CHECK_EQ(found.result, NCCLSVC_OK);
	CHECK_EQ(found.state, NCCLSVC_DONE);
	CHECK_EQ(found.op, NCCLSVC_ALL_REDUCE);
	CHECK_EQ(found.type, NCCLSVC_UINT32);
	return found;
}

/* The recorder does not know when a kernel ended, or when it began if it has not waited. */
static void check_both(ncclsvc_session *session, int32_t pid, int rank)
{
	const ncclsvc_operation_info k = find(session, pid, SMALL + KERNELS - 1);
	CHECK_EQ(k.transport, NCCLSVC_OPERATION_KERNEL);
	CHECK_EQ(k.rank, rank);
	CHECK_EQ(k.seq, KERNELS - 1);
	CHECK_EQ(k.collective, KERNELS - 1);
	CHECK(k.kernel && k.submitted_ns && !k.done_ns);
	const ncclsvc_operation_info x = find(session, pid, LARGE_WORDS);
	CHECK_EQ(x.transport, NCCLSVC_OPERATION_NCCL);
	CHECK_EQ(x.rank, rank);
	CHECK(!x.kernel && x.submitted_ns >= k.submitted_ns);
	CHECK(x.matched_ns >= x.submitted_ns && x.started_ns >= x.matched_ns);
	CHECK(x.done_ns >= x.started_ns);
}

static void recorded_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	for (size_t i = 0; i < KERNELS; i++)
		rank_wait(&r, kernels_sum(&r, p, SMALL + i));
	rank_wait(&r, kernels_sum(&r, p, LARGE_WORDS));
	check_both(r.session, c->pid, r.rank);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK_CU(cu.cuMemFree(p));
	ncclsvc_close(r.session); /* without leaving: the epoch may be over */
}

static void test_recorded(void)
{
	struct daemon d;
	struct client ranks[2];
	int32_t pids[2];
	kernels_daemon_start(&d);
	ncclsvc_session *session = session_open(&d);
	clients_start(ranks, 2, &d, recorded_rank, NULL);
	hear_all(ranks, 2, READY);
	for (int k = 0; k < 2; k++) {
		pids[k] = ranks[k].pid;
		check_both(session, pids[k], k);
	}
	client_kill(&ranks[1]);
	members_reach(session, NCCLSVC_MEMBER_BROKEN, 1);
	for (int k = 0; k < 2; k++)
		check_both(session, pids[k], k);
	say(&ranks[0], GO);
	ranks_end(ranks, 2);
	check_both(session, pids[1], 1);
	ncclsvc_close(session);
	gpu_daemon_stop(&d);
}

const struct gpu_test recorder_tests[] = {
	{"recorder", test_recorded, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
