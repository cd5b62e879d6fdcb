/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf gpu-memory: what the service and plain NCCL hold of a GPU's memory.
 *
 * A GPU tells its free memory as a whole, so each figure is a difference over one step. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "crews_cuda.h"
#include "modes.h"
#include "process.h"
#include "report.h"

#define BUFFER_BYTES (1 << 20)

struct bench {
	const struct options *options;
	const char *socket;
	bool table;
	json_t *rows;
	struct crew first, second, base;
};

/* Free bytes, averaged over the GPUs. */
static bool look(struct crew *crew, double *bytes)
{
	struct job job = {.kind = JOB_MEMORY};
	if (!crew_do(crew, &job))
		return false;
	*bytes = 0;
	for (uint32_t i = 0; i < crew->n; i++)
		*bytes += (double)crew->members[i].reply.free_bytes / crew->n;
	return true;
}

static bool add_row(struct bench *b, const char *holder, const char *what, double bytes)
{
	if (b->table)
		printf("  %-8s  %-42s  %10.1f\n", holder, what, bytes / (1 << 20));
	json_t *row = json_pack("{s:s, s:s, s:f}", "holder", holder, "what", what, "bytes", bytes);
	if (json_array_append_new(b->rows, row) == 0)
		return true;
	complain("out of memory");
	return false;
}

/* What the workers of the daemon took at their start, as they say themselves. */
static bool ask_daemon(struct bench *b)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = b->socket,
				   .name = "ncclsvc-perf",
				   .no_ring = true,
				   .timeout_ms = b->options->timeout_ms};
	ncclsvc_session *session;
	ncclsvc_device_info *list = NULL;
	size_t n = 0, ready = 0;
	double bytes = 0;
	if (ncclsvc_open(&options, &session))
		return complain_of("can't attach");
	bool good = ncclsvc_list_devices(session, &list, &n) == NCCLSVC_OK;
	if (!good)
		complain_of("can't ask the daemon for its GPUs");
	for (size_t i = 0; good && i < n; i++) {
		if (list[i].state != NCCLSVC_DEVICE_READY)
			continue;
		bytes += (double)list[i].worker_bytes;
		ready++;
	}
	ncclsvc_list_free(list);
	ncclsvc_close(session);
	return good && add_row(b, "daemon", "a worker: context and NCCL",
			       ready ? bytes / (double)ready : 0);
}

/* How much less is free once the crew has joined and run an AllReduce. */
static bool join_costs(struct bench *b, struct crew *crew, double *bytes)
{
	struct work work = work_all_reduce(b->options, BUFFER_BYTES);
	double before, after;
	if (!crew_buffers(crew, BUFFER_BYTES) || !look(crew, &before) || !crew_init(crew, &work) ||
	    !look(crew, &after))
		return false;
	*bytes = before - after;
	return true;
}

static bool measure(struct bench *b)
{
	const struct options *o = b->options;
	double cold, warm, before, after, plain;
	/* The first to join makes the daemon make a communicator; the second finds it. */
	if (!crew_cuda_service(&b->first, o, b->socket) || !join_costs(b, &b->first, &cold))
		return false;
	crew_stop(&b->first);
	if (!crew_cuda_service(&b->second, o, b->socket) || !join_costs(b, &b->second, &warm) ||
	    !add_row(b, "daemon", "a worker: its first communicator", cold - warm) ||
	    !add_row(b, "client", "beyond its context and buffers", warm))
		return false;
	if (!o->baseline)
		return true;
	if (!look(&b->second, &before) || !crew_cuda_base(&b->base, o) ||
	    !look(&b->second, &after) || !join_costs(b, &b->base, &plain))
		return false;
	return add_row(b, "any", "a process: its context", before - after) &&
	       add_row(b, "nccl", "a process: its communicator", plain);
}

int gpu_memory_run(const struct options *o, const char *socket)
{
	struct bench b = {.options = o, .socket = socket, .table = !o->json || o->json_path};
	json_t *json = report_json_new(o);
	b.rows = json_object_get(json, "rows");
	if (b.table) {
		report_header(o, "GPU memory");
		printf("# for each GPU, the mean of %u; nothing else may use them meanwhile\n#\n",
		       o->ranks);
		printf("# %-8s  %-42s  %10s\n", "holder", "what", "MiB");
	}
	bool good = b.rows && ask_daemon(&b) && measure(&b);
	if (good && o->json)
		good = json_object_set_new(json, "baseline",
					   o->baseline ? json_string(b.base.library)
						       : json_null()) == 0 &&
		       report_json_write(o, json);
	crew_stop(&b.first);
	crew_stop(&b.second);
	crew_stop(&b.base);
	json_decref(json);
	return good ? EXIT_GOOD : EXIT_ERROR;
}
