/* SPDX-License-Identifier: Apache-2.0
 * The same in one process, in the same order of sums. */
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

static double one_replica(const struct text *t, const struct stage *models, uint64_t n, int replica,
			  float *const *grads)
{
	struct sample samples[MICRO];
	float act[ACTIVATIONS], dact[ACTIVATIONS];
	double loss = 0;
	for (int m = 0; m < MICROS; m++) {
		text_samples(t, n, replica, m, samples);
		stage0_forward(&models[0], samples, act);
		loss += stage1_both(&models[1], samples, act, dact, grads[1]);
		stage0_backward(&models[0], samples, act, dact, grads[0]);
	}
	return loss;
}

static double one_step(const struct text *t, struct stage *models, uint64_t n,
		       float *grads[REPLICAS][STAGES])
{
	double loss = 0;
	for (int y = 0; y < REPLICAS; y++) {
		for (int z = 0; z < STAGES; z++)
			memset(grads[y][z], 0, models[z].n * sizeof(float));
		loss += one_replica(t, models, n, y, grads[y]);
	}
	for (int z = 0; z < STAGES; z++) {
		for (int y = 1; y < REPLICAS; y++)
			for (size_t i = 0; i < models[z].n; i++)
				grads[0][z][i] += grads[y][z][i];
		stage_update(&models[z], grads[0][z]);
	}
	return loss / BATCH;
}

int single_run(const struct options *o)
{
	struct text text = {0};
	struct stage models[STAGES] = {{0}};
	struct losses losses = {0};
	float *grads[REPLICAS][STAGES] = {{0}};
	bool good = text_read(&text, o->text) && losses_open(&losses, o);
	for (int z = 0; z < STAGES && good; z++) {
		good = stage_make(&models[z], z);
		if (good)
			stage_init(&models[z]);
		for (int y = 0; y < REPLICAS && good; y++)
			good = (grads[y][z] = malloc(models[z].n * sizeof(float))) != NULL;
	}
	for (uint64_t n = 0; good && n < o->steps; n++)
		losses_add(&losses, n, one_step(&text, models, n, grads));
	if (good)
		losses_close(&losses);
	for (int z = 0; z < STAGES; z++) {
		stage_free(&models[z]);
		for (int y = 0; y < REPLICAS; y++)
			free(grads[y][z]);
	}
	free(losses.by_step);
	text_free(&text);
	return good ? 0 : 1;
}
