/* SPDX-License-Identifier: Apache-2.0
 * A node: the parts of daemon/server's server_create that communicators need. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/nodes/node_reports.h"
#include "comm/remote.h"
#include "comm/report.h"
#include "comm/requests.h"
#include "coord/coord.h"
#include "gpu/nccl_comm.h"
#include "proto/abi/worker_queue.h"
#include "simulation.h"

struct node_state nodes[NODES_MAX];
uint32_t nnodes;
bool standalone;
struct config config;
bool nodes_ended;

static uint32_t lives[NODES_MAX];

uint32_t node_life(int node)
{
	return nodes[node].alive ? lives[node] : 0;
}

/* Each start has a new incarnation. */
uint64_t node_incarnation(uint32_t node)
{
	return 1 + node + NODES_MAX * (uint64_t)(lives[node] - 1);
}

uint32_t node_of(const struct comms *s)
{
	return (uint32_t)((const struct node_state *)s->loop->arg - nodes);
}

void trace(int node, const char *format, ...)
{
	va_list args;
	if (!tracing || nodes_ended)
		return;
	va_start(args, format);
	fprintf(stderr, "%12.6f  ", (double)(clock_now() % (100000 * S)) / (double)S);
	if (node >= 0)
		fprintf(stderr, "node %d  ", node);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

/* ---- Replaces daemon/base/log.c: a defect that the daemon logs is a failure ---- */

bool log_enabled(enum log_level level)
{
	return tracing || level == LOG_LEVEL_ERROR || level == LOG_LEVEL_WARNING;
}

void log_write(struct log_site *site, enum log_level level, const char *format, ...)
{
	char text[1024];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	(void)site;
	(void)level;
	trace(time_node(), "log: %s", text);
	if (strstr(text, "a defect of the daemon") || strstr(text, "breaks the protocol"))
		fail("the log says: %s", text);
}

void log_flush(void)
{
}

void log_field(struct log_event *e, const char *format, ...)
{
	(void)e;
	(void)format;
}

void log_event(enum log_level level, const struct log_event *e, const char *text)
{
	(void)level;
	(void)e;
	trace(time_node(), "log: %s", text);
}

/* ---- The server, as in daemon/server/server.c and daemon/callbacks.c ---- */

static uint64_t expire(void *arg, uint64_t now)
{
	struct node_state *n = arg;
	uint64_t next = comm_expire(&n->comms, now);
	next = earlier(next, nccl_comm_expire(&n->gpus, now));
	return earlier(next, coord_expire(&n->comms.coord));
}

static void on_worker_ready(void *owner, struct gpu *g)
{
	struct node_state *n = owner;
	(void)g;
	comm_gpu_ready(&n->comms);
}

static void on_worker_lost(void *owner, struct gpu *g)
{
	struct node_state *n = owner;
	comm_staged_worker_lost(&n->comms, g);
}

static void on_room(void *owner)
{
	struct node_state *n = owner;
	comm_gpu_ready(&n->comms);
}

static const struct gpu_callbacks gpu_callbacks = {
	.worker_ready = on_worker_ready,
	.worker_lost = on_worker_lost,
	.has_room = on_room,
	.made = comm_nccl_ready,
	.broken = comm_nccl_broken,
	.dead = comm_nccl_dead,
	.release = comm_nccl_release,
	.aborts = comm_nccl_abort,
	.left_until = comm_left_until,
};

static void gpus_begin(struct node_state *n)
{
	n->gpus = (struct gpus){.loop = &n->loop,
				.config = &config,
				.coord = &n->comms.coord,
				.scheduler = &n->scheduler,
				.callbacks = &gpu_callbacks,
				.owner = n,
				.ngpus = GPUS_HERE};
	for (int32_t i = 0; i < GPUS_HERE; i++) {
		n->gpu[i] = (struct gpu){.gpus = &n->gpus, .index = i, .sock = -1};
		n->gpus.gpu[i] = &n->gpu[i];
		worker_start(&n->gpu[i]);
	}
}

static void closed(void *node)
{
	(void)node;
}

static const struct mpi_start together; /* all nodes know each other from the start */

static void begin(uint32_t k)
{
	struct node_state *n = &nodes[k];
	*n = (struct node_state){.alive = true};
	n->loop.expire = expire;
	n->loop.arg = n;
	accounts_init(&n->accounts, &config, closed, n);
	n->cluster = (struct cluster){.me = k,
				      .n = nnodes,
				      .mpi = standalone ? NULL : &together,
				      .nodes = calloc(nnodes, sizeof(*n->cluster.nodes))};
	n->comms = (struct comms){
		.loop = &n->loop,
		.config = &config,
		.scheduler = &n->scheduler,
		.accounts = &n->accounts,
		.sessions = &n->sessions,
		.gpus = &n->gpus,
		.memory = &n->memory,
		.cluster = nnodes > 1 ? &n->cluster : NULL,
	};
	if (!n->cluster.nodes || comms_open(&n->comms))
		abort();
	for (uint32_t i = 0; i < nnodes; i++) {
		n->cluster.nodes[i].info.incarnation = node_incarnation(i);
		n->cluster.nodes[i].info.port = 1;
		snprintf(n->cluster.nodes[i].info.address, CLUSTER_HOST_BYTES, "10.0.%u.%u",
			 i / 256, i % 256);
		snprintf(n->cluster.nodes[i].info.host, CLUSTER_HOST_BYTES, "host%u", i);
	}
	scheduler_begin(&n->scheduler, k);
	remote_start(&n->comms);
	gpus_begin(n);
}

void nodes_begin(uint32_t n)
{
	config = (struct config){
		.comms_max = 4096,
		.user_comms_max = 4096,
		.user_nccl_comms_max = WORKER_COMM_SLOTS,
		.sessions_max = 64,
		.comm_idle_seconds = (int)profile.keep,
		.worker_seconds = 10,
	};
	nnodes = n;
	nodes_ended = false;
	for (uint32_t k = 0; k < n; k++)
		lives[k] = 1;
	for (uint32_t k = 0; k < n; k++)
		begin(k);
}

static void end(struct node_state *n)
{
	for (uint32_t k = 0; k < TRAINERS_MAX; k++)
		if (n->trainers[k])
			trainer_die(n->trainers[k]);
	n->loop.closing = true;
	for (uint32_t i = 0; i < GPUS_HERE; i++)
		worker_end(&n->gpu[i]);
	scheduler_end(&n->scheduler);
	nccl_comm_free_all(&n->gpus);
	plan_free_all(&n->comms);
	comm_free_all(&n->comms);
	remote_free(&n->comms);
	report_close(&n->comms);
	accounts_fini(&n->accounts);
	free(n->cluster.nodes);
}

void nodes_end(void)
{
	nodes_ended = true;
	for (uint32_t k = 0; k < nnodes; k++)
		end(&nodes[k]);
	jobs_end();
}

void node_lose(uint32_t node)
{
	trace((int)node, "IS LOST");
	nodes[node].alive = false;
	channel_lose(node);
}

void node_restart(uint32_t node)
{
	nodes_ended = true;
	end(&nodes[node]);
	nodes_ended = false;
	lives[node]++;
	check_restarted(node);
	begin(node);
	links_restart(node);
	trace((int)node, "IS RESTARTED");
}
