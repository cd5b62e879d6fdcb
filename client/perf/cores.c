/* SPDX-License-Identifier: Apache-2.0 */
#include "cores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "child_process.h"
#include "service.h"

/* CPU time of the process in ns, including threads that have ended; -1: no such process. */
static int64_t run_ns(pid_t pid)
{
	clockid_t clock;
	struct timespec t;
	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		return -1;
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool add(struct cores *c, enum cores_part part, pid_t pid)
{
	struct cores_process *p = realloc(c->processes, (c->n + 1) * sizeof(*p));
	if (!p) {
		complain("out of memory");
		return false;
	}
	c->processes = p;
	p[c->n++] = (struct cores_process){.part = part, .pid = pid};
	return true;
}

static bool add_daemon(struct cores *c, ncclsvc_session *session)
{
	ncclsvc_daemon_info info;
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	if (ncclsvc_daemon(session, &info) || ncclsvc_list_devices(session, &list, &n))
		return complain_of("can't ask the daemon");
	bool good = add(c, CORES_DAEMON, info.pid);
	for (size_t i = 0; good && i < n; i++)
		good = list[i].pid <= 0 || add(c, CORES_WORKERS, list[i].pid);
	ncclsvc_list_free(list);
	return good;
}

bool cores_add_daemons(struct cores *c, const struct options *o, const char *socket)
{
	struct service_options rank = {.socket = socket,
				       .nodes = o->nodes,
				       .nranks = (int)o->nodes,
				       .no_ring = true,
				       .timeout_ms = o->timeout_ms};
	bool good = true;
	for (; good && rank.rank < rank.nranks; rank.rank++) {
		ncclsvc_session *session;
		if (service_open(&rank, &session))
			return complain_of("can't attach");
		good = add_daemon(c, session);
		ncclsvc_close(session);
	}
	return good;
}

bool cores_add_ranks(struct cores *c, const struct ranks *ranks)
{
	bool good = true;
	for (uint32_t i = 0; good && i < ranks->n; i++)
		good = add(c, CORES_RANKS, ranks->members[i].pid);
	return good;
}

void cores_clear(struct cores *c)
{
	c->wall_ns = 0;
	memset(c->used_ns, 0, sizeof(c->used_ns));
	memset(c->unknown, 0, sizeof(c->unknown));
}

void cores_start(struct cores *c)
{
	for (size_t i = 0; i < c->n; i++)
		c->processes[i].before_ns = run_ns(c->processes[i].pid);
	c->since_ns = perf_now_ns();
}

void cores_stop(struct cores *c)
{
	c->wall_ns += perf_now_ns() - c->since_ns;
	for (size_t i = 0; i < c->n; i++) {
		const struct cores_process *p = &c->processes[i];
		int64_t after_ns = run_ns(p->pid);
		if (p->before_ns < 0 || after_ns < p->before_ns)
			c->unknown[p->part] = true;
		else
			c->used_ns[p->part] += after_ns - p->before_ns;
	}
}

double cores_used(const struct cores *c, enum cores_part part)
{
	if (!c->n || c->unknown[part] || !c->wall_ns)
		return NAN;
	return (double)c->used_ns[part] / (double)c->wall_ns;
}

void cores_free(struct cores *c)
{
	free(c->processes);
	*c = (struct cores){0};
}
