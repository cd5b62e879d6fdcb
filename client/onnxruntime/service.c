/* SPDX-License-Identifier: Apache-2.0
 * One session and one world per process, created by its first operation. NCCLSVC_SOCKET names the
 * daemon, the launcher gives the rank, and environment.c the world and its groups. They live as
 * long as the process. The world is in host memory, or on one GPU if a kernel of the CUDA provider
 * was loaded before the first operation. Beside a GPU world, tensors in host memory can only use
 * the global group. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "ort.h"

#define ABORT_TRIES 2 /* attempts to cancel, before the communicator's epoch is ended */

/* The lists of one communicator. Groups with the same communicator (those of this rank alone) share
 * them. */
struct group {
	pthread_mutex_t lock;
	ncclsvc_comm *comm;
	ncclsvc_tensors *lists;
};

#define HOST   NCCLSVC_GROUP_TYPES /* all ranks, in host memory, beside a GPU's world */
#define GROUPS (NCCLSVC_GROUP_TYPES + 1)

static struct {
	pthread_mutex_t lock;
	int device;
	ncclsvc_session *session;
	ncclsvc_world *world;
	int rejoin_ms;
	struct group groups[GROUPS];
} service = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.device = NCCLSVC_DEVICE_HOST,
	.groups = {[0 ... GROUPS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}},
};

OrtStatus *service_use_gpu(const OrtApi *ort, int device)
{
	OrtStatus *status = NULL;
	pthread_mutex_lock(&service.lock);
	if (service.device >= 0 && service.device != device)
		status = status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
				    "the process already uses GPU %d, so GPU %d cannot be added: "
				    "use one GPU per process",
				    service.device, device);
	else if (service.device < 0 && (service.world || background_runs()))
		status = status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
				    "the process has already joined the world with host memory: "
				    "load the models for CUDA before running any of them");
	else
		service.device = device;
	pthread_mutex_unlock(&service.lock);
	return status;
}

/* ---- Joining: in the background ---- */

static ncclsvc_comm *comm_of(const ncclsvc_world *world, unsigned group)
{
	if (group == HOST)
		return service.device < 0 ? NULL : ncclsvc_world_host_comm(world);
	return ncclsvc_world_comm(world, (ncclsvc_group_type)group);
}

static struct group *group_of(const ncclsvc_comm *comm)
{
	for (unsigned i = 0; i < GROUPS; i++)
		if (service.groups[i].lists && service.groups[i].comm == comm)
			return &service.groups[i];
	return NULL;
}

static void close_lists(void)
{
	for (unsigned i = 0; i < GROUPS; i++) {
		ncclsvc_tensors_close(service.groups[i].lists);
		service.groups[i].lists = NULL;
	}
}

/* Opens all of them at once, in the order of their types: on GPUs the members of a group wait for
 * each other, and would wait in a circle if each rank opened its groups in the order of its graph.
 */
static ncclsvc_result open_lists(const ncclsvc_world *world, int timeout_ms)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < GROUPS; i++) {
		struct group *g = &service.groups[i];
		g->comm = comm_of(world, i);
		if (!g->comm || group_of(g->comm))
			continue;
		r = ncclsvc_tensors_open(g->comm, timeout_ms, &g->lists);
		if (!r)
			r = ncclsvc_comm_set_timeout(g->comm, timeout_ms);
	}
	return r;
}

static ncclsvc_result join(int timeout_ms, ncclsvc_world_options *choice)
{
	const ncclsvc_options options = {.size = sizeof(options)};
	ncclsvc_world *world = NULL;
	ncclsvc_result r = NCCLSVC_OK;
	if (!service.session)
		r = ncclsvc_open(&options, &service.session);
	if (!r)
		r = ncclsvc_world_init(service.session, choice, timeout_ms, &world);
	if (!r)
		r = open_lists(world, timeout_ms);
	if (!r) {
		pthread_mutex_lock(&service.lock);
		service.world = world;
		pthread_mutex_unlock(&service.lock);
		return NCCLSVC_OK;
	}
	char why[ERROR_BYTES]; /* closing may fail and overwrite the error */
	snprintf(why, sizeof(why), "%s", ncclsvc_last_error());
	close_lists();
	ncclsvc_world_free(world);
	return environment_explain(r, why);
}

static ncclsvc_result join_once(void)
{
	ncclsvc_world_options choice = {
		.size = sizeof(choice),
		.rank = NCCLSVC_RANK_LAUNCHER,
		.device = service.device,
	};
	int timeout_ms;
	if (service.world)
		return NCCLSVC_OK;
	ncclsvc_result r = environment_timeout(&timeout_ms);
	if (!r)
		r = environment_world(&choice);
	return r ? r : join(timeout_ms, &choice);
}

static bool has_world(void)
{
	pthread_mutex_lock(&service.lock);
	const bool has = service.world;
	pthread_mutex_unlock(&service.lock);
	return has;
}

/* ---- Groups ---- */

static struct group *find(const struct kernel *k, OrtStatus **refusal)
{
	const bool beside = k->device < 0 && service.device >= 0;
	const bool all = k->group == NCCLSVC_GROUP_GLOBAL;
	if (beside && !all)
		*refusal = status_first(
			k->ort, *refusal,
			status_new(k->ort, ORT_ERROR_NOT_IMPLEMENTED,
				   "the tensors are in host memory, but the process's group %s is "
				   "on GPU %d: use the CUDA provider, or group_type 0",
				   ncclsvc_group_type_name(k->group), service.device));
	return group_of(comm_of(service.world, beside && all ? HOST : k->group));
}

static OrtStatus *set_stream(const struct kernel *k, const OrtKernelContext *context)
{
	void *stream = NULL;
	OrtStatus *status = NULL;
	if (k->device >= 0)
		status = k->ort->KernelContext_GetGPUComputeStream(context, &stream);
	if (status)
		return status;
	return status_of(k->ort, ncclsvc_stream_set(service.session, stream, 0));
}

/* An abort ends the operation that holds the group. This one then takes its turn, and ends too. */
static void group_lock(struct group *group, unsigned mark)
{
	struct timespec until = abort_look();
	while (pthread_mutex_clocklock(&group->lock, CLOCK_MONOTONIC, &until)) {
		abort_came(mark);
		until = abort_look();
	}
}

OrtStatus *service_enter(const struct kernel *k, const OrtKernelContext *context, struct turn *turn,
			 OrtStatus **refusal)
{
	*turn = (struct turn){.mark = abort_mark(), .on_gpu = k->device >= 0};
	if (!has_world() || background_runs()) {
		const ncclsvc_result r = background_run(join_once, turn->mark);
		if (r)
			return status_of(k->ort, r);
	}
	turn->group = find(k, refusal);
	*refusal = status_first(k->ort, *refusal, set_stream(k, context));
	group_lock(turn->group, turn->mark);
	return NULL;
}

void service_leave(const struct turn *turn)
{
	pthread_mutex_unlock(&turn->group->lock);
}

ncclsvc_tensors *service_lists(const struct turn *turn)
{
	return turn->group->lists;
}

/* ---- Waiting ---- */

/* Cancels everything that the process has pending: its operations fail with CANCELLED on all their
 * members, and the next ones match. Kernels on GPUs end only with their communicator's epoch. */
static void cancel_tasks(void)
{
	ncclsvc_task_info *tasks;
	size_t n;
	const uint32_t own = ncclsvc_session_id(service.session);
	if (ncclsvc_list_tasks(service.session, &tasks, &n))
		return;
	for (size_t i = 0; i < n; i++) {
		if (tasks[i].session != own)
			continue;
		if (tasks[i].kernel)
			ncclsvc_cancel_comm(service.session, tasks[i].comm, NULL);
		else
			ncclsvc_cancel_task(service.session, tasks[i].task, NULL);
	}
	ncclsvc_list_free(tasks);
}

static bool is_under_way(ncclsvc_result r)
{
	ncclsvc_status status;
	return r == NCCLSVC_TIMEOUT && !ncclsvc_last_status(&status) && !status.number;
}

ncclsvc_result service_wait(const struct turn *turn, ncclsvc_request *request)
{
	ncclsvc_result r;
	unsigned tries = 0;
	while (is_under_way(r = ncclsvc_request_wait(request, ABORT_LOOK_MS))) {
		if (!tries && !abort_came(turn->mark))
			continue;
		if (tries++ < ABORT_TRIES)
			cancel_tasks();
		else if (turn->on_gpu) /* the operation runs on NCCL */
			ncclsvc_comm_abort(turn->group->comm);
	}
	if (r == NCCLSVC_CANCELLED && abort_came(turn->mark))
		r = ncclsvc_set_error(r, ABORTED);
	ncclsvc_request_free(request);
	return r;
}

/* ---- After a loss ---- */

static ncclsvc_result rejoin(void)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; i < GROUPS;
	     i++) /* waits until the threads inside have got their errors */
		pthread_mutex_lock(&service.groups[i].lock);
	if (service.world)
		r = ncclsvc_world_rejoin(service.world, service.rejoin_ms);
	for (unsigned i = 0; service.world && !r && i < GROUPS; i++)
		if (service.groups[i].lists)
			r = ncclsvc_tensors_rejoin(service.groups[i].lists, service.rejoin_ms);
	for (unsigned i = 0; i < GROUPS; i++)
		pthread_mutex_unlock(&service.groups[i].lock);
	return r;
}

int ncclsvc_ort_rejoin(int timeout_ms)
{
	if (!has_world())
		return NCCLSVC_OK;
	pthread_mutex_lock(&service.lock);
	service.rejoin_ms = timeout_ms;
	pthread_mutex_unlock(&service.lock);
	return background_run(rejoin, abort_mark());
}
