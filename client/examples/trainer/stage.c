/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 32 /* elements: what ncclsvc_partition_of rounds a rank's part to */

/* Initial values are within +- this. */
static const float scales[] = {
	[EMBEDDINGS] = 1.0f, [W1] = 0.2f, [W2] = 0.1f, [W3] = 0.1f, [FILLER] = 0,
};

static void add(struct stage *s, enum kind kind, int layer, size_t rows, size_t columns)
{
	s->tensors[s->n_tensors++] = (struct tensor){
		.kind = kind,
		.layer = layer,
		.dims = {(int64_t)rows, (int64_t)columns},
		.n = rows * columns,
	};
}

static void add_all(struct stage *s)
{
	if (s->begins)
		add(s, EMBEDDINGS, 0, CHARACTERS, EMBEDDING);
	for (int l = s->first; l < s->end; l++) {
		add(s, W1, l, WIDTH, s->hidden);
		add(s, B1, l, 1, s->hidden);
		add(s, W2, l, s->hidden, WIDTH);
		add(s, B2, l, 1, WIDTH);
	}
	if (s->ends) {
		add(s, W3, 0, WIDTH, CHARACTERS);
		add(s, B3, 0, 1, CHARACTERS);
	}
}

/* ---- The partition: a tensor belongs to one rank of the data group ---- */

static int larger_first(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;
	if (x->n != y->n)
		return x->n < y->n ? 1 : -1;
	return x->layer != y->layer ? x->layer - y->layer : (int)x->kind - (int)y->kind;
}

/* Gives each tensor, the largest first, to the rank that has the least so far; parts: how much each
 * has. */
static void distribute(struct stage *s, int ranks, size_t *parts)
{
	qsort(s->tensors, s->n_tensors, sizeof(s->tensors[0]), larger_first);
	for (size_t i = 0; i < s->n_tensors; i++) {
		int least = 0;
		for (int k = 1; k < ranks; k++)
			if (parts[k] < parts[least])
				least = k;
		s->tensors[i].owner = least;
		parts[least] += s->tensors[i].n;
	}
}

/* Fillers make all parts equal, but for one element: a vector that is a multiple of the alignment
 * would be filled up by a whole one. */
static void fill_up(struct stage *s, int ranks)
{
	size_t parts[RANKS_MAX] = {0}, largest = 0;
	distribute(s, ranks, parts);
	for (int k = 0; k < ranks; k++)
		largest = parts[k] > largest ? parts[k] : largest;
	const size_t each = (largest / ALIGNMENT + 1) * ALIGNMENT;
	for (int k = 0; k < ranks; k++) {
		const size_t n = each - parts[k] - (k == ranks - 1);
		if (!n)
			continue;
		add(s, FILLER, 0, 1, n);
		s->tensors[s->n_tensors - 1].owner = k;
	}
	struct tensor ordered[TENSORS_MAX];
	size_t n = 0;
	for (int k = 0; k < ranks; k++)
		for (size_t i = 0; i < s->n_tensors; i++)
			if (s->tensors[i].owner == k)
				ordered[n++] = s->tensors[i];
	memcpy(s->tensors, ordered, sizeof(ordered[0]) * n);
}

static bool partition(struct stage *s, int ranks, int index)
{
	uint64_t counts[TENSORS_MAX];
	int owners[TENSORS_MAX];
	for (size_t i = 0; i < s->n_tensors; i++)
		counts[i] = s->tensors[i].n;
	if (ncclsvc_partition_tensors(counts, s->n_tensors, ranks, NULL, owners)) {
		say("the optimizer of layers %d to %d cannot be divided by %d: %s (without "
		    "--unpadded, fillers prevent it)",
		    s->first, s->end - 1, ranks, ncclsvc_last_error());
		return false;
	}
	s->own = s->own_end = 0;
	for (size_t i = 0; i < s->n_tensors; i++) {
		const struct tensor *t = &s->tensors[i];
		s->tensors[i].owner = owners[i];
		if (owners[i] != index)
			continue;
		if (s->own == s->own_end)
			s->own = t->at;
		s->own_end = t->at + t->n;
	}
	return true;
}

bool stage_make(struct stage *s, const struct options *o, int rank)
{
	const ncclsvc_world_sizes sizes = {.world = ranks_of(o),
					   .local = ranks_of(o),
					   .data = o->data,
					   .horizontal = o->horizontal,
					   .pipeline = o->pipeline};
	*s = (struct stage){0};
	if (ncclsvc_layout_of(&sizes, rank, &s->layout)) {
		say("%s", ncclsvc_last_error());
		return false;
	}
	const ncclsvc_group *groups = s->layout.groups;
	const int z = groups[NCCLSVC_GROUP_PIPELINE].index;
	s->first = z * LAYERS / o->pipeline;
	s->end = (z + 1) * LAYERS / o->pipeline;
	s->begins = z == 0;
	s->ends = z == o->pipeline - 1;
	s->hidden = (size_t)(HIDDEN / o->horizontal);
	add_all(s);
	if (o->zero && !o->unpadded)
		fill_up(s, o->data);
	for (size_t i = 0; i < s->n_tensors; i++) {
		s->tensors[i].at = s->n;
		s->n += s->tensors[i].n;
	}
	s->own_end = s->n;
	return !o->zero || partition(s, o->data, groups[NCCLSVC_GROUP_DATA].index);
}

/* ---- Values ---- */

static float draw(enum kind kind, int layer, size_t row, size_t column)
{
	uint64_t x = (uint64_t)kind << 56 | (uint64_t)layer << 48 | (uint64_t)row << 24 | column;
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	x ^= x >> 31;
	return scales[kind] * ((float)(x >> 40) / (float)(1 << 23) - 1);
}

void stage_init(const struct stage *s, float *parameters)
{
	const size_t slice = (size_t)s->layout.groups[NCCLSVC_GROUP_HORIZONTAL].index;
	for (size_t i = 0; i < s->n_tensors; i++) {
		const struct tensor *t = &s->tensors[i];
		const size_t columns = (size_t)t->dims[1];
		const size_t row = t->kind == W2 ? slice * s->hidden : 0;
		const size_t column = t->kind == W1 || t->kind == B1 ? slice * s->hidden : 0;
		for (size_t k = 0; k < t->n; k++)
			parameters[t->at + k] =
				draw(t->kind, t->layer, row + k / columns, column + k % columns);
	}
}

void stage_list(const struct stage *s, void *base, ncclsvc_type type, ncclsvc_tensor *list)
{
	for (size_t i = 0; i < s->n_tensors; i++)
		list[i] = (ncclsvc_tensor){
			.data = (char *)base + s->tensors[i].at * ncclsvc_type_size(type),
			.type = type,
			.ndims = 2,
			.dims = s->tensors[i].dims,
		};
}

void stage_weights(const struct stage *s, float *base, struct weights *w)
{
	for (size_t i = 0; i < s->n_tensors; i++) {
		const struct tensor *t = &s->tensors[i];
		struct layer *l = &w->layers[t->layer];
		float **where[] = {
			[EMBEDDINGS] = &w->embedding,
			[W1] = &l->w1,
			[B1] = &l->b1,
			[W2] = &l->w2,
			[B2] = &l->b2,
			[W3] = &w->w3,
			[B3] = &w->b3,
			[FILLER] = NULL,
		};
		if (where[t->kind])
			*where[t->kind] = base + t->at;
	}
}
