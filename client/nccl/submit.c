/* SPDX-License-Identifier: Apache-2.0
 * Submits operations to sessions. A group's operations on one GPU are one task group of its
 * session; several GPUs of one process act like several processes. NCCL never reports a full queue,
 * so these functions wait for room. A group that is larger than a session's ring is submitted in
 * slices. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "nccl_operation.h"
#include "proto/group/slices.h"
#include "proto/ring.h"

#define SLICE	     (RING_ENTRIES / 2) /* one slice is submitted while the previous one runs */
#define PAUSE_MIN_NS 20000
#define PAUSE_MAX_NS 1000000

static void pause_for(long *ns)
{
	nanosleep(&(struct timespec){.tv_nsec = *ns}, NULL);
	*ns = *ns * 2 > PAUSE_MAX_NS ? PAUSE_MAX_NS : *ns * 2;
}

static ncclsvc_result submit_one(const struct operation *o, ncclsvc_task *task)
{
	ncclsvc_session *s = o->comm->session->service;
	ncclsvc_comm *c = o->comm->service;
	ncclsvc_type type = (ncclsvc_type)o->type;
	ncclsvc_redop redop = (ncclsvc_redop)o->redop;
	ncclsvc_result r = ncclsvc_stream_set(s, o->stream, 0);
	if (r)
		return r;
	switch (o->op) {
	case NCCLSVC_ALL_REDUCE:
		return ncclsvc_all_reduce(o->src, o->dst, o->count, type, redop, c, task);
	case NCCLSVC_ALL_GATHER:
		return ncclsvc_all_gather(o->src, o->dst, o->count, type, c, task);
	case NCCLSVC_REDUCE_SCATTER:
		return ncclsvc_reduce_scatter(o->src, o->dst, o->count, type, redop, c, task);
	case NCCLSVC_BROADCAST:
		return ncclsvc_broadcast(o->src, o->dst, o->count, type, o->peer, c, task);
	case NCCLSVC_REDUCE:
		return ncclsvc_reduce(o->src, o->dst, o->count, type, redop, o->peer, c, task);
	case NCCLSVC_ALL_TO_ALL:
		return ncclsvc_all_to_all(o->src, o->dst, o->count, type, c, task);
	case NCCLSVC_GATHER:
		return ncclsvc_gather(o->src, o->dst, o->count, type, o->peer, c, task);
	case NCCLSVC_SCATTER:
		return ncclsvc_scatter(o->src, o->dst, o->count, type, o->peer, c, task);
	case NCCLSVC_SEND:
		return ncclsvc_send(o->src, o->count, type, o->peer, c, task);
	default:
		return ncclsvc_recv(o->dst, o->count, type, o->peer, c, task);
	}
}

/* Submits the session's operations, once. */
static ncclsvc_result submit_once(const struct gpu_session *session, struct operation *operations,
				  unsigned n, bool grouped)
{
	ncclsvc_session *s = session->service;
	ncclsvc_result r = grouped ? ncclsvc_group_begin(s) : NCCLSVC_OK;
	for (unsigned i = 0; i < n && (!r || grouped); i++)
		if (operations[i].comm->session == session)
			r = submit_one(&operations[i],
				       &operations[i].task); /* group_end reports it again */
	if (grouped)
		r = ncclsvc_group_end(s);
	/* Otherwise the session would keep the setting of a thread that has ended. */
	ncclsvc_stream_set(s, NULL, 0);
	return r;
}

/* An operation whose communicator is over, so that nothing waits for it, or NULL. */
static const struct operation *first_over(const struct operation *operations, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (handle_over(operations[i].comm))
			return &operations[i];
	return NULL;
}

/* True if trying again makes sense. AGAIN means a full ring; LIMIT means timelines or regions that
 * may all be in use, which helps only if pending tasks will release them. */
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

/* Submits all or nothing to the session. */
static ncclResult_t submit_session(struct gpu_session *session, struct operation *operations,
				   unsigned n)
{
	unsigned mine = 0;
	long ns = PAUSE_MIN_NS;
	ncclsvc_result r;
	for (unsigned i = 0; i < n; i++)
		mine += operations[i].comm->session == session;
	do {
		r = submit_once(session, operations, n, mine > 1);
		const struct operation *over =
			r == NCCLSVC_AGAIN || r == NCCLSVC_LIMIT ? first_over(operations, n) : NULL;
		if (over)
			return handle_usable(over->comm, ncclsvc_op_name(over->op));
	} while (wait_for_room(session, r, &ns));
	if (r == NCCLSVC_DAEMON_LOST)
		session->lost = true;
	if (r == NCCLSVC_SYSTEM) /* the task is submitted, but its stream does not wait for it */
		return fail(ncclUnhandledCudaError, "%s", ncclsvc_last_error());
	if (r)
		return fail_service(r);
	for (unsigned i = 0; i < n; i++) {
		if (operations[i].comm->session != session)
			continue;
		operations[i].done = true;
		pthread_mutex_lock(&operations[i].comm->lock);
		if (operations[i].task > operations[i].comm->newest)
			operations[i].comm->newest = operations[i].task;
		pthread_mutex_unlock(&operations[i].comm->lock);
		if (operations[i].task) /* otherwise it is in a graph */
			session->newest = operations[i].task;
	}
	return ncclSuccess;
}

/* A failure that is not the caller's mistake stays with the communicator. */
static void latch_all(const struct operation *operations, unsigned n, ncclResult_t r)
{
	for (unsigned i = 0; i < n; i++)
		if (!operations[i].done &&
		    (r == ncclRemoteError || operations[i].comm->session->lost))
			handle_latch(operations[i].comm, r, last_sentence());
}

/* A group that needs more timelines than a session has can never be submitted. */
static ncclResult_t check_pairs(const struct operation *operations, unsigned n)
{
	unsigned pairs = 0;
	for (unsigned i = 0; i < n && n >= SVC_TIMELINES; i++) {
		unsigned k = 0;
		while (k < i && (operations[k].comm != operations[i].comm ||
				 operations[k].stream != operations[i].stream))
			k++;
		pairs += k == i;
		if (pairs == SVC_TIMELINES)
			return fail(ncclInvalidUsage,
				    "a group uses more than %d pairs of a stream and a "
				    "communicator: split it into smaller groups",
				    SVC_TIMELINES - 1);
	}
	return ncclSuccess;
}

/* The end of an epoch fails all its tasks. The next submission reports this at once, because
 * streams no longer wait for these tasks, and what they compute from now on is wrong. */
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

/* Records the launch events (launchCompletionEvent) just before the launch, which happens in the
 * worker. */
static ncclResult_t record_launches(const struct operation *operations, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (!operations[i].launched)
			continue;
		const struct cuda *cuda;
		ncclResult_t r = driver_open(&cuda);
		if (r)
			return r;
		CUresult e = cuda->cuEventRecord(operations[i].launched, operations[i].stream);
		if (e)
			return fail(ncclUnhandledCudaError,
				    "cannot record config.launchCompletionEvent: error %d", e);
	}
	return ncclSuccess;
}

/* Submits at most as many tasks as a session's ring holds. */
static ncclResult_t submit_slice(struct operation *operations, unsigned n)
{
	ncclResult_t r = record_launches(operations, n);
	for (unsigned i = 0; !r && i < n; i++)
		if (!operations[i].done)
			r = submit_session(operations[i].comm->session, operations, n);
	return r;
}

static struct slice_op slice_op(const struct operation *o, unsigned at)
{
	return (struct slice_op){
		.comm = (const unsigned char *)o->comm->id.internal,
		.nranks = o->comm->nranks,
		.rank = o->comm->rank,
		.peer = o->peer,
		.message = o->op == NCCLSVC_SEND || o->op == NCCLSVC_RECV,
		.sends = o->op == NCCLSVC_SEND,
		.at = at,
	};
}

static void permute(struct operation *operations, const struct operation *copies,
		    const struct slice_op *order, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		operations[i] = copies[order[i].at];
}

static ncclResult_t submit_slices(struct operation *operations, unsigned n)
{
	struct operation *copies = malloc(n * sizeof(*copies));
	struct slice_op *order = malloc(n * sizeof(*order));
	ncclResult_t r = copies && order ? ncclSuccess : fail(ncclSystemError, "out of memory");
	if (!r) {
		memcpy(copies, operations, n * sizeof(*copies));
		for (unsigned i = 0; i < n; i++)
			order[i] = slice_op(&operations[i], i);
		slices_order(order, n);
		permute(operations, copies, order, n);
	}
	for (unsigned i = 0, k; !r && i < n; i += k) {
		k = slices_cut(order + i, n - i, SLICE);
		r = submit_slice(operations + i, k);
	}
	free(copies);
	free(order);
	return r;
}

ncclResult_t operations_submit(struct operation *operations, unsigned n)
{
	unsigned inside = 0;
	ncclResult_t r = check_pairs(operations, n);
	while (!r && inside < n) {
		r = handle_enter(operations[inside].comm, ncclsvc_op_name(operations[inside].op));
		inside += !r;
	}
	for (unsigned i = 0; !r && i < n; i++)
		if (!i || operations[i].comm != operations[i - 1].comm)
			r = look_back(operations[i].comm, operations[i].op);
	if (!r)
		r = n > RING_ENTRIES ? submit_slices(operations, n) : submit_slice(operations, n);
	if (r)
		latch_all(operations, inside, r);
	while (inside)
		handle_exit(operations[--inside].comm);
	return r;
}

void handle_flush(ncclComm_t comm)
{
	ncclsvc_status status;
	long ns = PAUSE_MIN_NS;
	pthread_mutex_lock(&comm->lock);
	ncclsvc_task newest = comm->newest;
	pthread_mutex_unlock(&comm->lock);
	while (!handle_over(comm) &&
	       ((newest && ncclsvc_task_status(comm->session->service, newest, &status) ==
				   NCCLSVC_IN_PROGRESS) ||
		ncclsvc_comm_graphs_running(comm->service))) {
		pause_for(&ns);
		handle_look(comm);
	}
	handle_look(comm);
}
