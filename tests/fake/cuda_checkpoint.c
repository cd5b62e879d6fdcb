/* SPDX-License-Identifier: Apache-2.0
 * The driver's checkpoint and restore of the calling process: its memory moves to different
 * physical memory at the same addresses and with the same buffer ids. Importers keep the old
 * memory. While the process is locked, calls that put work on a stream or query it block, and
 * others do not. Driver 580 on an H100 behaves this way. */
#include <unistd.h>

#include "fake.h"

#define RESTORE_US 50000 /* the real one takes longer */

enum { RUNNING, LOCKED, CHECKPOINTED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unlocked = PTHREAD_COND_INITIALIZER;
static atomic_int state;

void checkpoint_wait(void)
{
	if (atomic_load(&state) == RUNNING)
		return;
	pthread_mutex_lock(&lock);
	while (atomic_load(&state) != RUNNING)
		pthread_cond_wait(&unlocked, &lock);
	pthread_mutex_unlock(&lock);
}

static CUresult step(int pid, int from, int to)
{
	if (pid != getpid())
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	bool due = atomic_load(&state) == from;
	if (due)
		atomic_store(&state, to);
	pthread_cond_broadcast(&unlocked);
	pthread_mutex_unlock(&lock);
	return due ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

/* Waits for all work of the process, ignoring the timeout in args. */
CUresult cuCheckpointProcessLock(int pid, void *args)
{
	(void)args;
	CUresult error = step(pid, RUNNING, LOCKED);
	for (CUdevice d = 0; !error && device_valid(d); d++)
		error = streams_wait(context_of(d));
	return error;
}

CUresult cuCheckpointProcessCheckpoint(int pid, void *args)
{
	(void)args;
	CUresult error = step(pid, LOCKED, CHECKPOINTED);
	return error ? error : memory_move();
}

CUresult cuCheckpointProcessRestore(int pid, void *args)
{
	(void)args;
	usleep(RESTORE_US);
	CUresult error =
		atomic_load(&state) == CHECKPOINTED ? memory_restore() : CUDA_ERROR_ILLEGAL_STATE;
	return error ? error : step(pid, CHECKPOINTED, LOCKED);
}

CUresult cuCheckpointProcessUnlock(int pid, void *args)
{
	(void)args;
	return step(pid, LOCKED, RUNNING);
}
