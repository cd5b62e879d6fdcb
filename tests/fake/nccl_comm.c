/* SPDX-License-Identifier: Apache-2.0
 * Creation and destruction of communicators. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nccl_fake.h"

#define SHARED_MAGIC UINT64_C(0x66616b656e63636c)
#define JOIN_SECONDS 20
#define PATH_BYTES   640

static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[1024];

ncclResult_t nccl_error(ncclResult_t result, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	pthread_mutex_lock(&text_lock);
	vsnprintf(last_error, sizeof(last_error), format, arguments);
	pthread_mutex_unlock(&text_lock);
	va_end(arguments);
	return nccl_group_note(result);
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm; /* as in NCCL: the process's last error on any communicator */
	return last_error;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const texts[] = {
		"no error",
		"unhandled cuda error",
		"unhandled system error",
		"internal error",
		"invalid argument",
		"invalid usage",
		"remote process exited or there was a network error",
		"NCCL operation in progress",
	};
	return result >= 0 && result <= ncclInProgress ? texts[result] : "unknown result code";
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return nccl_error(ncclInvalidArgument, "version argument is NULL");
	*version = fake_fault("nccl-old") ? 21500 : 22809;
	return ncclSuccess;
}

/* ---- Shared memory ---- */

static size_t shared_size(int nranks)
{
	size_t n = (size_t)nranks;
	return sizeof(struct shared) + n * n * (sizeof(struct pipe) + PIPE) + 2 * n * BOX;
}

static char *shared_after(const struct ncclComm *c)
{
	return (char *)(c->shared + 1);
}

struct pipe *shared_pipe(const struct ncclComm *c, int from, int to)
{
	struct pipe *pipes = (void *)shared_after(c);
	return pipes + (size_t)from * (size_t)c->nranks + (size_t)to;
}

char *shared_box(const struct ncclComm *c, int rank, uint64_t round)
{
	size_t n = (size_t)c->nranks;
	return shared_after(c) + n * n * sizeof(struct pipe) + (2 * (size_t)rank + round % 2) * BOX;
}

char *shared_pipe_bytes(const struct ncclComm *c, int from, int to)
{
	size_t n = (size_t)c->nranks;
	return shared_after(c) + n * n * sizeof(struct pipe) + 2 * n * BOX +
	       ((size_t)from * n + (size_t)to) * PIPE;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	static atomic_uint last;
	const char *dir = fake_dir();
	if (!id || !dir)
		return nccl_error(ncclInvalidArgument, "NCCLSVC_FAKE_DIR is not set");
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "fake-nccl-%d-%llu-%u", getpid(),
		 fake_process_start(getpid()), atomic_fetch_add(&last, 1));
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/%s", dir, id->internal);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	struct shared *b = calloc(1, sizeof(*b));
	bool made = fd >= 0 && b;
	if (made) {
		b->magic = SHARED_MAGIC;
		b->maker = getpid();
		b->maker_start = fake_process_start(b->maker);
		made = write(fd, b, sizeof(*b)) == sizeof(*b);
	}
	free(b);
	if (fd >= 0)
		close(fd);
	return made ? ncclSuccess : nccl_error(ncclSystemError, "%s cannot be made", path);
}

/* ---- Joining ------------------------------------------------------------------------------- */

struct join {
	struct join *next;
	pthread_t thread;
	ncclComm_t *comm;
	int nranks, rank;
	char name[sizeof(ncclUniqueId) + 1];
	CUcontext context;
	int gpu;
	ncclResult_t result;
};

/* Claims the rank's slot. The caller holds the file's lock. */
static ncclResult_t slot_take(const struct join *j, struct shared *b, int fd)
{
	if (b->magic != SHARED_MAGIC)
		return nccl_error(ncclInvalidArgument, "this is no unique id");
	if (fake_process_start(b->maker) != b->maker_start)
		return nccl_error(ncclSystemError, "connect to the id's process %d: refused",
				  b->maker);
	if (atomic_load(&b->left))
		return nccl_error(ncclSystemError, "another rank has given up");
	if (b->nranks && b->nranks != j->nranks)
		return nccl_error(ncclInvalidArgument, "%d ranks here, %d elsewhere", j->nranks,
				  b->nranks);
	if (b->slots[j->rank].pid)
		return nccl_error(ncclInvalidUsage, "rank %d is there twice", j->rank);
	for (int r = 0; r < j->nranks; r++) {
		if (!b->slots[r].pid || b->slots[r].gpu != j->gpu)
			continue;
		atomic_store(&b->left, 1); /* NCCL reports this error on all ranks */
		return nccl_error(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d",
				  j->rank, r);
	}
	if (!b->nranks && ftruncate(fd, (off_t)shared_size(j->nranks)))
		return nccl_error(ncclSystemError, "ftruncate: %s", strerror(errno));
	b->nranks = j->nranks;
	b->slots[j->rank].gpu = j->gpu;
	b->slots[j->rank].start = fake_process_start(getpid());
	b->slots[j->rank].pid = getpid();
	atomic_fetch_add(&b->joined, 1);
	return ncclSuccess;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Waits until all ranks have joined. */
static ncclResult_t slots_wait(struct shared *b, int nranks)
{
	double end = seconds() + JOIN_SECONDS, look = 0;
	unsigned round = 0;
	while (atomic_load(&b->joined) < nranks) {
		double now = seconds();
		if (atomic_load(&b->left))
			return nccl_error(ncclSystemError, "another rank has given up");
		if (now > end)
			return nccl_error(ncclSystemError, "%d of %d ranks came within %d s",
					  atomic_load(&b->joined), nranks, JOIN_SECONDS);
		for (int r = 0; now > look && r < nranks; r++) {
			const struct member_slot *s = &b->slots[r];
			if (s->pid && fake_process_start(s->pid) != s->start)
				return nccl_error(ncclRemoteError, "rank %d closed the connection",
						  r);
		}
		if (now > look)
			look = now + 0.1;
		fake_pause(&round);
	}
	return ncclSuccess;
}

static ncclResult_t join_shared(const struct join *j, int fd, struct shared **shared)
{
	size_t size = shared_size(j->nranks);
	flock(fd, LOCK_EX);
	struct shared *b = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b == MAP_FAILED) {
		flock(fd, LOCK_UN);
		return nccl_error(ncclSystemError, "mmap: %s", strerror(errno));
	}
	ncclResult_t error = slot_take(j, b, fd);
	flock(fd, LOCK_UN);
	if (!error) {
		error = slots_wait(b, j->nranks);
		if (error)
			atomic_store(&b->left, 1);
	}
	if (error)
		munmap(b, size);
	else
		*shared = b;
	return error;
}

static ncclResult_t join_run(struct join *j)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/%s", fake_dir(), j->name);
	if (strchr(j->name, '/') || strncmp(j->name, "fake-nccl-", 10) != 0)
		return nccl_error(ncclInvalidArgument, "this is no unique id");
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return nccl_error(ncclSystemError, "connect to the id's process: refused");
	struct ncclComm *c = calloc(1, sizeof(*c));
	ncclResult_t error = c ? join_shared(j, fd, &c->shared) : ncclSystemError;
	close(fd);
	unlink(path); /* all ranks have joined, or the join has failed */
	if (error) {
		free(c);
		return error;
	}
	c->size = shared_size(j->nranks);
	c->nranks = j->nranks;
	c->rank = j->rank;
	c->context = j->context;
	*j->comm = c;
	return ncclSuccess;
}

static void *join_thread(void *arg)
{
	struct join *j = arg;
	j->result = join_run(j);
	return NULL;
}

static _Thread_local struct join *joins;

ncclResult_t joins_run(void)
{
	ncclResult_t error = ncclSuccess;
	for (struct join *j = joins; j; j = j->next) {
		if (pthread_create(&j->thread, NULL, join_thread, j))
			abort();
	}
	for (struct join *next; joins; joins = next) {
		next = joins->next;
		pthread_join(joins->thread, NULL);
		if (!error)
			error = joins->result;
		free(joins);
	}
	return error;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	if (!comm)
		return nccl_error(ncclInvalidArgument, "comm argument is NULL");
	*comm = NULL;
	if (nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks)
		return nccl_error(ncclInvalidArgument, "invalid rank %d of %d", rank, nranks);
	if (config && (config->magic != NCCL_MAGIC || config->size != NCCL_CONFIG_NEEDED_BYTES))
		return nccl_error(ncclInvalidArgument, "ncclConfig_t argument not initialized via "
						       "NCCL_CONFIG_INITIALIZER");
	if (fake_fault("init-fail"))
		return nccl_error(ncclSystemError, "the fault init-fail is on");
	struct join j = {.comm = comm, .nranks = nranks, .rank = rank};
	memcpy(j.name, id.internal, sizeof(id.internal));
	CUdevice device;
	CUresult error = cuCtxGetCurrent(&j.context);
	if (!error)
		error = cuCtxGetDevice(&device);
	if (error)
		return nccl_error(ncclUnhandledCudaError, "CUDA error %d", error);
	j.gpu = fake_physical(device);
	if (!nccl_grouping())
		return join_run(&j);
	struct join *copy = malloc(sizeof(*copy));
	if (!copy)
		return nccl_error(ncclSystemError, "out of memory");
	*copy = j;
	copy->next = joins;
	joins = copy;
	return ncclSuccess;
}

/* ---- Leaving ------------------------------------------------------------------------------- */

static void drain(struct ncclComm *c)
{
	unsigned round = 0;
	while (atomic_load(&c->ended) < atomic_load(&c->launched))
		fake_pause(&round);
}

/* As in NCCL on one node, a process's last rank waits here for the ranks of all other processes,
 * both on destroy and on abort. */
static void await_others(const struct ncclComm *c)
{
	const struct member_slot *slots = c->shared->slots;
	unsigned round = 0;
	for (int r = 0; r < c->nranks; r++)
		if (slots[r].pid == getpid() && !atomic_load(&slots[r].gone))
			return;
	for (int r = 0; r < c->nranks; r++)
		while (!atomic_load(&slots[r].gone) &&
		       fake_process_start(slots[r].pid) == slots[r].start)
			fake_pause(&round);
}

static void comm_free(struct ncclComm *c)
{
	atomic_store(&c->shared->slots[c->rank].gone, 1);
	await_others(c);
	munmap(c->shared, c->size);
	redops_forget(c);
	free(c);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	if (!c)
		return nccl_error(ncclInvalidArgument, "comm argument is NULL");
	drain(c);
	return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	if (!c)
		return ncclSuccess;
	drain(c);
	comm_free(c);
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
	if (!c)
		return ncclSuccess;
	atomic_store(&c->aborted, 1);
	drain(c);
	comm_free(c);
	return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
	if (!c || !error)
		return nccl_error(ncclInvalidArgument, "argument is NULL");
	*error = fake_fault("async-error") ? ncclSystemError : atomic_load(&c->shared->error);
	return ncclSuccess;
}
