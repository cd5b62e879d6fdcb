/* SPDX-License-Identifier: Apache-2.0
 * A rank's life. When something fails because a process or a GPU's worker is gone, the rank closes
 * its session, opens a new one, and continues from the newest checkpoint that all ranks have; the
 * daemon's communicators still exist. The order is that of a training framework: first what the
 * rank will be, then its connection, world and plan, then its memory, and last the restored
 * checkpoint. */
#include "trainer_rank.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIVES 20

/* ---- State that survives a reconnect ---- */

static bool make(struct rank *r, const struct options *o)
{
	struct stage *s = &r->stage;
	if (!stage_make(s, o, o->rank < 0 ? 0 : o->rank) || !text_read(&r->text, o->text) ||
	    !losses_open(&r->losses, o))
		return false;
	const size_t layers = (size_t)(s->end - s->first);
	r->micros = micros_of(o);
	r->velocity = calloc(s->own_end - s->own, sizeof(float));
	r->micro_grads = calloc(s->n, sizeof(float));
	r->x = calloc(r->micros * (layers + 1) * ROW, sizeof(float));
	r->h = calloc(r->micros * layers * MICRO * s->hidden, sizeof(float));
	r->samples = calloc(r->micros, sizeof(*r->samples));
	for (int i = 0; i < ROUTES; i++)
		r->routes[i] = calloc(r->micros, sizeof(struct buffer));
	bool good = r->velocity && r->micro_grads && r->x && r->h && r->samples;
	for (int i = 0; i < ROUTES; i++)
		good = good && r->routes[i];
	if (!good)
		say("out of memory");
	stage_weights(s, r->micro_grads, &r->grads_at);
	return good && (!o->cuda || (r->gpu = gpu_open(o->rank)) != NULL);
}

static void destroy(struct rank *r)
{
	for (int i = 0; i < ROUTES; i++)
		free(r->routes[i]);
	free(r->velocity);
	free(r->micro_grads);
	free(r->x);
	free(r->h);
	free(r->samples);
	free(r->losses.by_step);
	text_free(&r->text);
	gpu_close(r->gpu);
}

/* ---- A connection ---- */

static bool make_routes(struct rank *r, int neighbour, enum route in, enum route out)
{
	bool good = true;
	if (neighbour < 0 || neighbour >= r->o->pipeline)
		return true;
	for (size_t m = 0; m < r->micros && good; m++)
		good = buffer_make(&r->routes[in][m], r->session, r->gpu, ROW * sizeof(float)) &&
		       buffer_make(&r->routes[out][m], r->session, r->gpu, ROW * sizeof(float));
	return good;
}

static bool make_buffers(struct rank *r)
{
	const size_t n = r->stage.n;
	const int z = pipeline_stage(r);
	return buffer_make(&r->parameters, r->session, r->gpu, n * sizeof(float)) &&
	       buffer_make(&r->grads, r->session, r->gpu, n * sizeof(int64_t)) &&
	       buffer_make(&r->parts, r->session, r->gpu, ROW * sizeof(int64_t)) &&
	       buffer_make(&r->loss, r->session, r->gpu, sizeof(int64_t)) &&
	       make_routes(r, z - 1, ACT_IN, GRAD_OUT) && make_routes(r, z + 1, GRAD_IN, ACT_OUT);
}

static ncclsvc_result connect_all(struct rank *r)
{
	char path[256];
	const ncclsvc_options options = {.size = sizeof(options),
					 .socket = socket_of(r->o, r->o->rank, path, sizeof(path)),
					 .name = "trainer"};
	if (r->o->single)
		return NCCLSVC_OK;
	TRY(ncclsvc_open(&options, &r->session));
	if (r->gpu)
		TRY(ncclsvc_stream_set(r->session, gpu_stream(r->gpu), 0));
	r->connected_ns = now_ns();
	TRY(groups_join(r));
	r->joined_ns = now_ns();
	if (r->pipeline)
		TRY(pipeline_plan(r));
	r->planned_ns = now_ns();
	return NCCLSVC_OK;
}

/* Finds the newest checkpoint that all ranks have. */
static ncclsvc_result restore(struct rank *r, uint64_t *step)
{
	*step = checkpoint_newest(r);
	TRY(groups_least(r, step));
	stage_weights(&r->stage, r->parameters.host, &r->weights);
	stage_init(&r->stage, r->parameters.host);
	memset(r->velocity, 0, (r->stage.own_end - r->stage.own) * sizeof(float));
	memset(r->micro_grads, 0, r->stage.n * sizeof(float));
	NEED(!*step || checkpoint_load(r, *step));
	return NCCLSVC_OK;
}

static void disconnect(struct rank *r)
{
	ncclsvc_plan_terminate(r->plan, 0);
	groups_leave(r);
	ncclsvc_close(r->session);
	struct buffer *single[] = {&r->parameters, &r->grads, &r->parts, &r->loss};
	for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++)
		buffer_free(single[i], r->gpu);
	for (int i = 0; i < ROUTES; i++)
		for (size_t m = 0; m < r->micros; m++)
			buffer_free(&r->routes[i][m], r->gpu);
	r->plan = NULL;
	r->session = NULL;
}

/* ---- A life: from the connection to the end, or until a rank is gone ---- */

static void tell_start(struct rank *r, uint64_t from)
{
	if (r->stepped || r->o->single)
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
	const struct options *o = r->o;
	uint64_t n = 0;
	TRY(connect_all(r));
	NEED(make_buffers(r));
	TRY(restore(r, &n));
	for (const uint64_t from = n; n < o->steps; n++) {
		if (o->kill_rank >= 0 && o->kill_rank == o->rank && n == o->kill_step)
			raise(SIGKILL); /* like a crash in the middle of the work */
		TRY(step_run(r, n));
		tell_start(r, from);
		if (o->checkpoints && (n + 1) % o->interval == 0)
			NEED(checkpoint_save(r, n + 1));
	}
	return groups_barrier(r); /* no rank leaves before all are done */
}

static bool worth_another(ncclsvc_result result)
{
	switch (result) {
	case NCCLSVC_PEER_GONE:
	case NCCLSVC_STALE_EPOCH:
	case NCCLSVC_CANCELLED:
	case NCCLSVC_WORKER_LOST:
	case NCCLSVC_DAEMON_LOST:
	case NCCLSVC_RANK_TAKEN: /* held by a process that is about to end */
		return true;
	default:
		return false;
	}
}

int rank_run(const struct options *o, uint64_t start_ns)
{
	struct rank r = {.o = o, .start_ns = start_ns};
	ncclsvc_result result = NCCLSVC_SYSTEM;
	const bool good = make(&r, o);
	for (int lives = 0; good && lives < LIVES; lives++) {
		result = live(&r);
		if (result && *ncclsvc_last_error()) /* otherwise an error was printed */
			say("rank %d: %s", o->rank, ncclsvc_last_error());
		disconnect(&r);
		if (!worth_another(result))
			break;
		r.start_ns = now_ns();
		r.failed = true;
		r.stepped = false;
		usleep(20000); /* other ranks may have to notice too */
	}
	const ncclsvc_group *groups = r.stage.layout.groups;
	if (!result && r.stage.ends && groups[NCCLSVC_GROUP_DATA].index == 0 &&
	    groups[NCCLSVC_GROUP_HORIZONTAL].index == 0)
		losses_close(&r.losses);
	destroy(&r);
	return result ? 1 : 0;
}
