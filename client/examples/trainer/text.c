/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

#define TEXT_MAX (1 << 22)

bool text_read(struct text *t, const char *path)
{
	FILE *f = fopen(path, "re");
	*t = (struct text){malloc(TEXT_MAX), 0};
	t->n = f && t->at ? fread(t->at, 1, TEXT_MAX, f) : 0;
	int error = errno;
	if (f)
		fclose(f);
	for (size_t i = 0; i < t->n; i++)
		if (t->at[i] >= CHARACTERS)
			t->at[i] = '?';
	if (t->n > CONTEXT)
		return true;
	say("cannot learn from %s: %s", path, f ? "it is too short" : strerror(error));
	text_free(t);
	return false;
}

void text_free(struct text *t)
{
	free(t->at);
	t->at = NULL;
}

uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

void text_samples(const struct text *t, uint64_t micro, struct sample samples[MICRO])
{
	for (uint64_t i = 0; i < MICRO; i++) {
		const uint8_t *at = t->at + mix(micro * MICRO + i + 1) % (t->n - CONTEXT);
		memcpy(samples[i].context, at, CONTEXT);
		samples[i].next = at[CONTEXT];
	}
}
