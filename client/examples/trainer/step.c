/* SPDX-License-Identifier: Apache-2.0
 * A step: forward and backward passes of the micro-batches. Every --accumulate steps, the
 * gradients' sum over the data group updates the parameters. */
#include <string.h>

#include "fixed.h"
#include "trainer_rank.h"

#define RATE	 0.05f
#define MOMENTUM 0.9f

static float *input_of(const struct rank *r, size_t micro, int layer)
{
	const size_t layers = (size_t)(r->stage.end - r->stage.first);
	return r->x + (micro * (layers + 1) + (size_t)(layer - r->stage.first)) * ROW;
}

static float *inner_of(const struct rank *r, size_t micro, int layer)
{
	const size_t layers = (size_t)(r->stage.end - r->stage.first);
	return r->h + (micro * layers + (size_t)(layer - r->stage.first)) * MICRO * r->stage.hidden;
}

static ncclsvc_result forward(struct rank *r, size_t m)
{
	const struct stage *s = &r->stage;
	float *x = input_of(r, m, s->first);
	if (s->begins)
		embedding_forward(&r->weights, r->samples[m], x);
	else
		memcpy(x, r->routes[ACT_IN][m].host, ROW * sizeof(float));
	for (int l = s->first; l < s->end; l++, x += ROW) {
		const struct layer *w = &r->weights.layers[l];
		layer_forward(w, s->hidden, x, inner_of(r, m, l), r->parts.host);
		TRY(groups_sum(r, r->horizontal, &r->parts, ROW));
		layer_output(w, x, r->parts.host, x + ROW);
	}
	if (!s->ends)
		memcpy(r->routes[ACT_OUT][m].host, x, ROW * sizeof(float));
	return NCCLSVC_OK;
}

static void add_micro_grads(struct rank *r)
{
	int64_t *grads = r->grads.host;
	for (size_t i = 0; i < r->stage.n; i++)
		grads[i] += fixed(r->micro_grads[i]);
	memset(r->micro_grads, 0, r->stage.n * sizeof(float));
}

static ncclsvc_result backward(struct rank *r, size_t m)
{
	const struct stage *s = &r->stage;
	float dx[ROW];
	if (s->ends)
		*(int64_t *)r->loss.host +=
			(int64_t)(output_both(&r->weights, &r->grads_at, r->samples[m],
					      input_of(r, m, s->end), dx) *
				  FIXED_ONE);
	else
		memcpy(dx, r->routes[GRAD_IN][m].host, sizeof(dx));
	for (int l = s->end - 1; l >= s->first; l--) {
		layer_backward(&r->weights.layers[l], &r->grads_at.layers[l], s->hidden,
			       input_of(r, m, l), inner_of(r, m, l), dx, r->parts.host);
		TRY(groups_sum(r, r->horizontal, &r->parts, ROW));
		layer_input(dx, r->parts.host, dx);
	}
	if (s->begins)
		embedding_backward(&r->grads_at, r->samples[m], dx);
	else
		memcpy(r->routes[GRAD_OUT][m].host, dx, sizeof(dx));
	add_micro_grads(r);
	return NCCLSVC_OK;
}

static ncclsvc_result through_pipeline(struct rank *r)
{
	const int z = pipeline_stage(r);
	const int64_t slots = pipeline_slots(r);
	for (int64_t slot = 0; slot < slots; slot++) {
		const int64_t f = pipeline_forward(r, z, slot), b = pipeline_backward(r, z, slot);
		if (f >= 0)
			TRY(forward(r, (size_t)f));
		if (b >= 0)
			TRY(backward(r, (size_t)b));
		if (r->plan && slot < slots - 1)
			TRY(pipeline_exchange(r, slot));
	}
	return r->plan ? groups_reset_plan(r) : NCCLSVC_OK;
}

/* With --zero, this rank updates its own part, and gets the rest from the others. */
static ncclsvc_result update(struct rank *r)
{
	const struct stage *s = &r->stage;
	const int64_t *grads = r->grads.host;
	float *parameters = r->parameters.host;
	TRY(r->lists ? groups_reduce_scatter(r) : groups_sum(r, r->data, &r->grads, s->n));
	for (size_t i = s->own; i < s->own_end; i++) {
		float *v = &r->velocity[i - s->own];
		*v = MOMENTUM * *v + (float)(unfixed(grads[i]) / (double)r->o->batch);
		parameters[i] -= RATE * *v;
	}
	memset(r->grads.host, 0, r->grads.bytes);
	return r->lists ? groups_all_gather(r) : NCCLSVC_OK;
}

ncclsvc_result step_run(struct rank *r, uint64_t step)
{
	const ncclsvc_group *groups = r->stage.layout.groups, *data = &groups[NCCLSVC_GROUP_DATA];
	const uint64_t micros = r->micros * (uint64_t)data->size; /* of all replicas */
	for (size_t m = 0; m < r->micros; m++)
		text_samples(&r->text, step * micros + (uint64_t)data->index * r->micros + m,
			     r->samples[m]);
	memset(r->loss.host, 0, r->loss.bytes);
	TRY(through_pipeline(r));
	if (r->stage.ends)
		TRY(groups_sum(r, r->data, &r->loss, 1));
	if ((step + 1) % r->o->accumulate == 0)
		TRY(update(r));
	if (r->stage.ends && data->index == 0 && groups[NCCLSVC_GROUP_HORIZONTAL].index == 0)
		losses_add(&r->losses, step,
			   unfixed(*(int64_t *)r->loss.host) / (double)(micros * MICRO));
	return NCCLSVC_OK;
}
