/* SPDX-License-Identifier: Apache-2.0
 * Collectives over lists. Each lays out the tensors one after the other in a buffer, and works on
 * it in place; AllReduce works on the tensors themselves if they are already laid out that way.
 * AllGather and ReduceScatter pad the buffer with zeros, so that every rank has an equal segment.
 * Bytes between tensors are neither read nor written. */
#include <stdlib.h>

#include "base/error.h"
#include "batch.h"
#include "core/comm_handle.h"
#include "list_request.h"
#include "proto/names.h"

/* The arguments that all three calls share. */
struct call_of {
	ncclsvc_tensors *lists;
	const ncclsvc_tensor *inputs, *outputs;
	size_t n;
	uint8_t op;
	ncclsvc_redop redop;
};

/* ---- Checks ---- */

static ncclsvc_result check_types(const struct list *l)
{
	for (size_t i = 1; i < l->n; i++)
		if (l->tensors[i].type != l->tensors[0].type)
			return error_argument("tensor %zu has type %s, tensor 0 has %s: all "
					      "tensors of a list must have one type",
					      i, svc_type_name(l->tensors[i].type),
					      svc_type_name(l->tensors[0].type));
	return NCCLSVC_OK;
}

static ncclsvc_result check_outputs(const struct list *in, const struct list *out)
{
	for (size_t i = 0; i < in->n; i++) {
		if (in->tensors[i].type != out->tensors[i].type || in->counts[i] != out->counts[i])
			return error_argument(
				"output %zu has %llu elements of %s, the input %llu of %s", i,
				(unsigned long long)out->counts[i],
				svc_type_name(out->tensors[i].type),
				(unsigned long long)in->counts[i],
				svc_type_name(in->tensors[i].type));
	}
	return NCCLSVC_OK;
}

static ncclsvc_result take_lists(struct ncclsvc_request *r, const struct call_of *c)
{
	if (!c->n)
		return error_argument("%s: a list needs at least one tensor", svc_op_name(c->op));
	ncclsvc_result result = list_take(&r->list, c->inputs, c->n, false);
	if (!result)
		result = list_take(&r->outputs, c->outputs ? c->outputs : c->inputs, c->n, false);
	if (!result)
		result = check_types(&r->list);
	if (!result)
		result = check_outputs(&r->list, &r->outputs);
	if (!result)
		result = list_placed(r->lists, &r->outputs);
	return result;
}

/* Outputs and inputs must be either identical or disjoint. */
static ncclsvc_result check_aliases(const struct list *in, const struct list *out)
{
	for (size_t i = 0; i < in->n; i++) {
		uintptr_t a = (uintptr_t)in->tensors[i].data, b = (uintptr_t)out->tensors[i].data;
		if (a && a != b && (a < b ? b - a : a - b) < in->bytes[i])
			return error_argument(
				"output %zu overlaps its input but is not identical to it", i);
	}
	return NCCLSVC_OK;
}

static struct piece piece_of(const struct list *l, size_t i, uint64_t offset)
{
	return (struct piece){l->tensors[i].data, offset, l->bytes[i]};
}

/* ---- The buffer ---- */

struct fused {
	ncclsvc_partition partition;
	uint64_t size; /* size of an element */
	uint64_t bytes;
	int *owners;
};

/* Copies this rank's own tensors, or all, into the buffer. */
static ncclsvc_result fill(struct ncclsvc_request *r, const struct fused *f, bool own)
{
	const struct list *l = &r->list;
	const int rank = r->lists->comm->rank;
	size_t n = 0;
	uint64_t at = 0;
	struct piece *pieces = calloc(l->n, sizeof(*pieces));
	if (!pieces)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	for (size_t i = 0; i < l->n; i++, at += l->bytes[i - 1])
		if (l->bytes[i] && (!own || f->owners[i] == rank))
			pieces[n++] = piece_of(l, i, at);
	/* AllGather brings the other ranks' shares. */
	const uint64_t share = f->partition.per_rank * f->size, start = (uint64_t)rank * share;
	ncclsvc_result result = copy_in(r->lists, r->buffer, pieces, n, own ? start : 0,
					own ? start + share : f->bytes, 0);
	free(pieces);
	return result;
}

/* Plans the final copies out of the buffer: this rank's own tensors, or all. */
static ncclsvc_result plan_outputs(struct ncclsvc_request *r, const struct fused *f, bool own)
{
	const struct list *l = &r->outputs;
	const int rank = r->lists->comm->rank;
	uint64_t at = 0;
	r->pieces = calloc(l->n, sizeof(*r->pieces));
	if (!r->pieces)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	for (size_t i = 0; i < l->n; i++, at += l->bytes[i - 1])
		if (l->bytes[i] && (!own || f->owners[i] == rank))
			r->pieces[r->npieces++] = piece_of(l, i, at);
	r->copies_out = true;
	return NCCLSVC_OK;
}

/* ---- AllReduce ---- */

/* Whether the caller's buffers are identical, or disjoint. */
static bool apart_or_same(const char *a, const char *b, uint64_t bytes)
{
	return a == b || (a < b ? (uint64_t)(b - a) : (uint64_t)(a - b)) >= bytes;
}

static ncclsvc_result fuse(struct ncclsvc_request *r, const struct fused *f)
{
	ncclsvc_result result = buffer_get(r->lists, f->bytes, &r->buffer);
	if (!result)
		result = plan_outputs(r, f, false);
	return result ? result : fill(r, f, false);
}

static ncclsvc_result prepare_all_reduce(struct ncclsvc_request *r, const struct call_of *c)
{
	struct fused f = {0};
	ncclsvc_result result = take_lists(r, c);
	if (!result)
		result = list_placed(r->lists, &r->list);
	if (!result)
		result = check_aliases(&r->list, &r->outputs);
	if (result)
		return result;
	char *from = list_in_a_row(r->lists, &r->list, &f.bytes);
	char *to = list_in_a_row(r->lists, &r->outputs, &f.bytes);
	if (f.bytes && (!from || !to || !apart_or_same(from, to, f.bytes))) {
		result = fuse(r, &f);
		if (result)
			return result;
		from = to = r->buffer->at;
	}
	const ncclsvc_type type = r->list.tensors[0].type;
	return request_data(
		r, from, to, f.bytes / svc_type_size(type), type,
		agreement(AGREED_ALL_REDUCE, digest_tensors(r->list.tensors, r->list.n)));
}

/* ---- AllGather and ReduceScatter ---- */

static ncclsvc_result measure(const struct ncclsvc_request *r, struct fused *f)
{
	const struct list *l = &r->list;
	f->size = svc_type_size(l->tensors[0].type);
	f->owners = calloc(l->n, sizeof(*f->owners));
	if (!f->owners)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	const uint64_t *counts = svc_type_packed(l->tensors[0].type) ? l->bytes : l->counts;
	ncclsvc_result result = ncclsvc_partition_tensors(counts, l->n, r->lists->comm->nranks,
							  &f->partition, f->owners);
	if (!result && __builtin_mul_overflow(f->partition.padded, f->size, &f->bytes))
		result = error_argument("the list's %llu elements overflow",
					(unsigned long long)f->partition.padded);
	return result;
}

/* Plans the copies, once all ranks agree, of other owners' tensors from input to output. */
static ncclsvc_result plan_through(struct ncclsvc_request *r, const struct fused *f)
{
	const struct list *l = &r->list;
	r->through = calloc(l->n, sizeof(*r->through));
	r->through_to = calloc(l->n, sizeof(*r->through_to));
	if (!r->through || !r->through_to)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	for (size_t i = 0; i < l->n; i++) {
		if (!l->bytes[i] || f->owners[i] == r->lists->comm->rank)
			continue;
		r->through[r->nthrough] = piece_of(l, i, 0);
		r->through_to[r->nthrough++] = r->outputs.tensors[i].data;
	}
	return NCCLSVC_OK;
}

/* Inputs that other ranks own may be missing. */
static ncclsvc_result own_inputs_placed(struct ncclsvc_request *r, const struct fused *f)
{
	struct list own = r->list;
	ncclsvc_result result = NCCLSVC_OK;
	for (size_t i = 0; !result && i < r->list.n; i++) {
		if (f->owners[i] != r->lists->comm->rank)
			continue;
		own.n = 1;
		own.tensors = &r->list.tensors[i];
		own.bytes = &r->list.bytes[i];
		result = list_placed(r->lists, &own);
		if (result)
			result = error_set(result, "input %zu, which this rank owns: %s", i,
					   ncclsvc_last_error());
	}
	return result;
}

static ncclsvc_result prepare_buffer(struct ncclsvc_request *r, const struct call_of *c,
				     struct fused *f)
{
	bool gather = c->op == NCCLSVC_ALL_GATHER;
	ncclsvc_result result = gather ? own_inputs_placed(r, f) : list_placed(r->lists, &r->list);
	if (!result)
		result = check_aliases(&r->list, &r->outputs);
	if (!result)
		result = buffer_get(r->lists, f->bytes, &r->buffer);
	if (!result)
		result = plan_outputs(r, f, !gather);
	if (!result && !gather)
		result = plan_through(r, f);
	return result ? result : fill(r, f, gather);
}

static ncclsvc_result prepare_fused(struct ncclsvc_request *r, const struct call_of *c)
{
	struct fused f = {0};
	bool gather = c->op == NCCLSVC_ALL_GATHER;
	ncclsvc_result result = take_lists(r, c);
	if (!result)
		result = measure(r, &f);
	if (!result)
		result = prepare_buffer(r, c, &f);
	if (!result) {
		uint64_t share = f.partition.per_rank;
		char *whole = r->buffer->at;
		char *own = whole + (uint64_t)r->lists->comm->rank * share * f.size;
		result = request_data(r, gather ? own : whole, gather ? whole : own, share,
				      r->list.tensors[0].type,
				      agreement(gather ? AGREED_ALL_GATHER : AGREED_REDUCE_SCATTER,
						digest_tensors(r->list.tensors, r->list.n)));
	}
	free(f.owners);
	return result;
}

static ncclsvc_result proceed_fused(struct ncclsvc_request *r)
{
	ncclsvc_result result = r->copies_out ? request_copy_out(r, 0) : NCCLSVC_OK;
	if (!result && !r->event)
		request_end(r, NCCLSVC_OK);
	return result;
}

/* ---- The calls ---- */

static ncclsvc_result run(const struct call_of *c, int timeout_ms, ncclsvc_request **request)
{
	if (!c->lists)
		return error_argument("%s of tensors: lists is NULL", svc_op_name(c->op));
	ncclsvc_result result = lists_usable(c->lists, !request);
	if (result)
		return result;
	bool reduce = c->op == NCCLSVC_ALL_REDUCE;
	struct ncclsvc_request *r =
		request_new(c->lists, c->op, -1, request ? NCCLSVC_NO_TIMEOUT : timeout_ms);
	if (!r)
		return NCCLSVC_NO_MEMORY;
	r->proceed = proceed_fused;
	r->redop = c->redop;
	r->waited = !request;
	if (!svc_redop_known(c->redop))
		result = error_argument("reduction %d does not exist", (int)c->redop);
	else
		result = reduce ? prepare_all_reduce(r, c) : prepare_fused(r, c);
	result = request_begin(r, result);
	if (result)
		return result;
	if (!request)
		return request_finish(r);
	*request = r;
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_tensors_all_reduce(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					  const ncclsvc_tensor *outputs, size_t n,
					  ncclsvc_redop redop, int timeout_ms,
					  ncclsvc_request **request)
{
	return run(&(struct call_of){lists, inputs, outputs, n, NCCLSVC_ALL_REDUCE, redop},
		   timeout_ms, request);
}

ncclsvc_result ncclsvc_tensors_all_gather(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					  const ncclsvc_tensor *outputs, size_t n, int timeout_ms,
					  ncclsvc_request **request)
{
	return run(&(struct call_of){lists, inputs, outputs, n, NCCLSVC_ALL_GATHER, NCCLSVC_SUM},
		   timeout_ms, request);
}

ncclsvc_result ncclsvc_tensors_reduce_scatter(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					      const ncclsvc_tensor *outputs, size_t n,
					      ncclsvc_redop redop, int timeout_ms,
					      ncclsvc_request **request)
{
	return run(&(struct call_of){lists, inputs, outputs, n, NCCLSVC_REDUCE_SCATTER, redop},
		   timeout_ms, request);
}
