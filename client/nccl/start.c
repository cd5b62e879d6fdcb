/* SPDX-License-Identifier: Apache-2.0
 * Joins and splits wait for other ranks: a single one in the calling thread, several of one group
 * in a thread each, and those of non-blocking communicators in the background. Splits of one
 * communicator run one after the other, in the order of the calls, whichever thread runs them,
 * because only this order tells the ranks which split is meant. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "interrupt/interrupt.h"
#include "start.h"

#define TIMEOUT_S   600
#define INTERRUPTED "the communicator's creation was interrupted by SIGINT"

int start_timeout_ms(void)
{
	const char *text = getenv("NCCLSVC_INIT_TIMEOUT");
	char *end;
	long s = text ? strtol(text, &end, 10) : TIMEOUT_S;
	if (text && (end == text || *end || s < 0 || s > INT_MAX / 1000)) {
		inform("NCCLSVC_INIT_TIMEOUT is '%s', not a number of seconds: using %d", text,
		       TIMEOUT_S);
		s = TIMEOUT_S;
	}
	return s ? (int)s * 1000 : NCCLSVC_NO_TIMEOUT;
}

bool thread_run(void *(*main)(void *), void *arg, pthread_t *thread)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(thread, NULL, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !error;
}

/* ---- One start ---- */

/* False: an abort came first. Otherwise an abort waits for join_begun. */
static bool join_wanted(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	const bool wanted = comm->joining = !comm->aborted;
	pthread_mutex_unlock(&comm->lock);
	return wanted;
}

/* From now on an abort cancels the join. */
static void join_begun(ncclComm_t comm, ncclsvc_joining *join)
{
	pthread_mutex_lock(&comm->lock);
	comm->joining = false;
	comm->join = join;
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->lock);
}

static void join_ended(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	comm->join = NULL;
	pthread_mutex_unlock(&comm->lock);
}

static void describe_next(const struct ncclComm *comm)
{
	ncclsvc_comm_label_next(comm ? comm->name : NULL);
	ncclsvc_comm_tuning_next(comm ? comm->max_ctas : 0, comm && comm->zero_ctas);
}

/* Aborting `comm` cancels the join; it may be NULL. */
static ncclsvc_result join_once(const struct start *s, ncclComm_t comm, int device,
				ncclsvc_session *session, ncclsvc_comm **service)
{
	ncclsvc_unique_id id;
	ncclsvc_joining *join = NULL;
	memcpy(id.bytes, s->id.internal, sizeof(id.bytes));
	if (comm && !join_wanted(comm))
		return NCCLSVC_CANCELLED;
	describe_next(comm);
	ncclsvc_result r = ncclsvc_comm_join_begin(session, &id, s->nranks, s->rank, device,
						   start_timeout_ms(), &join);
	if (comm)
		join_begun(comm, join);
	if (!r)
		r = ncclsvc_joining_wait(join, service);
	if (comm)
		join_ended(comm);
	ncclsvc_joining_free(join);
	return r;
}

/* Tries again if the session's daemon is gone, because another one may run. */
static ncclResult_t join(const struct start *s, int device, struct gpu_session **session,
			 ncclsvc_comm **service)
{
	ncclsvc_result r = NCCLSVC_DAEMON_LOST;
	for (int tries = 0; r == NCCLSVC_DAEMON_LOST && tries < 2; tries++) {
		ncclResult_t result = session_get(device, session);
		if (result)
			return result;
		r = join_once(s, s->comm, device, (*session)->service, service);
		if (r == NCCLSVC_DAEMON_LOST)
			(*session)->lost = true;
	}
	if (r == NCCLSVC_CANCELLED && s->interrupted)
		return fail(ncclSystemError, INTERRUPTED);
	if (r == NCCLSVC_CANCELLED && s->comm && s->comm->aborted)
		return fail(ncclInvalidUsage,
			    "the communicator was aborted before all ranks had joined");
	return r ? fail_service(r) : ncclSuccess;
}

/* Only beginning the split uses the parent. Aborting the parent ends the split. */
static ncclResult_t split(const struct start *s, struct gpu_session **session,
			  ncclsvc_comm **service)
{
	ncclsvc_joining *joining;
	ncclResult_t result = handle_enter(s->parent, "ncclCommSplit");
	if (result)
		return result;
	*session = s->parent->session;
	describe_next(s->comm);
	ncclsvc_result r = ncclsvc_comm_split_begin(s->parent->service, s->comm ? s->colour : -1,
						    s->key, start_timeout_ms(), &joining);
	handle_exit(s->parent);
	if (r)
		return fail_service(r);
	r = ncclsvc_joining_wait(joining, service);
	result = r ? fail_service(r) : ncclSuccess;
	ncclsvc_joining_free(joining);
	return result;
}

/* A split of a revoked parent. */
static ncclResult_t split_anew(const struct start *s, struct gpu_session **session,
			       ncclsvc_comm **service)
{
	ncclsvc_comm *all = NULL;
	ncclResult_t result = join(s, s->parent->device, session, &all);
	if (result)
		return result;
	ncclsvc_result r = ncclsvc_comm_split(all, s->comm ? s->colour : -1, s->key,
					      start_timeout_ms(), service);
	result = r ? fail_service(r) : ncclSuccess;
	ncclsvc_comm_leave(all);
	return result;
}

static ncclResult_t begin(const struct start *s, struct gpu_session **session,
			  ncclsvc_comm **service)
{
	if (s->kind == START_JOIN)
		return join(s, s->comm->device, session, service);
	return s->anew ? split_anew(s, session, service) : split(s, session, service);
}

static void ready(ncclComm_t comm, struct gpu_session *session, ncclsvc_comm *service)
{
	ncclsvc_unique_id id;
	ncclsvc_comm_get_id(service, &id);
	pthread_mutex_lock(&comm->lock);
	memcpy(comm->id.internal, id.bytes, sizeof(id.bytes));
	comm->session = session;
	comm->service = service;
	comm->nranks = ncclsvc_comm_size(service);
	comm->rank = ncclsvc_comm_rank(service);
	comm->state = COMM_READY;
	bool unwanted = comm->aborted;
	pthread_mutex_unlock(&comm->lock);
	inform("communicator %p: rank %d of %d on GPU %d%s%s", (void *)comm, comm->rank,
	       comm->nranks, comm->device, comm->name[0] ? ", " : "", comm->name);
	connections_check();
	mps_check(comm);
	if (unwanted)
		handle_leave(comm);
}

/* Takes the next number among its parent's splits. A split with its own id needs none. */
static void queue_up(struct start *s)
{
	if (s->kind != START_SPLIT || s->anew)
		return;
	pthread_mutex_lock(&s->parent->lock);
	s->number = ++s->parent->splits_called;
	pthread_mutex_unlock(&s->parent->lock);
}

/* Earlier ones have already begun, and whatever ends the parent ends them. */
static void wait_turn(const struct start *s)
{
	if (!s->number)
		return;
	pthread_mutex_lock(&s->parent->lock);
	while (s->parent->splits_ended + 1 != s->number)
		pthread_cond_wait(&s->parent->changed, &s->parent->lock);
	pthread_mutex_unlock(&s->parent->lock);
}

/* Tells the communicators the result. */
static void ended(const struct start *s)
{
	if (s->result && s->comm) {
		pthread_mutex_lock(&s->comm->lock);
		s->comm->state = COMM_FAILED;
		s->comm->async = s->result;
		snprintf(s->comm->text, sizeof(s->comm->text), "%s", s->text);
		pthread_mutex_unlock(&s->comm->lock);
	}
	if (s->parent) {
		pthread_mutex_lock(&s->parent->lock);
		s->parent->pending--;
		s->parent->splits_ended += s->number > 0;
		pthread_cond_broadcast(&s->parent->changed);
		pthread_mutex_unlock(&s->parent->lock);
	}
}

static void run(struct start *s)
{
	struct gpu_session *session = NULL;
	ncclsvc_comm *service = NULL;
	wait_turn(s);
	s->result = begin(s, &session, &service);
	if (s->result)
		snprintf(s->text, sizeof(s->text), "%s", last_sentence());
	if (service)
		ready(s->comm, session, service);
	ended(s);
}

static void forget(struct start *s)
{
	if (s->result && !s->nonblocking && s->out) {
		*s->out = NULL;
		handle_unref(s->comm); /* the user's reference: there is nothing to destroy */
	}
	handle_unref(s->comm);
	handle_unref(s->parent);
	free(s);
}

void start_drop(struct start *s, ncclResult_t why, const char *text)
{
	s->result = why;
	snprintf(s->text, sizeof(s->text), "%s", text);
	ended(s);
	forget(s);
}

/* ---- Several ---- */

static void *run_in_background(void *arg)
{
	pthread_detach(pthread_self());
	run(arg);
	forget(arg);
	return NULL;
}

static void *run_beside(void *arg)
{
	struct start *s = arg;
	run(s);
	if (s->over >= 0)
		eventfd_write(s->over, 1);
	return NULL;
}

/* Stops it from joining; if it has already joined, it leaves. */
static void interrupt(struct start *s)
{
	if (s->kind != START_JOIN)
		return;
	s->interrupted = true;
	pthread_mutex_lock(&s->comm->lock);
	s->comm->aborted = true;
	pthread_cond_broadcast(&s->comm->changed);
	pthread_mutex_unlock(&s->comm->lock);
	handle_cancel_join(s->comm);
}

/* Waits until all n starts that have threads are over, or SIGINT ends them. */
static void watch(struct start *list, unsigned n, int over)
{
	eventfd_t ended;
	while (n && interrupt_wait(over))
		if (!eventfd_read(over, &ended))
			n -= (unsigned)ended;
	for (struct start *s = n ? list : NULL; s; s = s->next)
		interrupt(s);
}

static bool go_background(struct start *s)
{
	pthread_t thread;
	return s->nonblocking && thread_run(run_in_background, s, &thread);
}

/* Starts a thread for each start that must not wait for another, or that SIGINT can end. Returns
 * how many. */
static unsigned begin_threads(struct start *list, int over)
{
	unsigned n = 0;
	for (struct start *s = list; s; s = s->next) {
		s->over = over;
		s->has_thread = (list->next || over >= 0) && thread_run(run_beside, s, &s->thread);
		n += s->has_thread;
	}
	return n;
}

static void end_thread(struct start *s)
{
	if (s->has_thread)
		pthread_join(s->thread, NULL);
	if (!s->interrupted || s->result)
		return;
	s->result = ncclSystemError;
	snprintf(s->text, sizeof(s->text), "%s", INTERRUPTED);
}

/* Runs them all, and returns the first failure. */
static ncclResult_t run_all(struct start *list, char *text, size_t size)
{
	ncclResult_t result = ncclSuccess;
	const int over = interrupt_is_python() ? eventfd(0, EFD_CLOEXEC) : -1;
	const unsigned threads = begin_threads(list, over);
	for (struct start *s = list; s; s = s->next)
		if (!s->has_thread)
			run(s);
	if (over >= 0) {
		watch(list, threads, over);
		close(over);
	}
	while (list) {
		struct start *s = list;
		list = s->next;
		end_thread(s);
		if (s->result && !result) {
			result = s->result;
			snprintf(text, size, "%s", s->text);
		}
		forget(s);
	}
	return result;
}

ncclResult_t starts_run(struct start *list)
{
	struct start *here = NULL, **end = &here;
	char text[sizeof(list->text)] = "";
	bool background = false;
	while (list) {
		struct start *s = list;
		list = s->next;
		s->next = NULL;
		queue_up(s);
		if (go_background(s)) {
			background = true;
			continue;
		}
		*end = s;
		end = &s->next;
	}
	ncclResult_t result = here ? run_all(here, text, sizeof(text)) : ncclSuccess;
	if (result)
		return fail(result, "%s", text);
	return background ? ncclInProgress : ncclSuccess;
}
