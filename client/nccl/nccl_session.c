/* SPDX-License-Identifier: Apache-2.0
 * A session for each GPU of the process, opened when first needed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "driver.h"
#include "nccl_session.h"

#define FORGET_WAIT_MS	1000
#define FORGET_PAUSE_MS 10000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Newest first. Sessions of a lost daemon stay in the list, so that readers need no lock. */
static struct gpu_session *_Atomic sessions;
static unsigned generation = 1;

/* client/base/fork.c takes care of the connections; a child opens its own sessions. */
static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_child(void)
{
	sessions = NULL;
	generation++;
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

unsigned process_generation(void)
{
	return generation;
}

ncclResult_t device_current(int *device)
{
	const struct cuda *cuda;
	CUdevice current = 0;
	CUcontext context = NULL;
	ncclResult_t r = driver_open(&cuda);
	if (r)
		return r;
	*device = 0; /* the runtime's default before a device is set */
	if (!cuda->cuCtxGetCurrent(&context) && context && !cuda->cuCtxGetDevice(&current))
		*device = current;
	return ncclSuccess;
}

static struct gpu_session *open_session(int device)
{
	char name[NCCLSVC_NAME_BYTES];
	struct gpu_session *s = calloc(1, sizeof(*s));
	if (!s) {
		fail(ncclSystemError, "out of memory");
		return NULL;
	}
	snprintf(name, sizeof(name), "%.32s cuda:%d", program_invocation_short_name, device);
	const ncclsvc_options options = {
		.size = sizeof(options),
		.name = name,
		.ring_entries = RING_ENTRIES,
	};
	ncclsvc_result r = ncclsvc_open(&options, &s->service);
	if (r) {
		free(s);
		fail(ncclSystemError, "%s: %s", ncclsvc_result_name(r), ncclsvc_last_error());
		return NULL;
	}
	s->device = device;
	s->next = sessions;
	sessions = s;
	return s;
}

ncclResult_t session_get(int device, struct gpu_session **session)
{
	pthread_mutex_lock(&lock);
	struct gpu_session *s = sessions;
	while (s && (s->device != device || s->lost))
		s = s->next;
	if (!s)
		s = open_session(device);
	pthread_mutex_unlock(&lock);
	*session = s;
	return s ? ncclSuccess : ncclSystemError;
}

long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void sessions_forget(const void *p)
{
	for (struct gpu_session *s = sessions; s; s = s->next) {
		const bool waits = now_ms() - s->forget_failed_ms > FORGET_PAUSE_MS;
		if (s->lost || !ncclsvc_mem_forget(s->service, p, waits ? FORGET_WAIT_MS : 0))
			continue;
		if (waits)
			s->forget_failed_ms = now_ms();
		inform("the memory at %p stays allocated for now: %s", p, ncclsvc_last_error());
	}
}
