/* SPDX-License-Identifier: Apache-2.0
 * The drop-in: lent memory in windows. */
#include <unistd.h>

#include "dropin.h"

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
static void sum_often(const struct member *s, ncclComm_t comm, void *p)
{
	for (unsigned k = 1; k <= 100; k++) {
		sleep_ms(k > 16);
		CHECK_CU(cu.cuMemsetD32Async((uintptr_t)p, k, 64, s->stream));
		CHECK_NC(nc.ncclAllReduce(p, p, 64, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, s->stream));
		CHECK_CU(cu.cuStreamSynchronize(s->stream));
	}
}

/* The ranks go on alike. */
static bool all_have_windows(const struct member *s, ncclsvc_session *look, int n)
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
	struct member s;
	ncclComm_t other;
	ncclWindow_t window;
	void *p;
	dropin_open(c->daemon);
	member_join(&s, c);
	ncclsvc_session *look = session_open(c->daemon);
	CHECK_NC(nc.ncclCommSplit(s.comm, 0, c->rank, &other, NULL));
	CHECK_NC(nc.ncclMemAlloc(&p, MEMBER_BYTES));
	stage("lent memory that is no window");
	sum_often(&s, s.comm, p);
	CHECK_EQ(windows_of(look), 0);
	stage("a window of another communicator");
	CHECK_NC(nc.ncclCommWindowRegister(other, p, MEMBER_BYTES, &window, 1));
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
	member_close(&s);
}

static void test_windows(void)
{
	ranks_run(ranks_count(), windows_rank, NULL);
}

const struct gpu_test nccl_window_tests[] = {
	{"nccl/windows", test_windows, 2, 120, TEST_QUICK | TEST_NCCL | TEST_ONE_NODE},
	{0},
};
