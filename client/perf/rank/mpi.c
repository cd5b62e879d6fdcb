/* SPDX-License-Identifier: Apache-2.0
 *
 * ncclsvc-perf-mpi: the baseline of ncclsvc-perf, a plain Open MPI program with blocking calls. Run
 * by ncclsvc-perf under mpirun; its argument is the coordinator's socket. */
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "data.h"
#include "command.h"

#define FINALIZE_S 10

struct rank {
	int rank, nranks;
	void *send, *recv;
	uint64_t bytes;
};

/* Of a type that work_mpi_can admits to reductions. */
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
	return MPI_SUM; /* and for avg, which then divides */
}

struct call {
	MPI_Datatype type;
	int count;
	bool derived;
};

static bool prepare(const struct work *w, struct call *c)
{
	if (!work_mpi_can(w))
		return false;
	c->type = work_reduces(w->op) ? reduction_type(w->type) : copy_type(w->type);
	c->derived = w->count > INT_MAX;
	if (c->derived) {
		MPI_Type_contiguous(PERF_MPI_BLOCK, c->type, &c->type);
		MPI_Type_commit(&c->type);
	}
	c->count = (int)(c->derived ? w->count / PERF_MPI_BLOCK : w->count);
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

/* Where the rank's input goes, and where MPI leaves its result. */
struct buffers {
	void *input, *output;
};

static struct buffers buffers_of(const struct rank *r, const struct work *w)
{
	struct work_sides sides = work_sides(w, (uint32_t)r->rank);
	size_t size = work_type_size(w->type);
	if (!w->in_place)
		return (struct buffers){r->send, r->recv};
	/* MPI_Reduce_scatter_block leaves its result at the start. */
	if (w->op == NCCLSVC_REDUCE_SCATTER)
		sides.recv_at = 0;
	return (struct buffers){(char *)r->recv + sides.send_at * size,
				(char *)r->recv + sides.recv_at * size};
}

static void perform(const struct rank *r, const struct work *w, const struct call *c)
{
	MPI_Comm world = MPI_COMM_WORLD;
	MPI_Op op = reduction(w->redop);
	bool root = r->rank == w->root, in = w->in_place;
	struct buffers b = buffers_of(r, w);
	void *from = in ? MPI_IN_PLACE : r->send, *send = b.input, *recv = r->recv;
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
		MPI_Allreduce(from, recv, c->count, c->type, op, world);
		break;
	case NCCLSVC_ALL_GATHER:
		MPI_Allgather(from, c->count, c->type, recv, c->count, c->type, world);
		break;
	case NCCLSVC_REDUCE_SCATTER:
		MPI_Reduce_scatter_block(from, recv, c->count, c->type, op, world);
		break;
	case NCCLSVC_BROADCAST:
		MPI_Bcast(root ? send : recv, c->count, c->type, w->root, world);
		break;
	case NCCLSVC_REDUCE:
		MPI_Reduce(root ? from : send, recv, c->count, c->type, op, w->root, world);
		break;
	case NCCLSVC_ALL_TO_ALL:
		MPI_Alltoall(from, c->count, c->type, recv, c->count, c->type, world);
		break;
	case NCCLSVC_GATHER:
		MPI_Gather(root ? from : send, c->count, c->type, recv, c->count, c->type, w->root,
			   world);
		break;
	case NCCLSVC_SCATTER:
		MPI_Scatter(send, c->count, c->type, root && in ? MPI_IN_PLACE : recv, c->count,
			    c->type, w->root, world);
		break;
	case PERF_SENDRECV:
		MPI_Sendrecv(send, c->count, c->type, (r->rank + 1) % r->nranks, 0, recv, c->count,
			     c->type, (r->rank + r->nranks - 1) % r->nranks, 0, world,
			     MPI_STATUS_IGNORE);
		break;
	case NCCLSVC_BARRIER:
		MPI_Barrier(world);
		break;
	}
	if (work_reduces(w->op) && w->redop == NCCLSVC_AVG)
		divide(w->type, b.output, work_sides(w, (uint32_t)r->rank).recv, r->nranks);
}

static bool job_buffers(struct rank *r, uint64_t bytes)
{
	size_t size = (bytes + DATA_GUARD + 4095) & ~(size_t)4095;
	free(r->send);
	free(r->recv);
	r->send = aligned_alloc(4096, size);
	r->recv = aligned_alloc(4096, size);
	r->bytes = bytes;
	if (!r->send || !r->recv)
		return false;
	data_poison(r->send, bytes);
	data_poison(r->recv, bytes);
	return true;
}

static void job_time(struct rank *r, const struct job *job, const struct call *c,
		     struct job_reply *reply)
{
	const struct work *w = &job->work;
	if (job->fill)
		data_fill(w, job->seed, (uint32_t)r->rank, buffers_of(r, w).input);
	struct pace pace = pace_start(job->every_us);
	for (uint64_t i = 0; i < job->warmup; i++) {
		pace_wait(&pace);
		perform(r, w, c);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	uint64_t start = perf_now_ns(), cpu = perf_cpu_ns();
	pace = pace_start(job->every_us);
	for (uint64_t i = 0; i < job->iters; i++) {
		pace_wait(&pace);
		perform(r, w, c);
	}
	reply->cpu_ns = perf_cpu_ns() - cpu;
	reply->elapsed_ns = perf_now_ns() - start - pace.paused_ns;
}

static void job_check(struct rank *r, const struct job *job, const struct call *c,
		      struct job_reply *reply)
{
	const struct work *w = &job->work;
	uint32_t rank = (uint32_t)r->rank;
	struct buffers b = buffers_of(r, w);
	uint64_t used = work_bytes(w);
	data_poison(r->recv, used);
	data_fill(w, job->seed, rank, b.input);
	perform(r, w, c);
	/* MPI_Bcast has one buffer: the root keeps what it has. */
	if (w->op == NCCLSVC_BROADCAST && r->rank == w->root)
		b.output = b.input;
	reply->wrong = data_wrong(w, job->seed, rank, b.output) + data_guard_wrong(r->recv, used);
}

static void do_job(struct rank *r, const struct job *job, struct job_reply *reply)
{
	struct call c;
	if (job->kind == JOB_BUFFERS) {
		if (!job_buffers(r, job->bytes)) {
			reply->result = NCCLSVC_NO_MEMORY;
			snprintf(reply->text, sizeof(reply->text), "out of memory");
		}
		return;
	}
	if (work_bytes(&job->work) > r->bytes || !prepare(&job->work, &c)) {
		reply->result = NCCLSVC_UNSUPPORTED;
		snprintf(reply->text, sizeof(reply->text), "Open MPI has no such call");
		return;
	}
	if (job->kind == JOB_TIME)
		job_time(r, job, &c, reply);
	else
		job_check(r, job, &c, reply);
	if (c.derived)
		MPI_Type_free(&c.type);
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

static bool say_hello(int fd, const struct rank *r)
{
	struct job_hello hello = {.magic = JOB_MAGIC,
				  .job_size = sizeof(struct job),
				  .rank = r->rank,
				  .nranks = r->nranks,
				  .pid = getpid()};
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;
	MPI_Get_library_version(library, &length);
	library[strcspn(library, ",\n")] = '\0';
	snprintf(hello.library, sizeof(hello.library), "%.*s", JOB_TEXT_BYTES - 1, library);
	return job_send(fd, &hello, sizeof(hello));
}

int main(int argc, char **argv)
{
	struct rank r = {0};
	struct job job;
	if (argc != 2) {
		fprintf(stderr, "ncclsvc-perf-mpi is run by ncclsvc-perf --baseline mpi\n");
		return 2;
	}
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &r.nranks);
	int fd = connect_to(argv[1]);
	if (fd < 0) {
		fprintf(stderr, "ncclsvc-perf-mpi: can't connect to %s: %s\n", argv[1],
			strerror(errno));
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	bool heard = say_hello(fd, &r);
	while (heard && job_receive(fd, &job) && job.kind != JOB_QUIT) {
		struct job_reply reply = {0};
		do_job(&r, &job, &reply);
		heard = job_send(fd, &reply, sizeof(reply));
	}
	close(fd);
	free(r.send);
	free(r.recv);
	/* A rank that died leaves the others waiting in there. */
	alarm(FINALIZE_S);
	MPI_Finalize();
	return 0;
}
