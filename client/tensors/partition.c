/* SPDX-License-Identifier: Apache-2.0
 * How a vector is divided among the ranks of a group. */
#include "base/error.h"
#include "tensors.h"

#define ALIGNMENT 32 /* elements; each rank's share is a multiple of it */

ncclsvc_result ncclsvc_partition_of(uint64_t total, int size, ncclsvc_partition *p)
{
	uint64_t padded;
	if (!p)
		return error_argument("ncclsvc_partition_of: the partition is NULL");
	if (size < 1)
		return error_argument("size is %d: a group needs at least one rank", size);
	const uint64_t unit = (uint64_t)ALIGNMENT * (uint64_t)size;
	if (__builtin_add_overflow(total, unit - total % unit, &padded))
		return error_argument("%llu elements overflow when they are padded for %d ranks",
				      (unsigned long long)total, size);
	*p = (ncclsvc_partition){total, padded, padded / (uint64_t)size};
	return NCCLSVC_OK;
}

/* Computes the partition of n consecutive tensors. */
static ncclsvc_result partition_counts(const uint64_t *counts, size_t n, int size,
				       ncclsvc_partition *p)
{
	uint64_t total = 0;
	if (n && !counts)
		return error_argument("a partition of %zu tensors: counts is NULL", n);
	for (size_t i = 0; i < n; i++)
		if (__builtin_add_overflow(total, counts[i], &total))
			return error_argument("the elements of %zu tensors overflow at tensor %zu",
					      n, i);
	return ncclsvc_partition_of(total, size, p);
}

ncclsvc_result ncclsvc_partition_tensors(const uint64_t *counts, size_t n, int size,
					 ncclsvc_partition *partition, int *owners)
{
	ncclsvc_partition p;
	ncclsvc_result r = partition_counts(counts, n, size, &p);
	uint64_t start = 0;
	for (size_t i = 0; !r && i < n; i++) {
		uint64_t owner = start / p.per_rank, end = start + counts[i];
		uint64_t border = (owner + 1) * p.per_rank;
		if (end > border)
			r = error_argument(
				"tensor %zu has elements %llu to %llu, across the border between "
				"ranks %llu and %llu at %llu: a tensor must belong to one rank "
				"(use ncclsvc_partition_fit to cut it)",
				i, (unsigned long long)start, (unsigned long long)end,
				(unsigned long long)owner, (unsigned long long)owner + 1,
				(unsigned long long)border);
		else if (owners)
			owners[i] = (int)owner;
		start = end;
	}
	if (!r && partition)
		*partition = p;
	return r;
}

ncclsvc_result ncclsvc_partition_fit(const uint64_t *counts, size_t n, int size,
				     ncclsvc_partition *partition, ncclsvc_view *views,
				     size_t *n_views)
{
	ncclsvc_partition p;
	if (!views || !n_views)
		return error_argument("ncclsvc_partition_fit: views or n_views is NULL");
	ncclsvc_result r = partition_counts(counts, n, size, &p);
	if (r)
		return r;
	if (p.total > INT64_MAX)
		return error_argument("%llu elements are more than a dimension can hold",
				      (unsigned long long)p.total);
	uint64_t at = 0; /* offset in the vector of all tensors */
	size_t k = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t first = 0;
		do {
			const uint64_t owner = at / p.per_rank;
			const uint64_t room = (owner + 1) * p.per_rank - at;
			const uint64_t left = counts[i] - first, count = left < room ? left : room;
			views[k++] = (ncclsvc_view){i, first, (int64_t)count, (int)owner};
			first += count;
			at += count;
		} while (first < counts[i]);
	}
	*n_views = k;
	if (partition)
		*partition = p;
	return NCCLSVC_OK;
}
