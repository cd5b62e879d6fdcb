/* SPDX-License-Identifier: Apache-2.0 */
#include "crews_cuda.h"

bool crew_cuda_service(struct crew *crew, const struct options *o, const char *socket)
{
	struct rank_options rank = {.socket = socket,
				    .no_ring = o->no_ring,
				    .planned = o->planned,
				    .lists = o->lists,
				    .timeout_ms = o->timeout_ms,
				    .gpus = o->gpus,
				    .memory = o->memory};
	return crew_start_cuda(crew, &rank, o->ranks);
}

bool crew_cuda_base(struct crew *crew, const struct options *o)
{
	return crew_start_nccl(crew, o->gpus, o->ranks, o->timeout_ms);
}

bool crew_buffers(struct crew *crew, uint64_t bytes)
{
	struct job buffers = {.kind = JOB_BUFFERS, .bytes = bytes};
	return crew_do(crew, &buffers);
}

bool crews_start_cuda(struct crew *service, struct crew *base, const struct options *o,
		      const char *socket, uint64_t bytes)
{
	if (!crew_cuda_service(service, o, socket) || !crew_init(service, NULL) ||
	    !crew_buffers(service, bytes))
		return false;
	return !o->baseline ||
	       (crew_cuda_base(base, o) && crew_init(base, NULL) && crew_buffers(base, bytes));
}

struct work work_all_reduce(const struct options *o, uint64_t bytes)
{
	return (struct work){
		.op = NCCLSVC_ALL_REDUCE,
		.type = NCCLSVC_FLOAT32,
		.redop = NCCLSVC_SUM,
		.nranks = o->ranks,
		.count = work_count(NCCLSVC_ALL_REDUCE, NCCLSVC_FLOAT32, o->ranks, bytes)};
}
