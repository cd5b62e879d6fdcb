/* SPDX-License-Identifier: Apache-2.0
 * A binary heap of deadlines. Each element stores its index, so it can be removed early. */
#ifndef BASE_DEADLINES_H
#define BASE_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

struct deadline {
	uint64_t at_ns;
	uint32_t place; /* 1-based; 0: not in a heap */
};

struct deadlines {
	struct deadline **heap; /* [1..n] */
	uint32_t n, room;
};

/* Reserves room for n elements, so that adding n cannot fail. Returns 0, or -ENOMEM with nothing
 * changed. */
int deadlines_reserve(struct deadlines *h, uint32_t n);
/* Returns 0, or -ENOMEM with nothing changed. */
int deadlines_add(struct deadlines *h, struct deadline *d, uint64_t at_ns);
void deadlines_take(struct deadlines *h, struct deadline *d);

/* Does nothing if d is in no heap. */
static inline void deadlines_remove(struct deadlines *h, struct deadline *d)
{
	if (d->place)
		deadlines_take(h, d);
}

/* The earliest deadline, or NULL. */
static inline struct deadline *deadlines_first(const struct deadlines *h)
{
	return h->n ? h->heap[1] : NULL;
}

void deadlines_fini(struct deadlines *h);

#endif
