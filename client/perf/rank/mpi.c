/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf-mpi: the MPI baseline of ncclsvc-perf, a plain Open MPI program with blocking calls.
 * ncclsvc-perf runs it under mpirun, with its socket as the argument. */
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rank.h"

#define FINALIZE_S 10

/* A type for which work_mpi_can allows reductions. */
static MPI_Datatype reduction_type(unsigned type)
{
	switch (type) {
	case NCCLSVC_INT8:
		return MPI_INT8_T;
	case NCCLSVC_UINT8:
		return MPI_UINT8_T;
	case NCCLSVC_INT32:
		return MPI_INT32_T;
	case NCCLSVC_UINT32:
		return MPI_UINT32_T;
	case NCCLSVC_INT64:
		return MPI_INT64_T;
	case NCCLSVC_UINT64:
		return MPI_UINT64_T;
	case NCCLSVC_FLOAT32:
		return MPI_FLOAT;
	case NCCLSVC_FLOAT64:
		return MPI_DOUBLE;
	}
	return MPI_DATATYPE_NULL;
}

static MPI_Datatype copy_type(unsigned type)
{
	switch (work_type_size(type)) {
	case 1:
		return MPI_UINT8_T;
	case 2:
		return MPI_UINT16_T;
	case 4:
		return MPI_UINT32_T;
	}
	return MPI_UINT64_T;
}

static MPI_Op reduction(unsigned redop)
{
	switch (redop) {
	case NCCLSVC_PROD:
		return MPI_PROD;
	case NCCLSVC_MAX:
		return MPI_MAX;
	case NCCLSVC_MIN:
		return MPI_MIN;
	}
	return MPI_SUM; /* also for avg, which then divides */
}

struct mpi_rank {
	struct rank rank;
	/* The type and operation that `begin` was called for: */
	MPI_Datatype type;
	int count;
	bool derived;
};

static struct mpi_rank *own(struct rank *r)
{
	return (struct mpi_rank *)r;
}

static bool begin(struct rank *r, const struct work *w)
{
	struct mpi_rank *m = own(r);
	if (!work_mpi_can(w))
		return rank_fail(r, NCCLSVC_UNSUPPORTED, "Open MPI has no such call");
	m->type = work_reduces(w->op) ? reduction_type(w->type) : copy_type(w->type);
	m->derived = w->count > INT_MAX;
	if (m->derived) {
		MPI_Type_contiguous(PERF_MPI_BLOCK, m->type, &m->type);
		MPI_Type_commit(&m->type);
	}
	m->count = (int)(m->derived ? w->count / PERF_MPI_BLOCK : w->count);
	return true;
}

/* The calls block, so there is nothing to wait for. */
static bool finish(struct rank *r)
{
	struct mpi_rank *m = own(r);
	if (m->derived)
		MPI_Type_free(&m->type);
	m->derived = false;
	return true;
}

#define DIVIDE(ctype)                                                                              \
	for (uint64_t i = 0; i < n; i++)                                                           \
		((ctype *)data)[i] /= (ctype)ranks;                                                \
	break

static void divide(unsigned type, void *data, uint64_t n, int ranks)
{
	switch (type) {
	case NCCLSVC_INT8:
		DIVIDE(int8_t);
	case NCCLSVC_UINT8:
		DIVIDE(uint8_t);
	case NCCLSVC_INT32:
		DIVIDE(int32_t);
	case NCCLSVC_UINT32:
		DIVIDE(uint32_t);
	case NCCLSVC_INT64:
		DIVIDE(int64_t);
	case NCCLSVC_UINT64:
		DIVIDE(uint64_t);
	case NCCLSVC_FLOAT32:
		DIVIDE(float);
	case NCCLSVC_FLOAT64:
		DIVIDE(double);
	}
}

/* MPI_Reduce_scatter_block puts its result at the start, and MPI_Bcast's root has only one buffer.
 */
static char *result(struct rank *r, const struct work *w, char *send, char *recv)
{
	if (w->op == NCCLSVC_REDUCE_SCATTER && w->in_place)
		return r->recv;
	return w->op == NCCLSVC_BROADCAST && r->rank == w->root ? send : recv;
}

/* send and recv have the same addresses as for the service: in place, within r->recv. */
static bool submit(struct rank *r, const struct work *w, char *send, char *recv)
{
	const struct mpi_rank *m = own(r);
	const int count = m->count;
	MPI_Datatype type = m->type;
	MPI_Comm world = MPI_COMM_WORLD;
	MPI_Op op = reduction(w->redop);
	bool root = r->rank == w->root, in = w->in_place;
	void *from = in ? MPI_IN_PLACE : send, *to = r->recv;
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
		MPI_Allreduce(from, to, count, type, op, world);
		break;
	case NCCLSVC_ALL_GATHER:
		MPI_Allgather(from, count, type, to, count, type, world);
		break;
	case NCCLSVC_REDUCE_SCATTER:
		MPI_Reduce_scatter_block(from, to, count, type, op, world);
		break;
	case NCCLSVC_BROADCAST:
		MPI_Bcast(root ? send : to, count, type, w->root, world);
		break;
	case NCCLSVC_REDUCE:
		MPI_Reduce(root ? from : send, to, count, type, op, w->root, world);
		break;
	case NCCLSVC_ALL_TO_ALL:
		MPI_Alltoall(from, count, type, to, count, type, world);
		break;
	case NCCLSVC_GATHER:
		MPI_Gather(root ? from : send, count, type, to, count, type, w->root, world);
		break;
	case NCCLSVC_SCATTER:
		MPI_Scatter(send, count, type, root && in ? MPI_IN_PLACE : to, count, type, w->root,
			    world);
		break;
	case PERF_SENDRECV:
		MPI_Sendrecv(send, count, type, (r->rank + 1) % r->nranks, 0, to, count, type,
			     (r->rank + r->nranks - 1) % r->nranks, 0, world, MPI_STATUS_IGNORE);
		break;
	case NCCLSVC_BARRIER:
		MPI_Barrier(world);
		break;
	}
	if (work_reduces(w->op) && w->redop == NCCLSVC_AVG)
		divide(w->type, result(r, w, send, recv), work_sides(w, (uint32_t)r->rank).recv,
		       r->nranks);
	return true;
}

static bool barrier(struct rank *r)
{
	(void)r;
	MPI_Barrier(MPI_COMM_WORLD);
	return true;
}

static bool allocate(struct rank *r, size_t bytes, char **p)
{
	*p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	return *p || rank_fail(r, NCCLSVC_NO_MEMORY, "out of memory");
}

static bool release(struct rank *r, char *p)
{
	(void)r;
	free(p);
	return true;
}

static bool say_hello(int fd, const struct rank *r)
{
	struct hello hello = {.rank = r->rank, .nranks = r->nranks};
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;
	MPI_Get_library_version(library, &length);
	library[strcspn(library, ",\n")] = '\0';
	snprintf(hello.library, sizeof(hello.library), "%.*s", COMMAND_TEXT_BYTES - 1, library);
	return hello_send(fd, &hello);
}

int main(int argc, char **argv)
{
	static const struct backend backend = {
		.allocate = allocate,
		.release = release,
		.result = result,
		.begin = begin,
		.submit = submit,
		.finish = finish,
		.barrier = barrier,
	};
	struct mpi_rank m = {.rank.backend = &backend};
	struct rank *r = &m.rank;
	if (argc != 2) {
		fprintf(stderr, "ncclsvc-perf-mpi is run by ncclsvc-perf --baseline mpi\n");
		return 2;
	}
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
	MPI_Comm_size(MPI_COMM_WORLD, &r->nranks);
	int fd = command_connect(argv[1]);
	if (fd < 0) {
		fprintf(stderr, "ncclsvc-perf-mpi: can't connect to %s: %s\n", argv[1],
			strerror(errno));
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	if (say_hello(fd, r))
		(void)rank_serve(r, fd);
	close(fd);
	free(r->send);
	free(r->recv);
	/* MPI_Finalize waits forever if another rank has died. */
	alarm(FINALIZE_S);
	MPI_Finalize();
	return 0;
}
