/* SPDX-License-Identifier: Apache-2.0
 * Device memory that its owner is about to free, or has freed: the daemon releases it too. */
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/session_handle.h"
#include "core/task_slot.h"
#include "gpu_state.h"

#define LOOK_NS	  100000 /* interval of checks whether tasks have ended */
#define ANSWER_MS 100	 /* how long after its deadline the daemon's answer may come */

/* Waits until no task uses the region that holds p or, if ranges contain that region, the outermost
 * range. Returns it; NULL: no region holds p any more. Locked; yields. */
static struct device_region *wait_for_tasks(ncclsvc_session *s, const struct gpu *g, uint64_t p,
					    uint64_t deadline)
{
	for (;;) {
		tasks_ask(s);
		struct device_region *r = device_region_find(g, p);
		r = r ? ranges_outermost(g, r) : NULL;
		if (!r || (!r->busy && !r->pins) || now_ns() >= deadline)
			return r;
		session_unlock(s);
		nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
		session_lock(s);
	}
}

static uint32_t ms_until(uint64_t deadline)
{
	const uint64_t now = now_ns(), left = deadline > now ? deadline - now : 0;
	return left / 1000000 < SVC_DEL_WAIT_MS ? (uint32_t)(left / 1000000) + 1 : SVC_DEL_WAIT_MS;
}

/* Releases the region that holds p, or a range that contains it: then *more is true. Locked;
 * yields. */
static ncclsvc_result forget_one(ncclsvc_session *s, struct gpu *g, uint64_t p, uint64_t deadline,
				 bool *more)
{
	struct device_region *region = wait_for_tasks(s, g, p, deadline);
	*more = false;
	if (!region)
		return NCCLSVC_OK;
	if (region->busy || region->pins)
		return error_set(NCCLSVC_TIMEOUT, "pending tasks use the memory at %#llx",
				 (unsigned long long)p);
	struct call call = {0};
	const uint32_t generation = s->generation, wait_ms = ms_until(deadline);
	const struct svc_region_del request = {.region = region->id, .wait_ms = wait_ms};
	region->busy = true;
	const ncclsvc_result r = call_run(s, &call, SVC_REGION_DEL, &request, -1,
					  deadline_in((int)wait_ms + ANSWER_MS));
	if (generation != s->generation)
		return NCCLSVC_OK; /* the daemon that had it is gone, with its table */
	region->busy = false;
	pthread_cond_broadcast(&s->changed);
	if (r == NCCLSVC_BUSY || s->lost)
		return s->lost ? NCCLSVC_OK : r;
	region->id = 0;
	*more = region->parts;
	device_region_drop(s, g, region);
	return r;
}

/* Waits for the daemon's successor. Memory that is freed before it comes is not registered with it.
 * Locked; yields. */
static ncclsvc_result await_daemon(ncclsvc_session *s, uint64_t p, uint64_t deadline)
{
	while (s->away && session_wait(s, deadline))
		;
	return s->away ? error_set(NCCLSVC_TIMEOUT,
				   "the daemon is being restarted, and other processes may map the "
				   "memory at %#llx until it is back",
				   (unsigned long long)p)
		       : NCCLSVC_OK;
}

/* Releases the ranges first: as long as other ranks or the worker map them, the memory is in use.
 */
ncclsvc_result device_forget(ncclsvc_session *s, struct gpu *g, uint64_t p, uint64_t deadline)
{
	ncclsvc_result first = await_daemon(s, p, deadline);
	bool more = !first;
	while (more) {
		const ncclsvc_result r = forget_one(s, g, p, deadline, &more);
		first = first ? first : r;
	}
	return first;
}

ncclsvc_result ncclsvc_mem_forget(ncclsvc_session *s, const void *ptr, int timeout_ms)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (!s)
		return error_argument("ncclsvc_mem_forget: the session is NULL");
	if (timeout_ms < 0 || timeout_ms > SVC_DEL_WAIT_MS)
		return error_argument("ncclsvc_mem_forget: the timeout must be 0 to %d ms, not %d",
				      SVC_DEL_WAIT_MS, timeout_ms);
	session_lock(s);
	if (s->gpu && s->gpu->nsorted && !session_check(s))
		r = device_forget(s, s->gpu, (uintptr_t)ptr, deadline_in(timeout_ms));
	session_unlock(s);
	return r;
}

void ncclsvc_mem_sweep(ncclsvc_session *s)
{
	CUcontext now = NULL, own = NULL;
	if (!s)
		return;
	session_lock(s);
	struct gpu *g = s->gpu;
	/* As in device_buffers_find_all; without a region there is no context. */
	if (g && g->nsorted && !session_check(s) && !s->away && !g->cuda->cuCtxGetCurrent(&now)) {
		ncclsvc_result r =
			now ? NCCLSVC_OK : gpu_primary(g, g->regions[g->sorted[0]].device, &own);
		if (!r && !cuda_push(g->cuda, own)) {
			tasks_ask(s); /* regions whose tasks are over */
			device_regions_sweep(s, g);
			cuda_pop(g->cuda, own);
		}
	}
	session_unlock(s);
}
