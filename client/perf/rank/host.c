/* SPDX-License-Identifier: Apache-2.0
 * A rank of the service on host memory. */
#include <stdlib.h>
#include <string.h>

#include "service.h"

/* Operations in flight, unless each is waited for: within what a session without a ring may have
 * pending. */
#define WINDOW 32

struct host_rank {
	struct rank rank;
	const struct service_options *options;
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	struct service_plan plan;
	ncclsvc_task tasks[WINDOW][2];
	uint64_t submitted, finished;
};

static struct host_rank *own(struct rank *r)
{
	return (struct host_rank *)r;
}

static bool succeeded(struct rank *r, ncclsvc_result result)
{
	if (result)
		service_explain(&r->reply, result);
	return !result;
}

static bool join(struct rank *r, const struct command *c)
{
	struct host_rank *h = own(r);
	const struct service_options *o = h->options;
	ncclsvc_result result = service_join(h->session, o, c->id, NCCLSVC_DEVICE_HOST, &h->comm);
	if (!result && o->planned)
		result = service_plan_start(&h->plan, h->comm, o->timeout_ms);
	return succeeded(r, result);
}

/* ---- Memory ---- */

static bool allocate(struct rank *r, size_t bytes, char **p)
{
	struct host_rank *h = own(r);
	void *buffer = NULL;
	if (h->options->memory != MEMORY_PLAIN) {
		ncclsvc_result result = ncclsvc_mem_alloc(h->session, bytes, &buffer);
		*p = buffer;
		return succeeded(r, result);
	}
	*p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	return *p || rank_fail(r, NCCLSVC_NO_MEMORY, "out of memory");
}

static bool release(struct rank *r, char *p)
{
	struct host_rank *h = own(r);
	if (h->options->memory != MEMORY_PLAIN)
		return succeeded(r, ncclsvc_mem_free(h->session, p));
	free(p);
	return true;
}

/* ---- Operations ---- */

static ncclsvc_result wait_for(struct host_rank *h, const ncclsvc_task task[2])
{
	/* Longer than the task's own deadline, whose message names who is missing. */
	const int timeout_ms = h->options->timeout_ms + 2000;
	ncclsvc_result result = ncclsvc_wait(h->session, task[0], timeout_ms);
	if (!result && task[1])
		result = ncclsvc_wait(h->session, task[1], timeout_ms);
	return result;
}

/* Until so many are in flight. */
static bool wait_until(struct rank *r, uint64_t in_flight)
{
	struct host_rank *h = own(r);
	ncclsvc_result result = NCCLSVC_OK;
	while (!result && h->submitted - h->finished > in_flight)
		result = wait_for(h, h->tasks[h->finished++ % WINDOW]);
	return succeeded(r, result);
}

static bool submit(struct rank *r, const struct work *w, char *send, char *recv)
{
	struct host_rank *h = own(r);
	ncclsvc_task *task = h->tasks[h->submitted % WINDOW];
	if (!wait_until(r, WINDOW - 1))
		return false;
	ncclsvc_result result = h->plan.plan && w->op == PERF_SENDRECV
					? service_plan_submit(&h->plan, h->comm, w, send, recv,
							      h->options->timeout_ms, task)
					: service_submit(h->session, h->comm, w, send, recv, task);
	h->submitted += !result;
	return succeeded(r, result);
}

static bool finish(struct rank *r)
{
	return wait_until(r, 0);
}

static ncclsvc_result barrier_of(struct host_rank *h, ncclsvc_comm *comm)
{
	ncclsvc_task task[2] = {0};
	ncclsvc_result result = ncclsvc_barrier(comm, &task[0]);
	return result ? result : wait_for(h, task);
}

static bool barrier(struct rank *r)
{
	return succeeded(r, barrier_of(own(r), own(r)->comm));
}

/* ---- COMMAND_JOIN_AND_PLAN ---- */

static ncclsvc_result join_another(struct host_rank *h, const struct command *c, uint8_t which,
				   ncclsvc_comm **comm)
{
	struct service_options o = *h->options;
	uint8_t id[NCCLSVC_ID_BYTES];
	memcpy(id, c->id, sizeof(id));
	id[0] ^= which;
	o.nranks = (int)c->work.nranks;
	return service_join(h->session, &o, id, NCCLSVC_DEVICE_HOST, comm);
}

static ncclsvc_result time_join(struct host_rank *h, const struct command *c, ncclsvc_comm **comm)
{
	uint64_t start = perf_now_ns();
	ncclsvc_result result = join_another(h, c, 1, comm);
	h->rank.reply.elapsed_ns = perf_now_ns() - start;
	return result;
}

static ncclsvc_result time_plan(struct host_rank *h, ncclsvc_comm *comm, struct service_plan *plan)
{
	uint64_t start = perf_now_ns();
	ncclsvc_result result = service_plan_start(plan, comm, h->options->timeout_ms);
	h->rank.reply.commit_ns = perf_now_ns() - start;
	return result;
}

/* One communicator to wait for the others in, then another by the clock, and a plan on it. */
static bool join_and_plan(struct rank *r, const struct command *c)
{
	struct host_rank *h = own(r);
	ncclsvc_comm *first = NULL, *comm = NULL;
	struct service_plan plan = {0};
	if (c->kind != COMMAND_JOIN_AND_PLAN)
		return rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "no command %u", c->kind);
	ncclsvc_result result = join_another(h, c, 0, &first);
	if (!result)
		result = time_join(h, c, &comm);
	if (!result)
		result = barrier_of(h, first);
	if (!result)
		result = time_plan(h, comm, &plan);
	if (!result) /* no rank gives up what others still wait for */
		result = barrier_of(h, first);
	ncclsvc_result ended[] = {ncclsvc_plan_terminate(plan.plan, h->options->timeout_ms),
				  ncclsvc_comm_leave(comm), ncclsvc_comm_leave(first)};
	for (size_t i = 0; i < sizeof(ended) / sizeof(ended[0]) && !result; i++)
		result = ended[i];
	return succeeded(r, result);
}

int service_host_main(const struct service_options *options, int fd)
{
	static const struct backend backend = {
		.join = join,
		.allocate = allocate,
		.release = release,
		.submit = submit,
		.wait = finish,
		.finish = finish,
		.barrier = barrier,
		.perform = join_and_plan,
	};
	struct host_rank h = {
		.rank = {.backend = &backend, .rank = options->rank, .nranks = options->nranks},
		.options = options};
	struct rank *r = &h.rank;
	bool good = succeeded(r, service_open(options, &h.session));
	good = message_send(fd, &r->reply, sizeof(r->reply)) && good && rank_serve(r, fd);
	ncclsvc_close(h.session);
	if (options->memory == MEMORY_PLAIN) {
		free(r->send);
		free(r->recv);
	}
	return good ? 0 : 1;
}
