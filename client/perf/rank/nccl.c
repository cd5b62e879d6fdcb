/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf-nccl: the NCCL baseline of ncclsvc-perf, a plain NCCL program with a process per
 * GPU. ncclsvc-perf runs it; its arguments are ncclsvc-perf's socket, its rank, the number of
 * ranks, and its GPU. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "proto/abi/nccl_abi.h"
#include "proto/cuda/mps.h"
#include "proto/dynlib.h"
#include "proto/names.h"

#define DESTROY_S 10

struct nccl {
#define POINTER(function, type, parameters) type(*function) parameters;
	NCCL_FUNCTIONS(POINTER)
#undef POINTER
	ncclComm_t comm;
};

struct nccl_rank {
	struct gpu_rank gpu;
	struct nccl nccl;
};

static struct nccl *nccl_of(struct rank *r)
{
	return &((struct nccl_rank *)r)->nccl;
}

static CUstream stream_of(const struct rank *r)
{
	return ((const struct gpu_rank *)r)->stream;
}

#define SYMBOL(function, type, parameters)                                                         \
	{.name = #function, .offset = offsetof(struct nccl, function)},

static bool load(struct nccl *n, char *text, size_t size)
{
	static const struct dynlib_symbol symbols[] = {NCCL_FUNCTIONS(SYMBOL)};
	return dynlib_open("libnccl.so.2", symbols, sizeof(symbols) / sizeof(symbols[0]), n, text,
			   size);
}

static bool good(struct rank *r, ncclResult_t result, const char *call)
{
	const struct nccl *n = nccl_of(r);
	if (result == ncclSuccess)
		return true;
	const char *more = n->ncclGetLastError(n->comm);
	return rank_fail(r, NCCLSVC_SYSTEM, "%s: %s%s%s", call, n->ncclGetErrorString(result),
			 more && *more ? ": " : "", more ? more : "");
}

#define DO(r, call, ...) good(r, nccl_of(r)->call(__VA_ARGS__), #call)

static bool join(struct rank *r, const struct command *c)
{
	ncclUniqueId id;
	_Static_assert(sizeof(id) == sizeof(c->id), "an id of either fits into a command");
	memcpy(&id, c->id, sizeof(id));
	/* NULL: NCCL's default configuration. */
	return DO(r, ncclCommInitRankConfig, &nccl_of(r)->comm, r->nranks, id, r->rank, NULL);
}

static ncclResult_t send_and_receive(const struct rank *r, const struct nccl *n,
				     const struct work *w, const void *from, void *to)
{
	int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
	ncclResult_t result = n->ncclGroupStart();
	if (result)
		return result;
	const int type = (int)svc_nccl_type(w->type);
	result = n->ncclSend(from, w->count, type, next, n->comm, stream_of(r));
	if (!result)
		result = n->ncclRecv(to, w->count, type, before, n->comm, stream_of(r));
	ncclResult_t end = n->ncclGroupEnd();
	return result ? result : end;
}

static ncclResult_t call(struct rank *r, const struct work *w, const char *from, char *to)
{
	const struct nccl *n = nccl_of(r);
	char *spot = ((struct gpu_rank *)r)->spot;
	size_t count = w->count;
	int type = (int)svc_nccl_type(w->type), redop = w->redop;
	ncclComm_t comm = n->comm;
	CUstream stream = stream_of(r);
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
		return n->ncclAllReduce(from, to, count, type, redop, comm, stream);
	case NCCLSVC_ALL_GATHER:
		return n->ncclAllGather(from, to, count, type, comm, stream);
	case NCCLSVC_REDUCE_SCATTER:
		return n->ncclReduceScatter(from, to, count, type, redop, comm, stream);
	case NCCLSVC_BROADCAST:
		return n->ncclBroadcast(from, to, count, type, w->root, comm, stream);
	case NCCLSVC_REDUCE:
		return n->ncclReduce(from, to, count, type, redop, w->root, comm, stream);
	case NCCLSVC_ALL_TO_ALL:
		return n->ncclAlltoAll(from, to, count, type, comm, stream);
	case NCCLSVC_GATHER:
		return n->ncclGather(from, to, count, type, w->root, comm, stream);
	case NCCLSVC_SCATTER:
		return n->ncclScatter(from, to, count, type, w->root, comm, stream);
	case PERF_SENDRECV:
		return send_and_receive(r, n, w, from, to);
	case NCCLSVC_BARRIER: /* NCCL has no barrier; this is the usual substitute */
		return n->ncclAllReduce(spot, spot, 1, NCCLSVC_INT8, NCCLSVC_SUM, comm, stream);
	}
	return ncclInvalidUsage;
}

static bool submit(struct rank *r, const struct work *w, char *send, char *recv)
{
	return good(r, call(r, w, send, recv), "the NCCL call");
}

static bool finish(struct rank *r)
{
	ncclResult_t error = ncclSuccess;
	return gpu_rank_wait(r) && DO(r, ncclCommGetAsyncError, nccl_of(r)->comm, &error) &&
	       good(r, error, "communicator");
}

/* For a communicator, NCCL listens in the process that created its id: rank 0, which stays alive.
 */
static bool say_hello(struct rank *r, int fd)
{
	struct hello hello = {.rank = r->rank, .nranks = r->nranks};
	int version;
	ncclUniqueId id;
	if (!DO(r, ncclGetVersion, &version))
		return false;
	if (r->rank == 0) {
		if (!DO(r, ncclGetUniqueId, &id))
			return false;
		memcpy(hello.id, &id, sizeof(hello.id));
	}
	snprintf(hello.library, sizeof(hello.library), "NCCL %d.%d.%d", version / 10000,
		 version / 100 % 100, version % 100);
	return hello_send(fd, &hello) || rank_fail(r, NCCLSVC_SYSTEM, "ncclsvc-perf is gone");
}

static int complain(const struct rank *r, const char *text)
{
	fprintf(stderr, "ncclsvc-perf-nccl: rank %d: %s\n", r->rank, text);
	return 1;
}

static int run(struct nccl_rank *own, const char *socket, int gpu)
{
	struct rank *r = &own->gpu.rank;
	struct nccl *n = &own->nccl;
	char text[COMMAND_TEXT_BYTES];
	if (!load(n, text, sizeof(text)))
		return complain(r, text);
	mps_leave(); /* the daemon's MPS is not for the baseline */
	/* Open the GPU first: ncclsvc-perf expects a hello as soon as a rank connects. */
	if (!gpu_rank_open(&own->gpu, gpu))
		return complain(r, r->reply.text);
	int fd = command_connect(socket);
	if (fd < 0)
		return complain(r, strerror(errno));
	if (!say_hello(r, fd)) {
		close(fd);
		return complain(r, r->reply.text);
	}
	bool well = rank_serve(r, fd);
	close(fd);
	/* The call waits forever if another rank has failed. */
	alarm(DESTROY_S);
	if (n->comm)
		(void)(well ? n->ncclCommDestroy(n->comm) : n->ncclCommAbort(n->comm));
	gpu_rank_close(&own->gpu);
	return well ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct backend backend = {
		GPU_RANK_BACKEND,
		.join = join,
		.allocate = gpu_rank_allocate,
		.release = gpu_rank_release,
		.submit = submit,
		.finish = finish,
	};
	if (argc != 5) {
		fprintf(stderr, "ncclsvc-perf-nccl is run by ncclsvc-perf --baseline nccl\n");
		return 2;
	}
	struct nccl_rank r = {
		.gpu.rank = {.backend = &backend, .rank = atoi(argv[2]), .nranks = atoi(argv[3])}};
	return run(&r, argv[1], atoi(argv[4]));
}
