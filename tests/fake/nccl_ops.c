/* SPDX-License-Identifier: Apache-2.0
 * The calls of operations, and their execution on streams. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_fake.h"

#define SLOW_US 300000

size_t nccl_width(int type)
{
	if (type > NCCLSVC_FLOAT8E5M2) /* NCCL has no types beyond this one */
		return 0;
	switch (type) {
#define WIDTH(name, value, text, bytes)                                                            \
	case value:                                                                                \
		return bytes;
		NCCLSVC_TYPES(WIDTH)
#undef WIDTH
	}
	return 0;
}

/* ---- Running ------------------------------------------------------------------------------- */

bool launch_on(const struct launch *l)
{
	return !atomic_load(l->stop) && !atomic_load(&l->comm->aborted);
}

void launch_fail(struct launch *l, ncclResult_t error)
{
	int none = ncclSuccess;
	atomic_compare_exchange_strong(&l->comm->shared->error, &none, error);
}

static void hang(const struct launch *l)
{
	unsigned round = 0;
	while (launch_on(l))
		fake_pause(&round);
	/* With this fault, the kernel ignores even the abort. */
	while (!atomic_load(l->stop) && fake_fault("kernel-hang"))
		fake_pause(&round);
}

size_t src_bytes(const struct ncclComm *c, const struct call *call)
{
	size_t bytes = call->count * nccl_width(call->type);
	switch (call->kind) {
	case NCCLSVC_RECV:
		return 0;
	case NCCLSVC_BROADCAST:
		return c->rank == call->root ? bytes : 0;
	case NCCLSVC_SCATTER:
		return c->rank == call->root ? bytes * (size_t)c->nranks : 0;
	case NCCLSVC_REDUCE_SCATTER:
	case NCCLSVC_ALL_TO_ALL:
		return bytes * (size_t)c->nranks;
	}
	return bytes;
}

size_t dst_bytes(const struct ncclComm *c, const struct call *call)
{
	size_t bytes = call->count * nccl_width(call->type);
	switch (call->kind) {
	case NCCLSVC_SEND:
		return 0;
	case NCCLSVC_REDUCE:
		return c->rank == call->root ? bytes : 0;
	case NCCLSVC_GATHER:
		return c->rank == call->root ? bytes * (size_t)c->nranks : 0;
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_ALL_TO_ALL:
		return bytes * (size_t)c->nranks;
	}
	return bytes;
}

static bool pin_all(const struct launch *l)
{
	for (struct work *w = l->works; w; w = w->next) {
		size_t src = src_bytes(l->comm, &w->call), dst = dst_bytes(l->comm, &w->call);
		if ((src && !fake_pin(&w->src_pin, (uintptr_t)w->src, src)) ||
		    (dst && !fake_pin(&w->dst_pin, (uintptr_t)w->dst, dst)))
			return false;
	}
	return true;
}

void work_free(struct work *w)
{
	if (w->src_pin.range)
		fake_unpin(&w->src_pin);
	if (w->dst_pin.range)
		fake_unpin(&w->dst_pin);
	free(w);
}

void launch_free(void *arg)
{
	struct launch *l = arg;
	for (struct work *w = l->works, *next; w; w = next) {
		next = w->next;
		work_free(w);
	}
	/* Last use of the communicator: drain() waits for `ended`, and its caller frees the
	 * communicator. */
	atomic_store(&l->comm->ended, l->ticket);
	free(l);
}

static bool launch_works(struct launch *l)
{
	if (fake_fault("kernel-hang")) {
		fake_note("hangs");
		return false;
	}
	if (atomic_load(&l->comm->shared->error) || fake_fault("async-error") || !p2p_run(l))
		return false;
	for (struct work *w = l->works; w; w = w->next) {
		bool p2p = w->call.kind == NCCLSVC_SEND || w->call.kind == NCCLSVC_RECV;
		if (!p2p && !collective_run(l, w))
			return false;
	}
	return true;
}

void launch_run(void *arg, const atomic_int *stop)
{
	struct launch *l = arg;
	l->stop = stop;
	/* One communicator's operations run in launch order across all streams. They also end in
	 * that order, because `ended` is a counter. */
	unsigned round = 0;
	while (atomic_load(&l->comm->ended) + 1 < l->ticket)
		fake_pause(&round);
	if (!launch_on(l))
		hang(l);
	else if (!pin_all(l))
		fake_context_fault(l->comm->context);
	else if (!launch_works(l))
		hang(l);
}

/* ---- Calling ------------------------------------------------------------------------------- */

static ncclResult_t call(int kind, const void *src, void *dst, size_t count, int type, int redop,
			 int root, ncclComm_t c, CUstream stream)
{
	if (!c)
		return nccl_error(ncclInvalidArgument, "comm argument is NULL");
	if (fake_fault("call-slow"))
		usleep(SLOW_US);
	if (!nccl_width(type))
		return nccl_error(ncclInvalidArgument, "invalid type %d", type);
	char scalar[8] = {0};
	bool made = redop > NCCLSVC_AVG && redop_scalar(c, redop, type, scalar);
	if (redop < NCCLSVC_SUM || (redop > NCCLSVC_AVG && !made))
		return nccl_error(ncclInvalidArgument, "invalid reduction operation %d", redop);
	if (root < 0 || root >= c->nranks)
		return nccl_error(ncclInvalidArgument, "invalid root or peer %d", root);
	if (count > SIZE_MAX / 8 / RANKS_MAX)
		return nccl_error(ncclInvalidArgument, "invalid count");
	if (count == 0)
		return ncclSuccess;
	struct work *w = calloc(1, sizeof(*w));
	if (!w)
		return nccl_error(ncclSystemError, "out of memory");
	w->call = (struct call){.count = count, .kind = kind, .type = type, .root = root};
	w->call.redop = made ? FAKE_PREMULSUM : redop;
	memcpy(w->scalar, scalar, sizeof(scalar));
	w->src = src;
	w->dst = dst;
	if ((src_bytes(c, &w->call) && !src) || (dst_bytes(c, &w->call) && !dst)) {
		free(w);
		return nccl_error(ncclInvalidArgument, "buffer argument is NULL");
	}
	return nccl_submit(c, stream, w);
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
			   ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_ALL_REDUCE, src, dst, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
			ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_REDUCE, src, dst, count, type, op, root, comm, stream);
}

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
			   ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_BROADCAST, src, dst, count, type, 0, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t recvcount, ncclDataType_t type,
			       ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_REDUCE_SCATTER, src, dst, recvcount, type, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t sendcount, ncclDataType_t type,
			   ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_ALL_GATHER, src, dst, sendcount, type, 0, 0, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *src, void *dst, size_t count, ncclDataType_t type,
			  ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_ALL_TO_ALL, src, dst, count, type, 0, 0, comm, stream);
}

ncclResult_t ncclGather(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
			ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_GATHER, src, dst, count, type, 0, root, comm, stream);
}

ncclResult_t ncclScatter(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
			 ncclComm_t comm, CUstream stream)
{
	return call(NCCLSVC_SCATTER, src, dst, count, type, 0, root, comm, stream);
}

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
		      CUstream stream)
{
	return call(NCCLSVC_SEND, src, NULL, count, type, 0, peer, comm, stream);
}

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
		      CUstream stream)
{
	return call(NCCLSVC_RECV, NULL, dst, count, type, 0, peer, comm, stream);
}
