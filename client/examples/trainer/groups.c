/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_rank.h"

#define SLICE_MS 100 /* interval of checks on the other ranks */

/* ---- Joining ---- */

static ncclsvc_comm *group(const struct rank *r, ncclsvc_group_type type)
{
	return r->stage.layout.groups[type].size > 1 ? ncclsvc_world_comm(r->world, type) : NULL;
}

ncclsvc_result groups_join(struct rank *r)
{
	const ncclsvc_world_options options = {
		.size = sizeof(options),
		.rank = r->o->rank,
		.device = r->o->cuda ? r->o->rank : NCCLSVC_DEVICE_HOST,
		.data = r->o->data,
		.horizontal = r->o->horizontal,
		.pipeline = r->o->pipeline,
	};
	TRY(ncclsvc_world_init(r->session, &options, LIMIT_MS, &r->world));
	r->all = ncclsvc_world_host_comm(r->world);
	r->data = group(r, NCCLSVC_GROUP_DATA);
	r->horizontal = group(r, NCCLSVC_GROUP_HORIZONTAL);
	r->pipeline = group(r, NCCLSVC_GROUP_PIPELINE);
	if (r->o->zero)
		TRY(ncclsvc_tensors_open_group(r->world, NCCLSVC_GROUP_DATA, LIMIT_MS, &r->lists));
	return NCCLSVC_OK;
}

void groups_leave(struct rank *r)
{
	ncclsvc_tensors_close(r->lists);
	ncclsvc_world_free(r->world);
	r->lists = NULL;
	r->world = NULL;
	r->all = r->data = r->horizontal = r->pipeline = NULL;
}

/* ---- Waiting, and noticing that a rank is gone ---- */

typedef ncclsvc_result wait_slice_fn(const struct rank *r, ncclsvc_task task);

static ncclsvc_result await(const struct rank *r, wait_slice_fn *wait, ncclsvc_task task)
{
	const uint64_t begin = now_ns();
	for (;;) {
		ncclsvc_result result = wait(r, task);
		if (result != NCCLSVC_TIMEOUT)
			return result;
		TRY(ncclsvc_comm_error(r->all));
		if (now_ns() - begin > LIMIT_MS * UINT64_C(1000000))
			return NCCLSVC_TIMEOUT;
	}
}

static ncclsvc_result wait_task(const struct rank *r, ncclsvc_task task)
{
	return ncclsvc_wait(r->session, task, SLICE_MS);
}

static ncclsvc_result wait_planned(const struct rank *r, ncclsvc_task task)
{
	return ncclsvc_plan_wait(r->plan, task, SLICE_MS);
}

static ncclsvc_result wait_reset(const struct rank *r, ncclsvc_task task)
{
	(void)task;
	return ncclsvc_plan_reset(r->plan, SLICE_MS);
}

ncclsvc_result groups_await(const struct rank *r, ncclsvc_task task)
{
	return await(r, wait_task, task);
}

ncclsvc_result groups_await_planned(const struct rank *r, ncclsvc_task task)
{
	return await(r, wait_planned, task);
}

ncclsvc_result groups_reset_plan(const struct rank *r)
{
	return await(r, wait_reset, 0);
}

/* ---- Collectives ---- */

ncclsvc_result groups_sum(struct rank *r, ncclsvc_comm *comm, struct buffer *b, size_t n)
{
	ncclsvc_task task;
	if (!comm)
		return NCCLSVC_OK;
	NEED(buffer_put(b, r->gpu));
	TRY(ncclsvc_all_reduce(b->shared, b->shared, n, NCCLSVC_INT64, NCCLSVC_SUM, comm, &task));
	TRY(groups_await(r, task));
	NEED(buffer_get(b, r->gpu));
	return NCCLSVC_OK;
}

/* A list fails as soon as a member of the data group is gone. When a rank of another group is gone,
 * a member notices and closes its session, so these waits end too and need no checks. */

ncclsvc_result groups_reduce_scatter(struct rank *r)
{
	ncclsvc_tensor list[VIEWS_MAX];
	NEED(buffer_put(&r->grads, r->gpu));
	stage_list(&r->stage, r->grads.shared, NCCLSVC_INT64, list);
	TRY(ncclsvc_tensors_reduce_scatter(r->lists, list, NULL, r->stage.n_views, NCCLSVC_SUM,
					   LIMIT_MS, NULL));
	NEED(buffer_get(&r->grads, r->gpu));
	return NCCLSVC_OK;
}

ncclsvc_result groups_all_gather(struct rank *r)
{
	ncclsvc_tensor list[VIEWS_MAX];
	NEED(buffer_put(&r->parameters, r->gpu));
	stage_list(&r->stage, r->parameters.shared, NCCLSVC_FLOAT32, list);
	TRY(ncclsvc_tensors_all_gather(r->lists, list, NULL, r->stage.n_views, LIMIT_MS, NULL));
	NEED(buffer_get(&r->parameters, r->gpu));
	return NCCLSVC_OK;
}

ncclsvc_result groups_least(struct rank *r, uint64_t *n)
{
	void *word;
	ncclsvc_task task;
	if (!r->all)
		return NCCLSVC_OK;
	TRY(ncclsvc_mem_alloc(r->session, sizeof(uint64_t), &word));
	*(uint64_t *)word = *n;
	TRY(ncclsvc_all_reduce(word, word, 1, NCCLSVC_UINT64, NCCLSVC_MIN, r->all, &task));
	TRY(groups_await(r, task));
	*n = *(uint64_t *)word;
	return ncclsvc_mem_free(r->session, word);
}

ncclsvc_result groups_barrier(struct rank *r)
{
	ncclsvc_task task;
	if (!r->all)
		return NCCLSVC_OK;
	TRY(ncclsvc_barrier(r->all, &task));
	return groups_await(r, task);
}
