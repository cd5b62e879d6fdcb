/* SPDX-License-Identifier: Apache-2.0
 * The layers of stage.h, for one micro-batch: vectors are [MICRO][...]. Gradients accumulate. */
#ifndef TRAINER_MODEL_H
#define TRAINER_MODEL_H

#include "stage.h"

#define ROW ((size_t)MICRO * WIDTH) /* size of what one layer passes to the next */

void embedding_forward(const struct weights *w, const struct sample *in, float *x);
void embedding_backward(const struct weights *grads, const struct sample *in, const float *dx);

/* Fills h = tanh(b1 + x w1) and this slice's part of h w2. Once the horizontal group has added up
 * the parts, layer_output computes y from them. */
void layer_forward(const struct layer *w, size_t hidden, const float *x, float *h, int64_t *parts);
void layer_output(const struct layer *w, const float *x, const int64_t *sums, float *y);
/* Likewise: this slice's part of the gradient with respect to x. dx = dy + the sums; dx may be dy
 * itself. */
void layer_backward(const struct layer *w, const struct layer *grads, size_t hidden, const float *x,
		    const float *h, const float *dy, int64_t *parts);
void layer_input(const float *dy, const int64_t *sums, float *dx);

/* Both directions at once: fills dx, and returns the sum of the samples' losses. */
double output_both(const struct weights *w, const struct weights *grads, const struct sample *in,
		   const float *x, float *dx);

#endif
