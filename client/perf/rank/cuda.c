/* SPDX-License-Identifier: Apache-2.0
 * A rank of the service on a GPU. */
#include <stdio.h>
#include <string.h>

#include "data.h"
#include "gpu_rank.h"
#include "lists.h"
#include "service.h"

/* Where a full ring is waited for: this many tasks back. */
#define RECENT 512

struct own {
	struct rank_options options;
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	struct service_plan plan;
	struct service_lists lists;
	ncclsvc_task last[2];
	ncclsvc_task recent[RECENT];
	uint64_t submitted;
};

static bool failed(struct gpu_rank *r, ncclsvc_result result)
{
	service_explain(&r->reply, result);
	return false;
}

static bool join(struct gpu_rank *r, const struct job *job)
{
	struct own *own = r->own;
	memcpy(own->options.id.bytes, job->id, sizeof(job->id));
	ncclsvc_result result =
		service_join(own->session, &own->options, r->gpu.ordinal, &own->comm);
	if (!result && own->options.planned)
		result = service_plan_start(&own->plan, own->comm, own->options.timeout_ms);
	if (!result && own->options.lists)
		result = lists_open(&own->lists, own->comm, own->options.lists,
				    own->options.timeout_ms);
	return !result || failed(r, result);
}

static bool begin(struct gpu_rank *r)
{
	struct own *own = r->own;
	unsigned flags = r->sync == SYNC_LAST ? NCCLSVC_STREAM_DETACHED : 0;
	ncclsvc_result result = ncclsvc_stream_set(own->session, r->stream, flags);
	return !result || failed(r, result);
}

/* Planned tasks leave the stream alone: it is ordered when their group is whole. */
static bool submit_planned(struct gpu_rank *r, const struct work *w, CUdeviceptr send,
			   CUdeviceptr recv)
{
	struct own *own = r->own;
	ncclsvc_result result =
		service_plan_submit(&own->plan, own->comm, w, (void *)(uintptr_t)send,
				    (void *)(uintptr_t)recv, own->options.timeout_ms, own->last);
	if (!result && r->sync != SYNC_LAST)
		result = ncclsvc_stream_wait(own->session, r->stream, own->last[1]);
	return !result || failed(r, result);
}

/* In place, all is in the one buffer, which is where the result begins. */
static CUdeviceptr given(const struct work *w, CUdeviceptr send, CUdeviceptr recv)
{
	return w->in_place ? recv : send;
}

static bool submit_list(struct gpu_rank *r, const struct work *w, CUdeviceptr send,
			CUdeviceptr recv)
{
	struct own *own = r->own;
	ncclsvc_result result =
		lists_submit(&own->lists, w, (void *)(uintptr_t)given(w, send, recv),
			     (void *)(uintptr_t)recv, own->options.timeout_ms);
	return !result || failed(r, result);
}

/* The result is a plain AllGather's; but a list's tensors are not divided among the ranks at the
 * same places. */
static bool fill_list(struct gpu_rank *r, const struct work *w, uint64_t seed)
{
	const size_t size = work_type_size(w->type);
	struct own *own = r->own;
	uint64_t first, end;
	for (uint32_t k = 0; k < w->nranks; k++)
		data_fill(w, seed, k, (char *)r->host + k * w->count * size);
	lists_own(&own->lists, w, &first, &end);
	return gpu_rank_put(r, given(w, r->send, r->recv) + first * size, first * size,
			    (end - first) * size);
}

static bool submit(struct gpu_rank *r, const struct work *w, CUdeviceptr send, CUdeviceptr recv)
{
	struct own *own = r->own;
	ncclsvc_result result;
	if (own->plan.plan && w->op == PERF_SENDRECV)
		return submit_planned(r, w, send, recv);
	if (own->lists.lists && w->op == NCCLSVC_ALL_GATHER)
		return submit_list(r, w, send, recv);
	while ((result = service_submit(own->session, own->comm, w, (void *)(uintptr_t)send,
					(void *)(uintptr_t)recv, own->last)) == NCCLSVC_AGAIN) {
		ncclsvc_task old = own->submitted >= RECENT ? own->recent[own->submitted % RECENT]
							    : own->recent[0];
		if ((result = ncclsvc_wait(own->session, old, own->options.timeout_ms)))
			break;
	}
	if (result)
		return failed(r, result);
	own->recent[own->submitted++ % RECENT] = own->last[0];
	return true;
}

static bool order(struct gpu_rank *r)
{
	struct own *own = r->own;
	ncclsvc_result result = NCCLSVC_OK;
	for (int i = 0; i < 2 && !result && own->last[i]; i++)
		result = ncclsvc_stream_wait(own->session, r->stream, own->last[i]);
	return !result || failed(r, result);
}

/* The stream goes on past a task that failed, so it is asked for. */
static bool settle(struct gpu_rank *r)
{
	struct own *own = r->own;
	ncclsvc_result result =
		own->lists.lists ? lists_settle(&own->lists, own->options.timeout_ms) : NCCLSVC_OK;
	if (!result)
		result = ncclsvc_comm_error(own->comm);
	return !result || failed(r, result);
}

static bool borrow(struct gpu_rank *r, size_t bytes, CUdeviceptr *p)
{
	struct own *own = r->own;
	void *pointer;
	ncclsvc_result result =
		ncclsvc_mem_alloc_device(own->session, r->gpu.ordinal, bytes, &pointer);
	if (result)
		return failed(r, result);
	*p = (CUdeviceptr)(uintptr_t)pointer;
	return true;
}

static bool give_back(struct gpu_rank *r, CUdeviceptr p)
{
	struct own *own = r->own;
	ncclsvc_result result = ncclsvc_mem_free(own->session, (void *)(uintptr_t)p);
	return !result || failed(r, result);
}

int rank_cuda_main(const struct rank_options *options, int fd)
{
	static const struct gpu_side side = {.join = join,
					     .submit = submit,
					     .begin = begin,
					     .order = order,
					     .settle = settle,
					     .borrow = borrow,
					     .give_back = give_back};
	static const struct gpu_side list_side = {.join = join,
						  .submit = submit,
						  .begin = begin,
						  .order = order,
						  .fill = fill_list,
						  .settle = settle,
						  .borrow = borrow,
						  .give_back = give_back};
	struct own own = {.options = *options};
	struct gpu_rank r = {.side = options->lists ? &list_side : &side,
			     .own = &own,
			     .rank = options->rank,
			     .nranks = options->nranks,
			     .memory = options->memory};
	/* First the session: it leads CUDA to the daemon's MPS. */
	const ncclsvc_result attached = service_open(&own.options, &own.session);
	bool good =
		attached ? failed(&r, attached) : gpu_rank_open(&r, options->gpus[options->rank]);
	good = job_send(fd, &r.reply, sizeof(r.reply)) && good && gpu_rank_serve(&r, fd);
	lists_close(&own.lists);
	ncclsvc_close(own.session);
	gpu_rank_close(&r);
	return good ? 0 : 1;
}
