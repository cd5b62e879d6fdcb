/* SPDX-License-Identifier: Apache-2.0 */
#include "dropin_calls.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS 1000

struct dropin nc;

void check_nccl(const char *file, int line, const char *call, ncclResult_t is,
		ncclResult_t expected)
{
	if (is != expected)
		check_failed(file, line, "%s gives %d (%s), not %d: %s", call, is,
			     nc.ncclGetErrorString(is), expected, nc.ncclGetLastError(NULL));
}

void check_says(const char *file, int line, ncclComm_t comm, const char *part)
{
	const char *text = nc.ncclGetLastError(comm);
	if (!strstr(text, part))
		check_failed(file, line, "\"%s\" does not say \"%s\"", text, part);
}

void dropin_open(const struct daemon *d)
{
	const char *path = getenv("NCCLSVC_NCCL");
	if (!path)
		skip_test("there is no drop-in libnccl.so.2 here: set NCCLSVC_NCCL to its path");
	CHECK_EQ(setenv("NCCLSVC_SOCKET", d->socket, 1), 0);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		check_failed(__FILE__, __LINE__, "%s", dlerror());
#define LOOK_UP(function, type, parameters)                                                        \
	nc.function = (type(*) parameters)dlsym(library, #function);                               \
	CHECK(nc.function);
	NCCL_FUNCTIONS(LOOK_UP)
	NCCL_MORE_FUNCTIONS(LOOK_UP)
	nc.cuMemFree = (int (*)(unsigned long long))dlsym(library, "cuMemFree_v2");
	CHECK(nc.cuMemFree);
}

ncclUniqueId dropin_id(const struct client *c)
{
	ncclUniqueId id;
	memcpy(id.internal, c->id.bytes, sizeof(id.internal));
	return id;
}

ncclConfig_t dropin_config(void)
{
	ncclConfig_t c = {.size = sizeof(c), .magic = NCCL_MAGIC, .version = 23203};
	c.blocking = c.cgaClusterSize = c.minCTAs = c.maxCTAs = NCCL_INT_UNSET;
	c.splitShare = c.trafficClass = c.collnetEnable = c.CTAPolicy = NCCL_INT_UNSET;
	c.shrinkShare = c.nvlsCTAs = c.nChannelsPerNetPeer = NCCL_INT_UNSET;
	c.nvlinkCentricSched = c.graphUsageMode = c.numRmaCtx = NCCL_INT_UNSET;
	c.maxP2pPeers = c.graphStreamOrdering = c.launchOrderImplicit = NCCL_INT_UNSET;
	c.numRmaSig = c.rmaEagerInit = c.hostCftMode = c.nvlsHostMode = NCCL_INT_UNSET;
	return c;
}

ncclResult_t dropin_call(const struct call *c, CUdeviceptr send, CUdeviceptr recv, ncclComm_t comm,
			 CUstream s)
{
	const void *from = at(send);
	void *to = at(recv);
	switch (c->op) {
	case NCCLSVC_ALL_REDUCE:
		return nc.ncclAllReduce(from, to, c->count, c->type, c->redop, comm, s);
	case NCCLSVC_ALL_GATHER:
		return nc.ncclAllGather(from, to, c->count, c->type, comm, s);
	case NCCLSVC_REDUCE_SCATTER:
		return nc.ncclReduceScatter(from, to, c->count, c->type, c->redop, comm, s);
	case NCCLSVC_BROADCAST:
		return c->in_place
			       ? nc.ncclBcast(to, c->count, c->type, c->root, comm, s)
			       : nc.ncclBroadcast(from, to, c->count, c->type, c->root, comm, s);
	case NCCLSVC_REDUCE:
		return nc.ncclReduce(from, to, c->count, c->type, c->redop, c->root, comm, s);
	case NCCLSVC_ALL_TO_ALL:
		return nc.ncclAlltoAll(from, to, c->count, c->type, comm, s);
	case NCCLSVC_GATHER:
		return nc.ncclGather(from, to, c->count, c->type, c->root, comm, s);
	case NCCLSVC_SCATTER:
		return nc.ncclScatter(from, to, c->count, c->type, c->root, comm, s);
	case NCCLSVC_SEND:
		return nc.ncclSend(from, c->count, c->type, c->root, comm, s);
	case NCCLSVC_RECV:
		return nc.ncclRecv(to, c->count, c->type, c->root, comm, s);
	default:
		return ncclInvalidArgument;
	}
}

void dropin_check_usable(ncclComm_t comm)
{
	int rank, n;
	ncclResult_t error;
	CUdeviceptr p;
	CUstream stream = gpu_stream();
	CHECK_NC(nc.ncclCommUserRank(comm, &rank));
	CHECK_NC(nc.ncclCommCount(comm, &n));
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemsetD32Async(p, (unsigned)rank + 1, WORDS, stream));
	CHECK_NC(nc.ncclAllReduce(at(p), at(p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, comm, stream));
	CHECK(gpu_stream_ends(stream, WAIT_MS));
	CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
	CHECK_NC(error);
	gpu_check(p, (uint32_t)(n * (n + 1) / 2), WORDS, "the sum over all ranks");
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuStreamDestroy(stream));
}

ncclResult_t dropin_fails(ncclComm_t comm, unsigned ms)
{
	ncclResult_t error = ncclSuccess;
	for (uint64_t end = now_ns() + ms * UINT64_C(1000000);; sleep_ms(1)) {
		CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
		if (error && error != ncclInProgress)
			return error;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "no failure was reported in %u ms", ms);
	}
}

ncclResult_t dropin_finishes(ncclComm_t comm)
{
	ncclResult_t error = ncclSuccess;
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);; sleep_ms(1)) {
		CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
		if (error != ncclInProgress)
			return error;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "the communicator is still in progress");
	}
}

void member_open(struct member *s, int gpu)
{
	s->gpu = gpu;
	gpu_use(gpu);
	s->stream = gpu_stream();
	CHECK_CU(cu.cuMemAlloc(&s->send, MEMBER_BYTES));
	CHECK_CU(cu.cuMemAlloc(&s->recv, MEMBER_BYTES));
}

void member_join(struct member *s, struct client *c)
{
	member_open(s, c->rank);
	stage("ncclCommInitRank");
	CHECK_NC(nc.ncclCommInitRank(&s->comm, c->nranks, dropin_id(c), c->rank));
}

void member_close(struct member *s)
{
	gpu_use(s->gpu);
	CHECK_NC(nc.ncclCommDestroy(s->comm));
	CHECK_CU(cu.cuMemFree(s->send));
	CHECK_CU(cu.cuMemFree(s->recv));
	CHECK_CU(cu.cuStreamDestroy(s->stream));
}

ncclComm_t dropin_join(struct client *c)
{
	ncclComm_t comm;
	dropin_open(c->daemon);
	gpu_use(c->rank);
	stage("joining");
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id(c), c->rank));
	return comm;
}

ncclUniqueId dropin_id_number(const struct client *c, int n)
{
	ncclUniqueId id = dropin_id(c);
	id.internal[1] ^= (char)n;
	return id;
}

CUdeviceptr dropin_words(uint32_t value)
{
	CUdeviceptr p;
	CHECK_CU(cu.cuMemAlloc(&p, DROPIN_WORDS * 4));
	gpu_fill(p, value, DROPIN_WORDS);
	return p;
}

ncclResult_t dropin_sum(CUdeviceptr p, ncclComm_t comm, CUstream s)
{
	return nc.ncclAllReduce(at(p), at(p), DROPIN_WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, comm, s);
}
