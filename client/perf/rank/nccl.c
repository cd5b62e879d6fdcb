/* SPDX-License-Identifier: Apache-2.0
 *
 * ncclsvc-perf-nccl: the baseline of ncclsvc-perf on GPUs, a plain NCCL program with a process for
 * each. Run by ncclsvc-perf; its arguments are the coordinator's socket, its rank, how many there
 * are, and its GPU. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dynlib.h"
#include "gpu_rank.h"
#include "mps.h"
#include "nccl_abi.h"

#define DESTROY_S 10

struct nccl {
#define POINTER(function, type, parameters) type(*function) parameters;
	NCCL_FUNCTIONS(POINTER)
#undef POINTER
	ncclComm_t comm;
};

#define SYMBOL(function, type, parameters)                                                         \
	{.name = #function, .offset = offsetof(struct nccl, function)},

static bool load(struct nccl *n, char *text, size_t size)
{
	static const struct dynlib_symbol symbols[] = {NCCL_FUNCTIONS(SYMBOL)};
	return dynlib_open("libnccl.so.2", symbols, sizeof(symbols) / sizeof(symbols[0]), n, text,
			   size);
}

static bool good(struct gpu_rank *r, ncclResult_t result, const char *call)
{
	const struct nccl *n = r->own;
	if (result == ncclSuccess)
		return true;
	const char *more = n->ncclGetLastError(n->comm);
	return gpu_rank_fail(r, NCCLSVC_SYSTEM, "%s: %s%s%s", call, n->ncclGetErrorString(result),
			     more && *more ? ": " : "", more ? more : "");
}

#define DO(r, n, call, ...) good(r, (n)->call(__VA_ARGS__), #call)

static bool join(struct gpu_rank *r, const struct job *job)
{
	struct nccl *n = r->own;
	ncclUniqueId id;
	_Static_assert(sizeof(id) == sizeof(job->id), "an id of either fits into a job");
	memcpy(&id, job->id, sizeof(id));
	/* NULL: NCCL's own configuration. */
	return DO(r, n, ncclCommInitRankConfig, &n->comm, r->nranks, id, r->rank, NULL);
}

static ncclResult_t send_and_receive(const struct gpu_rank *r, const struct nccl *n,
				     const struct work *w, const void *from, void *to)
{
	int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
	ncclResult_t result = n->ncclGroupStart();
	if (result)
		return result;
	result = n->ncclSend(from, w->count, w->type, next, n->comm, r->stream);
	if (!result)
		result = n->ncclRecv(to, w->count, w->type, before, n->comm, r->stream);
	ncclResult_t end = n->ncclGroupEnd();
	return result ? result : end;
}

static ncclResult_t call(const struct gpu_rank *r, const struct nccl *n, const struct work *w,
			 const void *from, void *to)
{
	size_t count = w->count;
	int type = w->type, redop = w->redop; /* numbered alike */
	ncclComm_t comm = n->comm;
	CUstream stream = r->stream;
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
	case NCCLSVC_BARRIER: /* NCCL has none; this is how its users make one */
		return n->ncclAllReduce(from, to, 1, NCCLSVC_INT8, NCCLSVC_SUM, comm, stream);
	}
	return ncclInvalidUsage;
}

static bool submit(struct gpu_rank *r, const struct work *w, CUdeviceptr send, CUdeviceptr recv)
{
	const struct nccl *n = r->own;
	return good(r, call(r, n, w, (void *)(uintptr_t)send, (void *)(uintptr_t)recv),
		    "the NCCL call");
}

static bool settle(struct gpu_rank *r)
{
	struct nccl *n = r->own;
	ncclResult_t error = ncclSuccess;
	return DO(r, n, ncclCommGetAsyncError, n->comm, &error) && good(r, error, "communicator");
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >=
	    (int)sizeof(address.sun_path))
		return -1;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* NCCL listens for a communicator in the process that made its id: rank 0, which lives on. */
static bool say_hello(struct gpu_rank *r, int fd)
{
	struct nccl *n = r->own;
	struct job_hello hello = {.magic = JOB_MAGIC,
				  .job_size = sizeof(struct job),
				  .rank = r->rank,
				  .nranks = r->nranks,
				  .pid = getpid()};
	int version;
	ncclUniqueId id;
	if (!DO(r, n, ncclGetVersion, &version))
		return false;
	if (r->rank == 0) {
		if (!DO(r, n, ncclGetUniqueId, &id))
			return false;
		memcpy(hello.id, &id, sizeof(hello.id));
	}
	snprintf(hello.library, sizeof(hello.library), "NCCL %d.%d.%d", version / 10000,
		 version / 100 % 100, version % 100);
	if (job_send(fd, &hello, sizeof(hello)))
		return true;
	return gpu_rank_fail(r, NCCLSVC_SYSTEM, "the coordinator is gone");
}

static int run(struct gpu_rank *r, const char *socket, int gpu)
{
	struct nccl *n = r->own;
	char text[JOB_TEXT_BYTES];
	if (!load(n, text, sizeof(text))) {
		fprintf(stderr, "ncclsvc-perf-nccl: %s\n", text);
		return 1;
	}
	mps_leave(); /* that of the daemon beside it is not NCCL's */
	/* First: the coordinator expects a hello as soon as somebody connects. */
	if (!gpu_rank_open(r, gpu)) {
		fprintf(stderr, "ncclsvc-perf-nccl: rank %d: %s\n", r->rank, r->reply.text);
		return 1;
	}
	int fd = connect_to(socket);
	if (fd < 0) {
		fprintf(stderr, "ncclsvc-perf-nccl: can't connect to %s: %s\n", socket,
			strerror(errno));
		return 1;
	}
	if (!say_hello(r, fd)) {
		fprintf(stderr, "ncclsvc-perf-nccl: rank %d: %s\n", r->rank, r->reply.text);
		close(fd);
		return 1;
	}
	bool well = gpu_rank_serve(r, fd);
	close(fd);
	/* A rank that failed leaves the others waiting in there. */
	alarm(DESTROY_S);
	if (n->comm)
		(void)(well ? n->ncclCommDestroy(n->comm) : n->ncclCommAbort(n->comm));
	gpu_rank_close(r);
	return well ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct gpu_side side = {.join = join, .submit = submit, .settle = settle};
	struct nccl nccl = {0};
	if (argc != 5) {
		fprintf(stderr, "ncclsvc-perf-nccl is run by ncclsvc-perf --baseline nccl\n");
		return 2;
	}
	struct gpu_rank r = {
		.side = &side, .own = &nccl, .rank = atoi(argv[2]), .nranks = atoi(argv[3])};
	return run(&r, argv[1], atoi(argv[4]));
}
