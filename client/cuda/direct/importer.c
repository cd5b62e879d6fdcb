/* SPDX-License-Identifier: Apache-2.0
 * Imports: the regions that other ranks share, mapped here for kernels (proto/abi/peer_staging.h).
 * A thread of the session maps them in the order of the epoch's log, and unmaps what its owner is
 * about to free, so that neither a submission nor a launch waits for it. The daemon wakes it by a
 * bell: a descriptor that becomes readable when a log has news. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/capture/capture_graph.h"
#include "imports.h"
#include "shares.h"

/* The driver unmaps memory that was mapped by its IPC handle only when no kernel runs. A member
 * that frees memory waits so long for other members' kernels, which may be waiting for it. */
#define KERNELS_NS UINT64_C(10000000)
#define LOOK_MS	   1 /* interval of looks whether kernels still run */
/* How long the session's end waits for the thread, which may be in the driver. */
#define CLOSE_S	   2

/* ---- The session, as the thread uses it ---- */

/* Locked. */
static bool has_news(const struct peer *p)
{
	return p && peer_is_open(p) && p->imports.importer && !p->imports.asleep &&
	       (atomic_load_explicit(&p->control->shares, memory_order_acquire) >
			p->imports.position ||
		p->imports.reported < p->imports.position);
}

/* Whether the entry is of the daemon that the session is connected to. Locked. */
static bool is_current(const ncclsvc_session *s, const struct job *job)
{
	return job->connections == session_connections(s);
}

/* Asks for the next entry of a log. False: none is left, or the session is of no use. */
static bool job_find(struct importer *m, struct job *job)
{
	ncclsvc_session *s = session_use(m);
	const ncclsvc_comm *c = s ? s->comms : NULL;
	while (c && !has_news(c->peer))
		c = c->next;
	bool good = c && !session_check(s) && !s->away; /* gpu_back wakes the thread then */
	if (good) {
		*job = (struct job){.peer = c->peer,
				    .handle = c->handle,
				    .connections = session_connections(s)};
		job->position = c->peer->imports.reported = c->peer->imports.position;
		c->peer->capture->refs++;
		struct call call = {.fd = -1, .bound = true, .connections = job->connections};
		const struct svc_shared request = {.comm = job->handle,
						   .later = c->peer->imports.later,
						   .position = job->position};
		c->peer->imports.later = false;
		m->busy = c->peer;
		good = !call_run(s, &call, SVC_SHARED, &request, -1, deadline_in(ANSWER_MS));
		memcpy(&job->shared, call.body, sizeof(job->shared));
	}
	if (!good && job->peer) {
		if (is_current(s, job)) /* its epoch is over */
			job->peer->imports.position = job->peer->imports.reported = UINT64_MAX;
		capture_unref(job->peer->capture);
		job->peer = NULL;
		m->busy = NULL;
		good = true;
	}
	if (s)
		session_unuse(m);
	return good;
}

static bool is_valid(const struct job *job)
{
	const struct svc_shared_reply *r = &job->shared;
	return r->rank >= 0 && r->rank < job->peer->call.nranks && r->slot < PEER_SHARES &&
	       r->bytes <= SVC_REGION_MAX && r->parts <= SVC_RANGE_MAPPED;
}

/* ---- Ends of imports ---- */

static void discard(struct importer *m, struct import *first)
{
	struct import *last = first;
	while (last->next)
		last = last->next;
	pthread_mutex_lock(&m->lock);
	last->next = m->discarded;
	m->discarded = first;
	pthread_mutex_unlock(&m->lock);
}

/* Whether kernels of the session run, which may wait for other ranks. */
static bool kernels_run(struct importer *m)
{
	bool any = false;
	ncclsvc_session *s = session_use(m);
	for (const ncclsvc_comm *c = s ? s->comms : NULL; !any && c; c = c->next)
		any = c->peer && peer_is_open(c->peer) &&
		      (peer_callbacks.ask(c->peer) || !capture_graphs_quiet(c->peer->capture));
	if (s)
		session_unuse(m);
	return any;
}

/* Returns whether any are left: they wait for kernels. */
static bool discarded_free(struct importer *m)
{
	pthread_mutex_lock(&m->lock);
	struct import *i = m->discarded;
	m->discarded = NULL;
	m->freeing = i;
	pthread_mutex_unlock(&m->lock);
	const bool later = i && kernels_run(m);
	if (later)
		discard(m, i);
	while (!later && i) {
		struct import *next = i->next;
		import_free(m->cuda, i);
		i = next;
	}
	pthread_mutex_lock(&m->lock);
	m->freeing = false;
	pthread_mutex_unlock(&m->lock);
	return later;
}

static bool kernels_end(struct importer *m)
{
	const uint64_t until = now_ns() + KERNELS_NS;
	while (kernels_run(m)) {
		if (now_ns() >= until)
			return false;
		poll(NULL, 0, LOOK_MS);
	}
	return true;
}

/* Before the daemon is asked for the next entry, which says that it is done. */
static void import_end(struct importer *m, struct job *job)
{
	struct import *i = job->import;
	job->import = NULL;
	if (!i)
		return;
	if (i->kind != IMPORT_HANDLE || kernels_end(m)) {
		import_free(m->cuda, i);
		return;
	}
	i->next = NULL;
	discard(m, i);
	job->peer->imports.later = true;
}

/* Whether the driver has to map a region for the entry. */
static bool needs_map(struct importer *m, const struct job *job)
{
	ncclsvc_session *s = session_use(m);
	if (!s)
		return false;
	const bool needed = job->shared.what == SVC_SHARED_MAP && is_current(s, job) &&
			    !import_table_knows(job);
	session_unuse(m);
	return needed;
}

/* Puts the entry into the table. Locked. */
static void job_note(struct importer *m, struct job *job)
{
	struct import *over = NULL;
	if (job->shared.what == SVC_SHARED_DROP)
		import_table_drop(job);
	else if (job->shared.what == SVC_SHARED_COUNT)
		over = import_table_count(job);
	else if (job->shared.what != SVC_SHARED_NONE)
		import_table_add(job);
	if (over)
		discard(m, over);
}

/* Without the lock while the driver works. */
static void job_do(struct importer *m, struct job *job)
{
	struct peer *p = job->peer;
	const bool other = is_valid(job) && job->shared.rank != p->call.rank;
	if (other && needs_map(m, job))
		import_map(m, job);
	ncclsvc_session *s = session_use(m);
	if (s && other && is_current(s, job) && !p->imports.asleep)
		job_note(m, job);
	if (s)
		session_unuse(m);
	import_end(m, job);
	s = session_use(m);
	if (job->shared.what != SVC_SHARED_NONE && p->imports.position == job->position &&
	    (!s || is_current(s, job)))
		p->imports.position++;
	m->busy = NULL;
	capture_unref(p->capture); /* if the session is closing, its threads no longer use p */
	if (s)
		session_unuse(m);
}

/* ---- The thread ---- */

void importer_unref(struct importer *m)
{
	if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
		return;
	discarded_free(m);
	close(m->wake);
	if (m->bell >= 0)
		close(m->bell);
	if (m->new_bell >= 0)
		close(m->new_bell);
	pthread_mutex_destroy(&m->use);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

static void drain(int fd)
{
	eventfd_t n;
	if (fd >= 0)
		eventfd_read(fd, &n);
}

/* False: the session closes. */
static bool wait_for_news(struct importer *m, bool looks)
{
	pthread_mutex_lock(&m->use);
	const bool open = m->session;
	pthread_mutex_unlock(&m->use);
	pthread_mutex_lock(&m->lock);
	if (m->new_bell >= 0) {
		if (m->bell >= 0)
			close(m->bell);
		m->bell = m->new_bell;
		m->new_bell = -1;
	}
	struct pollfd p[] = {{.fd = m->wake, .events = POLLIN}, {.fd = m->bell, .events = POLLIN}};
	pthread_mutex_unlock(&m->lock);
	if (!open)
		return false;
	poll(p, 2, looks ? LOOK_MS : -1); /* ended by importer_stop */
	drain(m->wake);
	drain(p[1].fd);
	return true;
}

static void *run(void *arg)
{
	struct importer *m = arg;
	struct job job = {0};
	bool looks = false;
	relaxed_begin(m->cuda); /* other threads may be capturing */
	while (wait_for_news(m, looks)) {
		while (job_find(m, &job)) {
			if (job.peer)
				job_do(m, &job);
			job.peer = NULL;
		}
		looks = discarded_free(m);
	}
	importer_unref(m);
	return NULL;
}

static bool thread_start(struct importer *m)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
	const bool good = !pthread_create(&m->thread, NULL, run, m);
	atomic_fetch_sub_explicit(&m->refs, !good, memory_order_relaxed);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return good;
}

static struct importer *importer_new(ncclsvc_session *s)
{
	struct importer *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	*m = (struct importer){.refs = 1,
			       .cuda = s->gpu->cuda,
			       .session = s,
			       .bell = -1,
			       .new_bell = -1,
			       .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	pthread_mutex_init(&m->use, NULL);
	pthread_mutex_init(&m->lock, NULL);
	if (m->wake >= 0 && thread_start(m))
		return m;
	importer_unref(m);
	return NULL;
}

/* ---- For the session ---- */

/* The daemon's bell, for this connection. Locked; yields. */
static int bell_fetch(ncclsvc_session *s, uint32_t *connections)
{
	struct call call = {.fd = -1};
	*connections = session_connections(s);
	if (call_run(s, &call, SVC_SHARES, &(struct svc_shares){0}, -1, deadline_in(REQUEST_MS)))
		call.fd = -1;
	return call.fd;
}

/* Takes ownership of the bell. */
static void bell_hang(struct importer *m, int bell)
{
	pthread_mutex_lock(&m->lock);
	if (m->new_bell >= 0)
		close(m->new_bell);
	m->new_bell = bell;
	pthread_mutex_unlock(&m->lock);
}

void imports_begin(ncclsvc_session *s, struct peer *p)
{
	struct gpu *g = s->gpu;
	uint32_t connections;
	session_lock(s);
	const bool rung = g->importer && g->importer->connections == session_connections(s);
	const int bell = rung ? -1 : bell_fetch(s, &connections);
	if (!rung && bell < 0) {
		session_unlock(s);
		return;
	}
	if (!g->importer) /* another thread may have joined meanwhile */
		g->importer = importer_new(s);
	struct importer *m = g->importer;
	if (m && bell >= 0) {
		bell_hang(m, bell);
		m->connections = connections;
	} else if (bell >= 0) {
		close(bell);
	}
	if (m) {
		p->imports.importer = m;
		atomic_fetch_add_explicit(&m->refs, 1, memory_order_acq_rel);
		eventfd_write(m->wake, 1); /* for the new bell, and the member's first news */
	}
	session_unlock(s);
}

ncclsvc_result imports_again(ncclsvc_session *s, struct peer *p)
{
	uint32_t connections;
	struct importer *m = p->imports.importer;
	for (struct import *i = p->imports.first; i; i = i->next)
		i->told = false;
	p->imports.position = p->imports.reported = 0;
	if (!m || m->connections == session_connections(s))
		return NCCLSVC_OK;
	const int bell = bell_fetch(s, &connections);
	if (bell < 0)
		return error_set(NCCLSVC_DAEMON_LOST,
				 "the new daemon did not send a descriptor for news of shares");
	bell_hang(m, bell);
	m->connections = connections;
	return NCCLSVC_OK;
}

/* Locked. */
static bool is_done(struct importer *m, const struct peer *p)
{
	pthread_mutex_lock(&m->lock);
	const bool done = m->busy != p && !m->discarded && !m->freeing;
	pthread_mutex_unlock(&m->lock);
	return done;
}

bool imports_sleep(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p, uint64_t deadline)
{
	struct importer *m = p->imports.importer;
	p->imports.asleep = true;
	if (m && p->imports.first) {
		discard(m, p->imports.first);
		p->imports.first = NULL;
		eventfd_write(m->wake, 1);
	}
	while (m && !is_done(m, p)) {
		if (now_ns() >= deadline || s->closing || comm->peer != p ||
		    atomic_load_explicit(&p->control->abort, memory_order_relaxed))
			return false;
		session_unlock(s);
		poll(NULL, 0, LOOK_MS);
		session_lock(s);
	}
	p->imports = (struct peer_imports){.importer = m, .asleep = true};
	return true;
}

void importer_wake(struct importer *m)
{
	eventfd_write(m->wake, 1);
}

void imports_discard(struct peer *p)
{
	struct importer *m = p->imports.importer;
	if (m && p->imports.first) {
		discard(m, p->imports.first);
		eventfd_write(m->wake, 1);
	}
	p->imports.first = NULL;
	importer_unref(m);
	p->imports.importer = NULL;
}

void importer_stop(struct gpu *g)
{
	struct importer *m = g->importer;
	struct timespec until;
	if (!m)
		return;
	pthread_mutex_lock(&m->use);
	m->session = NULL;
	pthread_mutex_unlock(&m->use);
	eventfd_write(m->wake, 1);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_S;
	if (pthread_timedjoin_np(m->thread, NULL, &until))
		pthread_detach(m->thread);
	g->importer = NULL;
	importer_unref(m);
}
