/* SPDX-License-Identifier: Apache-2.0
 * A binary heap of deadlines. Each element knows its place, so it can be removed early. */
#ifndef ENGINE_DEADLINES_H
#define ENGINE_DEADLINES_H

#include <stdint.h>

struct deadline {
	uint64_t at_ns;
	uint32_t place; /* 1-based; 0: not in a heap */
};

struct deadlines {
	struct deadline **heap; /* [1..n] */
	uint32_t n, room;
};

/* Returns 0, or -ENOMEM with nothing changed. */
int deadlines_add(struct deadlines *h, struct deadline *d, uint64_t at_ns);
/* Does nothing if d is in no heap. */
void deadlines_remove(struct deadlines *h, struct deadline *d);
/* The earliest, or NULL. */
struct deadline *deadlines_first(const struct deadlines *h);
void deadlines_fini(struct deadlines *h);

#endif
