/* SPDX-License-Identifier: Apache-2.0
 * One rank's state, and the functions its files share. Functions that communicate return a result,
 * with the sentence in ncclsvc_last_error(), or SYSTEM if they have already printed an error. */
#ifndef TRAINER_RANK_H
#define TRAINER_RANK_H

#include <ncclsvc_plan.h>

#include "buffers.h"
#include "model.h"

#define LIMIT_MS 60000 /* timeout of every wait */

/* Messages between stages, for each micro-batch: activations and gradients, in and out. */
enum route { ACT_IN, ACT_OUT, GRAD_IN, GRAD_OUT, ROUTES };

struct rank {
	const struct options *o;
	struct stage stage;
	size_t micros; /* micro-batches in a step */
	struct text text;
	struct losses losses;
	struct gpu *gpu;
	float *velocity;    /* [own_end - own]: the optimizer's state */
	float *micro_grads; /* [n]: of one micro-batch */
	float *x, *h;	    /* [micros][layers + 1][ROW], [micros][layers][MICRO][hidden] */
	struct sample (*samples)[MICRO];  /* [micros] */
	struct weights weights, grads_at; /* into parameters, micro_grads */
	/* The connection: communicators of one rank are NULL, and without a daemon all of it. */
	ncclsvc_session *session;
	ncclsvc_world *world;
	ncclsvc_comm *all, *data, *horizontal, *pipeline;
	ncclsvc_tensors *lists; /* of the data group, with --zero */
	ncclsvc_plan *plan;
	struct buffer parameters, grads; /* [n] floats, [n] sums */
	struct buffer parts, loss;	 /* [ROW] sums, one sum */
	struct buffer *routes[ROUTES];	 /* [micros], where there is such a neighbour */
	uint64_t start_ns, connected_ns, joined_ns, planned_ns;
	bool stepped, failed;
};

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

/* ---- groups.c ---- */

ncclsvc_result groups_join(struct rank *r);
void groups_leave(struct rank *r);
/* Waits, and checks on all other ranks meanwhile. */
ncclsvc_result groups_await(const struct rank *r, ncclsvc_task task);
ncclsvc_result groups_await_planned(const struct rank *r, ncclsvc_task task);
ncclsvc_result groups_reset_plan(const struct rank *r);
/* Replaces the first n integers of a buffer by their sums over the group. comm NULL: a group of
 * one. */
ncclsvc_result groups_sum(struct rank *r, ncclsvc_comm *comm, struct buffer *b, size_t n);
/* With --zero: sums the gradients for their owners; sends the owners' parameters to all. */
ncclsvc_result groups_reduce_scatter(struct rank *r);
ncclsvc_result groups_all_gather(struct rank *r);
/* The minimum of all ranks' numbers. */
ncclsvc_result groups_least(struct rank *r, uint64_t *n);
ncclsvc_result groups_barrier(struct rank *r);

/* ---- pipeline.c ---- */

/* The number of slots of a step. In each, a rank works on the micro-batches that pipeline_forward
 * and pipeline_backward return (-1: none), and exchanges with its neighbours at the end. */
int64_t pipeline_slots(const struct rank *r);
int64_t pipeline_forward(const struct rank *r, int stage, int64_t slot);
int64_t pipeline_backward(const struct rank *r, int stage, int64_t slot);
ncclsvc_result pipeline_plan(struct rank *r);
ncclsvc_result pipeline_exchange(struct rank *r, int64_t slot);
static inline int pipeline_stage(const struct rank *r)
{
	return r->stage.layout.groups[NCCLSVC_GROUP_PIPELINE].index;
}

/* ---- step.c ---- */

ncclsvc_result step_run(struct rank *r, uint64_t step);

/* ---- checkpoint.c ---- */

/* The newest step from which this rank can continue; 0: the beginning. */
uint64_t checkpoint_newest(const struct rank *r);
/* Parameters and optimizer. Print errors and return false. */
bool checkpoint_load(struct rank *r, uint64_t step);
bool checkpoint_save(const struct rank *r, uint64_t step);

#endif
