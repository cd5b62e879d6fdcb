/* SPDX-License-Identifier: Apache-2.0
 * Session memory, which contains the timelines that trainers' streams wait for. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker.h"

/* The thread that watches the supervisor uses the sessions, too. Never held during a driver call.
 */
static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;

static void set_session(struct session_timelines *s, struct session_timelines to)
{
	pthread_mutex_lock(&sessions_lock);
	*s = to;
	pthread_mutex_unlock(&sessions_lock);
}

void session_open(struct worker *w, struct worker_message *m, int fd)
{
	uint32_t slot = m->session.slot;
	struct session_timelines *s = &w->sessions[slot];
	if (s->ring) /* known from an earlier communicator */
		return;
	void *p = mmap(NULL, m->session.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		m->result = NCCLSVC_NO_MEMORY;
		snprintf(m->text, sizeof(m->text), "session memory cannot be mapped: %s",
			 strerror(errno));
		return;
	}
	struct svc_timeline *t = svc_timelines(p);
	CUdeviceptr device = 0;
	CUresult error = cu.cuMemHostRegister(
		t, SVC_PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (!error)
		error = cu.cuMemHostGetDevicePointer(&device, t, 0);
	if (worker_bad(w, error, "a session's timelines cannot be mapped for the GPU")) {
		import_refuse(m, NCCLSVC_SYSTEM, "timelines cannot be registered", error);
		munmap(p, m->session.bytes);
		return;
	}
	const uint32_t gpu = m->session.gpu % SVC_RING_WORKERS;
	atomic_store(&((struct svc_ring *)p)->workers[gpu], getpid());
	set_session(s, (struct session_timelines){p, m->session.bytes, m->session.entries, t,
						  device, gpu});
}

/* Its slot may get a new session before its timelines could be released. */
struct closed_session {
	struct session_timelines timelines;
	struct closed_session *next;
};

static void let_go(struct worker *w, const struct session_timelines *s)
{
	int32_t own = getpid();
	atomic_compare_exchange_strong(&((struct svc_ring *)s->ring)->workers[s->gpu], &own, 0);
	worker_bad(w, cu.cuMemHostUnregister(s->host),
		   "a session's timelines cannot be unmapped from the GPU");
	munmap(s->ring, s->bytes);
}

void session_close(struct worker *w, uint32_t slot)
{
	const struct session_timelines was = w->sessions[slot];
	struct closed_session *c = was.ring ? malloc(sizeof(*c)) : NULL;
	set_session(&w->sessions[slot], (struct session_timelines){0});
	if (c) {
		*c = (struct closed_session){was, w->closed};
		w->closed = c;
		imports_close_later(w);
	} else if (was.ring) {
		let_go(w, &was);
	}
}

void session_let_go(struct worker *w)
{
	struct closed_session *c = w->closed;
	w->closed = c->next;
	let_go(w, &c->timelines);
	free(c);
}

static void raise(_Atomic uint64_t *counter, uint64_t value)
{
	uint64_t now = atomic_load(counter);
	while (now < value && !atomic_compare_exchange_weak(counter, &now, value))
		;
}

/* Clients that submit from now on are told that the daemon is lost; see ring.h. */
static void end_ring(struct svc_ring *ring)
{
	int32_t none = 0;
	atomic_compare_exchange_strong(&ring->ended, &none, NCCLSVC_DAEMON_LOST);
	atomic_fetch_add(&ring->wake, 1);
	syscall(SYS_futex, &ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool survives(const struct session_timelines *s)
{
	return s->ring && atomic_load(&((struct svc_ring *)s->ring)->survives);
}

bool sessions_survive(struct worker *w)
{
	bool any = false;
	pthread_mutex_lock(&sessions_lock);
	for (uint32_t slot = 0; slot < SVC_SESSIONS_MAX; slot++)
		any = any || survives(&w->sessions[slot]);
	pthread_mutex_unlock(&sessions_lock);
	return any;
}

void sessions_end(struct worker *w)
{
	pthread_mutex_lock(&sessions_lock);
	for (uint32_t slot = 0; slot < SVC_SESSIONS_MAX; slot++)
		if (w->sessions[slot].ring)
			end_ring(w->sessions[slot].ring);
	pthread_mutex_unlock(&sessions_lock);
}

void sessions_release(struct worker *w)
{
	pthread_mutex_lock(&sessions_lock);
	for (uint32_t slot = 0; slot < SVC_SESSIONS_MAX; slot++) {
		struct session_timelines *s = &w->sessions[slot];
		if (survives(s))
			continue;
		for (uint32_t i = 0; s->ring && i < s->entries; i++) {
			const struct svc_record *r = svc_record_slot(s->ring, s->entries, i);
			if (r->flags & SVC_TASK_TIMELINE && r->timeline < SVC_TIMELINES)
				raise(&s->host[r->timeline].done, r->value);
		}
		for (uint32_t i = 0; s->ring && i < SVC_TIMELINES; i++)
			if (atomic_load(&s->host[i].captured_groups))
				raise(&s->host[i].done, SVC_CAPTURED_GROUP_DEAD);
	}
	pthread_mutex_unlock(&sessions_lock);
}
