/* SPDX-License-Identifier: Apache-2.0
 * Types and shapes that are sent ahead, in words of 64 bits:
 *
 *   0  ANNOUNCE_MAGIC            4 .. 4 + n       dimensions of the tensors up to this one,
 * together 1  n, the number of tensors  .. 4 + 2n        types 2  dimensions of all         .. 4 +
 * 2n + all  the dimensions themselves 3  bytes of the aggregated buffer
 *
 * The sender is another process: nothing of it is believed. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "tensors.h"

#define ANNOUNCE_MAGIC UINT64_C(0x3173726f736e6574) /* "tensors1" */
#define HEAD	       4

uint64_t *announce_write(const struct list *l, size_t *nwords)
{
	size_t dims = 0;
	for (size_t i = 0; i < l->n; i++)
		dims += (size_t)l->tensors[i].ndims;
	*nwords = HEAD + 2 * l->n + dims;
	uint64_t *words =
		calloc(*nwords < ANNOUNCE_FIRST ? ANNOUNCE_FIRST : *nwords, sizeof(*words));
	if (!words) {
		error_set(NCCLSVC_NO_MEMORY, "out of memory");
		return NULL;
	}
	words[0] = ANNOUNCE_MAGIC;
	words[1] = l->n;
	words[2] = dims;
	words[3] = l->total;
	uint64_t *counts = words + HEAD, *types = counts + l->n, *to = types + l->n, sum = 0;
	for (size_t i = 0; i < l->n; i++) {
		counts[i] = sum += (uint64_t)l->tensors[i].ndims;
		types[i] = l->tensors[i].type;
		for (int k = 0; k < l->tensors[i].ndims; k++)
			*to++ = (uint64_t)l->tensors[i].dims[k];
	}
	return words;
}

ncclsvc_result announce_length(const uint64_t *first, size_t n, size_t *nwords)
{
	const uint64_t tensors = first[1], dims = first[2];
	if (first[0] != ANNOUNCE_MAGIC || tensors > NCCLSVC_TENSORS_MAX)
		return error_set(
			NCCLSVC_PROTOCOL,
			"the sender's shapes have a format that this library does not know");
	if (dims > tensors * NCCLSVC_DIMS_MAX)
		return error_set(NCCLSVC_PROTOCOL,
				 "the sender announces %llu dimensions of %llu tensors",
				 (unsigned long long)dims, (unsigned long long)tensors);
	*nwords = HEAD + 2 * (size_t)tensors + (size_t)dims;
	if (tensors != n)
		return error_set(NCCLSVC_MISMATCH,
				 "number of tensors differs: the sender has %llu, the receiver %zu",
				 (unsigned long long)tensors, n);
	return NCCLSVC_OK;
}

static ncclsvc_result malformed(const char *what, size_t i)
{
	return error_set(NCCLSVC_PROTOCOL, "the sender announces an invalid %s of tensor %zu", what,
			 i);
}

ncclsvc_result announce_read(const uint64_t *words, size_t nwords, struct list *l)
{
	const size_t n = (size_t)words[1], dims = nwords - HEAD - 2 * n;
	const uint64_t *counts = words + HEAD, *types = counts + n, *from = types + n;
	uint64_t before = 0;
	ncclsvc_result r = list_make(l, n, dims);
	if (r)
		return r;
	for (size_t i = 0; !r && i < n; i++) {
		if (counts[i] < before || counts[i] - before > NCCLSVC_DIMS_MAX || counts[i] > dims)
			r = malformed("number of dimensions", i);
		else if (types[i] > UINT8_MAX || !ncclsvc_type_size((unsigned)types[i]))
			r = malformed("type", i);
		if (r)
			break;
		l->tensors[i].type = (ncclsvc_type)types[i];
		l->tensors[i].ndims = (int)(counts[i] - before);
		l->tensors[i].dims = l->dims + before;
		for (uint64_t k = before; k < counts[i]; k++)
			l->dims[k] = (int64_t)from[k];
		before = counts[i];
	}
	if (!r && before != dims)
		r = error_set(NCCLSVC_PROTOCOL, "the sender announces dimensions but no tensors");
	if (!r)
		r = list_measure(l);
	if (!r && l->total != words[3])
		r = error_set(NCCLSVC_PROTOCOL,
			      "the sender announces %llu bytes for tensors that have %llu",
			      (unsigned long long)words[3], (unsigned long long)l->total);
	if (r)
		list_free(l);
	return r;
}

static ncclsvc_result not_allowed(const char *what, size_t i, long long is, long long allowed)
{
	return error_set(NCCLSVC_MISMATCH,
			 "%s of tensor %zu differs: the sender has %lld, the receiver allows %lld",
			 what, i, is, allowed);
}

ncclsvc_result announce_allowed(const struct list *l, const struct list *allowed)
{
	for (size_t i = 0; i < l->n; i++) {
		const ncclsvc_tensor *t = &l->tensors[i], *a = &allowed->tensors[i];
		if (t->type != a->type)
			return error_set(NCCLSVC_MISMATCH,
					 "type of tensor %zu differs: the sender has %s, the "
					 "receiver allows %s",
					 i, ncclsvc_type_name(t->type), ncclsvc_type_name(a->type));
		if (a->ndims < 0)
			continue;
		if (t->ndims != a->ndims)
			return not_allowed("number of dimensions", i, t->ndims, a->ndims);
		for (int k = 0; k < t->ndims; k++)
			if (a->dims[k] >= 0 && t->dims[k] != a->dims[k]) {
				char what[24];
				snprintf(what, sizeof(what), "dimension %d", k);
				return not_allowed(what, i, t->dims[k], a->dims[k]);
			}
	}
	return NCCLSVC_OK;
}
