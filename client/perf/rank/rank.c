/* SPDX-License-Identifier: Apache-2.0 */
#include "rank.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool rank_fail(struct rank *r, ncclsvc_result result, const char *format, ...)
{
	va_list args;
	r->reply.result = result;
	va_start(args, format);
	vsnprintf(r->reply.text, sizeof(r->reply.text), format, args);
	va_end(args);
	return false;
}

/* ---- Buffers and their contents ---- */

struct buffers {
	char *send, *recv;
};

static struct buffers buffers_of(const struct rank *r, const struct work *w)
{
	struct work_sides sides = work_sides(w, (uint32_t)r->rank);
	size_t size = work_type_size(w->type);
	if (!w->in_place)
		return (struct buffers){r->send, r->recv};
	return (struct buffers){r->recv + sides.send_at * size, r->recv + sides.recv_at * size};
}

/* Where the CPU writes and reads a buffer's contents. */
static char *reachable(const struct rank *r, char *p)
{
	return r->backend->put ? r->host : p;
}

static bool put(struct rank *r, char *to, uint64_t bytes)
{
	return !r->backend->put || !bytes || r->backend->put(r, to, r->host, bytes);
}

static bool get(struct rank *r, const char *from, uint64_t bytes)
{
	return !r->backend->get || r->backend->get(r, r->host, from, bytes);
}

static bool replace(struct rank *r, char **p, size_t bytes)
{
	char *old = *p;
	*p = NULL;
	return r->backend->release(r, old) && r->backend->allocate(r, bytes, p);
}

static bool make_buffers(struct rank *r, const struct command *c)
{
	const size_t size = c->bytes + DATA_GUARD;
	if (!replace(r, &r->send, size) || !replace(r, &r->recv, size) ||
	    (r->backend->stage && !r->backend->stage(r, size)))
		return false;
	r->bytes = c->bytes;
	data_poison(reachable(r, r->send), c->bytes);
	data_poison(reachable(r, r->recv), c->bytes);
	return put(r, r->send, size) && put(r, r->recv, size);
}

static bool fill(struct rank *r, const struct work *w, uint64_t seed)
{
	if (r->backend->fill_all_gather && w->op == NCCLSVC_ALL_GATHER)
		return r->backend->fill_all_gather(r, w, seed);
	char *send = buffers_of(r, w).send;
	data_fill(w, seed, (uint32_t)r->rank, reachable(r, send));
	return put(r, send, work_sides(w, (uint32_t)r->rank).send * work_type_size(w->type));
}

/* ---- Commands ---- */

/* Submits one operation. */
static bool submit(struct rank *r, const struct work *w)
{
	const struct buffers b = buffers_of(r, w);
	return (!r->before || r->backend->short_kernel(r)) &&
	       r->backend->submit(r, w, b.send, b.recv);
}

/* Captures n operations into the graph that is used from now on. */
static bool capture(struct rank *r, const struct work *w, uint32_t n)
{
	const struct backend *backend = r->backend;
	r->sync = SYNC_STREAM;
	if (!n)
		return true;
	bool good = (!backend->begin || backend->begin(r, w)) && backend->capture_begin(r);
	for (uint32_t i = 0; good && i < n; i++)
		good = submit(r, w);
	good = good && backend->capture_end(r);
	r->graph = good ? n : 0;
	return good;
}

static bool drop(struct rank *r)
{
	const bool good = !r->graph || r->backend->drop(r);
	r->graph = 0;
	return good;
}

/* n is a multiple of the graph's number of operations. */
static bool submit_all(struct rank *r, const struct work *w, uint64_t n, struct pace *pace)
{
	const struct backend *backend = r->backend;
	uint64_t cpu = perf_cpu_ns();
	for (uint64_t i = 0; i < n; i += r->graph ? r->graph : 1) {
		const uint64_t before = pace->every_ns ? perf_cpu_ns() : 0;
		pace_wait(pace);
		if (pace->every_ns)
			cpu += perf_cpu_ns() - before; /* the pause is not part of a submission */
		const uint64_t start = r->samples ? perf_now_ns() : 0;
		if (!(r->graph ? backend->launch(r) : submit(r, w)))
			return false;
		if (r->sync == SYNC_EACH && backend->wait && !backend->wait(r))
			return false;
		if (r->samples)
			r->samples[i] = perf_now_ns() - start;
	}
	r->reply.cpu_ns = perf_cpu_ns() - cpu;
	return true;
}

static bool run_series(struct rank *r, const struct work *w, uint64_t n, enum sync sync,
		       struct pace *pace)
{
	const struct backend *backend = r->backend;
	r->sync = sync;
	return !n || ((!backend->begin || backend->begin(r, w)) && submit_all(r, w, n, pace) &&
		      (!backend->finish || backend->finish(r)));
}

/* The time includes other processes' concurrent work on the GPU. */
static bool join(struct rank *r, const struct command *c)
{
	const struct backend *backend = r->backend;
	size_t before = 0, after = 0;
	if (backend->free_memory && !backend->free_memory(r, &before))
		return false;
	uint64_t start = perf_now_ns();
	if ((backend->join && !backend->join(r, c)) || !backend->barrier(r))
		return false;
	r->reply.elapsed_ns = perf_now_ns() - start;
	if (backend->free_memory && !backend->free_memory(r, &after))
		return false;
	r->reply.gpu_bytes = (int64_t)before - (int64_t)after;
	return true;
}

static bool warm_up(struct rank *r, const struct command *c)
{
	const struct backend *backend = r->backend;
	struct pace pace = pace_start(c->every_us);
	r->before = c->before;
	return (!c->fill || fill(r, &c->work, c->seed)) && capture(r, &c->work, c->graph) &&
	       run_series(r, &c->work, c->warmup, (enum sync)c->sync, &pace) &&
	       (!backend->prepare || backend->prepare(r)) && backend->barrier(r);
}

static bool time_series(struct rank *r, const struct command *c)
{
	const struct backend *backend = r->backend;
	const uint64_t start = perf_now_ns();
	struct pace pace = pace_start(c->every_us);
	bool good = (!c->kernels || backend->compute(r, c->kernels, c->spins)) &&
		    run_series(r, &c->work, c->iters, (enum sync)c->sync, &pace) &&
		    (!c->kernels || backend->compute_wait(r));
	r->reply.elapsed_ns = perf_now_ns() - start - pace.paused_ns;
	return good;
}

static int compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static bool time_each(struct rank *r, const struct command *c)
{
	const uint64_t n = c->iters;
	r->samples = calloc(n, sizeof(*r->samples));
	if (!r->samples)
		return rank_fail(r, NCCLSVC_NO_MEMORY, "out of memory");
	bool good = time_series(r, c);
	qsort(r->samples, n, sizeof(*r->samples), compare);
	r->reply.median_ns = r->samples[n / 2];
	r->reply.p99_ns = r->samples[(n * 99 + 99) / 100 - 1];
	free(r->samples);
	r->samples = NULL;
	return good;
}

static bool check(struct rank *r, const struct command *c)
{
	const struct work *w = &c->work;
	const struct buffers b = buffers_of(r, w);
	const uint64_t used = work_bytes(w);
	char *all = reachable(r, r->recv), *result = all + (b.recv - r->recv);
	struct pace none = pace_start(0);
	data_poison(all, used);
	r->before = false;
	if (!put(r, r->recv, used + DATA_GUARD) || !fill(r, w, c->seed) ||
	    !capture(r, w, c->graph ? 1 : 0) || !run_series(r, w, 1, (enum sync)c->sync, &none) ||
	    !drop(r) || !get(r, r->recv, used + DATA_GUARD))
		return false;
	if (r->backend->result)
		result = r->backend->result(r, w, b.send, b.recv);
	r->reply.wrong =
		data_wrong(w, c->seed, (uint32_t)r->rank, result) + data_guard_wrong(all, used);
	return true;
}

static bool perform(struct rank *r, const struct command *c)
{
	if (c->work.count && work_bytes(&c->work) > r->bytes)
		return rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "the buffers are too small");
	switch (c->kind) {
	case COMMAND_JOIN:
		return join(r, c);
	case COMMAND_BUFFERS:
		return make_buffers(r, c);
	case COMMAND_TIME:
		return warm_up(r, c) &&
		       (c->latency && c->iters ? time_each(r, c) : time_series(r, c)) && drop(r);
	case COMMAND_CHECK:
		return check(r, c);
	}
	if (r->backend->perform)
		return r->backend->perform(r, c);
	return rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "no command %u", c->kind);
}

bool rank_serve(struct rank *r, int fd)
{
	struct command c;
	bool good = true, heard = true;
	while (heard && command_receive(fd, &c) && c.kind != COMMAND_QUIT) {
		/* A failed rank stays until ncclsvc-perf has heard from the others; otherwise they
		 * would only report that it left. */
		if (!good)
			continue;
		r->reply = (struct reply){0};
		good = perform(r, &c);
		heard = message_send(fd, &r->reply, sizeof(r->reply));
	}
	return good;
}
