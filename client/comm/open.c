/* SPDX-License-Identifier: Apache-2.0
 * Opening, reattaching and closing sessions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/dispatch.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "core/session_timeline.h"
#include "core/thread.h"
#include "cuda/session_gpu.h"
#include "identity.h"
#include "join.h"
#include "open.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "resume.h"

#define OPEN_TIMEOUT_MS 5000
#define OPTIONS_1	offsetof(ncclsvc_options, job) /* of programs built before it was there */

static ncclsvc_result choose_path(const char *path, struct sockaddr_un *address)
{
	address->sun_family = AF_UNIX;
	if (!svc_socket_path(path, address->sun_path, sizeof(address->sun_path)))
		return error_argument("the socket's path is longer than %zu bytes: %s...",
				      sizeof(address->sun_path) - 1, address->sun_path);
	return NCCLSVC_OK;
}

static ncclsvc_result take_options(const ncclsvc_options *options,
				   struct connection_options *connection, ncclsvc_admit *admit,
				   int *timeout_ms, int *reattach_ms)
{
	ncclsvc_options o = {.size = sizeof(o)};
	if (options && options->size < OPTIONS_1)
		return error_argument("options.size is %zu: set it to sizeof(ncclsvc_options)",
				      options->size);
	if (options) {
		const char *more = (const char *)options + sizeof(o);
		for (size_t i = sizeof(o); i < options->size; i++)
			if (more[i - sizeof(o)])
				return error_set(
					NCCLSVC_UNSUPPORTED,
					"an option is set that this library does not support");
		memcpy(&o, options, options->size < sizeof(o) ? options->size : sizeof(o));
	}
	if (o.ring_entries && !svc_ring_entries_valid(o.ring_entries))
		return error_argument("ring_entries is %u: use a power of two from %d to %d",
				      o.ring_entries, SVC_RING_MIN, SVC_RING_MAX);
	snprintf(connection->name, sizeof(connection->name), "%s",
		 o.name ? o.name : program_invocation_short_name);
	identity_of(o.job, connection->job);
	connection->entries = o.ring_entries ? o.ring_entries : SVC_RING_DEFAULT;
	connection->entries_required = o.ring_entries != 0;
	connection->no_ring = o.no_ring;
	if (!admit_of(o.admit, admit))
		return error_argument("%s is not valid: use tenant, user or any",
				      o.admit ? "options.admit" : "NCCLSVC_ADMIT");
	if (!reattach_ms_of(o.reattach_ms, reattach_ms))
		return error_argument("%s is not valid: the limit is %d ms",
				      o.reattach_ms ? "options.reattach_ms" : "NCCLSVC_REATTACH_MS",
				      REATTACH_MS_MAX);
	*timeout_ms = o.timeout_ms ? o.timeout_ms : OPEN_TIMEOUT_MS;
	return choose_path(o.socket, &connection->address);
}

static void make_lock(ncclsvc_session *s)
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

ncclsvc_result ncclsvc_open(const ncclsvc_options *options, ncclsvc_session **session)
{
	static _Atomic uint64_t sessions;
	int timeout_ms = OPEN_TIMEOUT_MS;
	if (!session)
		return error_argument("ncclsvc_open: session is NULL");
	ncclsvc_session *s = calloc(1, sizeof(*s));
	if (!s)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	s->id = ++sessions;
	s->epoll = s->kick = s->timer = -1;
	make_lock(s);
	ncclsvc_result r =
		take_options(options, &s->options, &s->admit, &timeout_ms, &s->reattach_ms);
	if (!r)
		r = connection_open(&s->options, deadline_in(timeout_ms), &s->connection);
	if (!r)
		r = tasks_init(&s->tasks, s->connection->entries);
	if (r) {
		ncclsvc_close(s);
		return r;
	}
	mps_join(s->connection);
	resume_open(s);
	*session = s;
	return NCCLSVC_OK;
}

void ncclsvc_close(ncclsvc_session *s)
{
	/* A forked child cannot tell what its parent's other threads were doing. */
	if (!s || (s->connection && s->connection->foreign))
		return;
	resume_close(s);
	dispatch_close(s);
	gpu_quiesce(s);
	if (s->plan_callbacks)
		s->plan_callbacks->closing(s);
	gpu_close(s);
	if (s->connection)
		connection_unref(s->connection);
	for (uint32_t i = 0; i < s->tasks.entries; i++)
		if (s->tasks.slots[i].chunk)
			chunk_free(s->tasks.slots[i].chunk);
	free(s->tasks.slots);
	free(s->tasks.failures);
	staging_free(s);
	comms_free(s);
	regions_free(&s->regions);
	threads_free(s);
	for (int i = 0; i < SVC_TIMELINES; i++)
		free(s->timelines[i]);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void carry_timelines(const ncclsvc_session *s, const struct connection *new)
{
	if (!new->ring || !s->connection->ring)
		return;
	struct svc_timeline *from = svc_timelines(s->connection->ring),
			    *to = svc_timelines(new->ring);
	for (int i = 1; i < SVC_TIMELINES; i++) {
		atomic_store(&to[i].ready, atomic_load(&from[i].ready));
		atomic_store(&to[i].done, atomic_load(&from[i].done));
	}
}

/* Locked; yields. */
static ncclsvc_result install(ncclsvc_session *s, struct connection *new)
{
	tasks_look(s); /* some had ended, the rest have now failed */
	staging_free(s);
	regions_unregister(&s->regions);
	gpu_reattached(s);
	carry_timelines(s, new);
	dispatch_unwatch(s);
	connection_unref(s->connection);
	s->connection = new;
	s->generation++;
	s->forgotten = 0;
	tasks_restart(&s->tasks);
	s->lost = false;
	s->unfinished = true;
	resume_reattached(s);
	return dispatch_watch(s);
}

/* Locked, called only by the thread that reattaches; yields. */
static ncclsvc_result connect_again(ncclsvc_session *s, uint64_t deadline)
{
	struct connection *new = NULL;
	struct connection_options options = s->options;
	options.entries = s->tasks.entries;
	options.entries_required = options.retry = true;
	session_unlock(s);
	gpu_drop_retired(s);
	ncclsvc_result r = connection_open(&options, deadline, &new);
	session_lock(s);
	return r ? r : install(s, new);
}

ncclsvc_result session_reattach(ncclsvc_session *s, int timeout_ms, bool rejoin)
{
	uint64_t deadline = deadline_in(timeout_ms);
	session_lock(s);
	socket_pump(s);
	session_back(s);
	if (s->reattaching) {
		session_unlock(s);
		return error_set(NCCLSVC_BUSY, "another thread is already reattaching the session");
	}
	ncclsvc_result r = session_check(s);
	if (s->connection->foreign || (!r && !s->unfinished)) {
		session_unlock(s);
		return r;
	}
	s->reattaching = true;
	r = r ? connect_again(s, deadline) : dispatch_watch(s);
	if (!r)
		r = regions_register(s, deadline);
	if (!r)
		r = devices_rematch(s);
	if (!r && rejoin)
		r = comms_rejoin(s, deadline);
	if (!r && rejoin) /* else communicators may still have to be rejoined */
		s->unfinished = false;
	s->reattaching = false;
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_reattach(ncclsvc_session *s, int timeout_ms)
{
	if (!s)
		return error_argument("ncclsvc_reattach: the session is NULL");
	return session_reattach(s, timeout_ms, true);
}
