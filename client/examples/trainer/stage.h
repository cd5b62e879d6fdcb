/* SPDX-License-Identifier: Apache-2.0
 * What a rank has of the model: the layers of its pipeline stage, and of each its slice. Layer l is
 *
 *   y = x + b2 + tanh(b1 + x w1) w2
 *
 * Horizontal parallelism divides the columns of w1, b1 and the rows of w2. The embedding, on the
 * first stage, and the output w3, b3, on the last one, are on every rank of a horizontal group.
 *
 * All tensors of a rank lie one after the other, parameters and gradients alike, so the data group
 * can reduce them as one vector, or as a list of tensors that it divides among its ranks.
 */
#ifndef TRAINER_STAGE_H
#define TRAINER_STAGE_H

#include <ncclsvc_tensors.h>
#include <ncclsvc_world.h>

#include "trainer.h"

enum kind { EMBEDDINGS, W1, B1, W2, B2, W3, B3 };

struct tensor {
	enum kind kind;
	int layer;	 /* for W1 to B2 */
	int64_t dims[2]; /* of this rank's slice */
	size_t n, at;	 /* number of elements, and offset of the first one */
};

#define TENSORS_MAX (3 + 4 * LAYERS)
#define VIEWS_MAX   (TENSORS_MAX + RANKS_MAX)

struct stage {
	ncclsvc_layout layout;
	int first, end;	   /* layers */
	bool begins, ends; /* has the embedding; has the output */
	size_t hidden;	   /* this rank's part of a layer's inner width */
	struct tensor tensors[TENSORS_MAX];
	size_t n_tensors, n; /* n: total number of elements */
	size_t own, own_end; /* the elements that this rank updates */
	/* With --zero: the tensors, cut where the elements of one rank of the data group end. */
	ncclsvc_view views[VIEWS_MAX];
	size_t n_views;
};

/* Computes a rank's stage. If there can be none, prints an error and returns false. */
bool stage_make(struct stage *s, const struct options *o, int rank);
/* Deterministic initial values: an element has the same value on any number of ranks. */
void stage_init(const struct stage *s, float *parameters);
/* The list of views at `base` for the library; `list` has room for n_views. */
void stage_list(const struct stage *s, void *base, ncclsvc_type type, ncclsvc_tensor *list);

/* Where the tensors are in a vector of parameters or gradients. */
struct layer {
	float *w1, *b1, *w2, *b2; /* [WIDTH][hidden], [hidden], [hidden][WIDTH], [WIDTH] */
};

struct weights {
	float *embedding, *w3, *b3; /* [CHARACTERS][EMBEDDING], [WIDTH][CHARACTERS], [CHARACTERS] */
	struct layer layers[LAYERS];
};

void stage_weights(const struct stage *s, float *base, struct weights *w);

#endif
