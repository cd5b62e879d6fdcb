/* SPDX-License-Identifier: Apache-2.0
 * Sums within one rank are added as floats in a fixed order; sums that a horizontal group shares
 * are integers (fixed.h). */
#include "model.h"

#include <math.h>
#include <string.h>

#include "fixed.h"

/* ---- Products, for one sample; w: [nin][nout] ---- */

static void multiply(const float *w, const float *b, const float *in, float *out, size_t nin,
		     size_t nout)
{
	memcpy(out, b, nout * sizeof(float));
	for (size_t i = 0; i < nin; i++)
		for (size_t k = 0; k < nout; k++)
			out[k] += in[i] * w[i * nout + k];
}

/* The gradient with respect to the input. */
static float back(const float *row, const float *dout, size_t nout)
{
	float sum = 0;
	for (size_t k = 0; k < nout; k++)
		sum += row[k] * dout[k];
	return sum;
}

/* The gradients with respect to w and b. */
static void collect(float *dw, float *db, const float *in, const float *dout, size_t nin,
		    size_t nout)
{
	for (size_t k = 0; k < nout; k++)
		db[k] += dout[k];
	for (size_t i = 0; i < nin; i++)
		for (size_t k = 0; k < nout; k++)
			dw[i * nout + k] += in[i] * dout[k];
}

/* ---- Embedding ---- */

void embedding_forward(const struct weights *w, const struct sample *in, float *x)
{
	for (size_t i = 0; i < MICRO; i++)
		for (size_t c = 0; c < CONTEXT; c++, x += EMBEDDING)
			memcpy(x, w->embedding + (size_t)in[i].context[c] * EMBEDDING,
			       EMBEDDING * sizeof(float));
}

void embedding_backward(const struct weights *grads, const struct sample *in, const float *dx)
{
	for (size_t i = 0; i < MICRO; i++)
		for (size_t c = 0; c < CONTEXT; c++, dx += EMBEDDING)
			for (size_t e = 0; e < EMBEDDING; e++)
				grads->embedding[(size_t)in[i].context[c] * EMBEDDING + e] += dx[e];
}

/* ---- Layers ---- */

void layer_forward(const struct layer *w, size_t hidden, const float *x, float *h, int64_t *parts)
{
	memset(parts, 0, ROW * sizeof(int64_t));
	for (size_t i = 0; i < MICRO; i++, x += WIDTH, h += hidden, parts += WIDTH) {
		multiply(w->w1, w->b1, x, h, WIDTH, hidden);
		for (size_t j = 0; j < hidden; j++) {
			h[j] = tanhf(h[j]);
			for (size_t k = 0; k < WIDTH; k++)
				parts[k] += fixed(h[j] * w->w2[j * WIDTH + k]);
		}
	}
}

void layer_output(const struct layer *w, const float *x, const int64_t *sums, float *y)
{
	for (size_t i = 0; i < ROW; i++)
		y[i] = x[i] + w->b2[i % WIDTH] + (float)unfixed(sums[i]);
}

void layer_backward(const struct layer *w, const struct layer *grads, size_t hidden, const float *x,
		    const float *h, const float *dy, int64_t *parts)
{
	float dh[HIDDEN];
	memset(parts, 0, ROW * sizeof(int64_t));
	for (size_t i = 0; i < MICRO; i++, x += WIDTH, h += hidden, dy += WIDTH, parts += WIDTH) {
		collect(grads->w2, grads->b2, h, dy, hidden, WIDTH);
		for (size_t j = 0; j < hidden; j++)
			dh[j] = back(w->w2 + j * WIDTH, dy, WIDTH) * (1 - h[j] * h[j]);
		collect(grads->w1, grads->b1, x, dh, WIDTH, hidden);
		for (size_t k = 0; k < WIDTH; k++)
			for (size_t j = 0; j < hidden; j++)
				parts[k] += fixed(w->w1[k * hidden + j] * dh[j]);
	}
}

void layer_input(const float *dy, const int64_t *sums, float *dx)
{
	for (size_t i = 0; i < ROW; i++)
		dx[i] = dy[i] + (float)unfixed(sums[i]);
}

/* ---- Output ---- */

/* Replaces the guesses' probabilities by the loss's gradient, and returns the loss. */
static double guess(float *logits, uint8_t right)
{
	float highest = logits[0], sum = 0;
	for (size_t k = 1; k < CHARACTERS; k++)
		highest = logits[k] > highest ? logits[k] : highest;
	for (size_t k = 0; k < CHARACTERS; k++)
		sum += logits[k] = expf(logits[k] - highest);
	for (size_t k = 0; k < CHARACTERS; k++)
		logits[k] /= sum;
	double loss = -log((double)logits[right] + 1e-30);
	logits[right] -= 1;
	return loss;
}

double output_both(const struct weights *w, const struct weights *grads, const struct sample *in,
		   const float *x, float *dx)
{
	float out[CHARACTERS];
	double loss = 0;
	for (size_t i = 0; i < MICRO; i++, x += WIDTH, dx += WIDTH) {
		multiply(w->w3, w->b3, x, out, WIDTH, CHARACTERS);
		loss += guess(out, in[i].next);
		collect(grads->w3, grads->b3, x, out, WIDTH, CHARACTERS);
		for (size_t k = 0; k < WIDTH; k++)
			dx[k] = back(w->w3 + k * CHARACTERS, out, CHARACTERS);
	}
	return loss;
}
