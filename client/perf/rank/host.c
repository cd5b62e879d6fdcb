/* SPDX-License-Identifier: Apache-2.0 */
#include "rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "command.h"
#include "service.h"

/* With -z 0, operations in flight: within what a session without a ring may have pending. */
#define WINDOW 32

struct rank {
	const struct rank_options *options;
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	struct service_plan plan;
	void *send, *recv;
	uint64_t bytes;
	ncclsvc_task tasks[WINDOW][2];
};

static ncclsvc_result allocate(struct rank *r, size_t bytes, void **buffer)
{
	if (r->options->memory != MEMORY_PLAIN)
		return ncclsvc_mem_alloc(r->session, bytes, buffer);
	*buffer = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	return *buffer ? NCCLSVC_OK : NCCLSVC_NO_MEMORY;
}

static ncclsvc_result release(struct rank *r, void **buffer)
{
	ncclsvc_result result = NCCLSVC_OK;
	if (r->options->memory == MEMORY_PLAIN)
		free(*buffer);
	else
		result = ncclsvc_mem_free(r->session, *buffer);
	*buffer = NULL;
	return result;
}

static ncclsvc_result job_buffers(struct rank *r, const struct job *job)
{
	ncclsvc_result result;
	if ((result = release(r, &r->send)) || (result = release(r, &r->recv)) ||
	    (result = allocate(r, job->bytes + DATA_GUARD, &r->send)) ||
	    (result = allocate(r, job->bytes + DATA_GUARD, &r->recv)))
		return result;
	r->bytes = job->bytes;
	data_poison(r->send, job->bytes);
	data_poison(r->recv, job->bytes);
	return NCCLSVC_OK;
}

struct buffers {
	void *send, *recv;
};

static struct buffers buffers_of(const struct rank *r, const struct work *w)
{
	struct buffers b = {r->send, r->recv};
	if (w->in_place) {
		struct work_sides sides = work_sides(w, (uint32_t)r->options->rank);
		size_t size = work_type_size(w->type);
		b.send = (char *)r->recv + sides.send_at * size;
		b.recv = (char *)r->recv + sides.recv_at * size;
	}
	return b;
}

static ncclsvc_result finish(struct rank *r, const ncclsvc_task task[2])
{
	/* Longer than the task's own deadline, whose message names who is missing. */
	int timeout_ms = r->options->timeout_ms + 2000;
	ncclsvc_result result = ncclsvc_wait(r->session, task[0], timeout_ms);
	if (!result && task[1])
		result = ncclsvc_wait(r->session, task[1], timeout_ms);
	return result;
}

static ncclsvc_result submit(struct rank *r, const struct work *w, const struct buffers *b,
			     ncclsvc_task task[2])
{
	if (r->plan.plan && w->op == PERF_SENDRECV)
		return service_plan_submit(&r->plan, r->comm, w, b->send, b->recv,
					   r->options->timeout_ms, task);
	return service_submit(r->session, r->comm, w, b->send, b->recv, task);
}

/* Submits n operations with at most `window` in flight, and waits for the last. */
static ncclsvc_result repeat(struct rank *r, const struct work *w, uint64_t n, unsigned window,
			     struct pace *pace, uint64_t *cpu_ns)
{
	struct buffers b = buffers_of(r, w);
	ncclsvc_result result = NCCLSVC_OK;
	uint64_t cpu = perf_cpu_ns();
	for (uint64_t i = 0; i < n && !result; i++) {
		if (i >= window)
			result = finish(r, r->tasks[i % window]);
		pace_wait(pace);
		if (!result)
			result = submit(r, w, &b, r->tasks[i % window]);
	}
	*cpu_ns = perf_cpu_ns() - cpu;
	uint64_t left = n < window ? n : window;
	for (uint64_t i = n - left; i < n && !result; i++)
		result = finish(r, r->tasks[i % window]);
	return result;
}

static ncclsvc_result meet(struct rank *r)
{
	ncclsvc_task task = 0;
	ncclsvc_result result = ncclsvc_barrier(r->comm, &task);
	return result ? result : finish(r, (ncclsvc_task[2]){task, 0});
}

static ncclsvc_result job_time(struct rank *r, const struct job *job, struct job_reply *reply)
{
	const struct work *w = &job->work;
	unsigned window = job->sync == SYNC_EACH ? 1 : WINDOW;
	if (job->fill)
		data_fill(w, job->seed, (uint32_t)r->options->rank, buffers_of(r, w).send);
	struct pace pace = pace_start(job->every_us);
	ncclsvc_result result = repeat(r, w, job->warmup, window, &pace, &reply->cpu_ns);
	if (!result)
		result = meet(r);
	if (result)
		return result;
	uint64_t start = perf_now_ns();
	pace = pace_start(job->every_us);
	result = repeat(r, w, job->iters, window, &pace, &reply->cpu_ns);
	reply->elapsed_ns = perf_now_ns() - start - pace.paused_ns;
	return result;
}

static ncclsvc_result job_check(struct rank *r, const struct job *job, struct job_reply *reply)
{
	const struct work *w = &job->work;
	uint32_t rank = (uint32_t)r->options->rank;
	struct buffers b = buffers_of(r, w);
	uint64_t used = work_bytes(w);
	data_poison(r->recv, used);
	data_fill(w, job->seed, rank, b.send);
	struct pace pace = pace_start(0);
	ncclsvc_result result = repeat(r, w, 1, 1, &pace, &reply->cpu_ns);
	if (!result)
		reply->wrong =
			data_wrong(w, job->seed, rank, b.recv) + data_guard_wrong(r->recv, used);
	return result;
}

static ncclsvc_result join_another(struct rank *r, const struct job *job, uint8_t which,
				   ncclsvc_comm **comm)
{
	struct rank_options o = *r->options;
	memcpy(o.id.bytes, job->id, sizeof(o.id.bytes));
	o.id.bytes[0] ^= which;
	o.nranks = (int)job->work.nranks;
	return service_join(r->session, &o, NCCLSVC_DEVICE_HOST, comm);
}

/* One communicator to meet in, then another by the clock, and a plan on it. */
static ncclsvc_result job_join(struct rank *r, const struct job *job, struct job_reply *reply)
{
	ncclsvc_comm *first = NULL, *comm = NULL;
	struct service_plan plan = {0};
	ncclsvc_task task = 0;
	ncclsvc_result result = join_another(r, job, 0, &first);
	uint64_t start = perf_now_ns();
	if (!result)
		result = join_another(r, job, 1, &comm);
	reply->elapsed_ns = perf_now_ns() - start;
	if (!result)
		result = ncclsvc_barrier(first, &task);
	if (!result)
		result = finish(r, (ncclsvc_task[2]){task, 0});
	start = perf_now_ns();
	if (!result)
		result = service_plan_start(&plan, comm, r->options->timeout_ms);
	reply->commit_ns = perf_now_ns() - start;
	if (!result)
		result = ncclsvc_barrier(first, &task);
	if (!result) /* nobody gives up what others still wait for */
		result = finish(r, (ncclsvc_task[2]){task, 0});
	ncclsvc_result ended = ncclsvc_plan_terminate(plan.plan, r->options->timeout_ms);
	result = result ? result : ended;
	ended = ncclsvc_comm_leave(comm);
	result = result ? result : ended;
	ended = ncclsvc_comm_leave(first);
	return result ? result : ended;
}

static ncclsvc_result perform(struct rank *r, const struct job *job, struct job_reply *reply)
{
	if (job->kind == JOB_BUFFERS)
		return job_buffers(r, job);
	if (job->kind == JOB_JOIN)
		return job_join(r, job, reply);
	if (job->kind != JOB_TIME && job->kind != JOB_CHECK)
		return NCCLSVC_INVALID_ARGUMENT;
	if (work_bytes(&job->work) > r->bytes)
		return NCCLSVC_INVALID_ARGUMENT;
	return job->kind == JOB_TIME ? job_time(r, job, reply) : job_check(r, job, reply);
}

int rank_main(const struct rank_options *options, int fd)
{
	struct rank r = {.options = options};
	struct job_reply reply = {0};
	ncclsvc_result result = service_open(options, &r.session);
	if (!result)
		result = service_join(r.session, options, NCCLSVC_DEVICE_HOST, &r.comm);
	if (!result && options->planned)
		result = service_plan_start(&r.plan, r.comm, options->timeout_ms);
	if (result)
		service_explain(&reply, result);
	bool heard = job_send(fd, &reply, sizeof(reply));

	struct job job;
	while (!result && heard && job_receive(fd, &job) && job.kind != JOB_QUIT) {
		reply = (struct job_reply){0};
		result = perform(&r, &job, &reply);
		if (result)
			service_explain(&reply, result);
		heard = job_send(fd, &reply, sizeof(reply));
	}
	/* A failed rank stays until the coordinator has heard the others, or they would only
	 * report that this one left. */
	while (result && heard && job_receive(fd, &job) && job.kind != JOB_QUIT)
		;
	ncclsvc_close(r.session);
	if (options->memory == MEMORY_PLAIN) {
		free(r.send);
		free(r.recv);
	}
	return result ? 1 : 0;
}
