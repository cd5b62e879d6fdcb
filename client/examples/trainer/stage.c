/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

/* Initial values are within +- this. */
static const float scales[] = {
	[EMBEDDINGS] = 1.0f, [W1] = 0.2f, [W2] = 0.1f, [W3] = 0.1f, [B3] = 0,
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

/* ---- The partition ---- */

static bool partition(struct stage *s, int ranks, int index)
{
	uint64_t counts[TENSORS_MAX];
	ncclsvc_partition p;
	for (size_t i = 0; i < s->n_tensors; i++)
		counts[i] = s->tensors[i].n;
	if (ncclsvc_partition_fit(counts, s->n_tensors, ranks, &p, s->views, &s->n_views)) {
		say("%s", ncclsvc_last_error());
		return false;
	}
	const size_t begin = (size_t)index * p.per_rank, end = begin + p.per_rank;
	s->own = begin < s->n ? begin : s->n;
	s->own_end = end < s->n ? end : s->n;
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
	return scales[kind] * ((float)(mix(x) >> 40) / (float)(1 << 23) - 1);
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
	for (size_t i = 0; i < s->n_views; i++) {
		const ncclsvc_view *v = &s->views[i];
		const size_t at = s->tensors[v->tensor].at + v->first;
		list[i] = (ncclsvc_tensor){(char *)base + at * ncclsvc_type_size(type), type, 1,
					   &v->count};
	}
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
		};
		*where[t->kind] = base + t->at;
	}
}
