/* SPDX-License-Identifier: Apache-2.0 */
#include "crews_cuda.h"

bool crews_start_cuda(struct crew *service, struct crew *base, const struct options *o,
		      const char *socket, uint64_t bytes)
{
	struct rank_options rank = {.socket = socket,
				    .no_ring = o->no_ring,
				    .planned = o->planned,
				    .lists = o->lists,
				    .timeout_ms = o->timeout_ms,
				    .gpus = o->gpus,
				    .memory = o->memory};
	if (!crew_start_cuda(service, &rank, o->ranks) || !crew_init(service) ||
	    !crew_buffers(service, bytes))
		return false;
	return !o->baseline || (crew_start_nccl(base, o->gpus, o->ranks, o->timeout_ms) &&
				crew_init(base) && crew_buffers(base, bytes));
}
