/* SPDX-License-Identifier: Apache-2.0
 * The world and its communicators. Groups are joined, not split off, so that a reattach finds them
 * again and a restarted rank can return to them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "comm/join.h"
#include "comm/open.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/thread.h"
#include "cuda/session_gpu.h"
#include "first_node.h"
#include "job.h"
#include "world.h"

#define ALONE NCCLSVC_GROUP_TYPES /* stands for a type when ids are made */

/* ---- Options ---- */

/* The options' size before the job was added to them. */
#define WITHOUT_JOB offsetof(ncclsvc_world_options, world)

static ncclsvc_result take_options(const ncclsvc_world_options *options, ncclsvc_world_options *o)
{
	*o = (ncclsvc_world_options){.size = sizeof(*o), .rank = -1, .device = NCCLSVC_DEVICE_HOST};
	if (!options)
		return NCCLSVC_OK;
	if (options->size < sizeof(*o) && options->size != WITHOUT_JOB)
		return error_argument("options.size is %zu: set it to "
				      "sizeof(ncclsvc_world_options)",
				      options->size);
	const char *all = (const char *)options;
	for (size_t i = sizeof(*o); i < options->size; i++)
		if (all[i])
			return error_set(NCCLSVC_UNSUPPORTED,
					 "an option is set that this library does not support");
	memcpy(o, options, options->size < sizeof(*o) ? options->size : sizeof(*o));
	if (o->device < NCCLSVC_DEVICE_LOCAL)
		return error_argument("device is %d: use a GPU's number, NCCLSVC_DEVICE_LOCAL or "
				      "NCCLSVC_DEVICE_HOST",
				      o->device);
	if (o->data < 0 || o->horizontal < 0 || o->pipeline < 0 || o->local < 0)
		return error_argument(
			"%s is %d: use a positive number, or 0 for the daemon's choice",
			o->data < 0	    ? "data"
			: o->horizontal < 0 ? "horizontal"
			: o->pipeline < 0   ? "pipeline"
					    : "local",
			o->data < 0	    ? o->data
			: o->horizontal < 0 ? o->horizontal
			: o->pipeline < 0   ? o->pipeline
					    : o->local);
	return NCCLSVC_OK;
}

static int given(int option, int configured)
{
	return option ? option : configured;
}

/* The daemon supplies what the options leave open. */
static ncclsvc_world_sizes sizes_of(const ncclsvc_world_options *o, const struct svc_world_reply *w)
{
	return (ncclsvc_world_sizes){
		.world = w->ranks,
		.local = given(o->local, w->local_ranks),
		.data = given(o->data, w->data),
		.horizontal = given(o->horizontal, w->horizontal),
		.pipeline = given(o->pipeline, w->pipeline),
	};
}

/* Data parallelism gets the ranks that the other dimensions leave. */
static void fill_data(ncclsvc_world_sizes *s)
{
	const int64_t others = (int64_t)s->horizontal * s->pipeline;
	if (!s->data)
		s->data = others > 0 && others <= s->world ? (int)(s->world / others) : 1;
}

/* ---- Joining ---- */

static uint64_t key_of(unsigned type, int id, bool on_gpus)
{
	return (uint64_t)(type + 1) << 48 | (uint64_t)on_gpus << 40 | (uint64_t)(uint32_t)id;
}

/* Makes *comm a member, if it is not one. */
static ncclsvc_result join(const ncclsvc_world *w, unsigned type, const ncclsvc_group *g,
			   int timeout_ms, ncclsvc_comm **comm)
{
	ncclsvc_unique_id id;
	char label[NCCLSVC_NAME_BYTES];
	if (*comm)
		return comm_renew(*comm, timeout_ms, w->host);
	id_derive(&w->base, key_of(type, g->id, w->device != NCCLSVC_DEVICE_HOST), &id);
	snprintf(label, sizeof(label), "%s %d",
		 type == ALONE ? "alone: rank" : ncclsvc_group_type_name(type), g->id);
	ncclsvc_comm_label_next(label);
	return group_join(w->host, &id, g->size, g->index, w->device, timeout_ms, comm);
}

/* All ranks join their groups in the order of the types, so no two ranks wait for each other. */
static ncclsvc_result join_groups(ncclsvc_world *w, int timeout_ms)
{
	const ncclsvc_group self = {.id = w->layout.rank, .size = 1};
	bool alone = false;
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned type = 0; !r && type < NCCLSVC_GROUP_TYPES; type++) {
		const ncclsvc_group *g = &w->layout.groups[type];
		if (type == NCCLSVC_GROUP_GLOBAL && w->device == NCCLSVC_DEVICE_HOST) {
			w->comms[type] = w->host;
		} else if (g->size == 1) {
			if (!alone) /* one communicator for all of them */
				r = join(w, ALONE, &self, timeout_ms, &w->alone);
			alone = true;
			w->comms[type] = w->alone;
		} else {
			r = join(w, type, g, timeout_ms, &w->comms[type]);
		}
	}
	return r;
}

/* A failure is not an error yet: the other ranks must learn of it first. */
static void try_device(ncclsvc_world *w)
{
	int32_t number;
	w->unusable = NCCLSVC_OK;
	if (w->device == NCCLSVC_DEVICE_HOST)
		return;
	ncclsvc_result r = gpu_usable(w->session);
	if (!r)
		r = device_match(w->session, w->device, &number);
	if (r)
		snprintf(w->why, sizeof(w->why), "%s", ncclsvc_last_error());
	w->unusable = r;
}

/* Otherwise a rank that has joined all of its groups could exit while others still join theirs. */
static ncclsvc_result await_others(ncclsvc_world *w, int timeout_ms)
{
	ncclsvc_task task;
	const uint64_t users = world_set_timeout(w, timeout_on_wire(timeout_ms));
	ncclsvc_result r = ncclsvc_barrier(w->host, &task);
	if (!r)
		r = ncclsvc_wait(w->session, task, NCCLSVC_NO_TIMEOUT);
	world_set_timeout(w, users);
	return r;
}

static ncclsvc_result join_all(ncclsvc_world *w, int timeout_ms)
{
	try_device(w);
	ncclsvc_result r = proposals_compare(w, timeout_ms);
	if (!r)
		r = join_groups(w, timeout_ms);
	return r ? r : await_others(w, timeout_ms);
}

/* The daemon's world. */
static ncclsvc_result daemon_world(const ncclsvc_world *w, const ncclsvc_world_options *o,
				   ncclsvc_world_sizes *sizes, int *rank)
{
	struct svc_world_reply reply;
	if (o->job)
		return error_argument("job is set, but world is 0, the daemon's world: set world "
				      "to the number of ranks, or NCCLSVC_WORLD_LAUNCHER");
	ncclsvc_result r = world_ask(w->session, &reply);
	if (r)
		return r;
	*sizes = sizes_of(o, &reply);
	return world_rank(o->rank, reply.ranks, rank);
}

static ncclsvc_result start(ncclsvc_world *w, const ncclsvc_world_options *o, int timeout_ms)
{
	int rank;
	ncclsvc_unique_id id;
	ncclsvc_result r = o->world ? job_of(w->session, o, &w->sizes, &rank, &id)
				    : daemon_world(w, o, &w->sizes, &rank);
	if (!r && o->world)
		r = rendezvous_of_job(w->session, &w->sizes, &id);
	if (r)
		return r;
	fill_data(&w->sizes);
	r = ncclsvc_layout_of(&w->sizes, rank < 0 ? 0 : rank, &w->layout);
	if (!r && o->world)
		ncclsvc_comm_label_next("job world");
	if (!r)
		r = world_join(w->session, o->world ? &id : NULL, w->sizes.world, rank, timeout_ms,
			       &w->host);
	if (!r && ncclsvc_comm_size(w->host) != w->sizes.world)
		r = error_set(NCCLSVC_PROTOCOL, "the daemon's world has %d ranks, not %d",
			      ncclsvc_comm_size(w->host), w->sizes.world);
	if (!r)
		r = ncclsvc_layout_of(&w->sizes, ncclsvc_comm_rank(w->host), &w->layout);
	if (r)
		return r;
	w->device = o->device == NCCLSVC_DEVICE_LOCAL ? w->layout.local_rank : o->device;
	return join_all(w, timeout_ms);
}

ncclsvc_result ncclsvc_world_init(ncclsvc_session *session, const ncclsvc_world_options *options,
				  int timeout_ms, ncclsvc_world **world)
{
	ncclsvc_world_options o;
	struct error why;
	if (!session || !world)
		return error_argument("ncclsvc_world_init: the session or world is NULL");
	ncclsvc_result r = take_options(options, &o);
	if (!r)
		r = thread_plain(session);
	if (r)
		return r;
	ncclsvc_world *w = calloc(1, sizeof(*w));
	if (!w)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	w->session = session;
	r = start(w, &o, timeout_ms);
	if (!r) {
		*world = w;
		return NCCLSVC_OK;
	}
	error_keep(&why);
	ncclsvc_world_free(w);
	return error_again(&why);
}

void ncclsvc_world_free(ncclsvc_world *w)
{
	if (!w)
		return;
	for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++)
		if (w->comms[type] != w->host && w->comms[type] != w->alone)
			ncclsvc_comm_leave(w->comms[type]);
	ncclsvc_comm_leave(w->alone);
	ncclsvc_comm_leave(w->host);
	free(w);
}

ncclsvc_result ncclsvc_world_rejoin(ncclsvc_world *w, int timeout_ms)
{
	if (!w)
		return error_argument("ncclsvc_world_rejoin: the world is NULL");
	/* Joins its communicators one after the other, like a restarted rank. */
	ncclsvc_result r = thread_plain(w->session);
	if (!r)
		r = session_reattach(w->session, timeout_ms, false);
	if (!r)
		r = comm_renew(w->host, timeout_ms, NULL);
	return r ? r : join_all(w, timeout_ms);
}

/* ---- Queries ---- */

const ncclsvc_layout *ncclsvc_world_layout(const ncclsvc_world *w)
{
	return w ? &w->layout : NULL;
}

ncclsvc_comm *ncclsvc_world_comm(const ncclsvc_world *w, ncclsvc_group_type type)
{
	return w && (unsigned)type < NCCLSVC_GROUP_TYPES ? w->comms[type] : NULL;
}

ncclsvc_comm *ncclsvc_world_host_comm(const ncclsvc_world *w)
{
	return w ? w->host : NULL;
}

int ncclsvc_world_device(const ncclsvc_world *w)
{
	return w ? w->device : NCCLSVC_DEVICE_HOST;
}
