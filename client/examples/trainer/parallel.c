/* SPDX-License-Identifier: Apache-2.0
 * One rank of the 2 x 2. Stage 0 and stage 1 of a replica exchange by a plan, in the order
 *
 *   group      0        1            2            3            4
 *   stage 0   send a0   send a1      send a2      send a3      -
 *             -         recv g0      recv g1      recv g2      recv g3
 *   stage 1   recv a0   recv a1 ...  (the other side of the same)
 *
 * so that both stages work at the same time (1F1B). When anything of it fails because a process or
 * a GPU's worker went, the rank closes its session, comes back, and goes on from the newest
 * checkpoint that all have: the daemon's communicators are still there.
 */
#include <ncclsvc_plan.h>
#include <ncclsvc_world.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"
#include "trainer.h"

#define SLICE_MS 100   /* between looks at the other ranks */
#define LIMIT_MS 60000 /* for anything */
#define LIVES	 20

struct rank {
	const struct options *o;
	int stage, replica;
	struct text text;
	struct stage model;
	struct losses losses;
	struct gpu *gpu;
	/* With the daemon: */
	ncclsvc_session *session;
	ncclsvc_world *world;
	ncclsvc_comm *all, *data, *pipeline;
	ncclsvc_plan *plan;
	struct buffer act[MICROS], dact[MICROS], grads, loss;
	ncclsvc_task arrives[MICROS]; /* of what the other stage sends */
	struct sample samples[MICROS][MICRO];
	uint64_t start_ns, connected_ns, joined_ns, planned_ns;
	bool stepped, failed;
};

/* ---- Waiting, and noticing that somebody went ---- */

/* A wait's time is up: has anything happened, or is the limit reached? */
static ncclsvc_result look_around(const struct rank *r, uint64_t begin)
{
	ncclsvc_result result = ncclsvc_comm_error(r->all);
	if (!result && now_ns() - begin > LIMIT_MS * UINT64_C(1000000))
		result = NCCLSVC_TIMEOUT;
	return result;
}

static ncclsvc_result await(const struct rank *r, ncclsvc_task task, bool planned)
{
	const uint64_t begin = now_ns();
	for (;;) {
		ncclsvc_result result = planned ? ncclsvc_plan_wait(r->plan, task, SLICE_MS)
						: ncclsvc_wait(r->session, task, SLICE_MS);
		if (result == NCCLSVC_TIMEOUT)
			result = look_around(r, begin);
		else
			return result;
		if (result)
			return result;
	}
}

static ncclsvc_result end_iteration(const struct rank *r)
{
	const uint64_t begin = now_ns();
	for (;;) {
		ncclsvc_result result = ncclsvc_plan_reset(r->plan, SLICE_MS);
		if (result != NCCLSVC_TIMEOUT)
			return result;
		result = look_around(r, begin);
		if (result)
			return result;
	}
}

#define TRY(call)                                                                                  \
	do {                                                                                       \
		ncclsvc_result result_ = (call);                                                   \
		if (result_)                                                                       \
			return result_;                                                            \
	} while (0)
#define NEED(call)                                                                                 \
	do {                                                                                       \
		if (!(call))                                                                       \
			return NCCLSVC_SYSTEM;                                                     \
	} while (0)

/* ---- Connecting ---- */

static ncclsvc_result make_plan(struct rank *r)
{
	const int other = 1 - ncclsvc_comm_rank(r->pipeline);
	TRY(ncclsvc_plan_start(r->pipeline, &r->plan));
	for (int g = 0; g <= MICROS; g++) {
		TRY(ncclsvc_plan_group_start(r->plan));
		/* Activations of micro-batch g, and the gradients of the one before. */
		for (int way = 0; way < 2; way++) {
			bool here = way == 0 ? g < MICROS : g > 0;
			bool sends = way == r->stage;
			if (here && sends)
				TRY(ncclsvc_plan_send(r->plan, ACTIVATIONS, NCCLSVC_FLOAT32,
						      other));
			else if (here)
				TRY(ncclsvc_plan_recv(r->plan, ACTIVATIONS, NCCLSVC_FLOAT32,
						      other));
		}
		TRY(ncclsvc_plan_group_end(r->plan));
	}
	TRY(ncclsvc_plan_end(r->plan, LIMIT_MS));
	return ncclsvc_plan_launch(r->plan);
}

static bool make_buffers(struct rank *r)
{
	bool good = buffer_make(&r->grads, r->session, r->gpu, r->model.n * sizeof(float));
	for (int m = 0; m < MICROS && good; m++)
		good = buffer_make(&r->act[m], r->session, r->gpu, ACTIVATIONS * sizeof(float)) &&
		       buffer_make(&r->dact[m], r->session, r->gpu, ACTIVATIONS * sizeof(float));
	return good && buffer_make(&r->loss, r->session, r->gpu, sizeof(double));
}

static ncclsvc_result join_world(struct rank *r)
{
	const ncclsvc_world_options options = {
		.size = sizeof(options),
		.rank = r->o->rank,
		.device = r->o->cuda ? r->o->rank : NCCLSVC_DEVICE_HOST,
		.data = REPLICAS,
		.horizontal = 1,
		.pipeline = STAGES,
	};
	TRY(ncclsvc_world_init(r->session, &options, LIMIT_MS, &r->world));
	r->all = ncclsvc_world_host_comm(r->world);
	r->data = ncclsvc_world_comm(r->world, NCCLSVC_GROUP_DATA);
	r->pipeline = ncclsvc_world_comm(r->world, NCCLSVC_GROUP_PIPELINE);
	return NCCLSVC_OK;
}

/* The newest checkpoint that all ranks have. */
static ncclsvc_result agree_on_step(struct rank *r, uint64_t *step)
{
	void *word;
	ncclsvc_task task;
	TRY(ncclsvc_mem_alloc(r->session, sizeof(uint64_t), &word));
	*(uint64_t *)word = checkpoint_newest(r->o->checkpoints, r->o->rank);
	TRY(ncclsvc_all_reduce(word, word, 1, NCCLSVC_UINT64, NCCLSVC_MIN, r->all, &task));
	TRY(await(r, task, false));
	*step = *(uint64_t *)word;
	return NCCLSVC_OK;
}

/* The world's first ranks are node 0's. NULL: as the library finds it. */
static const char *socket_path(const struct options *o, char *path, size_t size)
{
	const char *pattern = getenv("NCCLSVC_SOCKET"),
		   *node = pattern ? strstr(pattern, "%r") : NULL;
	if (!node)
		return NULL;
	snprintf(path, size, "%.*s%d%s", (int)(node - pattern), pattern, o->rank * o->nodes / RANKS,
		 node + 2);
	return path;
}

static ncclsvc_result connect_all(struct rank *r, uint64_t *step)
{
	char path[256];
	TRY(ncclsvc_open(&(ncclsvc_options){.size = sizeof(ncclsvc_options),
					    .socket = socket_path(r->o, path, sizeof(path)),
					    .name = "trainer"},
			 &r->session));
	if (r->gpu)
		TRY(ncclsvc_stream_set(r->session, gpu_stream(r->gpu), 0));
	r->connected_ns = now_ns();
	TRY(join_world(r));
	r->joined_ns = now_ns();
	TRY(make_plan(r));
	r->planned_ns = now_ns();
	NEED(make_buffers(r));
	TRY(agree_on_step(r, step));
	if (*step)
		NEED(checkpoint_load(r->o->checkpoints, r->o->rank, *step, &r->model));
	else
		stage_init(&r->model);
	return NCCLSVC_OK;
}

static void disconnect(struct rank *r)
{
	ncclsvc_plan_terminate(r->plan, 0);
	ncclsvc_world_free(r->world);
	ncclsvc_close(r->session);
	for (int m = 0; m < MICROS; m++) {
		buffer_free(&r->act[m], r->gpu);
		buffer_free(&r->dact[m], r->gpu);
	}
	buffer_free(&r->grads, r->gpu);
	buffer_free(&r->loss, r->gpu);
	r->plan = NULL;
	r->world = NULL;
	r->session = NULL;
}

/* ---- A step ---- */

static ncclsvc_result send_on(struct rank *r, const struct buffer *b)
{
	NEED(buffer_put(b, r->gpu));
	return ncclsvc_plan_submit_send(r->plan, b->shared, ACTIVATIONS, NCCLSVC_FLOAT32,
					1 - ncclsvc_comm_rank(r->pipeline), NULL);
}

/* What the other stage will send. */
static ncclsvc_result expect(struct rank *r, int m)
{
	const struct buffer *b = r->stage ? &r->act[m] : &r->dact[m];
	return ncclsvc_plan_submit_recv(r->plan, b->shared, ACTIVATIONS, NCCLSVC_FLOAT32,
					1 - ncclsvc_comm_rank(r->pipeline), &r->arrives[m]);
}

static ncclsvc_result stage0_step(struct rank *r)
{
	for (int m = 0; m <= MICROS; m++) {
		if (m < MICROS) {
			stage0_forward(&r->model, r->samples[m], r->act[m].host);
			TRY(send_on(r, &r->act[m]));
		}
		if (m == 0)
			continue;
		TRY(expect(r, m - 1));
		TRY(await(r, r->arrives[m - 1], true));
		NEED(buffer_get(&r->dact[m - 1], r->gpu));
		stage0_backward(&r->model, r->samples[m - 1], r->act[m - 1].host,
				r->dact[m - 1].host, r->grads.host);
	}
	return NCCLSVC_OK;
}

static ncclsvc_result stage1_step(struct rank *r)
{
	double *loss = r->loss.host;
	TRY(expect(r, 0));
	for (int m = 0; m < MICROS; m++) {
		TRY(await(r, r->arrives[m], true));
		NEED(buffer_get(&r->act[m], r->gpu));
		*loss += stage1_both(&r->model, r->samples[m], r->act[m].host, r->dact[m].host,
				     r->grads.host);
		TRY(send_on(r, &r->dact[m]));
		if (m + 1 < MICROS)
			TRY(expect(r, m + 1));
	}
	return NCCLSVC_OK;
}

/* The sum over the replicas, the same on all of them. */
static ncclsvc_result sum(struct rank *r, const struct buffer *b, size_t n, ncclsvc_type type)
{
	ncclsvc_task task;
	NEED(buffer_put(b, r->gpu));
	TRY(ncclsvc_all_reduce(b->shared, b->shared, n, type, NCCLSVC_SUM, r->data, &task));
	TRY(await(r, task, false));
	NEED(buffer_get(b, r->gpu));
	return NCCLSVC_OK;
}

static ncclsvc_result step(struct rank *r, uint64_t n)
{
	memset(r->grads.host, 0, r->grads.bytes);
	memset(r->loss.host, 0, r->loss.bytes);
	for (int m = 0; m < MICROS; m++)
		text_samples(&r->text, n, r->replica, m, r->samples[m]);
	TRY(r->stage ? stage1_step(r) : stage0_step(r));
	TRY(end_iteration(r));
	TRY(sum(r, &r->grads, r->model.n, NCCLSVC_FLOAT32));
	if (r->stage)
		TRY(sum(r, &r->loss, 1, NCCLSVC_FLOAT64));
	stage_update(&r->model, r->grads.host);
	if (r->stage && r->replica == 0)
		losses_add(&r->losses, n, *(double *)r->loss.host / BATCH);
	return NCCLSVC_OK;
}

/* ---- A life: from the connection to the end, or until somebody goes ---- */

static void tell_start(struct rank *r, uint64_t from)
{
	if (r->stepped)
		return;
	r->stepped = true;
	const double begin = (double)r->start_ns, connected = (double)r->connected_ns,
		     joined = (double)r->joined_ns, planned = (double)r->planned_ns,
		     now = (double)now_ns();
	times_add(&(struct times){.rank = r->o->rank,
				  .after = r->failed ? "failure" : "start",
				  .from = from,
				  .connect_ms = (connected - begin) / 1e6,
				  .join_ms = (joined - connected) / 1e6,
				  .plan_ms = (planned - joined) / 1e6,
				  .step_ms = (now - planned) / 1e6,
				  .all_ms = (now - begin) / 1e6});
}

static ncclsvc_result live(struct rank *r)
{
	uint64_t n = 0;
	TRY(connect_all(r, &n));
	for (const uint64_t from = n; n < r->o->steps; n++) {
		if (r->o->kill_rank == r->o->rank && n == r->o->kill_step)
			raise(SIGKILL); /* as a crash would, in the middle of it all */
		TRY(step(r, n));
		tell_start(r, from);
		if (r->o->checkpoints && (n + 1) % r->o->interval == 0)
			NEED(checkpoint_save(r->o->checkpoints, r->o->rank, n + 1, &r->model,
					     r->o->interval));
	}
	/* Nobody leaves before all are done. */
	ncclsvc_task task;
	TRY(ncclsvc_barrier(r->all, &task));
	return await(r, task, false);
}

static bool worth_another(ncclsvc_result result)
{
	switch (result) {
	case NCCLSVC_PEER_GONE:
	case NCCLSVC_STALE_EPOCH:
	case NCCLSVC_CANCELLED:
	case NCCLSVC_WORKER_LOST:
	case NCCLSVC_DAEMON_LOST:
	case NCCLSVC_RANK_TAKEN: /* by a process that is about to end */
		return true;
	default:
		return false;
	}
}

int rank_run(const struct options *o, uint64_t start_ns)
{
	struct rank r = {.o = o,
			 .stage = o->rank / REPLICAS,
			 .replica = o->rank % REPLICAS,
			 .start_ns = start_ns};
	ncclsvc_result result = NCCLSVC_SYSTEM;
	bool good = text_read(&r.text, o->text) && stage_make(&r.model, r.stage) &&
		    losses_open(&r.losses, o) && (!o->cuda || (r.gpu = gpu_open(o->rank)) != NULL);
	for (int lives = 0; good && lives < LIVES; lives++) {
		result = live(&r);
		if (result)
			say("rank %d: %s", o->rank, ncclsvc_last_error());
		disconnect(&r);
		if (!worth_another(result))
			break;
		r.start_ns = now_ns();
		r.failed = true;
		r.stepped = false;
		usleep(20000); /* others may have to notice, too */
	}
	if (!result && r.stage && r.replica == 0)
		losses_close(&r.losses);
	free(r.losses.by_step);
	stage_free(&r.model);
	text_free(&r.text);
	gpu_close(r.gpu);
	return result ? 1 : 0;
}
