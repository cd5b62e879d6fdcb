/* SPDX-License-Identifier: Apache-2.0
 * Replaces daemon/gpu/gpu.c and worker processes: workers that answer late, die and are restarted,
 * and an NCCL whose ranks wait for each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "gpu/mps_service.h"
#include "gpu/nccl_comm.h"
#include "simulation.h"

/* A rank that waits in ncclCommInitRank. */
struct init {
	struct init *prev, *next;
	struct gpu *gpu;
	uint64_t key, number;
	bool begun;
	uint8_t unique[NCCLSVC_ID_BYTES];
	int32_t nranks, rank;
};

static struct init *inits;

static int node_of_gpu(const struct gpu *g)
{
	return (int)((const struct node_state *)g->gpus->owner - nodes);
}

struct errand {
	struct gpu *gpu;
	uint32_t generation;
	uint64_t key;
	bool end;
	struct worker_message answer;
};

static struct gpu_call *find_call(const struct gpu *g, uint64_t key)
{
	struct gpu_call *call;
	DL_SEARCH_SCALAR(g->calls, call, key, key);
	return call;
}

static void forget_init(const struct gpu *g, uint64_t key)
{
	struct init *i, *next;
	DL_FOREACH_SAFE (inits, i, next)
		if (i->gpu == g && i->key == key) {
			DL_DELETE(inits, i);
			free(i);
		}
}

static void end_call(struct gpu *g, struct gpu_call *call, const struct worker_message *answer)
{
	const struct gpu_call was = *call;
	forget_init(g, was.key);
	DL_DELETE(g->calls, call);
	free(call);
	if (!was.aborts)
		g->heard_ns = clock_now();
	was.done(g, was.arg, answer);
}

static void on_answer(void *arg)
{
	struct errand *e = arg;
	struct gpu_call *call = find_call(e->gpu, e->key);
	if (call && e->gpu->generation == e->generation && e->gpu->sock >= 0)
		end_call(e->gpu, call, &e->answer);
}

static void answer_later(struct gpu *g, uint64_t key, const struct worker_message *answer)
{
	struct errand *e = calloc(1, sizeof(*e));
	if (!e)
		abort();
	*e = (struct errand){.gpu = g, .generation = g->generation, .key = key, .answer = *answer};
	at(clock_now() + between(10000, chance(80) ? 2 * MS : 300 * MS), node_of_gpu(g), on_answer,
	   e);
}

/* ---- NCCL ---- */

static void answer_init(const struct init *i, int result, const char *text)
{
	struct worker_message m = {.kind = WORKER_COMM_INIT, .result = result};
	snprintf(m.text, sizeof(m.text), "%s", text);
	answer_later(i->gpu, i->key, &m);
}

void worker_launch_init(struct gpu *g, uint64_t number)
{
	struct init *i, *mine = NULL;
	int32_t begun = 0;
	DL_FOREACH (inits, i)
		if (i->gpu == g && i->number == number)
			mine = i;
	if (!mine)
		return;
	mine->begun = true;
	if (chance(2)) {
		answer_init(mine, NCCLSVC_NCCL_ERROR, "NCCL fails");
		return;
	}
	DL_FOREACH (inits, i) {
		if (!i->begun || memcmp(i->unique, mine->unique, sizeof(i->unique)) != 0)
			continue;
		begun++;
		if (i != mine && i->rank == mine->rank)
			fail("NCCL: two members with one id have rank %d", i->rank);
		if (i->nranks != mine->nranks)
			fail("NCCL: one id is used for %d ranks and for %d", i->nranks,
			     mine->nranks);
	}
	if (begun < mine->nranks)
		return;
	DL_FOREACH (inits, i)
		if (i->begun && !memcmp(i->unique, mine->unique, sizeof(i->unique)))
			answer_init(i, NCCLSVC_OK, "");
}

static void take_init(struct gpu *g, uint64_t key, const struct worker_message *m)
{
	struct init *i = calloc(1, sizeof(*i));
	if (!i)
		abort();
	i->gpu = g;
	i->key = key;
	i->number = m->comm.number;
	i->nranks = m->comm.nranks;
	i->rank = m->comm.rank;
	memcpy(i->unique, m->comm.id, sizeof(i->unique));
	DL_APPEND(inits, i);
}

static void cancel_init(const struct gpu *g, uint64_t number)
{
	struct init *i;
	DL_FOREACH (inits, i)
		if (i->gpu == g && i->number == number && !i->begun)
			answer_init(i, NCCLSVC_NCCL_ERROR, "it was taken back");
}

/* ---- Replaces daemon/gpu/gpu.c ---- */

uint64_t gpu_patience_ns(const struct gpus *s)
{
	return (uint64_t)s->config->worker_seconds * S;
}

void gpu_need(struct gpu *g)
{
	(void)g;
}

struct gpu *gpu_find(struct gpus *s, int32_t device)
{
	return device < 0 || (uint32_t)device >= s->ngpus ? NULL : s->gpu[device];
}

ncclsvc_mps gpu_mps_of(struct gpus *s, const struct session *c)
{
	(void)s;
	(void)c;
	return NCCLSVC_MPS_NONE;
}

void gpu_mps_joined(struct gpus *s, struct session *c, const struct svc_join *join)
{
	(void)s;
	(void)c;
	(void)join;
}

/* Sessions have no ring in the simulation. */
bool gpu_session_known(struct memory *s, struct gpu *g, struct session *c)
{
	(void)s;
	(void)g;
	(void)c;
	return true;
}

/* ---- Shares: members have no GPU memory here ---- */

void memory_unshared(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		     uint32_t wait_ms)
{
	(void)s;
	(void)request_id;
	(void)wait_ms;
	fail("pid %d waits for other members to unmap region %u", c->pid, region);
}

uint32_t gpu_region_parts(const struct mapping *m)
{
	(void)m;
	return 0;
}

const struct mapping *gpu_region_part(const struct session *c, const struct mapping *m, uint32_t n)
{
	(void)c;
	(void)m;
	(void)n;
	return NULL;
}

void gpu_tell(struct gpu *g, const struct worker_message *m)
{
	if (g->sock >= 0 && m->kind == WORKER_COMM_CANCEL)
		cancel_init(g, m->comm.number);
}

/* Returns whether the call waits for an earlier patient call, as in gpu.c. */
static bool behind_another(const struct gpu *g, const struct gpu_call *call)
{
	const struct gpu_call *other;
	DL_FOREACH (g->calls, other) {
		if (other == call)
			return false;
		if (other->patient)
			return true;
	}
	return false;
}

static uint64_t due(const struct gpu *g, const struct gpu_call *call)
{
	uint64_t since = call->asked_ns > g->since_ns ? call->asked_ns : g->since_ns;
	if (!call->aborts && g->heard_ns > since)
		since = g->heard_ns;
	return since + call->within_ns;
}

static void on_look(void *arg);

static void look_later(struct gpu *g, uint64_t key)
{
	struct errand *e = calloc(1, sizeof(*e));
	if (!e)
		abort();
	*e = (struct errand){.gpu = g, .key = key};
	at(clock_now() + 200 * MS, node_of_gpu(g), on_look, e);
}

static void on_look(void *arg)
{
	const struct errand *e = arg;
	const struct gpu_call *call = find_call(e->gpu, e->key);
	if (!call || e->gpu->sock < 0)
		return;
	if (clock_now() > due(e->gpu, call) && !(call->patient && behind_another(e->gpu, call)))
		worker_lose(e->gpu);
	else
		look_later(e->gpu, e->key);
}

bool gpu_ask(struct gpu *g, const struct worker_message *m, int fd, gpu_done *done, void *arg,
	     uint64_t within_ns)
{
	const bool ends = g->gone && g->alive && m->kind == WORKER_COMM_ABORT;
	struct gpu_call *call = g->sock >= 0 || ends ? calloc(1, sizeof(*call)) : NULL;
	(void)fd;
	if (!call) {
		done(g, arg, NULL);
		return true;
	}
	*call = (struct gpu_call){.done = done,
				  .arg = arg,
				  .key = ++g->last_key,
				  .asked_ns = clock_now(),
				  .within_ns = within_ns,
				  .aborts = m->kind == WORKER_COMM_ABORT,
				  .patient = m->kind == WORKER_COMM_INIT};
	DL_APPEND(g->calls, call);
	if (ends) /* the worker's end is the answer */
		return true;
	struct worker_message answer = {.kind = m->kind};
	look_later(g, call->key);
	if (m->kind == WORKER_COMM_INIT) {
		take_init(g, call->key, m);
		return true;
	}
	if (m->kind == WORKER_UNIQUE_ID)
		for (uint32_t i = 0; i < 8; i++)
			answer.comm.id[i] = (uint8_t)below(256);
	answer_later(g, call->key, &answer);
	return true;
}

void gpu_shorten_deadline(struct gpu *g, const void *arg, uint64_t within_ns)
{
	struct gpu_call *call;
	DL_FOREACH (g->calls, call) {
		if (call->arg != arg || call->within_ns <= within_ns)
			continue;
		call->asked_ns = clock_now();
		call->within_ns = within_ns;
	}
}

static void end_calls(struct gpu *g, bool aborts)
{
	struct gpu_call *call, *next;
	DL_FOREACH_SAFE (g->calls, call, next)
		if (aborts || !call->aborts)
			end_call(g, call, NULL);
}

static void on_ready(void *arg)
{
	struct gpu *g = ((struct errand *)arg)->gpu;
	g->sock = 1;
	g->alive = true;
	g->gone = false;
	g->generation++;
	g->since_ns = clock_now();
	g->info.state = NCCLSVC_DEVICE_READY;
	trace(node_of_gpu(g), "gpu%d has a worker", g->index);
	g->gpus->callbacks->worker_ready(g->gpus->owner, g);
}

void worker_start(struct gpu *g)
{
	struct errand *e = calloc(1, sizeof(*e));
	if (!e)
		abort();
	e->gpu = g;
	g->info.state = NCCLSVC_DEVICE_STARTING;
	at(clock_now() + between(MS, chance(80) ? 20 * MS : 2 * S), node_of_gpu(g), on_ready, e);
}

static void on_exit_(void *arg)
{
	struct gpu *g = ((struct errand *)arg)->gpu;
	g->alive = false;
	end_calls(g, true);
	worker_start(g);
}

void worker_lose(struct gpu *g)
{
	if (g->sock < 0)
		return;
	trace(node_of_gpu(g), "gpu%d LOSES ITS WORKER", g->index);
	struct errand *e = calloc(1, sizeof(*e));
	if (!e)
		abort();
	e->gpu = g;
	g->gone = true;
	g->sock = -1;
	g->info.state = NCCLSVC_DEVICE_LOST;
	g->since_ns = clock_now();
	nccl_comm_gpu_lost(g->gpus, g);
	end_calls(g, false);
	g->gpus->callbacks->worker_lost(g->gpus->owner, g);
	at(clock_now() + between(MS, 200 * MS), node_of_gpu(g), on_exit_, e);
}

void worker_end(struct gpu *g)
{
	g->sock = -1;
	g->alive = false;
	while (g->calls)
		end_call(g, g->calls, NULL);
}

void workers_begin(void)
{
	inits = NULL;
}

void workers_end(void)
{
	struct init *i, *next;
	DL_FOREACH_SAFE (inits, i, next)
		free(i);
	inits = NULL;
}
