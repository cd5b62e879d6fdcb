/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include "job.h"
#include "process.h"

#define WINDOW 32
#define LOOK   256 /* submissions between looks at the clock and at signals */

bool complain_of(const char *what)
{
	if (!caught_signal())
		complain("%s: %s", what, ncclsvc_last_error());
	return false;
}

bool client_open(struct client *c, const struct options *o, const char *socket, bool no_ring)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = socket,
				   .name = "ncclsvc-perf",
				   .no_ring = no_ring,
				   .timeout_ms = o->timeout_ms};
	ncclsvc_unique_id id;
	void *memory;
	*c = (struct client){.timeout_ms = o->timeout_ms};
	if (ncclsvc_open(&options, &c->session))
		return complain_of("can't attach");
	if (ncclsvc_unique_id_create(&id) ||
	    ncclsvc_comm_join(c->session, &id, 1, 0, o->timeout_ms, &c->comm) ||
	    ncclsvc_comm_set_timeout(c->comm, o->timeout_ms))
		return complain_of("can't join");
	if (ncclsvc_mem_alloc(c->session, 4096, &memory))
		return complain_of("can't allocate");
	c->send = memory;
	c->recv = c->send + 64;
	return true;
}

void client_close(struct client *c)
{
	ncclsvc_close(c->session);
	c->session = NULL;
}

ncclsvc_result client_submit(struct client *c, ncclsvc_task *task)
{
	return ncclsvc_all_reduce(c->send, c->recv, 1, NCCLSVC_UINT64, NCCLSVC_SUM, c->comm, task);
}

ncclsvc_result client_wait(struct client *c, ncclsvc_task task)
{
	return ncclsvc_wait(c->session, task, c->timeout_ms + 2000);
}

static bool enough(uint64_t i, uint64_t until)
{
	return i % LOOK == 0 && (caught_signal() || perf_now_ns() >= until);
}

bool client_pipeline(struct client *c, uint64_t n, uint64_t until, uint64_t *done)
{
	ncclsvc_task tasks[WINDOW];
	uint64_t i, left;
	for (i = 0; i < n && !enough(i, until); i++) {
		if (i >= WINDOW && client_wait(c, tasks[i % WINDOW]))
			return complain_of("a task failed");
		if (client_submit(c, &tasks[i % WINDOW]))
			return complain_of("can't submit");
	}
	*done = i;
	for (left = i < WINDOW ? i : WINDOW; left > 0; left--) {
		if (client_wait(c, tasks[(i - left) % WINDOW]))
			return complain_of("a task failed");
	}
	return !caught_signal();
}

bool client_one_by_one(struct client *c, uint64_t n, uint64_t until, double *samples,
		       uint64_t *done)
{
	uint64_t i, last = perf_now_ns();
	for (i = 0; i < n && !enough(i, until); i++) {
		ncclsvc_task task;
		if (client_submit(c, &task))
			return complain_of("can't submit");
		if (client_wait(c, task))
			return complain_of("a task failed");
		if (samples) {
			uint64_t now = perf_now_ns();
			samples[i] = (double)(now - last) / 1e3;
			last = now;
		}
	}
	*done = i;
	return !caught_signal();
}
