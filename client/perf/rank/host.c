/* SPDX-License-Identifier: Apache-2.0
 * A rank of the service on host memory. */
#include "service.h"

/* Operations in flight, unless each one is waited for: at most what a session without a ring may
 * have pending. */
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
	ncclsvc_result result = ncclsvc_mem_alloc(h->session, bytes, &buffer);
	*p = buffer;
	return succeeded(r, result);
}

static bool release(struct rank *r, char *p)
{
	return succeeded(r, ncclsvc_mem_free(own(r)->session, p));
}

/* ---- Operations ---- */

static ncclsvc_result wait_for(struct host_rank *h, const ncclsvc_task task[2])
{
	const int timeout_ms = service_patience_ms(h->options);
	ncclsvc_result result = ncclsvc_wait(h->session, task[0], timeout_ms);
	if (!result && task[1])
		result = ncclsvc_wait(h->session, task[1], timeout_ms);
	return result;
}

/* Waits until at most that many are in flight. */
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

static bool barrier(struct rank *r)
{
	const struct host_rank *h = own(r);
	return succeeded(r, service_barrier(h->session, h->options, h->comm));
}

static bool perform(struct rank *r, const struct command *c)
{
	struct host_rank *h = own(r);
	if (c->kind != COMMAND_JOIN_AND_PLAN)
		return rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "no command %u", c->kind);
	return succeeded(r, service_join_and_plan(h->session, h->options, NCCLSVC_DEVICE_HOST, c,
						  &r->reply));
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
		.perform = perform,
	};
	struct host_rank h = {
		.rank = {.backend = &backend, .rank = options->rank, .nranks = options->nranks},
		.options = options};
	struct rank *r = &h.rank;
	bool good = succeeded(r, service_open(options, &h.session));
	good = message_send(fd, &r->reply, sizeof(r->reply)) && good && rank_serve(r, fd);
	ncclsvc_close(h.session);
	return good ? 0 : 1;
}
