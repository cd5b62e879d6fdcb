/* SPDX-License-Identifier: Apache-2.0
 * Sizes of tensors and aggregated buffers, and their digests. */
#include "base/error.h"
#include "proto/names.h"
#include "tensors.h"

#define ALIGNMENT ((uint64_t)NCCLSVC_TENSOR_ALIGNMENT)

ncclsvc_result ncclsvc_tensor_size(const ncclsvc_tensor *t, uint64_t *count, uint64_t *bytes)
{
	uint64_t n = 1, b;
	bool none = false;
	if (!t)
		return error_argument("ncclsvc_tensor_size: the tensor is NULL");
	if (!svc_type_size(t->type))
		return error_argument("a tensor has the unknown type %d", (int)t->type);
	if (t->ndims < 0 || t->ndims > NCCLSVC_DIMS_MAX || (t->ndims && !t->dims))
		return error_argument(
			"a tensor has %d dimensions: use 0 to %d, and set their values", t->ndims,
			NCCLSVC_DIMS_MAX);
	for (int i = 0; i < t->ndims; i++) {
		if (t->dims[i] < 0)
			return error_argument(
				"a tensor's dimension %d is %lld, but must not be negative", i,
				(long long)t->dims[i]);
		none = none || !t->dims[i];
	}
	for (int i = 0; !none && i < t->ndims; i++)
		if (__builtin_mul_overflow(n, (uint64_t)t->dims[i], &n))
			return error_argument("a tensor's %d dimensions overflow", t->ndims);
	if (none)
		n = 0;
	const uint64_t units = svc_type_packed(t->type) ? n / 2 + n % 2 : n;
	if (__builtin_mul_overflow(units, (uint64_t)svc_type_size(t->type), &b))
		return error_argument("a tensor of %llu elements of %s overflows",
				      (unsigned long long)n, svc_type_name(t->type));
	if (count)
		*count = n;
	if (bytes)
		*bytes = b;
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_aggregate(const uint64_t *bytes, size_t n, uint64_t *offsets,
				 uint64_t *total)
{
	uint64_t end = 0;
	if ((n && !bytes) || !total)
		return error_argument("ncclsvc_aggregate: bytes or total is NULL");
	for (size_t i = 0; i < n; i++) {
		uint64_t at;
		if (__builtin_add_overflow(end, ALIGNMENT - 1, &at) ||
		    __builtin_add_overflow(at & ~(ALIGNMENT - 1), bytes[i], &end))
			return error_argument("the aggregated size of %zu tensors overflows at "
					      "tensor %zu",
					      n, i);
		if (offsets)
			offsets[i] = at & ~(ALIGNMENT - 1);
	}
	*total = end;
	return NCCLSVC_OK;
}

uint64_t digest_add(uint64_t digest, uint64_t word)
{
	for (int i = 0; i < 8; i++, word >>= 8)
		digest = (digest ^ (word & 0xff)) * UINT64_C(0x100000001b3); /* FNV-1a */
	return digest;
}

uint64_t digest_tensors(const ncclsvc_tensor *tensors, size_t n)
{
	uint64_t d = digest_add(DIGEST_START, n);
	for (size_t i = 0; i < n; i++) {
		d = digest_add(d, tensors[i].type);
		d = digest_add(d, (uint64_t)tensors[i].ndims);
		for (int k = 0; k < tensors[i].ndims; k++)
			d = digest_add(d, (uint64_t)tensors[i].dims[k]);
	}
	return d;
}
