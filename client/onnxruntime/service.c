/* SPDX-License-Identifier: Apache-2.0
 *
 * One session and one world for each process, made by its first operation: the daemon is the one
 * that NCCLSVC_SOCKET names, the rank is the launcher's, the groups are those of the daemon's
 * section [world]. They live as long as the process.
 *
 * A process has a world in host memory, or on one GPU if a kernel of the CUDA provider was loaded
 * before the first operation. Beside a GPU's world, tensors in host memory have the global group
 * alone.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "ort.h"

#define TIMEOUT_S 600

struct group {
	pthread_mutex_t lock;
	ncclsvc_tensors *lists;
};

static struct {
	pthread_mutex_t lock;
	pid_t pid; /* whose session it is */
	int device;
	ncclsvc_session *session;
	ncclsvc_world *world;
	struct group groups[NCCLSVC_GROUP_TYPES];
	struct group host; /* beside a GPU's world */
} service = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.device = NCCLSVC_DEVICE_HOST,
	.groups = {[0 ... NCCLSVC_GROUP_TYPES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}},
	.host = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

int service_timeout_ms(void)
{
	const char *text = getenv("NCCLSVC_ORT_TIMEOUT");
	char *end;
	const long s = text ? strtol(text, &end, 10) : TIMEOUT_S;
	if (text && (end == text || *end || s < 0 || s > INT_MAX / 1000))
		return TIMEOUT_S * 1000;
	return s ? (int)s * 1000 : NCCLSVC_NO_TIMEOUT;
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

static ncclsvc_result join(void)
{
	const ncclsvc_options options = {.size = sizeof(options)};
	const ncclsvc_world_options world = {
		.size = sizeof(world),
		.rank = NCCLSVC_RANK_LAUNCHER,
		.device = service.device,
	};
	ncclsvc_result r = NCCLSVC_OK;
	if (!service.session)
		r = ncclsvc_open(&options, &service.session);
	if (!r)
		r = ncclsvc_world_init(service.session, &world, service_timeout_ms(),
				       &service.world);
	service.pid = getpid();
	return r;
}

static ncclsvc_result open_lists(struct group *g, ncclsvc_group_type type)
{
	if (g == &service.host)
		return ncclsvc_tensors_open(ncclsvc_world_host_comm(service.world),
					    service_timeout_ms(), &g->lists);
	return ncclsvc_tensors_open_group(service.world, type, service_timeout_ms(), &g->lists);
}

/* Under the service's lock. */
static OrtStatus *find(const struct kernel *k, struct group **group)
{
	if (service.session && service.pid != getpid())
		return status_new(k->ort, ORT_ERROR_FAIL,
				  "the process was forked from %d, which had run an operation "
				  "before: start processes that have run none",
				  (int)service.pid);
	const ncclsvc_result joined = service.world ? NCCLSVC_OK : join();
	if (joined)
		return status_of(k->ort, joined);
	const bool beside = k->device < 0 && service.device >= 0;
	if (beside && k->group != NCCLSVC_GROUP_GLOBAL)
		return status_new(k->ort, ORT_ERROR_NOT_IMPLEMENTED,
				  "the tensors are in host memory, and the process's group %s is "
				  "of GPU %d: use the CUDA provider, or group_type 0",
				  ncclsvc_group_type_name(k->group), service.device);
	struct group *g = beside ? &service.host : &service.groups[k->group];
	*group = g;
	return g->lists ? NULL : status_of(k->ort, open_lists(g, k->group));
}

static OrtStatus *set_stream(const struct kernel *k, const OrtKernelContext *context)
{
	void *stream = NULL;
	OrtStatus *status = k->ort->KernelContext_GetGPUComputeStream(context, &stream);
	if (status)
		return status;
	return status_of(k->ort, ncclsvc_stream_set(service.session, stream, 0));
}

OrtStatus *service_enter(const struct kernel *k, const OrtKernelContext *context,
			 struct group **group)
{
	pthread_mutex_lock(&service.lock);
	OrtStatus *status = find(k, group);
	pthread_mutex_unlock(&service.lock);
	if (!status && k->device >= 0)
		status = set_stream(k, context);
	if (!status)
		pthread_mutex_lock(&(*group)->lock);
	return status;
}

void service_leave(struct group *group)
{
	pthread_mutex_unlock(&group->lock);
}

ncclsvc_tensors *service_lists(struct group *group)
{
	return group->lists;
}
