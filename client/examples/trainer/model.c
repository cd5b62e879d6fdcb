/* SPDX-License-Identifier: Apache-2.0
 * An MLP that guesses the next character: embedding and a layer, then a layer and the guess. All
 * sums are in a fixed order, so that every way of running it gives the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

#define RATE	 0.15f
#define MOMENTUM 0.9f
#define INPUT	 (CONTEXT * EMBEDDING)

struct stage0 {
	float embedding[CHARACTERS][EMBEDDING];
	float w[INPUT][HIDDEN];
	float b[HIDDEN];
};

struct stage1 {
	float w2[HIDDEN][HIDDEN];
	float b2[HIDDEN];
	float w3[HIDDEN][CHARACTERS];
	float b3[CHARACTERS];
};

_Static_assert(sizeof(struct stage0) == STAGE0_PARAMS * sizeof(float), "stage 0");
_Static_assert(sizeof(struct stage1) == STAGE1_PARAMS * sizeof(float), "stage 1");

static uint64_t draw(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *state >> 33;
}

static void scatter(float *p, size_t n, float scale, uint64_t *state)
{
	for (size_t i = 0; i < n; i++)
		p[i] = scale * ((float)draw(state) / (float)(UINT64_C(1) << 30) - 1);
}

bool stage_make(struct stage *s, int stage)
{
	*s = (struct stage){.stage = stage, .n = stage ? STAGE1_PARAMS : STAGE0_PARAMS};
	s->params = calloc(s->n, sizeof(float));
	s->velocity = calloc(s->n, sizeof(float));
	return s->params && s->velocity;
}

void stage_free(struct stage *s)
{
	free(s->params);
	free(s->velocity);
}

void stage_init(struct stage *s)
{
	uint64_t state = 4711 + (uint64_t)s->stage;
	memset(s->params, 0, s->n * sizeof(float));
	memset(s->velocity, 0, s->n * sizeof(float));
	if (s->stage == 0) {
		struct stage0 *p = (struct stage0 *)s->params;
		scatter(p->embedding[0], (size_t)CHARACTERS * EMBEDDING, 0.5f, &state);
		scatter(p->w[0], (size_t)INPUT * HIDDEN, 0.2f, &state);
	} else {
		struct stage1 *p = (struct stage1 *)s->params;
		scatter(p->w2[0], (size_t)HIDDEN * HIDDEN, 0.2f, &state);
		scatter(p->w3[0], (size_t)HIDDEN * CHARACTERS, 0.1f, &state);
	}
}

/* ---- Layers: out = b + in * w, and back ---- */

static void forward(const float *w, const float *b, const float *in, float *out, size_t nin,
		    size_t nout)
{
	memcpy(out, b, nout * sizeof(float));
	for (size_t i = 0; i < nin; i++)
		for (size_t k = 0; k < nout; k++)
			out[k] += in[i] * w[i * nout + k];
}

/* din may be NULL. */
static void backward(const float *w, const float *in, const float *dout, float *dw, float *db,
		     float *din, size_t nin, size_t nout)
{
	for (size_t k = 0; k < nout; k++)
		db[k] += dout[k];
	for (size_t i = 0; i < nin; i++) {
		float sum = 0;
		for (size_t k = 0; k < nout; k++)
			dw[i * nout + k] += in[i] * dout[k];
		for (size_t k = 0; k < nout; k++)
			sum += w[i * nout + k] * dout[k];
		if (din)
			din[i] = sum;
	}
}

static void squash(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = tanhf(x[i]);
}

static void unsquash(const float *y, float *dy, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dy[i] *= 1 - y[i] * y[i];
}

static void look_up(const struct stage0 *p, const struct sample *in, float *x)
{
	for (size_t c = 0; c < CONTEXT; c++)
		memcpy(x + c * EMBEDDING, p->embedding[in->context[c]], EMBEDDING * sizeof(float));
}

/* ---- Stages ---- */

void stage0_forward(const struct stage *s, const struct sample *in, float *act)
{
	const struct stage0 *p = (const struct stage0 *)s->params;
	float x[INPUT];
	for (size_t i = 0; i < MICRO; i++, act += HIDDEN) {
		look_up(p, &in[i], x);
		forward(p->w[0], p->b, x, act, INPUT, HIDDEN);
		squash(act, HIDDEN);
	}
}

void stage0_backward(const struct stage *s, const struct sample *in, const float *act,
		     const float *dact, float *grads)
{
	const struct stage0 *p = (const struct stage0 *)s->params;
	struct stage0 *g = (struct stage0 *)grads;
	float x[INPUT], dx[INPUT], dh[HIDDEN];
	for (size_t i = 0; i < MICRO; i++, act += HIDDEN, dact += HIDDEN) {
		look_up(p, &in[i], x);
		memcpy(dh, dact, sizeof(dh));
		unsquash(act, dh, HIDDEN);
		backward(p->w[0], x, dh, g->w[0], g->b, dx, INPUT, HIDDEN);
		for (size_t c = 0; c < CONTEXT; c++)
			for (size_t e = 0; e < EMBEDDING; e++)
				g->embedding[in[i].context[c]][e] += dx[c * EMBEDDING + e];
	}
}

/* Makes the guesses' probabilities the loss's gradient, and returns the loss. */
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

double stage1_both(const struct stage *s, const struct sample *in, const float *act, float *dact,
		   float *grads)
{
	const struct stage1 *p = (const struct stage1 *)s->params;
	struct stage1 *g = (struct stage1 *)grads;
	float h[HIDDEN], dh[HIDDEN], out[CHARACTERS];
	double loss = 0;
	for (size_t i = 0; i < MICRO; i++, act += HIDDEN, dact += HIDDEN) {
		forward(p->w2[0], p->b2, act, h, HIDDEN, HIDDEN);
		squash(h, HIDDEN);
		forward(p->w3[0], p->b3, h, out, HIDDEN, CHARACTERS);
		loss += guess(out, in[i].next);
		backward(p->w3[0], h, out, g->w3[0], g->b3, dh, HIDDEN, CHARACTERS);
		unsquash(h, dh, HIDDEN);
		backward(p->w2[0], act, dh, g->w2[0], g->b2, dact, HIDDEN, HIDDEN);
	}
	return loss;
}

void stage_update(struct stage *s, const float *grads)
{
	for (size_t i = 0; i < s->n; i++) {
		s->velocity[i] = MOMENTUM * s->velocity[i] + grads[i] / BATCH;
		s->params[i] -= RATE * s->velocity[i];
	}
}
