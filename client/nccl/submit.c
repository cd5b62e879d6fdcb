/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations to sessions. Those of a group that belong to one GPU are one task group of its
 * session; several GPUs of one process are as several processes. NCCL never says that a queue is
 * full, so here the caller waits for room instead. */
#include <stdlib.h>
#include <time.h>

#include "driver.h"
#include "group.h"
#include "proto/ring.h"

#define PAUSE_MIN_NS 20000
#define PAUSE_MAX_NS 1000000

static void pause_for(long *ns)
{
	nanosleep(&(struct timespec){.tv_nsec = *ns}, NULL);
	*ns = *ns * 2 > PAUSE_MAX_NS ? PAUSE_MAX_NS : *ns * 2;
}

static ncclsvc_result submit_one(const struct job *j, ncclsvc_task *task)
{
	ncclsvc_session *s = j->comm->session->service;
	ncclsvc_comm *c = j->comm->service;
	ncclsvc_type type = (ncclsvc_type)j->type;
	ncclsvc_redop redop = (ncclsvc_redop)j->redop;
	ncclsvc_result r = ncclsvc_stream_set(s, j->stream, 0);
	if (r)
		return r;
	const bool windowed = windows_cover(j->comm, j->src) && windows_cover(j->comm, j->dst);
	if (windowed != j->comm->windowed) {
		ncclsvc_comm_set_windows(c, windowed);
		j->comm->windowed = windowed;
	}
	switch (j->op) {
	case NCCLSVC_ALL_REDUCE:
		return ncclsvc_all_reduce(j->src, j->dst, j->count, type, redop, c, task);
	case NCCLSVC_ALL_GATHER:
		return ncclsvc_all_gather(j->src, j->dst, j->count, type, c, task);
	case NCCLSVC_REDUCE_SCATTER:
		return ncclsvc_reduce_scatter(j->src, j->dst, j->count, type, redop, c, task);
	case NCCLSVC_BROADCAST:
		return ncclsvc_broadcast(j->src, j->dst, j->count, type, j->peer, c, task);
	case NCCLSVC_REDUCE:
		return ncclsvc_reduce(j->src, j->dst, j->count, type, redop, j->peer, c, task);
	case NCCLSVC_ALL_TO_ALL:
		return ncclsvc_all_to_all(j->src, j->dst, j->count, type, c, task);
	case NCCLSVC_GATHER:
		return ncclsvc_gather(j->src, j->dst, j->count, type, j->peer, c, task);
	case NCCLSVC_SCATTER:
		return ncclsvc_scatter(j->src, j->dst, j->count, type, j->peer, c, task);
	case NCCLSVC_SEND:
		return ncclsvc_send(j->src, j->count, type, j->peer, c, task);
	default:
		return ncclsvc_recv(j->dst, j->count, type, j->peer, c, task);
	}
}

/* Those of the session, once. */
static ncclsvc_result submit_once(const struct gpu_session *session, struct job *jobs, unsigned n,
				  bool grouped)
{
	ncclsvc_session *s = session->service;
	ncclsvc_result r = grouped ? ncclsvc_group_begin(s) : NCCLSVC_OK;
	for (unsigned i = 0; i < n && (!r || grouped); i++)
		if (jobs[i].comm->session == session)
			r = submit_one(&jobs[i], &jobs[i].task); /* group_end says it again */
	if (grouped)
		r = ncclsvc_group_end(s);
	/* What a thread that ends has set would stay. */
	ncclsvc_stream_set(s, NULL, 0);
	return r;
}

/* The communicator that is not to be waited for any more, or NULL. */
static const struct job *first_over(const struct job *jobs, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (handle_over(jobs[i].comm))
			return &jobs[i];
	return NULL;
}

/* True if it makes sense to try again: AGAIN is a ring that is full; LIMIT are timelines or
 * regions, which may all be in use, as long as some task is there that will let them go. */
static bool wait_for_room(struct gpu_session *session, ncclsvc_result r, long *ns)
{
	ncclsvc_status status;
	if (r != NCCLSVC_AGAIN && r != NCCLSVC_LIMIT)
		return false;
	bool busy = ncclsvc_task_status(session->service, session->newest, &status) ==
		    NCCLSVC_IN_PROGRESS;
	pause_for(ns);
	return busy || r == NCCLSVC_AGAIN;
}

/* The session has been told all, or nothing. */
static ncclResult_t submit_session(struct gpu_session *session, struct job *jobs, unsigned n)
{
	unsigned mine = 0;
	long ns = PAUSE_MIN_NS;
	ncclsvc_result r;
	for (unsigned i = 0; i < n; i++)
		mine += jobs[i].comm->session == session;
	do {
		r = submit_once(session, jobs, n, mine > 1);
		const struct job *over =
			r == NCCLSVC_AGAIN || r == NCCLSVC_LIMIT ? first_over(jobs, n) : NULL;
		if (over)
			return handle_usable(over->comm, ncclsvc_op_name(over->op));
	} while (wait_for_room(session, r, &ns));
	if (r == NCCLSVC_DAEMON_LOST)
		session->lost = true;
	if (r == NCCLSVC_SYSTEM) /* it is submitted, and the stream does not know */
		return fail(ncclUnhandledCudaError, "%s", ncclsvc_last_error());
	if (r)
		return fail_service(r);
	for (unsigned i = 0; i < n; i++) {
		if (jobs[i].comm->session != session)
			continue;
		jobs[i].done = true;
		pthread_mutex_lock(&jobs[i].comm->lock);
		if (jobs[i].task > jobs[i].comm->newest)
			jobs[i].comm->newest = jobs[i].task;
		pthread_mutex_unlock(&jobs[i].comm->lock);
		session->newest = jobs[i].task;
	}
	return ncclSuccess;
}

/* A failure that is not the caller's mistake is the communicator's from now on. */
static void latch_all(const struct job *jobs, unsigned n, ncclResult_t r)
{
	for (unsigned i = 0; i < n; i++)
		if (!jobs[i].done && (r == ncclRemoteError || jobs[i].comm->session->lost))
			handle_latch(jobs[i].comm, r, last_sentence());
}

/* More than a session has timelines for can never be submitted. */
static ncclResult_t check_pairs(const struct job *jobs, unsigned n)
{
	unsigned pairs = 0;
	for (unsigned i = 0; i < n && n >= SVC_TIMELINES; i++) {
		unsigned k = 0;
		while (k < i && (jobs[k].comm != jobs[i].comm || jobs[k].stream != jobs[i].stream))
			k++;
		pairs += k == i;
		if (pairs == SVC_TIMELINES)
			return fail(ncclInvalidUsage,
				    "a group uses more than %d pairs of a stream and a "
				    "communicator: end it earlier",
				    SVC_TIMELINES - 1);
	}
	return ncclSuccess;
}

/* An epoch that is over has failed all tasks of it. Who goes on submitting is told at once: its
 * streams do not wait any more, and what it computes from now on is wrong. */
static ncclResult_t look_back(ncclComm_t comm, unsigned op)
{
	ncclsvc_status last = {0};
	pthread_mutex_lock(&comm->lock);
	ncclsvc_task newest = comm->newest;
	pthread_mutex_unlock(&comm->lock);
	if (!newest || ncclsvc_task_status(comm->session->service, newest, &last) || !last.result)
		return ncclSuccess;
	handle_look(comm);
	return handle_usable(comm, ncclsvc_op_name(op));
}

/* Records the events of launches (launchCompletionEvent) just before them: the worker launches. */
static ncclResult_t record_launches(const struct job *jobs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (!jobs[i].launched)
			continue;
		const struct cuda *cuda;
		ncclResult_t r = driver_open(&cuda);
		if (r)
			return r;
		CUresult e = cuda->cuEventRecord(jobs[i].launched, jobs[i].stream);
		if (e)
			return fail(ncclUnhandledCudaError,
				    "config.launchCompletionEvent cannot be recorded: error %d", e);
	}
	return ncclSuccess;
}

ncclResult_t jobs_submit(struct job *jobs, unsigned n)
{
	unsigned inside = 0;
	ncclResult_t r = check_pairs(jobs, n);
	while (!r && inside < n) {
		r = handle_enter(jobs[inside].comm, ncclsvc_op_name(jobs[inside].op));
		inside += !r;
	}
	for (unsigned i = 0; !r && i < n; i++)
		if (!i || jobs[i].comm != jobs[i - 1].comm)
			r = look_back(jobs[i].comm, jobs[i].op);
	if (!r)
		r = record_launches(jobs, n);
	for (unsigned i = 0; !r && i < n; i++)
		if (!jobs[i].done)
			r = submit_session(jobs[i].comm->session, jobs, n);
	if (r)
		latch_all(jobs, inside, r);
	while (inside)
		handle_exit(jobs[--inside].comm);
	return r;
}

void handle_flush(ncclComm_t comm)
{
	ncclsvc_status status;
	long ns = PAUSE_MIN_NS;
	pthread_mutex_lock(&comm->lock);
	ncclsvc_task newest = comm->newest;
	pthread_mutex_unlock(&comm->lock);
	while (newest && !handle_over(comm) &&
	       ncclsvc_task_status(comm->session->service, newest, &status) ==
		       NCCLSVC_IN_PROGRESS) {
		pause_for(&ns);
		handle_look(comm);
	}
	handle_look(comm);
}
