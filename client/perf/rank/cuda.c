/* SPDX-License-Identifier: Apache-2.0
 * A rank of the service on a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "service.h"

/* When the ring is full, wait for the task this many back. */
#define RECENT 512

struct cuda_rank {
	struct gpu_rank gpu;
	const struct service_options *options;
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	struct service_plan plan;
	struct service_lists lists;
	ncclsvc_task last[2];
	ncclsvc_task recent[RECENT];
	uint64_t submitted;
};

static struct cuda_rank *own(struct rank *r)
{
	return (struct cuda_rank *)r;
}

static bool succeeded(struct rank *r, ncclsvc_result result)
{
	if (result)
		service_explain(&r->reply, result);
	return !result;
}

static bool join(struct rank *r, const struct command *command)
{
	struct cuda_rank *c = own(r);
	const struct service_options *o = c->options;
	ncclsvc_result result =
		service_join(c->session, o, command->id, c->gpu.gpu.ordinal, &c->comm);
	if (!result && o->planned)
		result = service_plan_start(&c->plan, c->comm, o->timeout_ms);
	if (!result && o->lists)
		result = lists_open(&c->lists, c->comm, o->lists, o->timeout_ms);
	return succeeded(r, result);
}

/* In place there is one buffer, and the result is at its start. */
static char *given(const struct work *w, char *send, char *recv)
{
	return w->in_place ? recv : send;
}

/* The result is that of a plain AllGather, but a list's tensors are divided among the ranks at
 * other offsets. */
static bool fill_list(struct rank *r, const struct work *w, uint64_t seed)
{
	const size_t size = work_type_size(w->type);
	uint64_t first, end;
	for (uint32_t k = 0; k < w->nranks; k++)
		data_fill(w, seed, k, r->host + k * w->count * size);
	lists_own(&own(r)->lists, w, &first, &end);
	return first == end || gpu_rank_put(r, given(w, r->send, r->recv) + first * size,
					    r->host + first * size, (end - first) * size);
}

/* ---- Operations ---- */

static bool begin(struct rank *r, const struct work *w)
{
	struct cuda_rank *c = own(r);
	(void)w;
	unsigned flags = r->sync == SYNC_LAST ? NCCLSVC_STREAM_DETACHED : 0;
	return succeeded(r, ncclsvc_stream_set(c->session, c->gpu.stream, flags));
}

/* Planned tasks are not on the stream; it is ordered when their group is complete. */
static ncclsvc_result submit_planned(struct rank *r, const struct work *w, char *send, char *recv)
{
	struct cuda_rank *c = own(r);
	ncclsvc_result result = service_plan_submit(&c->plan, c->comm, w, send, recv,
						    c->options->timeout_ms, c->last);
	if (!result && r->sync != SYNC_LAST)
		result = ncclsvc_stream_wait(c->session, c->gpu.stream, c->last[1]);
	return result;
}

static ncclsvc_result submit_plain(struct cuda_rank *c, const struct work *w, char *send,
				   char *recv)
{
	ncclsvc_result result;
	while ((result = service_submit(c->session, c->comm, w, send, recv, c->last)) ==
	       NCCLSVC_AGAIN) {
		ncclsvc_task old =
			c->submitted >= RECENT ? c->recent[c->submitted % RECENT] : c->recent[0];
		if ((result = ncclsvc_wait(c->session, old, c->options->timeout_ms)))
			return result;
	}
	if (!result)
		c->recent[c->submitted++ % RECENT] = c->last[0];
	return result;
}

static bool submit(struct rank *r, const struct work *w, char *send, char *recv)
{
	struct cuda_rank *c = own(r);
	if (c->plan.plan && w->op == PERF_SENDRECV)
		return succeeded(r, submit_planned(r, w, send, recv));
	if (c->lists.lists && w->op == NCCLSVC_ALL_GATHER)
		return succeeded(r, lists_submit(&c->lists, w, given(w, send, recv), recv,
						 c->options->timeout_ms));
	return succeeded(r, submit_plain(c, w, send, recv));
}

/* With SYNC_LAST, orders the stream behind the last submitted task. */
static ncclsvc_result order(struct cuda_rank *c)
{
	ncclsvc_result result = NCCLSVC_OK;
	for (int i = 0; i < 2 && !result && c->last[i]; i++)
		result = ncclsvc_stream_wait(c->session, c->gpu.stream, c->last[i]);
	return result;
}

/* The stream continues after a failed task, so ask the communicator. */
static bool finish(struct rank *r)
{
	struct cuda_rank *c = own(r);
	if (r->sync == SYNC_LAST && !succeeded(r, order(c)))
		return false;
	if (!gpu_rank_wait(r))
		return false;
	ncclsvc_result result =
		c->lists.lists ? lists_finish(&c->lists, c->options->timeout_ms) : NCCLSVC_OK;
	return succeeded(r, result ? result : ncclsvc_comm_error(c->comm));
}

/* The daemon counts all operations except those on the direct transport. */
static bool count_tasks(struct rank *r)
{
	ncclsvc_member_info *list = NULL;
	size_t n = 0;
	ncclsvc_result result = ncclsvc_list_members(own(r)->session, &list, &n);
	for (size_t i = 0; i < n; i++) {
		if (list[i].pid != getpid())
			continue;
		r->reply.tasks += list[i].submitted;
		r->reply.transport = list[i].transport;
	}
	ncclsvc_list_free(list);
	return succeeded(r, result);
}

static ncclsvc_result tell_mps(struct rank *r)
{
	ncclsvc_session_info *list = NULL;
	size_t n = 0;
	ncclsvc_result result = ncclsvc_list_sessions(own(r)->session, &list, &n);
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == getpid())
			r->reply.mps = list[i].mps;
	ncclsvc_list_free(list);
	return result;
}

static ncclsvc_result tell_model(struct rank *r, int32_t device)
{
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	ncclsvc_result result = ncclsvc_list_devices(own(r)->session, &list, &n);
	for (size_t i = 0; i < n; i++)
		if (list[i].device == device)
			snprintf(r->reply.text, sizeof(r->reply.text), "%.*s",
				 (int)sizeof(list[i].name), list[i].name);
	ncclsvc_list_free(list);
	return result;
}

static bool tell_place(struct rank *r)
{
	ncclsvc_member_info *list = NULL;
	size_t n = 0;
	ncclsvc_result result = ncclsvc_list_members(own(r)->session, &list, &n);
	for (size_t i = 0; i < n && !result; i++)
		if (list[i].pid == getpid())
			result = tell_model(r, list[i].device);
	ncclsvc_list_free(list);
	if (!result)
		result = service_limit(own(r)->session, &r->reply.peer_bytes);
	return succeeded(r, result ? result : tell_mps(r));
}

static bool join_and_plan(struct rank *r, const struct command *command)
{
	const struct cuda_rank *c = own(r);
	setenv("NCCLSVC_PEER", command->kernels_off ? "0" : "1", 1); /* read at each join */
	ncclsvc_result result = ncclsvc_stream_set(c->session, c->gpu.stream, 0);
	if (!result)
		result = service_join_and_plan(c->session, c->options, c->gpu.gpu.ordinal, command,
					       &r->reply);
	return succeeded(r, result);
}

static bool perform(struct rank *r, const struct command *command)
{
	switch (command->kind) {
	case COMMAND_TASKS:
		return count_tasks(r);
	case COMMAND_PLACE:
		return tell_place(r);
	case COMMAND_JOIN_AND_PLAN:
		return join_and_plan(r, command);
	}
	return rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "no command %u", command->kind);
}

int service_cuda_main(const struct service_options *options, int fd)
{
	const struct backend backend = {
		GPU_RANK_BACKEND,
		.join = join,
		.allocate = gpu_rank_allocate,
		.release = gpu_rank_release,
		.fill_all_gather = options->lists ? fill_list : NULL,
		.begin = begin,
		.submit = submit,
		.finish = finish,
		.perform = perform,
	};
	struct cuda_rank c = {.gpu = {.rank = {.backend = &backend,
					       .rank = options->rank,
					       .nranks = options->nranks}},
			      .options = options};
	struct rank *r = &c.gpu.rank;
	/* Open the session first, because it directs CUDA to the daemon's MPS. */
	bool good = succeeded(r, service_open(options, &c.session)) &&
		    gpu_rank_open(&c.gpu, options->gpus[options->rank]);
	good = message_send(fd, &r->reply, sizeof(r->reply)) && good && rank_serve(r, fd);
	lists_close(&c.lists);
	ncclsvc_close(c.session);
	gpu_rank_close(&c.gpu);
	return good ? 0 : 1;
}
