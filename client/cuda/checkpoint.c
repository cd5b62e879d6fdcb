/* SPDX-License-Identifier: Apache-2.0
 * The driver's checkpoint and restore (cuCheckpointProcessCheckpoint, cuda-checkpoint) gives the
 * process different GPU memory at the same addresses and with the same buffer ids. The process is
 * not notified, and the workers still map the old memory. An IPC handle names the memory itself, so
 * the handle of one allocation, the canary, shows whether the process was restored. A locked or
 * checkpointed process still reads handles, and gets the old ones; but the driver blocks its stream
 * operations until it runs again. So an unchanged handle proves that the earlier stream operations
 * used the old memory, and nothing about later ones. */
#include <string.h>
#include <time.h>

#include "core/session_handle.h"
#include "gpu_state.h"

/* A checkpoint and its restore take longer: at least 450 ms on an H100 with driver 580. */
#define CHECKPOINT_NS UINT64_C(20000000)

/* The driver puts smaller allocations into a shared block with one handle. A small canary would
 * keep such a block alive after the program's own allocations in it are freed. */
#define CANARY_BYTES ((size_t)2 << 20)

#define UNREADABLE "cannot tell whether the process was checkpointed"

/* Accurate to a few milliseconds, at a quarter of the cost. */
static uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static CUresult read_handle(const struct gpu *g, CUipcMemHandle *handle)
{
	CUresult e = g->cuda->cuCtxPushCurrent(g->canary.context);
	if (e)
		return e;
	memset(handle, 0, sizeof(*handle));
	e = g->cuda->cuIpcGetMemHandle(handle, g->canary.at);
	cuda_pop(g->cuda, g->canary.context);
	return e;
}

static void drop(struct gpu *g)
{
	if (g->cuda->cuCtxPushCurrent(g->canary.context))
		return;
	g->cuda->cuMemFree(g->canary.at);
	cuda_pop(g->cuda, g->canary.context);
	g->canary.at = 0;
}

ncclsvc_result checkpoint_watch(struct gpu *g, int device)
{
	struct canary *c = &g->canary;
	if (c->at)
		return NCCLSVC_OK;
	ncclsvc_result r = gpu_primary(g, device, &c->context);
	if (r)
		return r;
	CUresult e = g->cuda->cuCtxPushCurrent(c->context);
	if (!e) {
		e = g->cuda->cuMemAlloc(&c->at, CANARY_BYTES);
		cuda_pop(g->cuda, c->context);
	}
	if (e) {
		c->at = 0;
		return cuda_error(g->cuda, e, "there is no memory to watch for checkpoints");
	}
	e = read_handle(g, &c->handle);
	if (!e)
		return NCCLSVC_OK;
	drop(g);
	return cuda_error(g->cuda, e, UNREADABLE);
}

/* The caller submitted the tasks from `from` on. */
static ncclsvc_result compare(ncclsvc_session *s, struct gpu *g, uint64_t from, bool *restored)
{
	struct canary *c = &g->canary;
	CUipcMemHandle now;
	CUresult e = read_handle(g, &now);
	if (e)
		return cuda_error(g->cuda, e, UNREADABLE);
	*restored = memcmp(&now, &c->handle, sizeof(now)) != 0;
	if (!*restored)
		return NCCLSVC_OK;
	c->handle = now;
	g->restores++;
	tasks_spoil(s, from);
	return NCCLSVC_OK;
}

ncclsvc_result checkpoint_look(ncclsvc_session *s, struct gpu *g, bool *restored)
{
	struct canary *c = &g->canary;
	c->looked_ns = clock_ns();
	*restored = false;
	if (!c->at || c->looked_ns - c->proven_ns < CHECKPOINT_NS)
		return NCCLSVC_OK;
	return compare(s, g, s->tasks.next, restored);
}

ncclsvc_result checkpoint_prove(ncclsvc_session *s, struct gpu *g, unsigned n)
{
	struct canary *c = &g->canary;
	bool restored;
	if (!c->at || clock_ns() - c->proven_ns < CHECKPOINT_NS)
		return NCCLSVC_OK;
	ncclsvc_result r = compare(s, g, s->tasks.next - n, &restored);
	if (!r)
		c->proven_ns = c->looked_ns;
	return r;
}

void checkpoint_close(struct gpu *g)
{
	if (g->canary.at)
		drop(g);
}
