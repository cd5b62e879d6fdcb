/* SPDX-License-Identifier: Apache-2.0
 * Micro-batches go up the stages, and their gradients down again, one stage in a slot: stage z of P
 * has the forward pass of micro-batch m in slot z + m, and its backward pass in slot 2 (P - 1) - z
 * + m. So all stages work at the same time (1F1B); of 2 stages and 4 micro-batches:
 *
 *   slot       0      1           2           3           4           5
 *   stage 0    f0     f1          f2 b0       f3 b1       b2          b3
 *   stage 1           f0 b0       f1 b1       f2 b2       f3 b3
 *
 * What a slot has made goes to the neighbours at its end: a group of the plan for each.
 */
#include "trainer_rank.h"

struct move {
	bool sends;
	int peer;
	struct buffer *buffer;
};

static int64_t within(const struct rank *r, int64_t micro)
{
	return micro >= 0 && micro < (int64_t)r->micros ? micro : -1;
}

int64_t pipeline_slots(const struct rank *r)
{
	return (int64_t)r->micros + 2 * ((int64_t)r->o->pipeline - 1);
}

int64_t pipeline_forward(const struct rank *r, int stage, int64_t slot)
{
	return within(r, slot - stage);
}

int64_t pipeline_backward(const struct rank *r, int stage, int64_t slot)
{
	return within(r, slot - 2 * (r->o->pipeline - 1) + stage);
}

/* Messages of this rank at the end of a slot, Sends first. */
static size_t moves_of(const struct rank *r, int64_t slot, struct move moves[ROUTES])
{
	const int z = pipeline_stage(r), above = z + 1, below = z - 1;
	const struct {
		enum route route;
		int peer;
		int64_t micro;
	} all[ROUTES] = {
		{ACT_OUT, above, pipeline_forward(r, z, slot)},
		{GRAD_OUT, below, pipeline_backward(r, z, slot)},
		{ACT_IN, below, pipeline_forward(r, below, slot)},
		{GRAD_IN, above, pipeline_backward(r, above, slot)},
	};
	size_t n = 0;
	for (size_t i = 0; i < ROUTES; i++)
		if (all[i].peer >= 0 && all[i].peer < r->o->pipeline && all[i].micro >= 0)
			moves[n++] = (struct move){i < 2, all[i].peer,
						   &r->routes[all[i].route][all[i].micro]};
	return n;
}

ncclsvc_result pipeline_plan(struct rank *r)
{
	struct move moves[ROUTES];
	TRY(ncclsvc_plan_start(r->pipeline, &r->plan));
	for (int64_t slot = 0; slot < pipeline_slots(r) - 1; slot++) {
		const size_t n = moves_of(r, slot, moves);
		TRY(ncclsvc_plan_group_start(r->plan));
		for (size_t i = 0; i < n; i++)
			TRY((moves[i].sends ? ncclsvc_plan_send : ncclsvc_plan_recv)(
				r->plan, ROW, NCCLSVC_FLOAT32, moves[i].peer));
		TRY(ncclsvc_plan_group_end(r->plan));
	}
	TRY(ncclsvc_plan_end(r->plan, LIMIT_MS));
	return ncclsvc_plan_launch(r->plan);
}

ncclsvc_result pipeline_exchange(struct rank *r, int64_t slot)
{
	struct move moves[ROUTES];
	ncclsvc_task tasks[ROUTES];
	const size_t n = moves_of(r, slot, moves);
	for (size_t i = 0; i < n; i++) {
		const struct move *m = &moves[i];
		if (m->sends) {
			NEED(buffer_put(m->buffer, r->gpu));
			TRY(ncclsvc_plan_submit_send(r->plan, m->buffer->shared, ROW,
						     NCCLSVC_FLOAT32, m->peer, NULL));
		} else {
			TRY(ncclsvc_plan_submit_recv(r->plan, m->buffer->shared, ROW,
						     NCCLSVC_FLOAT32, m->peer, &tasks[i]));
		}
	}
	for (size_t i = 0; i < n; i++) {
		if (moves[i].sends)
			continue;
		TRY(groups_await_planned(r, tasks[i]));
		NEED(buffer_get(moves[i].buffer, r->gpu));
	}
	return NCCLSVC_OK;
}
