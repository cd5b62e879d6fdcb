/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the GPUs' memory that all processes share. The table in $NCCLSVC_FAKE_DIR/state lists
 * the processes and every physical allocation with the processes that hold it. As on a GPU, memory
 * is in use until its last holder releases it or dies.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

#define STATE_MAGIC   UINT64_C(0x66616b6567707531)
#define TRAILER_MAGIC UINT64_C(0x66616b656d656d31)
#define PROCESSES     256
#define PHYSICALS     8192

struct process {
	int pid; /* 0: free */
	unsigned long long start;
};

struct entry {
	uint64_t generation; /* 0: free */
	size_t bytes;
	int gpu;
	int owner; /* process; -1: none, and no name */
	uint64_t holders[PROCESSES / 64];
};

struct state {
	uint64_t magic;
	pthread_mutex_t lock;
	uint64_t generation;
	size_t used[FAKE_GPUS_MAX];
	struct process processes[PROCESSES];
	struct entry entries[PHYSICALS];
};

static struct state *state;
static int self;
static unsigned holds[PHYSICALS]; /* by this process; protected by the state's lock */

unsigned long long fake_process_start(int pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	char *p = strrchr(text, ')'); /* the name may contain any character */
	char status;
	unsigned long long start;
	if (!p || sscanf(p + 1,
			 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
			 "%*d %llu",
			 &status, &start) != 2)
		return 0;
	return status == 'Z' || status == 'X' ? 0 : start;
}

static void path_of(const struct physical *p, char *path)
{
	snprintf(path, FAKE_PATH_MAX, "%s/memory-%u-%llu", fake_dir(), p->slot,
		 (unsigned long long)p->generation);
}

static void state_lock(void)
{
	if (pthread_mutex_lock(&state->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&state->lock); /* each change is small: continue */
}

static void state_unlock(void)
{
	pthread_mutex_unlock(&state->lock);
}

static void name_remove(uint32_t slot)
{
	struct entry *e = &state->entries[slot];
	struct physical p = {.slot = slot, .generation = e->generation};
	char path[FAKE_PATH_MAX];
	path_of(&p, path);
	unlink(path);
	e->owner = -1;
}

static void holder_remove(uint32_t slot, int process)
{
	struct entry *e = &state->entries[slot];
	e->holders[process / 64] &= ~(UINT64_C(1) << process % 64);
	for (unsigned i = 0; i < PROCESSES / 64; i++) {
		if (e->holders[i])
			return;
	}
	if (e->owner >= 0)
		name_remove(slot);
	state->used[e->gpu] -= e->bytes;
	e->generation = 0;
}

/* Drops the holds and names of dead processes. */
static void reap(void)
{
	for (int i = 0; i < PROCESSES; i++) {
		struct process *p = &state->processes[i];
		if (p->pid == 0 || fake_process_start(p->pid) == p->start)
			continue;
		for (uint32_t slot = 0; slot < PHYSICALS; slot++) {
			struct entry *e = &state->entries[slot];
			if (!e->generation)
				continue;
			if (e->owner == i)
				name_remove(slot);
			if (e->holders[i / 64] >> i % 64 & 1)
				holder_remove(slot, i);
		}
		p->pid = 0;
	}
}

static int state_make(int fd)
{
	struct stat st;
	if (fstat(fd, &st))
		return -1;
	bool fresh = st.st_size == 0;
	if (fresh && ftruncate(fd, sizeof(*state)))
		return -1;
	void *p = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -1;
	state = p;
	if (!fresh)
		return state->magic == STATE_MAGIC ? 0 : -1;
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&state->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	state->magic = STATE_MAGIC;
	return 0;
}

CUresult shared_open(void)
{
	char path[FAKE_PATH_MAX];
	snprintf(path, sizeof(path), "%s/state", fake_dir());
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	fchmod(fd, 0666); /* all users share the GPUs */
	flock(fd, LOCK_EX);
	int error = state_make(fd);
	flock(fd, LOCK_UN); /* close would not unlock: the mapping keeps the file open */
	close(fd);
	if (error)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	state_lock();
	reap();
	for (self = 0; self < PROCESSES && state->processes[self].pid; self++)
		;
	if (self < PROCESSES)
		state->processes[self] = (struct process){getpid(), fake_process_start(getpid())};
	state_unlock();
	return self < PROCESSES ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The caller holds the lock. */
static CUresult entry_take(struct physical *p)
{
	size_t limit = device_memory();
	if (p->bytes > limit || state->used[p->gpu] > limit - p->bytes)
		reap();
	if (p->bytes > limit || state->used[p->gpu] > limit - p->bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t slot = 0; slot < PHYSICALS; slot++) {
		struct entry *e = &state->entries[slot];
		if (e->generation)
			continue;
		memset(e, 0, sizeof(*e));
		e->bytes = p->bytes;
		e->gpu = p->gpu;
		e->owner = -1;
		e->holders[self / 64] = UINT64_C(1) << self % 64;
		e->generation = ++state->generation;
		state->used[p->gpu] += p->bytes;
		holds[slot] = 1;
		p->slot = slot;
		p->generation = e->generation;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool trailer_read(int fd, struct trailer *trailer)
{
	struct stat st;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < (off_t)FAKE_PAGE)
		return false;
	off_t at = st.st_size - (off_t)FAKE_PAGE;
	return pread(fd, trailer, sizeof(*trailer), at) == sizeof(*trailer) &&
	       trailer->magic == TRAILER_MAGIC && trailer->physical.bytes == (size_t)at;
}

static bool trailer_write(int fd, const struct physical *p, uint32_t kind)
{
	struct trailer t = {.magic = TRAILER_MAGIC, .physical = *p, .kind = kind};
	return pwrite(fd, &t, sizeof(t), (off_t)p->bytes) == sizeof(t);
}

/* Memory of cuMemCreate is shared by descriptors alone. It holds dirt: the driver clears memory
 * that it gives to another process, but promises nothing for the same one. */
static int memory_open(const struct physical *p, uint32_t kind)
{
	static const uint64_t dirt = 0x5a5a5a5a5a5a5a5a;
	char path[FAKE_PATH_MAX];
	if (kind != RANGE_VMM) {
		path_of(p, path);
		return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	}
	int fd = memfd_create("fake-gpu-memory", MFD_CLOEXEC);
	for (size_t at = 0; fd >= 0 && at < p->bytes; at += FAKE_GRANULE)
		if (pwrite(fd, &dirt, sizeof(dirt), (off_t)at) < 0)
			break;
	return fd;
}

CUresult shared_create(int gpu, size_t bytes, uint32_t kind, struct physical *p, int *fd)
{
	*p = (struct physical){.gpu = gpu, .bytes = bytes};
	state_lock();
	CUresult error = entry_take(p);
	if (!error && kind != RANGE_VMM)
		state->entries[p->slot].owner = self;
	state_unlock();
	if (error)
		return error;
	*fd = memory_open(p, kind);
	if (*fd >= 0 && ftruncate(*fd, (off_t)(bytes + FAKE_PAGE)) == 0 &&
	    trailer_write(*fd, p, kind))
		return CUDA_SUCCESS;
	if (*fd >= 0)
		close(*fd);
	shared_drop(p, true);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

int shared_find(const struct physical *p)
{
	if (p->slot >= PHYSICALS)
		return -1;
	state_lock();
	const struct entry *e = &state->entries[p->slot];
	bool there = e->generation == p->generation && e->owner >= 0;
	struct process owner = there ? state->processes[e->owner] : (struct process){0};
	if (there && fake_process_start(owner.pid) != owner.start) {
		reap();
		there = false;
	}
	state_unlock();
	char path[FAKE_PATH_MAX];
	path_of(p, path);
	return there ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static bool copy_file(int from, int to, size_t bytes)
{
	off_t at = 0;
	while ((size_t)at < bytes)
		if (sendfile(to, from, &at, bytes - (size_t)at) <= 0)
			return false;
	return true;
}

CUresult shared_move(struct physical *p, uint32_t kind, int from, int *fd)
{
	struct physical to;
	CUresult error = shared_create(p->gpu, p->bytes, kind, &to, fd);
	if (!error && copy_file(from, *fd, p->bytes)) {
		shared_drop(p, true);
		*p = to;
	} else if (!error) {
		close(*fd);
		shared_drop(&to, true);
		error = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return error;
}

CUresult shared_hold(int fd, struct physical *p, uint32_t kind)
{
	CUresult error = CUDA_SUCCESS;
	if (p->slot >= PHYSICALS || p->gpu < 0 || p->gpu >= FAKE_GPUS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	state_lock();
	struct entry *e = &state->entries[p->slot];
	if (e->generation == p->generation) {
		e->holders[self / 64] |= UINT64_C(1) << self % 64;
		holds[p->slot]++;
	} else {
		/* Only a file descriptor in flight kept the memory alive. */
		error = entry_take(p);
		if (!error && !trailer_write(fd, p, kind))
			error = CUDA_ERROR_INVALID_VALUE;
	}
	state_unlock();
	return error;
}

void shared_drop(const struct physical *p, bool unlink)
{
	state_lock();
	struct entry *e = &state->entries[p->slot];
	if (e->generation == p->generation) {
		if (unlink && e->owner == self)
			name_remove(p->slot);
		if (--holds[p->slot] == 0)
			holder_remove(p->slot, self);
	}
	state_unlock();
}

size_t shared_unused(int gpu)
{
	state_lock();
	reap();
	size_t used = state->used[gpu];
	state_unlock();
	return device_memory() > used ? device_memory() - used : 0;
}
