/* SPDX-License-Identifier: Apache-2.0 */
#include "windows.h"

#include <string.h>
#include <unistd.h>

#define ROUNDS 2000 /* in which a window is to come */

void open_rank(struct rank *r, struct client *c, CUdeviceptr *p, size_t bytes)
{
	struct buffer b;
	rank_open(r, c);
	buffer_make(&b, MEMORY_LENT, r->gpu, r->session, bytes);
	*p = b.p;
}

void give_back(const struct rank *r, CUdeviceptr p)
{
	CHECK_OK(ncclsvc_mem_free(r->session, at(p)));
}

uint32_t windows_of(struct rank *r)
{
	ncclsvc_member_info *list;
	size_t n;
	uint32_t windows = 0;
	CHECK_OK(ncclsvc_list_members(r->session, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == getpid() && list[i].rank == r->rank)
			windows = list[i].windows;
	ncclsvc_list_free(list);
	return windows;
}

uint32_t bits(float value)
{
	uint32_t word;
	memcpy(&word, &value, sizeof(word));
	return word;
}

void sum(struct rank *r, CUdeviceptr src, CUdeviceptr dst, size_t n, unsigned k)
{
	ncclsvc_task task;
	CHECK_CU(
		cu.cuMemsetD32Async(src, bits((float)(k * (unsigned)(r->rank + 1))), n, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(src), at(dst), n, NCCLSVC_FLOAT32, NCCLSVC_SUM, r->comm,
				    &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_check(dst, bits((float)(k * (unsigned)(r->n * (r->n + 1) / 2))), n, "a sum");
}

bool all_say(struct rank *r, bool yes)
{
	CUdeviceptr p;
	uint32_t total;
	ncclsvc_task task;
	CHECK_CU(cu.cuMemAlloc(&p, 4));
	CHECK_CU(cu.cuMemsetD32Async(p, yes, 1, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_get(&total, p, 4);
	CHECK_CU(cu.cuMemFree(p));
	return total == (uint32_t)r->n;
}

void wait_windows(struct rank *r, uint32_t windows)
{
	for (uint64_t end = now_ns() + limit_ms(FINISH_MS) * 1000000ull; windows_of(r) != windows;
	     sleep_ms(5))
		CHECK(now_ns() < end);
	CHECK(all_say(r, true));
}

bool warm(struct rank *r, CUdeviceptr src, CUdeviceptr dst, uint32_t windows)
{
	for (unsigned k = 1; k <= ROUNDS; k++) {
		stage("round %u until there are %u windows", k, windows);
		sum(r, src, dst, WORDS, k % 100);
		if (k % 8 == 0 && all_say(r, windows_of(r) == windows))
			return true;
		if (k > 16)
			sleep_ms(1);
	}
	CHECK(!setup.fake);
	report("NCCL gives no windows on these GPUs");
	return false;
}
