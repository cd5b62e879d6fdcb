/* SPDX-License-Identifier: Apache-2.0
 * Handles. A call that uses the service's communicator is counted as inside for that time. A call
 * that ends the communicator waits until nobody is inside, so that a watchdog may abort a
 * communicator that other threads use. */
#include <stdio.h>
#include <stdlib.h>

#include "handle.h"

#define SWEEP_MS 50

ncclComm_t handle_new(int device, bool blocking, const char *name)
{
	ncclComm_t comm = calloc(1, sizeof(*comm));
	if (!comm)
		return NULL;
	comm->magic = COMM_MAGIC;
	comm->generation = process_generation();
	comm->refs = 1;
	comm->device = device;
	comm->blocking = blocking;
	comm->state = COMM_STARTING;
	snprintf(comm->name, sizeof(comm->name), "%s", name);
	pthread_mutex_init(&comm->redops_lock, NULL);
	pthread_mutex_init(&comm->lock, NULL);
	pthread_cond_init(&comm->changed, NULL);
	return comm;
}

ncclComm_t handle_ref(ncclComm_t comm)
{
	comm->refs++;
	return comm;
}

static void registrations_free(struct ncclComm *comm)
{
	while (comm->registrations) {
		struct registration *r = comm->registrations;
		comm->registrations = r->next;
		free(r);
	}
}

/* Handles that their user has freed. The last ones stay allocated, so that a thread that still uses
 * one gets an error that says so. */
#define FREED_MAX 1024
static pthread_mutex_t freed_lock = PTHREAD_MUTEX_INITIALIZER;
static ncclComm_t freed[FREED_MAX];
static unsigned next_freed;
FREE_IN_CHILDREN(freed_lock)

void handle_unref(ncclComm_t comm)
{
	if (!comm || --comm->refs)
		return;
	pthread_mutex_lock(&freed_lock);
	ncclComm_t gone = NULL;
	if (!comm->freed) {
		comm->freed = true;
		gone = freed[next_freed];
		freed[next_freed] = comm;
		next_freed = (next_freed + 1) % FREED_MAX;
	}
	pthread_mutex_unlock(&freed_lock);
	if (!gone)
		return;
	gone->magic = 0;
	pthread_cond_destroy(&gone->changed);
	pthread_mutex_destroy(&gone->lock);
	pthread_mutex_destroy(&gone->redops_lock);
	registrations_free(gone);
	free(gone);
}

ncclResult_t handle_check(ncclComm_t comm, const char *function)
{
	if (!comm)
		return fail(ncclInvalidArgument, "%s: the communicator is NULL", function);
	if (comm->magic != COMM_MAGIC)
		return fail(ncclInvalidArgument,
			    "%s: %p is not a communicator, or has been destroyed", function,
			    (void *)comm);
	if (comm->generation != process_generation())
		return fail(ncclInvalidUsage,
			    "%s: the communicator belongs to the process that forked this one: "
			    "create a new one here",
			    function);
	if (comm->aborted)
		return fail(ncclInvalidUsage, "%s: the communicator has been destroyed or aborted",
			    function);
	return ncclSuccess;
}

/* Locked. */
static ncclResult_t check_state(ncclComm_t comm, const char *function)
{
	if (comm->aborted)
		return fail(ncclInvalidUsage, "%s: the communicator has been destroyed or aborted",
			    function);
	if (comm->state == COMM_STARTING)
		return fail(ncclInvalidArgument,
			    "%s: the communicator is still being created: wait until "
			    "ncclCommGetAsyncError reports ncclSuccess",
			    function);
	if (comm->state == COMM_FAILED || comm->async)
		return fail(comm->async, "%s: %s", function, comm->text);
	if (comm->revoked)
		return fail(ncclInvalidUsage,
			    "%s: the communicator has been revoked: shrink, split or destroy it",
			    function);
	if (comm->finalized)
		return fail(ncclInvalidUsage, "%s: the communicator has been finalized", function);
	if (comm->suspended)
		return fail(ncclInvalidUsage,
			    "%s: the communicator is suspended: call ncclCommResume first",
			    function);
	if (!comm->service)
		return fail(ncclInvalidUsage, "%s: the communicator has ended", function);
	return ncclSuccess;
}

ncclResult_t handle_usable(ncclComm_t comm, const char *function)
{
	pthread_mutex_lock(&comm->lock);
	ncclResult_t r = check_state(comm, function);
	pthread_mutex_unlock(&comm->lock);
	return r;
}

ncclResult_t handle_enter(ncclComm_t comm, const char *function)
{
	ncclResult_t r = handle_check(comm, function);
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	r = check_state(comm, function);
	if (!r)
		comm->users++;
	pthread_mutex_unlock(&comm->lock);
	return r;
}

void handle_exit(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	if (!--comm->users)
		pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->lock);
}

void handle_latch(ncclComm_t comm, ncclResult_t result, const char *text)
{
	pthread_mutex_lock(&comm->lock);
	if (!comm->async) {
		comm->async = result;
		snprintf(comm->text, sizeof(comm->text), "%s", text);
	}
	pthread_mutex_unlock(&comm->lock);
}

/* Memory that was freed (by torch.cuda.empty_cache, say) returns to the GPU only once the daemon
 * releases it too. Programs that check for errors now and then, like PyTorch's watchdog, have it
 * released here. */
static void sweep(struct gpu_session *session)
{
	const long ms = now_ms();
	long before = session->swept_ms;
	if (ms - before >= SWEEP_MS &&
	    atomic_compare_exchange_strong(&session->swept_ms, &before, ms))
		ncclsvc_mem_sweep(session->service);
}

bool handle_over(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	bool over = comm->aborted || comm->revoked || comm->async;
	pthread_mutex_unlock(&comm->lock);
	return over;
}

void handle_look(ncclComm_t comm)
{
	sweep(comm->session);
	char text[sizeof(comm->text)];
	ncclsvc_result r = ncclsvc_comm_error(comm->service);
	if (r == NCCLSVC_DAEMON_LOST)
		comm->session->lost = true;
	if (!r || handle_over(comm)) /* our own abort is not a failure */
		return;
	snprintf(text, sizeof(text), "%s: %s", ncclsvc_result_name(r), ncclsvc_last_error());
	/* Whatever failed, its cause is elsewhere. */
	ncclResult_t result = result_of(r);
	if (result == ncclInvalidArgument)
		result = ncclRemoteError;
	handle_latch(comm, fail(result, "%s", text), text);
}

void handle_cancel_join(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	while (comm->joining)
		pthread_cond_wait(&comm->changed, &comm->lock);
	ncclsvc_joining_cancel(comm->join);
	pthread_mutex_unlock(&comm->lock);
}

void handle_break_off(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	ncclsvc_comm_abort(comm->service);
	pthread_mutex_unlock(&comm->lock);
}

ncclResult_t handle_leave(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	while (comm->users)
		pthread_cond_wait(&comm->changed, &comm->lock);
	ncclsvc_comm *service = comm->service;
	comm->service = NULL;
	if (comm->state == COMM_READY)
		comm->state = COMM_LEFT;
	pthread_mutex_unlock(&comm->lock);
	const unsigned graphs = ncclsvc_comm_graphs(service);
	if (graphs)
		warn("communicator %p: %u CUDA graph%s of this process still ha%s operations of "
		     "it, which do nothing from now on: destroy graphs before their communicator",
		     (void *)comm, graphs, graphs == 1 ? "" : "s", graphs == 1 ? "s" : "ve");
	ncclsvc_result r = ncclsvc_comm_leave(service);
	return r ? fail_service(r) : ncclSuccess;
}
