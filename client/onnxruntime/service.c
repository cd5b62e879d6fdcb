/* SPDX-License-Identifier: Apache-2.0
 *
 * One session and one world for each process, made by its first operation: the daemon is the one
 * that NCCLSVC_SOCKET names, the rank is the launcher's, the world and its groups are the daemon's
 * or what NCCLSVC_ORT_WORLD and the variables beside it say. They live as long as the process.
 *
 * A process has a world in host memory, or on one GPU if a kernel of the CUDA provider was loaded
 * before the first operation. Beside a GPU's world, tensors in host memory have the global group
 * alone.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ort.h"

#define TIMEOUT_S 600

/* Lists of one communicator. Groups that are one communicator (those of this rank alone) share
 * them. */
struct group {
	pthread_mutex_t lock;
	ncclsvc_comm *comm;
	ncclsvc_tensors *lists;
};

#define HOST   NCCLSVC_GROUP_TYPES /* all ranks in host memory, beside a GPU's world */
#define GROUPS (NCCLSVC_GROUP_TYPES + 1)

static struct {
	pthread_mutex_t lock;
	int device;
	int timeout_ms; /* of the environment, once an operation has asked for the world */
	ncclsvc_session *session;
	ncclsvc_world *world;
	struct group groups[GROUPS];
} service = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.device = NCCLSVC_DEVICE_HOST,
	.groups = {[0 ... GROUPS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}},
};

int service_timeout_ms(void)
{
	return service.timeout_ms;
}

static OrtStatus *take_timeout(const OrtApi *ort)
{
	const char *text = getenv("NCCLSVC_ORT_TIMEOUT");
	char *end;
	const long s = text ? strtol(text, &end, 10) : TIMEOUT_S;
	if (text && (end == text || *end || s < 0 || s > INT_MAX / 1000))
		return status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				  "NCCLSVC_ORT_TIMEOUT is '%s': it must be a number of seconds, or "
				  "0 for none",
				  text);
	service.timeout_ms = s ? (int)s * 1000 : NCCLSVC_NO_TIMEOUT;
	return NULL;
}

/* A number of ranks; 0: the variable is not set. */
static OrtStatus *take_size(const OrtApi *ort, const char *variable, int *size)
{
	const char *text = getenv(variable);
	char *end;
	const long n = text ? strtol(text, &end, 10) : 0;
	if (text && (end == text || *end || n < 1 || n > INT_MAX))
		return status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				  "%s is '%s': it must be a number of ranks", variable, text);
	*size = (int)n;
	return NULL;
}

/* The job's world, if the environment has one, else the daemon's; and the sizes of its groups. */
static OrtStatus *take_sizes(const OrtApi *ort, ncclsvc_world_options *choice)
{
	const char *world = getenv("NCCLSVC_ORT_WORLD");
	choice->job = getenv("NCCLSVC_ORT_JOB");
	OrtStatus *status = NULL;
	if (world && !strcmp(world, "launcher"))
		choice->world = NCCLSVC_WORLD_LAUNCHER;
	else
		status = take_size(ort, "NCCLSVC_ORT_WORLD", &choice->world);
	if (!status)
		status = take_size(ort, "NCCLSVC_ORT_DATA", &choice->data);
	if (!status)
		status = take_size(ort, "NCCLSVC_ORT_HORIZONTAL", &choice->horizontal);
	if (!status)
		status = take_size(ort, "NCCLSVC_ORT_PIPELINE", &choice->pipeline);
	return status;
}

OrtStatus *service_use_gpu(const OrtApi *ort, int device)
{
	OrtStatus *status = NULL;
	pthread_mutex_lock(&service.lock);
	if (service.device >= 0 && service.device != device)
		status = status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
				    "the process uses GPU %d already, and GPU %d cannot be added: "
				    "use one in each process",
				    service.device, device);
	else if (service.device < 0 && service.world)
		status = status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
				    "the process has joined the world with host memory already: "
				    "load the models for CUDA before any of them is run");
	else
		service.device = device;
	pthread_mutex_unlock(&service.lock);
	return status;
}

/* ---- Joining: under the service's lock ---- */

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

/* All of them at once, in the order of their types: on GPUs the members of a group wait for each
 * other, and would wait in a circle if each rank opened its groups as its graph comes to them. */
static ncclsvc_result open_lists(const ncclsvc_world *world)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < GROUPS; i++) {
		struct group *g = &service.groups[i];
		g->comm = comm_of(world, i);
		if (g->comm && !group_of(g->comm))
			r = ncclsvc_tensors_open(g->comm, service_timeout_ms(), &g->lists);
	}
	return r;
}

static OrtStatus *join(const OrtApi *ort)
{
	const ncclsvc_options options = {.size = sizeof(options)};
	ncclsvc_world_options choice = {
		.size = sizeof(choice),
		.rank = NCCLSVC_RANK_LAUNCHER,
		.device = service.device,
	};
	ncclsvc_world *world = NULL;
	ncclsvc_result r = NCCLSVC_OK;
	OrtStatus *status = take_timeout(ort);
	if (!status)
		status = take_sizes(ort, &choice);
	if (status)
		return status;
	if (!service.session)
		r = ncclsvc_open(&options, &service.session);
	if (!r)
		r = ncclsvc_world_init(service.session, &choice, service_timeout_ms(), &world);
	if (!r)
		r = open_lists(world);
	if (!r) {
		service.world = world;
		return NULL;
	}
	status = status_of(ort, r);
	close_lists();
	ncclsvc_world_free(world);
	return status;
}

/* ---- Groups ---- */

static OrtStatus *find(const struct kernel *k, struct group **group, OrtStatus **refusal)
{
	OrtStatus *status = service.world ? NULL : join(k->ort);
	if (status)
		return status;
	const bool beside = k->device < 0 && service.device >= 0;
	const bool all = k->group == NCCLSVC_GROUP_GLOBAL;
	if (beside && !all)
		*refusal = status_first(
			k->ort, *refusal,
			status_new(k->ort, ORT_ERROR_NOT_IMPLEMENTED,
				   "the tensors are in host memory, and the process's group %s is "
				   "of GPU %d: use the CUDA provider, or group_type 0",
				   ncclsvc_group_type_name(k->group), service.device));
	*group = group_of(comm_of(service.world, beside && all ? HOST : k->group));
	return NULL;
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

OrtStatus *service_enter(const struct kernel *k, const OrtKernelContext *context,
			 struct group **group, OrtStatus **refusal)
{
	pthread_mutex_lock(&service.lock);
	OrtStatus *status = find(k, group, refusal);
	pthread_mutex_unlock(&service.lock);
	if (status)
		return status;
	*refusal = status_first(k->ort, *refusal, set_stream(k, context));
	pthread_mutex_lock(&(*group)->lock);
	return NULL;
}

void service_leave(struct group *group)
{
	pthread_mutex_unlock(&group->lock);
}

ncclsvc_tensors *service_lists(struct group *group)
{
	return group->lists;
}

/* ---- After a loss ---- */

int ncclsvc_ort_rejoin(int timeout_ms)
{
	pthread_mutex_lock(&service.lock);
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; i < GROUPS; i++) /* until the threads inside have got their errors */
		pthread_mutex_lock(&service.groups[i].lock);
	if (service.world)
		r = ncclsvc_world_rejoin(service.world, timeout_ms);
	for (unsigned i = 0; service.world && !r && i < GROUPS; i++)
		if (service.groups[i].lists)
			r = ncclsvc_tensors_rejoin(service.groups[i].lists, timeout_ms);
	for (unsigned i = 0; i < GROUPS; i++)
		pthread_mutex_unlock(&service.groups[i].lock);
	pthread_mutex_unlock(&service.lock);
	return r;
}
