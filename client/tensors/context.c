/* SPDX-License-Identifier: Apache-2.0
 * Lists on a communicator: the communicator beside it, and buffers that are kept for the next list.
 */
#include <stdlib.h>

#include "base/error.h"
#include "comm/join.h"
#include "core/comm.h"
#include "core/session.h"
#include "request.h"

#define COMPANION    UINT64_C(0x6c69737473) /* of its id */
#define SMALLEST     ((uint64_t)64 << 10)
#define DOUBLED	     ((uint64_t)64 << 20) /* up to here sizes are powers of two, to be used again */
#define LARGE_UNIT   ((uint64_t)16 << 20)
#define BUFFERS_IDLE 8

ncclsvc_result ncclsvc_tensors_open(ncclsvc_comm *comm, int timeout_ms, ncclsvc_tensors **lists)
{
	ncclsvc_unique_id id;
	if (!comm || !lists)
		return error_argument("ncclsvc_tensors_open: the communicator or lists is NULL");
	ncclsvc_tensors *l = calloc(1, sizeof(*l));
	if (!l)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	*l = (ncclsvc_tensors){.session = comm->session, .comm = comm, .host = comm};
	ncclsvc_result r = NCCLSVC_OK;
	if (on_gpu(l)) {
		id_derive(&comm->id, COMPANION, &id);
		r = ncclsvc_comm_join(l->session, &id, comm->nranks, comm->rank, timeout_ms,
				      &l->host);
	}
	if (r)
		free(l);
	else
		*lists = l;
	return r;
}

ncclsvc_result ncclsvc_tensors_open_group(const ncclsvc_world *world, ncclsvc_group_type type,
					  int timeout_ms, ncclsvc_tensors **lists)
{
	ncclsvc_comm *comm = ncclsvc_world_comm(world, type);
	if (!comm)
		return error_argument("group type is %d: give 0 to %d, of a world", (int)type,
				      NCCLSVC_GROUP_TYPES - 1);
	return ncclsvc_tensors_open(comm, timeout_ms, lists);
}

ncclsvc_result ncclsvc_tensors_rejoin(ncclsvc_tensors *l, int timeout_ms)
{
	if (!l)
		return error_argument("ncclsvc_tensors_rejoin: lists is NULL");
	return l->host == l->comm ? NCCLSVC_OK : comm_renew(l->host, timeout_ms, NULL);
}

static ncclsvc_result buffer_free(ncclsvc_tensors *l, struct stage_buffer *buffer)
{
	ncclsvc_result r = ncclsvc_mem_free(l->session, buffer->at);
	if (r)
		return r;
	struct stage_buffer **at = &l->buffers;
	while (*at != buffer)
		at = &(*at)->next;
	*at = buffer->next;
	free(buffer);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_tensors_close(ncclsvc_tensors *l)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (!l)
		return NCCLSVC_OK;
	for (struct ncclsvc_request *q = l->requests; q; q = q->next)
		if (ncclsvc_request_test(q) == NCCLSVC_IN_PROGRESS)
			return error_set(NCCLSVC_BUSY, "a list is under way: wait for it first");
	while (l->requests)
		request_drop(l->requests);
	while (!r && l->buffers)
		r = buffer_free(l, l->buffers);
	if (!r && l->host != l->comm)
		r = ncclsvc_comm_leave(l->host);
	if (!r)
		free(l);
	return r;
}

uint64_t ncclsvc_tensors_copied(const ncclsvc_tensors *l)
{
	return l ? l->copied : 0;
}

/* ---- Buffers ---- */

static uint32_t generation_of(ncclsvc_session *s)
{
	session_lock(s);
	uint32_t generation = s->generation;
	session_unlock(s);
	return generation;
}

/* Frees what cannot be used any more, and the smallest of too many. */
static void tidy(ncclsvc_tensors *l, uint32_t generation)
{
	struct stage_buffer *next, *smallest = NULL;
	unsigned idle = 0;
	for (struct stage_buffer *b = l->buffers; b; b = next) {
		next = b->next;
		if (b->busy)
			continue;
		/* Memory that a daemon lent goes with it. */
		if (on_gpu(l) && b->generation != generation) {
			buffer_free(l, b);
			continue;
		}
		idle++;
		if (!smallest || b->bytes < smallest->bytes)
			smallest = b;
	}
	if (idle > BUFFERS_IDLE)
		buffer_free(l, smallest);
}

static uint64_t round_up(uint64_t bytes)
{
	uint64_t size = SMALLEST;
	if (bytes > DOUBLED)
		return (bytes + LARGE_UNIT - 1) / LARGE_UNIT * LARGE_UNIT;
	while (size < bytes)
		size *= 2;
	return size;
}

static ncclsvc_result make(ncclsvc_tensors *l, uint64_t bytes, uint32_t generation,
			   struct stage_buffer **out)
{
	void *at;
	if (bytes > SVC_REGION_MAX - LARGE_UNIT)
		return error_argument("a list of %llu bytes is too large",
				      (unsigned long long)bytes);
	const uint64_t size = round_up(bytes);
	struct stage_buffer *b = calloc(1, sizeof(*b));
	if (!b)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	ncclsvc_result r =
		on_gpu(l) ? ncclsvc_mem_alloc_device(l->session, l->comm->device, size, &at)
			  : ncclsvc_mem_alloc(l->session, size, &at);
	if (r) {
		free(b);
		return r;
	}
	*b = (struct stage_buffer){
		.next = l->buffers, .at = at, .bytes = size, .generation = generation};
	l->buffers = b;
	*out = b;
	return NCCLSVC_OK;
}

ncclsvc_result buffer_get(ncclsvc_tensors *l, uint64_t bytes, struct stage_buffer **buffer)
{
	struct stage_buffer *best = NULL;
	uint32_t generation = generation_of(l->session);
	ncclsvc_result r = NCCLSVC_OK;
	tidy(l, generation);
	for (struct stage_buffer *b = l->buffers; b; b = b->next)
		if (!b->busy && b->bytes >= bytes && (!best || b->bytes < best->bytes))
			best = b;
	if (!best)
		r = make(l, bytes, generation, &best);
	if (r)
		return r;
	best->busy = true;
	*buffer = best;
	return NCCLSVC_OK;
}

void buffer_put(struct stage_buffer *buffer)
{
	if (buffer)
		buffer->busy = false;
}
