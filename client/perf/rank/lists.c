/* SPDX-License-Identifier: Apache-2.0 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

#define UNDER_WAY (sizeof((struct service_lists *)NULL)->under_way / sizeof(ncclsvc_request *))

ncclsvc_result lists_open(struct service_lists *l, ncclsvc_comm *comm, unsigned per_rank,
			  int timeout_ms)
{
	l->per_rank = per_rank;
	l->rank = ncclsvc_comm_rank(comm);
	l->nranks = ncclsvc_comm_size(comm);
	const size_t n = (size_t)l->nranks * per_rank;
	l->tensors = calloc(2 * n, sizeof(*l->tensors));
	l->dims = calloc(n, sizeof(*l->dims));
	return l->tensors && l->dims ? ncclsvc_tensors_open(comm, timeout_ms, &l->lists)
				     : NCCLSVC_NO_MEMORY;
}

static uint64_t total_of(const struct work *w)
{
	return w->count * w->nranks;
}

/* End of a rank's range; the work's sizes have been checked. */
static uint64_t end_of(const struct work *w, uint32_t rank)
{
	ncclsvc_partition p = {0};
	(void)ncclsvc_partition_of(total_of(w), (int)w->nranks, &p);
	uint64_t end = (rank + 1) * p.per_rank;
	return end < total_of(w) ? end : total_of(w);
}

void lists_own(const struct service_lists *l, const struct work *w, uint64_t *first, uint64_t *end)
{
	*first = l->rank ? end_of(w, (uint32_t)l->rank - 1) : 0;
	*end = end_of(w, (uint32_t)l->rank);
}

/* Divides each rank's range into equal parts, except the last one. */
static void cut(struct service_lists *l, const struct work *w, char *from, char *to)
{
	const size_t size = work_type_size(w->type), n = (size_t)w->nranks * l->per_rank;
	uint64_t at = 0;
	l->work = *w;
	l->from = from;
	l->to = to;
	for (size_t i = 0; i < n; i++) {
		const uint64_t end = end_of(w, (uint32_t)(i / l->per_rank));
		const uint64_t left = l->per_rank - i % l->per_rank;
		l->dims[i] = (int64_t)((end - at) / left);
		ncclsvc_tensor t = {.type = (ncclsvc_type)w->type, .ndims = 1, .dims = &l->dims[i]};
		l->tensors[i] = l->tensors[n + i] = t;
		l->tensors[i].data = from + at * size;
		l->tensors[n + i].data = to + at * size;
		at += (uint64_t)l->dims[i];
	}
}

static ncclsvc_result end_one(struct service_lists *l, uint64_t i, int timeout_ms)
{
	ncclsvc_request **r = &l->under_way[i % UNDER_WAY];
	ncclsvc_result result = *r ? ncclsvc_request_wait(*r, timeout_ms) : NCCLSVC_OK;
	if (!ncclsvc_request_free(*r))
		*r = NULL;
	return result;
}

ncclsvc_result lists_submit(struct service_lists *l, const struct work *w, void *from, void *to,
			    int timeout_ms)
{
	const size_t n = (size_t)w->nranks * l->per_rank;
	if (memcmp(&l->work, w, sizeof(*w)) != 0 || l->from != from || l->to != to)
		cut(l, w, from, to);
	ncclsvc_result result = end_one(l, l->begun, timeout_ms);
	if (!result)
		result =
			ncclsvc_tensors_all_gather(l->lists, l->tensors, l->tensors + n, n,
						   timeout_ms, &l->under_way[l->begun % UNDER_WAY]);
	l->begun += !result;
	return result;
}

ncclsvc_result lists_finish(struct service_lists *l, int timeout_ms)
{
	ncclsvc_result result = NCCLSVC_OK;
	for (uint64_t i = l->begun; i < l->begun + UNDER_WAY; i++) {
		ncclsvc_result one = end_one(l, i, timeout_ms);
		result = result ? result : one;
	}
	return result;
}

void lists_close(struct service_lists *l)
{
	if (l->lists) {
		(void)lists_finish(l, 1000);
		(void)ncclsvc_tensors_close(l->lists);
	}
	free(l->tensors);
	free(l->dims);
	*l = (struct service_lists){0};
}
